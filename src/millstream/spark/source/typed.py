"""JSON text into typed columns.

`TypedReader` gives, for a page of entries, an Arrow array for each field that the user's schema has, and the
texts of those records that do not fit it. No record is ever dropped: what does not fit keeps its place, with
nulls in its typed columns and its text in ``_corrupt``; or the read fails and names the entry.

There are two ways, and they give the same: Arrow's own reader of JSON lines takes a whole page, and whenever
it finds anything that it does not accept, or could have accepted too much, `RowDecoder` goes through the
page record by record.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField

from millstream.errors import MalformedEntry
from millstream.spark.source.pages import Page
from millstream.spark.source.records import NOT_FITTING, RowDecoder

# Accepted by Arrow as numbers, and no JSON: a text that has them anywhere is looked at more closely.
_NOT_JSON = (b"NaN", b"Inf")
# Arrow makes -0.0 of this, too.
_WHOLE_ZERO = re.compile(rb"-0[\s,}\]]")
# Microseconds since 1970, a day from where Python's calendar ends: a zone may lead across it.
_EARLIEST = int(dt.datetime(1, 1, 2, tzinfo=dt.UTC).timestamp()) * 1_000_000
_LATEST = int(dt.datetime(9999, 12, 31, tzinfo=dt.UTC).timestamp()) * 1_000_000
_LONGEST_PAUSE = 64  # pages for which the fast way is not tried, where it keeps failing


class TypedReader:
    """Reads pages of one DataFrame. ``defaults`` are for fields that a record leaves out."""

    def __init__(
        self, fields: Sequence[StructField], defaults: Mapping[str, Any], *, permissive: bool
    ) -> None:
        self._defaults, self._permissive = defaults, permissive
        self._rows = RowDecoder(fields, defaults)  # first: it says what is wrong with a type
        self._types = {field.name: to_arrow_type(field.dataType, timezone="UTC") for field in fields}
        self._lines = _LineReader(fields, self._types, defaults)
        self._pause = self._waited = 0
        self.malformed = 0  # records that did not fit so far
        self.fast_pages = 0  # pages that went the fast way

    def read(self, stream: str, page: Page) -> tuple[dict[str, Any], Any]:
        """The typed columns of a page by name, and the texts that do not fit, or None where all do.

        Raises MalformedEntry for the first that does not fit, where such records are not to be kept.
        """
        if self._waited < self._pause:
            self._waited += 1
            return self._read_rows(stream, page)
        found = self._lines.read(page)
        if found is None:
            self._pause, self._waited = min(2 * self._pause + 1, _LONGEST_PAUSE), 0
            return self._read_rows(stream, page)
        self._pause = self._waited = 0
        self.fast_pages += 1
        return found, None

    def _read_rows(self, stream: str, page: Page) -> tuple[dict[str, Any], Any]:
        values: list[list[Any]] = [[] for _ in self._types]
        corrupt: dict[int, str] = {}
        for place, text in enumerate(page.data().to_pylist()):
            try:
                row = self._rows.decode(text)
            except NOT_FITTING as error:
                if not self._permissive:
                    raise MalformedEntry(stream, page.ids()[place].as_py(), str(error)) from None
                corrupt[place] = text
                row = self._rows.empty
            for column, value in zip(values, row, strict=True):
                column.append(value)
        arrays = {
            name: pa.array(column, kind)
            for (name, kind), column in zip(self._types.items(), values, strict=True)
        }
        if not corrupt:
            return arrays, None
        self.malformed += len(corrupt)
        return arrays, pa.array([corrupt.get(place) for place in range(page.rows)], pa.string())


class _LineReader:
    """The fast way: a whole page at once, or None where it has to be looked at record by record."""

    def __init__(
        self, fields: Sequence[StructField], types: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> None:
        self._types, self._defaults = types, defaults
        raw = {name: _raw_type(kind) for name, kind in types.items()}
        # What Arrow cannot read from JSON is read by rows, but only where the record has the field at all.
        self._hard = [field for field in fields if raw[field.name] is None]
        self._hard_rows = RowDecoder(self._hard)
        self._parse = pj.ParseOptions(
            explicit_schema=pa.schema([(name, kind) for name, kind in raw.items() if kind is not None]),
            unexpected_field_behavior="ignore",
        )

    def read(self, page: Page) -> dict[str, Any] | None:
        lines = page.lines()
        if lines is None:
            return None
        text = lines.to_pybytes()
        if any(word[:1] in text and word in text for word in _NOT_JSON):  # one byte is found much faster
            return None
        try:
            # One block: where the text is cut into several, each costs as much as a small page.
            options = pj.ReadOptions(use_threads=False, block_size=max(len(text), 1) + 1)
            table = pj.read_json(pa.BufferReader(lines), read_options=options, parse_options=self._parse)
            if table.num_rows != page.rows:
                return None
            found = {}
            for name in table.schema.names:
                array = table[name].combine_chunks()
                _check_numbers(array, text)
                found[name] = _finish(array, self._types[name], self._defaults.get(name))
            if self._hard:
                found |= self._read_hard(page)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, *NOT_FITTING):
            return None
        return found

    def _read_hard(self, page: Page) -> dict[str, Any]:
        texts = page.data()
        # A name may be spelled with escapes, so a text with a backslash may have any field.
        may = pc.match_substring(texts, "\\")
        for field in self._hard:
            may = pc.or_(may, pc.match_substring(texts, f'"{field.name}"'))
        rows: list[tuple[Any, ...]] = [self._hard_rows.empty] * page.rows
        for place in np.flatnonzero(may.to_numpy(zero_copy_only=False)):
            rows[place] = self._hard_rows.decode(texts[int(place)].as_py())
        found = {}
        for column, field in enumerate(self._hard):
            default = self._defaults.get(field.name)
            values = [default if row[column] is None else row[column] for row in rows]
            found[field.name] = pa.array(values, self._types[field.name])
        return found


def _raw_type(kind: Any) -> Any | None:
    """The type that Arrow reads exactly out of JSON, and ``kind`` is made of; None where there is none."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.string()
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return kind
    if pa.types.is_list(kind):
        item = _raw_type(kind.value_type)
        return pa.list_(pa.field(kind.value_field.name, item)) if item == kind.value_type else None
    return None


