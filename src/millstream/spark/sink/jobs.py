"""Rows to jobs: which column is what, and the items that a batch of rows becomes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from millstream.brokers.payload import check_name
from millstream.drivers import checks
from millstream.drivers.base import PushItem
from millstream.envelope import Envelope, JsonCodec
from millstream.errors import (
    ConfigurationError,
    InvalidData,
    InvalidPayload,
    MillstreamError,
    PayloadTooLarge,
    UnknownJobType,
)
from millstream.options import DEFAULTS, JobOptions, delay_or_time, merge
from millstream.registry import JobType, default_registry
from millstream.spark.sink import jsontext
from millstream.spark.sink.columns import MOMENTS, NUMBERS, WHOLE, check_types, column_of, need_column
from millstream.spark.sink.options import JobWriteOptions
from millstream.tasks import TaskType

_codec = JsonCodec()
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_texts_by_text = msgspec.json.Decoder(dict[str, str]).decode
_texts = msgspec.json.Decoder(list[str]).decode
_copy: Callable[[Envelope], Envelope] = Envelope.__copy__  # type: ignore[attr-defined]  # not in its stubs
# What an envelope takes over from the options under the same name.
_SHARED = tuple(
    name
    for name in Envelope.__struct_fields__
    if name in JobOptions.__struct_fields__ and name != "unique_key"
)

# The options that name a column, and what that column may be.
ROLES: dict[str, Any] = {
    "job_type_column": StringType,
    "payload_column": StringType,
    "id_column": (StringType, *WHOLE),
    "queue_column": StringType,
    "priority_column": StringType,
    "delay_column": (*NUMBERS, *MOMENTS),
    "unique_key_column": (StringType, *WHOLE),
    "replay_of_column": StringType,
    "headers_column": (StringType, MapType),
    "tenant_column": StringType,
    "tags_column": (StringType, ArrayType),
    "max_attempts_column": WHOLE,
    "version_column": WHOLE,
}
# Columns whose values change how a job is delivered; rows with the same ones share one template.
_OPTION_ROLES = ("queue", "priority", "max_attempts", "version", "tags")


@dataclass(frozen=True)
class JobPlan:
    """What each column of the DataFrame is for a job."""

    options: JobWriteOptions
    fields: tuple[str, ...]  # of the payload; empty where one column has it as JSON text

    def packer(self, seed: str) -> RowPacker:
        """What makes the jobs of one task. ``seed`` begins their ids: the same for every attempt at it."""
        return RowPacker(self, seed)


def plan_jobs(schema: StructType, options: JobWriteOptions) -> JobPlan:
    """Decide what each column is. Raises ConfigurationError, UnknownJobType or InvalidPayload."""
    taken = set()
    for role, kinds in ROLES.items():
        name = getattr(options, role)
        if name is not None:
            first, *rest = role.split("_")
            taken.add(need_column(schema, first + "".join(word.capitalize() for word in rest), name, kinds))
    fields = tuple(name for name in schema.names if name not in taken)
    if options.payload_column is not None:
        if fields:
            raise ConfigurationError(
                f"with payloadColumn={options.payload_column!r} the columns {', '.join(fields)} would be "
                "lost; drop them, or leave out payloadColumn to make every column a field"
            )
    else:
        check_types(schema, fields)
    if options.job_module is not None and options.job_type is not None:
        known = known_type(options, options.job_type)
        if known is not None and options.payload_column is None:
            _check_fields(known, fields)
    return JobPlan(options, fields)


def known_type(options: JobWriteOptions, name: str) -> JobType | None:
    """The registered type of that name; None where no module was given: then any fields will do."""
    if options.job_module is None:
        return None
    try:
        importlib.import_module(options.job_module)
    except Exception as error:
        raise ConfigurationError(
            f"jobModule={options.job_module!r} cannot be imported here ({type(error).__name__}: {error}); "
            "the driver and every executor need it: install it there, or send it with --py-files"
        ) from error
    found = default_registry.get(name) or default_registry.get(f"{options.job_module}.{name}")
    if found is None:
        raise UnknownJobType(name, default_registry.names())
    return found


def _check_fields(known: JobType, fields: tuple[str, ...]) -> None:
    """That the columns are the type's fields, before any row is read."""
    if isinstance(known, TaskType):
        return  # its data are one mapping, checked row by row
    unknown = [name for name in fields if name not in known.schema.names]
    if unknown:
        listed = ", ".join(known.schema.names) or "none"
        raise InvalidPayload(
            known.name,
            f"there is no field for the column {unknown[0]!r}; the fields are: {listed}. Drop the column, or "
            "name it in an option such as idColumn",
        )
    for field in msgspec.structs.fields(known.schema.struct):
        if field.required and field.name not in fields:
            raise InvalidPayload(
                known.name, f"the field {field.name!r} has no default, and no column is its value"
            )


