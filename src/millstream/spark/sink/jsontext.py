"""Columns to JSON text, whole Arrow arrays at a time: no Python object is made for a value.

Each type has one form, which `docs/spark-sink.md` lists: numbers (decimals too, with all their digits),
texts, true and false, ISO 8601 for dates and times (UTC and a ``Z`` where the column has a time zone), base64
for binary, objects for structs and maps, arrays. What JSON cannot say (NaN, infinite numbers, text that is
not UTF-8), and dates whose year has not four digits, raise InvalidData with the column's name; nothing is
changed on the way.
"""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidData

_NULL = "null"
_FIRST_DAY, _LAST_DAY = ((day - dt.date(1970, 1, 1)).days for day in (dt.date.min, dt.date.max))
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    8: "\\b",
    9: "\\t",
    10: "\\n",
    12: "\\f",
    13: "\\r",
}
_SPECIAL = r'["\\\x00-\x1f]'
_CONTROL = r"[\x00-\x1f]"


def objects(names: list[str], columns: list[Any], path: str, *, skip_nulls: bool) -> Any:
    """One JSON object per row. ``path`` is what the columns belong to, for messages."""
    return _object(names, columns, path, skip_nulls, len(columns[0]) if columns else 0)


def _object(names: list[str], columns: list[Any], path: str, skip_nulls: bool, rows: int) -> Any:
    if not columns:
        return pa.array(["{}"] * rows, pa.string())
    labels = [msgspec.json.encode(name).decode() + ":" for name in names]
    if skip_nulls:
        # A field that is null leaves nothing behind, so every field brings its comma, and the first character
        # of the whole is dropped.
        some = [
            pc.fill_null(_join(f",{label}", values(column, f"{path}{name}", skip_nulls=True)), "")
            for name, label, column in zip(names, labels, columns, strict=True)
        ]
        return _join("{", pc.utf8_slice_codeunits(_join(*some), 1), "}")
    parts: list[Any] = []
    constant = "{"  # what stands between two columns is joined with them in one go
    for name, label, column in zip(names, labels, columns, strict=True):
        before, text, after = _enclosed_text(column, f"{path}{name}", skip_nulls)
        if text.null_count:
            before, text, after = "", pc.fill_null(_join(before, text, after), _NULL), ""
        parts += [constant + label + before, text]
        constant = after + ","
    return _join(*parts, constant[:-1] + "}")


def values(column: Any, path: str, *, skip_nulls: bool = False) -> Any:
    """The JSON text of each value of an Arrow array; null where the value is null."""
    before, text, after = _enclosed_text(column, path, skip_nulls)
    return _join(before, text, after) if before else text


def _enclosed_text(column: Any, path: str, skip_nulls: bool) -> tuple[str, Any, str]:
    """The texts of a column, and what is to be put before and after each."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return '"', escaped(column, path), '"'
    if pa.types.is_timestamp(kind):
        return '"', _timestamps(column, path), '"' if kind.tz is None else 'Z"'
    if pa.types.is_date(kind):
        return '"', _dates(column, path), '"'
    return "", _unquoted(column, path, skip_nulls), ""


def _unquoted(column: Any, path: str, skip_nulls: bool) -> Any:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        # Arrow writes some decimals as 1E-10: valid JSON, and the digits are exact.
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column, path)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _base64(column)
    if pa.types.is_struct(kind):
        return _structs(column, path, skip_nulls)
    if pa.types.is_map(kind):
        return _maps(column, path, skip_nulls)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column, path, skip_nulls)
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    raise InvalidData(path, f"is of the type {kind}, which has no form in JSON; cast it to a string")


def text_of(column: Any, path: str) -> Any:
    """A column of texts as an Arrow string array, checked to be UTF-8: Spark does not promise that."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidData(
            path, f"has a text that is not UTF-8 ({error}); use base64 or a binary column"
        ) from None
    return column


