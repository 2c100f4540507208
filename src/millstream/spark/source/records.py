"""One JSON record at a time, exactly as a schema says: the slow and sure way that every other must agree
with.

A field that is missing or null is null. A string column takes any value: a JSON string as its text, anything
else as the JSON that it is. Numbers must be numbers and fit their type; a timestamp is ISO 8601 or seconds
since the epoch; a date is ISO 8601; binary is base64, as in Spark's own JSON.

A timestamp may lack its time (it is midnight then), its minutes, its seconds and its zone (UTC). Digits after
microseconds are dropped, as Spark does. It lies in the years 1 to 9999, in UTC.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
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
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.errors import ConfigurationError

# Whatever a text that does not fit can raise.
NOT_FITTING = (msgspec.DecodeError, UnicodeError, RecursionError, ValueError, OverflowError, InvalidOperation)
Convert = Callable[[Any], Any]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_EXACT = Context(prec=40)  # a column has 38 digits at most
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([Tt ]([01][0-9]|2[0-3])(:[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?)?"
)
_text_of = msgspec.json.Decoder(str).decode
_json_of = msgspec.json.Decoder(Any).decode


class RowDecoder:
    """Decodes the fields of a schema out of one text, in the schema's order."""

    def __init__(self, fields: Sequence[StructField], defaults: Mapping[str, Any] | None = None) -> None:
        self.empty = (None,) * len(fields)
        defaults = defaults or {}
        parts = [_type_of(field.name, field.dataType) for field in fields]
        names = [f"f{place}" for place in range(len(fields))]
        # A struct of msgspec skips what it does not know without building it, which is what makes this fast.
        shape = msgspec.defstruct(
            "Fields",
            [(name, _nullable(kind), None) for name, (kind, _) in zip(names, parts, strict=True)],
            rename=dict(zip(names, (field.name for field in fields), strict=True)),
            gc=False,
        )
        self._decode = msgspec.json.Decoder(shape).decode
        self._steps = [
            (name, convert, defaults.get(field.name))
            for name, (_, convert), field in zip(names, parts, fields, strict=True)
        ]

    def decode(self, text: str) -> tuple[Any, ...]:
        """The values of the fields. Raises one of NOT_FITTING."""
        record = self._decode(text)
        return tuple(
            default
            if (value := getattr(record, name)) is None
            else value
            if convert is None
            else convert(value)
            for name, convert, default in self._steps
        )


def _type_of(path: str, kind: DataType) -> tuple[Any, Convert | None]:
    """The type that msgspec checks, and what makes an Arrow value of it. Raises ConfigurationError."""
    if isinstance(kind, StringType):
        return msgspec.Raw, _string
    if isinstance(kind, BooleanType):
        return bool, None
    if type(kind) in _BITS:
        bits = _BITS[type(kind)]
        return Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)], None
    if isinstance(kind, (DoubleType, FloatType)):
        return float, None
    if isinstance(kind, DecimalType):
        return Decimal, _decimal(kind.precision, kind.scale)
    if isinstance(kind, DateType):
        return dt.date, None
    if isinstance(kind, TimestampType):
        return str | float, _moment
    if isinstance(kind, TimestampNTZType):
        return str, _without_zone
    if isinstance(kind, BinaryType):
        return bytes, None
    if isinstance(kind, ArrayType):
        item, convert = _type_of(f"{path}[]", kind.elementType)
        return list[_nullable(item)], _each(convert)  # type: ignore[misc] # built while running
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        item, convert = _type_of(f"{path}{{}}", kind.valueType)
        return dict[str, _nullable(item)], _pairs(convert)  # type: ignore[misc] # as above
    if isinstance(kind, StructType):
        return _struct(path, kind)
    raise ConfigurationError(
        f"the column {path} has the type {kind.simpleString()}, which JSON cannot be read into; "
        "read it as string"
    )


def _nullable(kind: Any) -> Any:
    return kind if kind is msgspec.Raw else kind | None  # raw text may be null anyway


def _struct(path: str, kind: StructType) -> tuple[Any, Convert]:
    inner = [_type_of(f"{path}.{field.name}", field.dataType) for field in kind]
    names = [f"f{place}" for place in range(len(inner))]
    shape = msgspec.defstruct(
        "Inner",
        [(name, _nullable(part[0]), None) for name, part in zip(names, inner, strict=True)],
        rename=dict(zip(names, (field.name for field in kind), strict=True)),
        gc=False,
    )
    steps = [(name, field.name, part[1]) for name, field, part in zip(names, kind, inner, strict=True)]

    def convert(value: Any) -> dict[str, Any]:
        return {
            key: item if (item := getattr(value, name)) is None or step is None else step(item)
            for name, key, step in steps
        }

    return shape, convert


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _pairs(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda mapping: list(mapping.items())
    return lambda mapping: [
        (key, None if value is None else convert(value)) for key, value in mapping.items()
    ]


def _string(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text.startswith(b'"'):
        return _text_of(text)
    if text == b"null":
        return None
    _json_of(text)  # msgspec only skipped it
    return text.decode()


def _decimal(precision: int, scale: int) -> Convert:
    step, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def convert(value: Decimal) -> Decimal:
        # copy_abs, not abs(): that would round to the 28 digits which Python's arithmetic has by default.
        if (
            not value.is_finite()
            or value.copy_abs() >= limit
            or value != (exact := value.quantize(step, context=_EXACT))
        ):
            raise ValueError(f"{value} does not fit decimal({precision},{scale})")
        return exact

    return convert


def _moment(value: str | float) -> dt.datetime:
    if isinstance(value, str):
        return _utc(_iso(value))
    return _EPOCH + dt.timedelta(microseconds=round(value * 1_000_000))


def _without_zone(text: str) -> dt.datetime:
    value = _iso(text)
    return value if value.tzinfo is None else _utc(value).replace(tzinfo=None)


def _iso(text: str) -> dt.datetime:
    # Python alone would take more, and not the same in each version: weeks, days of the year, 24:00.
    if _ISO.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is no ISO 8601 timestamp")
    return dt.datetime.fromisoformat(text.upper())


def _utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