class RowPacker:
    """Makes the jobs of one task, row by row."""

    def __init__(self, plan: JobPlan, seed: str) -> None:
        self._plan, self._options, self._seed = plan, plan.options, seed
        self._row = 0
        self._headers = plan.options.fixed_headers()
        self._given = plan.options.job_options()
        self._types: dict[str, tuple[str, JobType | None]] = {}
        self._templates: dict[tuple[Any, ...], tuple[Envelope, JobOptions, JobType | None]] = {}

    def items(self, batch: Any) -> Iterator[PushItem]:
        """The jobs of a batch of rows. Raises InvalidPayload, InvalidData, or what an option's check does."""
        options, now = self._options, time.time()
        count = batch.num_rows
        columns: list[Any] = []
        for role in ROLES:
            name = getattr(options, role)
            columns.append(
                repeat(None, count) if name is None else _values(role, column_of(batch, name), name)
            )
        for payload, row in zip(self._payloads(batch), zip(*columns, strict=True), strict=True):
            try:
                yield self._item(payload, dict(zip(ROLES, row, strict=True)), now)
            except MillstreamError as error:
                error.add_note(f"row {self._row + 1} of its partition")
                raise
            self._row += 1

    def _payloads(self, batch: Any) -> Iterator[str | None]:
        options = self._options
        if options.payload_column is not None:
            path = f"column {options.payload_column}"
            texts: list[str | None] = jsontext.text_of(
                column_of(batch, options.payload_column), path
            ).to_pylist()
            for text in texts:
                try:
                    _object("null" if text is None else text)
                except (msgspec.DecodeError, RecursionError) as error:
                    shown = "null" if text is None else repr(text[:80])
                    raise InvalidData(path, f"{shown} is no JSON object ({error})") from None
            return iter(texts)
        if not self._plan.fields:
            return repeat("{}", batch.num_rows)
        columns = [column_of(batch, name) for name in self._plan.fields]
        skip = options.ignore_null_fields
        return iter(
            jsontext.objects(list(self._plan.fields), columns, "column ", skip_nulls=skip).to_pylist()
        )

    def _item(self, payload: str | None, row: dict[str, Any], now: float) -> PushItem:
        options = self._options
        template, delivery, known = self._template(row)
        raw = msgspec.Raw((payload or "{}").encode())
        if len(raw) > options.max_payload:
            raise PayloadTooLarge(len(raw), options.max_payload)
        if known is not None:
            known.check(raw, _codec)
        envelope = _copy(template)
        envelope.id, envelope.payload, envelope.pushed_at = self._id(row), raw, now
        envelope.replay_of = row["replay_of_column"]
        headers = {**self._headers, **(row["headers_column"] or {})}
        if row["tenant_column"] is not None:
            headers["tenant"] = row["tenant_column"]
        if headers:
            envelope.headers = headers
        wait, key, span = self._delay(row, now), None, 0.0
        if wait:
            envelope.due_at = now + wait
        if delivery.expires_in is not None:
            envelope.expires_at = now + wait + delivery.expires_in
        if row["unique_key_column"] is not None:
            key = envelope.unique_key = (
                f"{template.type}:{check_name('unique key', str(row['unique_key_column']))}"
            )
            span = delivery.unique_for or 0.0
        return PushItem(
            envelope.id, delivery.queue, delivery.priority, _codec.encode(envelope), wait, key, span
        )

    def _id(self, row: dict[str, Any]) -> str:
        if self._options.id_column is None:
            return f"{self._seed}{self._row:010x}"
        if row["id_column"] is None:
            raise InvalidData(f"column {self._options.id_column}", "has a null; every job needs an id")
        return check_name("job id", str(row["id_column"]))

    def _delay(self, row: dict[str, Any], now: float) -> float:
        given = row["delay_column"]
        delay = self._options.delay if given is None else given
        if delay is None:
            return 0.0
        found = delay_or_time(delay)
        wait = found if isinstance(found, float) else max(0.0, found.timestamp() - now)
        return checks.check_delay(wait)

    def _template(self, row: dict[str, Any]) -> tuple[Envelope, JobOptions, JobType | None]:
        """The envelope and the options that rows like this one share."""
        named = row["job_type_column"] if self._options.job_type is None else self._options.job_type
        key = (named, *(row[f"{role}_column"] for role in _OPTION_ROLES))
        found = self._templates.get(key)
        if found is None:
            if named is None:
                raise InvalidData(
                    f"column {self._options.job_type_column}", "has a null; every job needs a type"
                )
            known = known_type(self._options, check_name("job type", named))
            name = named if known is None else known.name
            columns = {
                role: row[f"{role}_column"] for role in _OPTION_ROLES if row[f"{role}_column"] is not None
            }
            delivery = merge(name, DEFAULTS if known is None else known.options, {**self._given, **columns})
            envelope = Envelope(id="", type=name, **{shared: getattr(delivery, shared) for shared in _SHARED})
            envelope.tags = list(delivery.tags)
            found = self._templates[key] = envelope, delivery, known
        return found


def _values(role: str, column: Any, name: str) -> list[Any]:
    """The values of a column in the form that its role needs."""
    path = f"column {name}"
    kind = column.type
    if role == "delay_column":
        if pa.types.is_timestamp(kind):
            moments = column.cast(pa.timestamp("us", "UTC"))
            jsontext.check_years(moments, path)  # Python has no others
            return list(moments.to_pylist())
        return list(column.cast(pa.float64()).to_pylist())
    if role == "headers_column":
        return [_headers_of(value, path) for value in column.to_pylist()]
    if role == "tags_column":
        return [_tags_of(value, path) for value in column.to_pylist()]
    if pa.types.is_integer(kind):
        return list(column.to_pylist())
    return list(jsontext.text_of(column, path).to_pylist())


def _headers_of(value: Any, path: str) -> dict[str, str] | None:
    if value is None or value == "":
        return None
    try:
        return (
            _texts_by_text(value) if isinstance(value, str) else msgspec.convert(dict(value), dict[str, str])
        )
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise InvalidData(path, f"{value!r} is no mapping of texts by text ({error})") from None


def _tags_of(value: Any, path: str) -> tuple[str, ...] | None:
    if value is None or value == "":
        return None
    try:
        return tuple(_texts(value) if isinstance(value, str) else msgspec.convert(value, list[str]))
    except msgspec.DecodeError as error:
        raise InvalidData(path, f"{value!r} is no list of texts ({error})") from None
