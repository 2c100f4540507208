"""From a job to what a driver pushes: the payload checked, the envelope filled in, the bytes bounded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from millstream.brokers.payload import encode_data
from millstream.drivers.base import PushItem
from millstream.envelope import Codec, Envelope, JsonCodec, new_job_id
from millstream.errors import InvalidInput, InvalidPayload, PayloadTooLarge, UnreadableEnvelope
from millstream.job import Job
from millstream.options import JobOptions, UniqueKey
from millstream.registry import JobType, Registry, decode_payload
from millstream.tasks import check_data

# What an envelope may take beside its payload: the history of fifty attempts, and some room.
ENVELOPE_ROOM = 256 * 1024
# Equal sets and mappings give equal bytes, in whichever order they were made.
_sorted = msgspec.json.Encoder(order="deterministic")
_copy: Callable[[Envelope], Envelope] = Envelope.__copy__  # type: ignore[attr-defined]  # not in its stubs


class BoundedCodec:
    """A codec that looks at the size before it decodes: a giant entry costs one comparison."""

    def __init__(self, codec: Codec, limit: int) -> None:
        self.name, self.limit = codec.name, limit
        self.is_plain_json = type(codec) is JsonCodec  # not one of the user's, which may sign or encrypt
        self.encode, self.encode_payload, self._decode = codec.encode, codec.encode_payload, codec.decode

    def decode(self, body: bytes) -> Envelope:
        """The envelope in ``body``. Raises UnreadableEnvelope, too if it is larger than the limit."""
        if len(body) > self.limit:
            raise UnreadableEnvelope(f"it takes {len(body):,} bytes, and {self.limit:,} are accepted")
        return self._decode(body)


class Values(NamedTuple):
    """What a job's key is made of."""

    whole: Any  # the job, or the data of a task: what a function of the user's is given
    fields: Mapping[str, Any]
    names: Collection[str]  # of the fields that there can be