def escaped(column: Any, path: str) -> Any:
    """Texts as they stand between the quotes of a JSON string."""
    text = text_of(column, path)
    # Most texts have nothing to escape, and one look at all of them is cheaper than replacing.
    if pc.any(pc.match_substring_regex(text, _SPECIAL)).as_py():
        text = pc.replace_substring(text, "\\", "\\\\")
        text = pc.replace_substring(text, '"', '\\"')
        if pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
            for code, escape in _ESCAPES.items():
                text = pc.replace_substring(text, chr(code), escape)
    return text


def _floats(column: Any, path: str) -> Any:
    if not pc.all(pc.is_finite(column)).as_py() and len(column) > column.null_count:
        raise InvalidData(
            path,
            "has a value that is NaN or infinite, for which JSON has no number; "
            "replace it before writing, for example with nanvl() or nullif()",
        )
    return column.cast(pa.string())


def _timestamps(column: Any, path: str) -> Any:
    # In UTC, seen as if it had no zone: then no database of time zones is needed to write it.
    moments = column.cast(pa.timestamp("us", column.type.tz))
    check_years(moments, path)
    text = moments.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
    return pc.binary_replace_slice(text, start=10, stop=11, replacement="T")


def _dates(column: Any, path: str) -> Any:
    days = column.cast(pa.date32())
    check_years(days, path)
    return days.cast(pa.string())


def check_years(column: Any, path: str) -> None:
    """Raise InvalidData unless all days, or all microseconds, lie in the years 1 to 9999."""
    days = pa.types.is_date(column.type)
    bounds = pc.min_max(column.view(pa.int32() if days else pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    of_a_day = 1 if days else 86_400_000_000
    if low is not None and not _FIRST_DAY * of_a_day <= low <= high < (_LAST_DAY + 1) * of_a_day:
        raise InvalidData(
            path,
            "has a date before the year 1 or after 9999, in UTC, for which ISO 8601 has no "
            "common form; replace it before writing, for example with null, or cast it to a string",
        )


def _base64(column: Any) -> Any:
    encode = base64.b64encode
    return pa.array(
        [None if value is None else f'"{encode(value).decode()}"' for value in column.to_pylist()],
        pa.string(),
    )


def _structs(column: Any, path: str, skip_nulls: bool) -> Any:
    kind = column.type
    names = [kind.field(place).name for place in range(kind.num_fields)]
    text = _object(names, column.flatten(), f"{path}.", skip_nulls, len(column))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _lists(column: Any, path: str, skip_nulls: bool) -> Any:
    items = pc.fill_null(values(column.flatten(), f"{path}[]", skip_nulls=skip_nulls), _NULL)
    return _enclosed(column, items, "[", "]")


def _maps(column: Any, path: str, skip_nulls: bool) -> Any:
    lists = column.cast(
        pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)]))
    )
    pairs = lists.flatten()
    keys, items = pairs.flatten()
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        names = _join('"', escaped(keys, f"{path} (a key)"), '"')
    elif pa.types.is_date(keys.type):
        names = _join('"', _dates(keys, f"{path} (a key)"), '"')
    elif pa.types.is_integer(keys.type) or pa.types.is_boolean(keys.type):
        names = _join('"', keys.cast(pa.string()), '"')
    else:
        raise InvalidData(
            path, f"has keys of the type {keys.type}; JSON keys are texts: cast them to a string"
        )
    text = pc.fill_null(values(items, f"{path}{{}}", skip_nulls=skip_nulls), _NULL)
    return _enclosed(lists, _join(names, ":", text), "{", "}")


def _enclosed(lists: Any, items: Any, start: str, end: str) -> Any:
    """The texts of each list's items, joined by commas."""
    counts = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts.to_numpy(zero_copy_only=False), out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    return pc.if_else(lists.is_valid(), _join(start, joined, end), pa.scalar(None, pa.string()))


def _join(*parts: Any) -> Any:
    """Texts side by side; null where one of them is."""
    scalars = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar(""))
