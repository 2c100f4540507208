"""Rows to stream entries: which column is what, and the blocks that a batch of rows becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import MapType, StringType, StructType

from millstream.brokers.payload import check_name
from millstream.errors import ConfigurationError, InvalidData, InvalidName, PayloadTooLarge
from millstream.spark.sink import jsontext
from millstream.spark.sink.blocks import mixed_blocks, plain_blocks
from millstream.spark.sink.columns import check_types, column_of, need_column, role_column
from millstream.spark.sink.options import EntryOptions
from millstream.spark.sink.staging import Block

# Columns of the source: beside a column of JSON texts they are not fields, and are passed over.
SOURCE_COLUMNS = frozenset(("stream", "id", "timestamp"))
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_headers = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(frozen=True)
class EntryPlan:
    """What each column of the DataFrame is for an entry."""

    options: EntryOptions
    fields: tuple[str, ...]  # of the JSON object; empty where one column has the JSON text
    data: str | None
    type: str | None
    headers: str | None
    stream: str | None

    def blocks(self, batch: Any, group_of: Callable[[str], str]) -> Iterator[tuple[str, Block]]:
        """The blocks of a batch of rows, each with the stream (or one of the streams) that it is for.

        Raises InvalidData, InvalidName or PayloadTooLarge for a row that cannot be an entry.
        """
        data = self._data(batch)
        size = pc.max(pc.binary_length(data)).as_py() or 0
        if size > self.options.max_payload:
            raise PayloadTooLarge(size, self.options.max_payload)
        types = None if self.type is None else _types(column_of(batch, self.type), self.type)
        headers = (
            None if self.headers is None else _header_texts(column_of(batch, self.headers), self.headers)
        )
        if self.stream is None:
            stream = self.options.stream or ""
            if types is None and headers is None:
                for block, rows in plain_blocks(data):
                    yield stream, (block, rows, (stream,))
            else:
                same = pa.array([stream], pa.string()).take(pa.array(np.zeros(len(data), np.int32)))
                for entry in mixed_blocks(same, data, types, headers):
                    yield stream, entry
            return
        streams = _streams(column_of(batch, self.stream), self.stream)
        for first, rows in _by_group(streams, group_of):
            picked = [
                None if column is None else column.take(rows) for column in (streams, data, types, headers)
            ]
            for entry in mixed_blocks(*picked):
                yield first, entry

    def _data(self, batch: Any) -> Any:
        if self.data is None:
            columns = [column_of(batch, name) for name in self.fields]
            return jsontext.objects(
                list(self.fields), columns, "column ", skip_nulls=self.options.ignore_null_fields
            )
        text = jsontext.text_of(column_of(batch, self.data), f"column {self.data}")
        for place, value in enumerate(text.to_pylist()):
            try:
                _object(value if value is not None else "null")
            except (msgspec.DecodeError, RecursionError) as error:
                shown = "null" if value is None else repr(value[:80])
                raise InvalidData(
                    f"column {self.data}", f"row {place} of a batch is no JSON object: {shown} ({error})"
                ) from None
        return text


def plan_entries(schema: StructType, options: EntryOptions) -> EntryPlan:
    """Decide what each column is. Raises ConfigurationError for a DataFrame that does not fit the options."""
    names = schema.names
    stream = options.stream_column
    if stream is not None:
        need_column(schema, "streamColumn", stream, StringType)
    type_ = role_column(schema, "typeColumn", options.type_column, "type", StringType)
    headers = role_column(schema, "headersColumn", options.headers_column, "headers", (StringType, MapType))
    taken = {name for name in (stream, type_, headers) if name is not None}
    data = options.data_column
    if data is not None:
        need_column(schema, "dataColumn", data, StringType)
        left = [name for name in names if name not in taken | SOURCE_COLUMNS and name != data]
        if left:
            raise ConfigurationError(
                f"with dataColumn={data!r} the columns {', '.join(left)} would be lost; "
                "drop them, or leave out dataColumn to make every column a field"
            )
    elif set(names) - taken - SOURCE_COLUMNS == {"data"} and isinstance(schema["data"].dataType, StringType):
        data = "data"
    fields = () if data is not None else tuple(name for name in names if name not in taken)
    if data is None and not fields:
        raise ConfigurationError("no column is left for the entries' data; select at least one")
    check_types(schema, fields)
    return EntryPlan(options, fields, data, type_, headers, stream)


def _types(column: Any, name: str) -> Any:
    text = jsontext.text_of(column, f"column {name}")
    for value in pc.unique(text).to_pylist():
        if value is not None:
            check_name("type", value)
    return text


def _header_texts(column: Any, name: str) -> Any:
    """Headers as JSON text; nothing where there are none."""
    path = f"column {name}"
    if pa.types.is_map(column.type):
        if not pa.types.is_string(column.type.item_type) or not pa.types.is_string(column.type.key_type):
            raise InvalidData(path, f"must be a map of texts by text, not {column.type}")
        if pc.any(pc.is_null(column.items)).as_py():
            raise InvalidData(path, "has a header that is null; headers are texts by text")
        text = jsontext.values(column, path)
    else:
        text = jsontext.text_of(column, path)
        for value in pc.unique(text).to_pylist():
            try:
                _headers(value or "{}")
            except msgspec.DecodeError as error:
                raise InvalidData(path, f"{value[:80]!r} is no JSON object of texts ({error})") from None
    return pc.if_else(pc.equal(text, "{}"), pa.scalar(None, pa.string()), text)


def _streams(column: Any, name: str) -> Any:
    text = jsontext.text_of(column, f"column {name}")
    for value in pc.unique(text).to_pylist():
        if value is None:
            raise InvalidName("stream", None, f"the column {name} has a null; every row needs a stream")
        check_name("stream", value)
    return text


def _by_group(streams: Any, group_of: Callable[[str], str]) -> Iterator[tuple[str, Any]]:
    """The rows of each group of streams, with the first stream of it."""
    coded = streams.dictionary_encode()
    names = coded.dictionary.to_pylist()
    groups: dict[str, int] = {}
    firsts: list[str] = []
    numbers = np.empty(len(names), np.int32)
    for place, name in enumerate(names):
        group = group_of(name)
        if group not in groups:
            groups[group] = len(firsts)
            firsts.append(name)
        numbers[place] = groups[group]
    of_row = numbers[coded.indices.to_numpy(zero_copy_only=False)]
    for number, first in enumerate(firsts):
        yield first, pa.array(np.flatnonzero(of_row == number))