class Packer:
    """Packs the jobs of one queue object."""

    def __init__(self, codec: Codec, max_payload: int) -> None:
        self.codec, self.max_payload = codec, max_payload

    def pack(self, job: Job, now: float) -> PushItem:
        """The item that pushes ``job``. Raises InvalidPayload or PayloadTooLarge; nothing was sent.

        A job whose last push failed has a ticket: the id that it had then, so that a push that did arrive
        is not followed by a second one.
        """
        kind = job._type
        return self.item(job, kind, self.payload(job, kind), job._ticket or new_job_id(), now)

    def payload(self, job: Job, kind: JobType) -> msgspec.Raw:
        """The job's fields, checked. Raises InvalidPayload or PayloadTooLarge."""
        payload = kind.encode(kind.fields_of(job), self.codec)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(len(payload), self.max_payload)
        return payload

    def item(self, job: Job, kind: JobType, payload: msgspec.Raw, job_id: str, now: float) -> PushItem:
        """The item of a job whose payload was checked."""
        options = job._options
        if options is None:
            options, template = kind.options, kind.template
            if template is None:
                template = kind.template = envelope_of(kind.name, options)
        else:
            template = envelope_of(kind.name, options)
        envelope = _copy(template)  # a fraction of the price of making one
        envelope.id, envelope.payload, envelope.pushed_at = job_id, payload, now
        fresh = job._ticket is None
        if job._delay is None and not is_special(options):
            return PushItem(job_id, options.queue, options.priority, self.codec.encode(envelope), fresh=fresh)
        if is_unique(options):
            fields = kind.fields_of(job)
            if not isinstance(fields, dict):  # a task's data may be of any type
                fields = msgspec.to_builtins(fields)
            values = Values(job, fields, (*kind.schema.names, *fields))
            envelope.unique_key = _unique_key(envelope, options.unique_key, values)
        return self._special(envelope, options, job._delay, now, fresh)

    def pack_task(
        self,
        type_name: str,
        data: Mapping[str, Any] | None,
        options: JobOptions,
        delay: float | datetime | None,
        registry: Registry,
        now: float,
    ) -> PushItem:
        """The item that pushes a task by name; its data are checked further where its type is known here."""
        fields = check_data(type_name, {} if data is None else data)
        encode_data(fields, self.max_payload)  # JSON values only: says which is none
        known = registry.get(type_name)
        payload = self._plain(type_name, fields) if known is None else known.encode_data(fields, self.codec)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(len(payload), self.max_payload)
        envelope = envelope_of(type_name, options)
        envelope.id, envelope.payload, envelope.pushed_at = new_job_id(), payload, now
        if is_unique(options):
            names = fields if known is None else (*known.schema.names, *fields)
            envelope.unique_key = _unique_key(envelope, options.unique_key, Values(fields, fields, names))
        return self._special(envelope, options, delay, now, fresh=True)

    def _plain(self, type_name: str, fields: dict[str, Any]) -> msgspec.Raw:
        try:
            return self.codec.encode_payload(fields)
        except OverflowError as error:  # JSON has numbers of any size, msgpack has not
            raise InvalidPayload(type_name, f"a number in it is too large for {self.codec.name}") from error

    def _special(
        self,
        envelope: Envelope,
        options: JobOptions,
        delay: float | datetime | None,
        now: float,
        fresh: bool,
    ) -> PushItem:
        """The item of a job that may be delayed, expire or be unique."""
        wait, key = 0.0, envelope.unique_key
        if delay is not None:
            wait = max(0.0, delay.timestamp() - now) if isinstance(delay, datetime) else delay
            envelope.due_at = now + wait
        if options.expires_in is not None:
            envelope.expires_at = now + wait + options.expires_in
        return PushItem(
            envelope.id,
            options.queue,
            options.priority,
            self.codec.encode(envelope),
            wait,
            key,
            0.0 if key is None else options.unique_for or 0.0,
            fresh,
        )


def is_special(options: JobOptions) -> bool:
    """Whether a job's envelope depends on more than its id, its payload and the time."""
    return is_unique(options) or options.expires_in is not None


def is_unique(options: JobOptions) -> bool:
    return options.unique_for is not None or options.unique_key is not None


def envelope_of(type_name: str, options: JobOptions) -> Envelope:
    """What the envelopes of one type and one set of options have in common."""
    return Envelope(
        id="",
        type=type_name,
        queue=options.queue,
        priority=options.priority,
        version=options.version,
        max_attempts=options.max_attempts,
        backoff=options.backoff,
        multiplier=options.multiplier,
        max_backoff=options.max_backoff,
        jitter=options.jitter,
        timeout=options.timeout,
        tags=list(options.tags),
    )


def _unique_key(envelope: Envelope, wanted: UniqueKey | None, values: Values) -> str:
    """What two pushes must have in common to be the same job."""
    type_name = envelope.type
    if isinstance(wanted, str):
        return f"{type_name}:{wanted}"
    if callable(wanted):
        key = wanted(values.whole)
        if not isinstance(key, str) or not key:
            raise InvalidInput(f"{type_name}: unique_key must return a text that is not empty, not {key!r}")
        return f"{type_name}:{key}"
    for name in wanted or ():
        if name not in values.names:
            known = ", ".join(values.names) or "none"
            raise InvalidInput(f"{type_name}: unique_key names {name!r}; the fields are: {known}")
    try:
        said = _chosen(values.fields, wanted)
    except TypeError:  # a value that only the user's codec can write
        said = _chosen(decode_payload(envelope.payload), wanted)
    return f"{type_name}:{hashlib.blake2b(said, digest_size=16).hexdigest()}"


def _chosen(fields: Mapping[str, Any], names: Iterable[str] | None) -> bytes:
    return _sorted.encode(fields if names is None else [fields.get(name) for name in names])