def _finish(array: Any, kind: Any, default: Any) -> Any:
    """The column in the type that Spark wants. Raises ArrowInvalid for a value that does not fit it."""
    if pa.types.is_list(kind) and default == []:
        array = pa.ListArray.from_arrays(array.offsets, array.values)  # a missing list is an empty one
    elif default is not None:
        array = pc.fill_null(array, pa.scalar(default, array.type))
    if pa.types.is_timestamp(kind):
        return _timestamps(array, kind)
    if pa.types.is_float32(kind):
        return array.cast(kind, safe=False)  # rounded, as any float
    return array if array.type == kind else array.cast(kind)


def _timestamps(texts: Any, kind: Any) -> Any:
    """Texts with a zone as timestamps. What Arrow takes the other way takes too, but for the year 0."""
    found = texts.cast(kind)
    bounds = pc.min_max(found.view(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not _EARLIEST <= low <= high <= _LATEST:
        raise pa.ArrowInvalid("so near the ends of the calendar the other way judges")
    return found


def _check_numbers(array: Any, text: bytes) -> None:
    """Raise ArrowInvalid for what Arrow may have made of a number that is another one, or too large."""
    values = array.flatten() if pa.types.is_list(array.type) else array
    if not pa.types.is_float64(values.type):
        return
    numbers = pc.fill_null(values, 1.0).to_numpy(zero_copy_only=False)
    if not np.isfinite(numbers).all():
        raise pa.ArrowInvalid("a number that is too large")
    if np.any(np.signbit(numbers) & (numbers == 0)) and _WHOLE_ZERO.search(text):
        raise pa.ArrowInvalid("-0 is a whole number, and has no sign")
