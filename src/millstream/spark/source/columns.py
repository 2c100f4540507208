"""Which column of the DataFrame comes from where, and the Arrow batches that Spark accepts.

A column is a part of the entry (its stream, id, timestamp, data, type, headers), a field of its JSON data, or
``_corrupt``. A name that could be both means the part of the entry, if it has that part's type; with a ``_``
before it, it always does; and the option jsonFields makes it the JSON field.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.errors import ConfigurationError
from millstream.history import Record
from millstream.spark.source.options import PERMISSIVE, SourceOptions
from millstream.spark.source.pages import Page
from millstream.spark.source.typed import TypedReader

log = logging.getLogger("millstream.spark")

CORRUPT = "_corrupt"
PARTS: dict[str, DataType] = {
    "stream": StringType(),
    "id": StringType(),
    "timestamp": TimestampType(),
    "data": StringType(),
    "type": StringType(),
    "headers": MapType(StringType(), StringType()),
}
_RECORD_TYPES: dict[Any, DataType] = {
    str: StringType(),
    float: DoubleType(),
    int: IntegerType(),
    list[str]: ArrayType(StringType()),
    dict[str, str]: MapType(StringType(), StringType()),
}
_headers_of = msgspec.json.Decoder(dict[str, str]).decode
HEADERS = pa.map_(pa.string(), pa.string())


def schema_for(options: SourceOptions) -> StructType:
    """The columns where the user gives none: the parts of an entry, or the fields of a history record."""
    if not options.records:
        return StructType([StructField(name, kind) for name, kind in PARTS.items()])
    return StructType(
        [
            StructField(field.name, _RECORD_TYPES[_plain(field.type)])
            for field in msgspec.structs.fields(Record)
        ]
    )


def _plain(annotation: Any) -> Any:
    """``float`` from ``float | None``."""
    options = [each for each in getattr(annotation, "__args__", ()) if each is not type(None)]
    return options[0] if type(None) in getattr(annotation, "__args__", ()) else annotation


def _record_defaults() -> dict[str, Any]:
    """What a record leaves out because it has its default value. What must be there has none."""
    found = {}
    for field in msgspec.structs.fields(Record):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
    return {name: value for name, value in found.items() if value is not None}


class Columns:
    """Makes the batches of one DataFrame out of pages."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.schema = schema
        self._part_of: dict[str, str] = {}
        fields = []
        for field in schema:
            part = _part(field, options)
            if part in (None, CORRUPT, "type"):
                _check_nullable(field.name, field.nullable, field.dataType)
            if part is not None:
                self._part_of[field.name] = part
            else:
                fields.append(field)
        keeps = CORRUPT in self._part_of.values()
        mode = options.mode or (PERMISSIVE if keeps or not fields else None)
        self._typed = None
        if fields or keeps:
            defaults = _record_defaults() if options.records else {}
            self._typed = TypedReader(fields, defaults, permissive=mode == PERMISSIVE)
        self.arrow = to_arrow_schema(schema, timezone="UTC")

    def batch(self, stream: str, page: Page) -> pa.RecordBatch:
        """The rows of a page. Raises MalformedEntry."""
        fields, corrupt = ({}, None) if self._typed is None else self._typed.read(stream, page)
        arrays = []
        for field in self.arrow:
            part = self._part_of.get(field.name)
            if part is None:
                arrays.append(fields[field.name])
            elif part == CORRUPT:
                arrays.append(pa.nulls(page.rows, pa.string()) if corrupt is None else corrupt)
            else:
                arrays.append(_entry_part(part, stream, page))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def report(self) -> None:
        """Say in the log how many records did not fit, if any."""
        if self._typed is not None and self._typed.malformed:
            log.warning(
                "%d records did not fit the schema; their typed columns are null", self._typed.malformed
            )


def _part(field: StructField, options: SourceOptions) -> str | None:
    """The part of the entry that a column is; None for a field of the JSON data."""
    name = field.name
    if name == CORRUPT:
        if not isinstance(field.dataType, StringType):
            raise ConfigurationError(f"the column {CORRUPT} keeps text; declare it as string")
        return CORRUPT
    forced = name.removeprefix("_") if name.startswith("_") and name[1:] in PARTS else None
    if forced is not None:
        wanted = PARTS[forced]
        if not _same(field.dataType, wanted):
            raise ConfigurationError(
                f"the column {name} is a part of the entry and has the type {wanted.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
        return forced
    if name not in PARTS or name in options.json_fields or not _same(field.dataType, PARTS[name]):
        return None
    if options.records and name in Record.__struct_fields__:
        return None
    return name


def _check_nullable(path: str, nullable: bool, kind: DataType) -> None:
    """Raise ConfigurationError for what promises never to be null: any record may lack any field."""
    if not nullable:
        raise ConfigurationError(f"the column {path} is NOT NULL, but a record may lack it; leave that out")
    if isinstance(kind, ArrayType):
        _check_nullable(f"{path}[]", kind.containsNull, kind.elementType)
    elif isinstance(kind, MapType):
        _check_nullable(f"{path}{{}}", kind.valueContainsNull, kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind:
            _check_nullable(f"{path}.{field.name}", field.nullable, field.dataType)


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


def _entry_part(part: str, stream: str, page: Page) -> Any:
    if part == "stream":
        return pa.repeat(pa.scalar(stream, pa.string()), page.rows)
    if part == "id":
        return page.ids()
    if part == "timestamp":
        return page.times()
    if part == "data":
        return page.data()
    if part == "type":
        types = page.types()
        return pa.nulls(page.rows, pa.string()) if types is None else types
    headers = page.headers()
    if headers is None:
        return empty_maps(page.rows)
    return pa.array(
        [[] if text is None else list(_headers_of(text).items()) for text in headers.to_pylist()],
        HEADERS,
    )


def empty_maps(rows: int) -> Any:
    """Headers of entries that have none."""
    offsets = pa.array([0] * (rows + 1), pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))
