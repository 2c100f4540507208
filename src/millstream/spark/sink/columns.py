"""Columns by name: that they are there, and of a type that fits."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.errors import ConfigurationError

Kinds = type[DataType] | tuple[type[DataType], ...]
WHOLE = (ByteType, ShortType, IntegerType, LongType)
NUMBERS = (*WHOLE, FloatType, DoubleType, DecimalType)
MOMENTS = (TimestampType,)
_PLAIN = (*NUMBERS, StringType, BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType, NullType)
_KEYS = (*WHOLE, StringType, BooleanType, DateType)


def need_column(schema: StructType, option: str, name: str, kinds: Kinds) -> str:
    """``name`` itself, or ConfigurationError unless there is such a column of one of ``kinds``."""
    if name not in schema.names:
        near = difflib.get_close_matches(name, schema.names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        listed = ", ".join(schema.names) or "none"
        raise ConfigurationError(f"{option}={name!r}: there is no such column{hint}; there are {listed}")
    found = schema[name].dataType
    if not isinstance(found, kinds):
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        raise ConfigurationError(
            f"{option}={name!r}: the column is of the type {found.simpleString()}, and it must be "
            f"{' or '.join(dict.fromkeys(kind.typeName() for kind in wanted))}; cast it"
        )
    return name


def role_column(schema: StructType, option: str, given: str | None, usual: str, kinds: Kinds) -> str | None:
    """The column for a role: the one that was given, the usual one where it is there, or none for ''."""
    if given is None:
        return need_column(schema, f"{option} (by its name)", usual, kinds) if usual in schema.names else None
    return need_column(schema, option, given, kinds) if given else None


def check_types(schema: StructType, names: Iterable[str]) -> None:
    """Raise ConfigurationError for a column that has no form in JSON, before any row is read."""
    for name in names:
        _check(schema[name].dataType, name)


def _check(kind: DataType, path: str) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check(field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check(kind.elementType, f"{path}[]")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, _KEYS):
            raise ConfigurationError(
                f"the column {path} has keys of the type {kind.keyType.simpleString()}; JSON keys are texts: "
                "cast them to a string"
            )
        _check(kind.valueType, f"{path}{{}}")
    elif not isinstance(kind, _PLAIN):
        raise ConfigurationError(
            f"the column {path} is of the type {kind.simpleString()}, which has no form in JSON; "
            "cast it to a string, or drop it"
        )


def column_of(batch: Any, name: str) -> Any:
    """A column of an Arrow batch, as one array."""
    column = batch.column(batch.schema.names.index(name))
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
