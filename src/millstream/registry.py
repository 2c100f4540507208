"""The job types that a program knows, by the names they have on the wire.

A worker builds only what was registered; a name that comes off a queue is looked up here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.envelope import Codec, Envelope
from millstream.errors import ConfigurationError, InvalidPayload, UnknownJobType
from millstream.fields import Schema
from millstream.options import JobOptions

if TYPE_CHECKING:
    from millstream.job import Job

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
_asdict = msgspec.structs.asdict
_any_json = msgspec.json.Decoder(dict[str, Any])
_any_msgpack = msgspec.msgpack.Decoder(dict[str, Any])


def decode_payload(payload: msgspec.Raw) -> dict[str, Any]:
    """The fields of a payload as plain values, whatever its type. Raises msgspec.DecodeError."""
    return (_any_json if _is_json(payload) else _any_msgpack).decode(payload)


def _is_json(payload: msgspec.Raw) -> bool:
    # An object begins with a brace in JSON. In msgpack no map does: that byte is the number 123 there.
    return bytes(memoryview(payload)[:1]) == b"{"


class JobType:
    """One registered type: how its payload is checked, built and brought up to date."""

    has_fields = True  # that are known; the data of a task may have any

    def __init__(self, name: str, cls: type[Job], options: JobOptions, schema: Schema, origin: str) -> None:
        self.name, self.cls, self.options, self.schema = name, cls, options, schema
        self.origin = origin  # the class itself, wherever the name came from
        self.is_async = inspect.iscoroutinefunction(cls.handle)
        self.upcasters: dict[int, Upcaster] = {}
        self.template: Envelope | None = None  # kept here by who packs, for the next job of the type
        self._decoders: dict[str, Callable[[msgspec.Raw], Any]] = {}  # by the codec's name

    def __repr__(self) -> str:
        return f"JobType({self.name!r}, {self.cls.__qualname__})"

    def build(self, envelope: Envelope, codec: Codec) -> Job:
        """The job in ``envelope``, its fields checked. Raises InvalidPayload, which names the field."""
        payload = envelope.payload
        if envelope.version != self.options.version:
            payload = self._upcast(envelope, codec)
        job = self.cls.__new__(self.cls)
        job.__dict__ = self.read(payload, codec)
        return job

    def read(self, payload: msgspec.Raw, codec: Codec) -> dict[str, Any]:
        """The fields in ``payload`` by name. Raises InvalidPayload."""
        return _asdict(self.check(payload, codec))

    def check(self, payload: msgspec.Raw, codec: Codec) -> Any:
        """The decoded fields. Raises InvalidPayload."""
        try:
            return self.decoder(codec)(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidPayload(self.name, _plain(error)) from error

    def decoder(self, codec: Codec) -> Callable[[msgspec.Raw], Any]:
        """What decodes and checks a payload; it raises the errors of msgspec."""
        decoder = self._decoders.get(codec.name)
        if decoder is None:
            decoder = self._decoders[codec.name] = self._decoder(codec)
        return decoder

    def _decoder(self, codec: Codec) -> Callable[[msgspec.Raw], Any]:
        # Codecs that sign or encrypt wrap one of these two: what they make of an empty payload tells which.
        if _is_json(codec.encode_payload({})):
            return msgspec.json.Decoder(self._payload_type()).decode
        return msgspec.msgpack.Decoder(self._payload_type()).decode

    def _payload_type(self) -> Any:
        return self.schema.struct

    def fields_of(self, job: Job) -> dict[str, Any]:
        """The fields of a job by name, without what a handler has put beside them."""
        held, names = job.__dict__, self.schema.names
        if len(held) == len(names):
            return held
        return {name: held[name] for name in names if name in held}

    def encode(self, fields: dict[str, Any], codec: Codec) -> msgspec.Raw:
        """The payload of ``fields``, checked as its receiver will check it. Raises InvalidPayload."""
        try:
            payload = codec.encode_payload(fields)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidPayload(self.name, _unencodable(fields, codec, error)) from error
        self.check(payload, codec)
        if self.schema.takes_null_for_nan and _is_json(payload):
            for name, value in fields.items():
                if _holds_nan(value):
                    raise InvalidPayload(
                        self.name, f"{name}: JSON has no NaN and no infinity; use None, or the msgpack codec"
                    )
        return payload

    def encode_data(self, data: dict[str, Any], codec: Codec) -> msgspec.Raw:
        """As `encode`, for fields that were given as a mapping: a name that no field has is refused.

        On receipt such a name is passed over, so that a worker can run the jobs of a newer producer; here it
        is a slip of the pen.
        """
        unknown = sorted(set(data) - set(self.schema.names))
        if unknown:
            known = ", ".join(self.schema.names) or "none"
            raise InvalidPayload(self.name, f"there is no field {unknown[0]!r}; the fields are: {known}")
        return self.encode(data, codec)

    def _upcast(self, envelope: Envelope, codec: Codec) -> msgspec.Raw:
        """The payload, carried from the version it was pushed with to the one known here, step by step."""
        wanted = self.options.version
        if envelope.version > wanted:
            raise InvalidPayload(
                self.name,
                f"it was pushed with schema version {envelope.version}, and this worker knows version "
                f"{wanted}; start workers of the newer release",
            )
        try:
            data = decode_payload(envelope.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidPayload(self.name, _plain(error)) from error
        for version in range(envelope.version, wanted):
            upcaster = self.upcasters.get(version)
            if upcaster is None:
                raise InvalidPayload(
                    self.name,
                    f"it was pushed with schema version {envelope.version}, the class has version {wanted}, "
                    f"and no upcaster leads from {version}; write {self._upcast_line(version)}",
                )
            try:
                data = upcaster(data)
                if not isinstance(data, dict):
                    raise TypeError(f"it returned {data!r} instead of the fields")
            except Exception as error:
                raise InvalidPayload(
                    self.name, f"the upcaster from version {version} failed: {type(error).__name__}: {error}"
                ) from error
        return self.encode(data, codec)

    def _upcast_line(self, version: int) -> str:
        return f"@{self.cls.__name__}.upcast({version})"


class Registry:
    """Job types by name. What a registry does not know, it asks its ``parent`` for."""

    def __init__(self, parent: Registry | None = None) -> None:
        self._types: dict[str, JobType] = {}
        self._parent = parent
        self._lock = threading.Lock()

    def register(self, job_type: JobType) -> JobType:
        """Make a type known. Another class of the same name is refused; the same one, re-imported, is not."""
        with self._lock:
            known = self._types.get(job_type.name)
            if known is not None and known.origin != job_type.origin:
                raise ConfigurationError(
                    f"two job types are called {job_type.name!r}: {known.origin} and {job_type.origin}; "
                    "give one of them another name=..."
                )
            self._types[job_type.name] = job_type
        return job_type

    def resolve(self, type_name: str) -> JobType:
        """The type of that name. Raises UnknownJobType."""
        found = self.get(type_name)
        if found is None:
            raise UnknownJobType(type_name, self.names())
        return found

    def get(self, type_name: str) -> JobType | None:
        """The type of that name, or None."""
        found = self._types.get(type_name)
        if found is None and self._parent is not None:
            return self._parent.get(type_name)
        return found

    def names(self) -> tuple[str, ...]:
        """Every name that is known here, sorted."""
        with self._lock:
            own = set(self._types)
        return tuple(sorted(own | set(self._parent.names() if self._parent else ())))

    def __contains__(self, type_name: object) -> bool:
        return isinstance(type_name, str) and self.get(type_name) is not None


default_registry = Registry()


def _plain(error: Exception) -> str:
    """msgspec's words with its path, which is the field, in front: "user_id: Expected `int`, got `str`"."""
    text, marked, path = str(error).partition(" - at `$.")
    return f"{path.rstrip('`')}: {text}" if marked else str(error)


def _holds_nan(value: Any) -> bool:
    """Whether a NaN or an infinity is in ``value``, which was encoded already: it holds no ring."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, (str, bytes, int)) or value is None:
        return False
    if isinstance(value, Mapping):
        return any(map(_holds_nan, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_holds_nan, value))
    if isinstance(value, msgspec.Struct):
        return any(_holds_nan(getattr(value, name)) for name in value.__struct_fields__)
    return dataclasses.is_dataclass(value) and any(map(_holds_nan, vars(value).values()))


def _unencodable(fields: dict[str, Any], codec: Codec, error: Exception) -> str:
    """Which field it is that cannot be sent."""
    for name, value in fields.items():
        try:
            codec.encode_payload({name: value})
        except (TypeError, ValueError, RecursionError, OverflowError) as cause:
            return f"{name}: {cause}"
    return str(error)
