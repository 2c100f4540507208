"""From a job to what a driver pushes: the payload checked, the envelope filled in, the bytes bounded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from millstream.brokers.payload import encode_data
from millstream.drivers.base import PushItem
from millstream.envelope import Codec, Envelope, JsonCodec, new_job_id, new_job_ids
from millstream.errors import InvalidInput, PayloadTooLarge, UnreadableEnvelope
from millstream.job import Job
from millstream.options import JobOptions
from millstream.registry import JobType, Registry, decode_payload
from millstream.tasks import check_data

# What an envelope may take beside its payload: the history of fifty attempts, and some room.
ENVELOPE_ROOM = 256 * 1024
BATCH = 1000  # jobs that are packed and pushed at a time
_ID, _PAYLOAD = "id-of-the-job", b'"payload-of-the-job"'  # where these go in a frame
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
        return self._item(job, kind, self._payload(job, kind), job._ticket or new_job_id(), now)

    def batches(self, jobs: Sequence[Job], now: float) -> Iterator[list[PushItem]]:
        """The items of many jobs, a thousand at a time. All jobs are checked when this returns.

        What is left to do for an item, its envelope, is done when its batch is asked for: by then the server
        may be busy with the one before.
        """
        payloads = [self._payload(job, job._type) for job in jobs]
        batches = self._batches(jobs, payloads, now)
        if any((job._options or job._type.options).unique_key is not None for job in jobs):
            return iter(list(batches))  # the user's own code makes such keys, and may refuse
        return batches

    def _batches(
        self, jobs: Sequence[Job], payloads: list[msgspec.Raw], now: float
    ) -> Iterator[list[PushItem]]:
        ids, frames = new_job_ids(), _Frames(self.codec, now)
        for at in range(0, len(jobs), BATCH):
            items = []
            for job, payload in zip(jobs[at : at + BATCH], payloads[at : at + BATCH], strict=True):
                kind = job._type
                if job._options is None and job._delay is None and job._ticket is None:
                    frame = frames.get(kind) or frames.add(kind)
                    if frame.usable:
                        job_id = next(ids)
                        body = b"".join((frame.head, job_id.encode(), frame.middle, payload, frame.tail))
                        items.append(PushItem(job_id, frame.queue, frame.priority, body, fresh=True))
                        continue
                items.append(self._item(job, kind, payload, job._ticket or next(ids), now))
            yield items

    def _payload(self, job: Job, kind: JobType) -> msgspec.Raw:
        payload = kind.encode(kind.fields_of(job), self.codec)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(len(payload), self.max_payload)
        return payload

    def _item(self, job: Job, kind: JobType, payload: msgspec.Raw, job_id: str, now: float) -> PushItem:
        options = job._options
        if options is None:
            options, template = kind.options, kind.template
            if template is None:
                template = kind.template = _envelope(kind.name, options)
        else:
            template = _envelope(kind.name, options)
        envelope = _copy(template)  # a fraction of the price of making one
        envelope.id, envelope.payload, envelope.pushed_at = job_id, payload, now
        fresh = job._ticket is None
        if job._delay is None and not _is_special(options):
            return PushItem(job_id, options.queue, options.priority, self.codec.encode(envelope), fresh=fresh)
        return self._special(envelope, options, job._delay, now, job, fresh)

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
        payload = (
            self.codec.encode_payload(fields) if known is None else known.encode_data(fields, self.codec)
        )
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(len(payload), self.max_payload)
        envelope = _envelope(type_name, options)
        envelope.id, envelope.payload, envelope.pushed_at = new_job_id(), payload, now
        return self._special(envelope, options, delay, now, None, True)

    def _special(
        self,
        envelope: Envelope,
        options: JobOptions,
        delay: float | datetime | None,
        now: float,
        job: Job | None,
        fresh: bool,
    ) -> PushItem:
        """The item of a job that may be delayed, expire or be unique."""
        wait, key = 0.0, None
        if delay is not None:
            wait = max(0.0, delay.timestamp() - now) if isinstance(delay, datetime) else delay
            envelope.due_at = now + wait
        if options.expires_in is not None:
            envelope.expires_at = now + wait + options.expires_in
        if options.unique_for is not None or options.unique_key is not None:
            key = envelope.unique_key = _unique_key(envelope.type, options, envelope.payload, job)
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


class _Frame:
    """The envelope of a plain job without its id and its payload: all that one differs in from the next."""

    def __init__(self, kind: JobType, codec: Codec, now: float) -> None:
        options = kind.options
        self.queue, self.priority = options.queue, options.priority
        self.head = self.middle = self.tail = b""
        self.usable = not _is_special(options) and getattr(codec, "is_plain_json", False)
        if self.usable:
            envelope = _envelope(kind.name, options)
            envelope.id, envelope.payload, envelope.pushed_at = _ID, msgspec.Raw(_PAYLOAD), now
            parts = re.split(b"%b|%b" % (_ID.encode(), _PAYLOAD), codec.encode(envelope))
            self.usable = len(parts) == 3  # a type or a tag may be called like one of them
            if self.usable:
                self.head, self.middle, self.tail = parts


class _Frames(dict[JobType, _Frame]):
    """The frames of one call, in which all jobs are pushed at the same time."""

    def __init__(self, codec: Codec, now: float) -> None:
        super().__init__()
        self._codec, self._now = codec, now

    def add(self, kind: JobType) -> _Frame:
        frame = self[kind] = _Frame(kind, self._codec, self._now)
        return frame


def _is_special(options: JobOptions) -> bool:
    """Whether a job's envelope depends on more than its id, its payload and the time."""
    return options.unique_for is not None or options.unique_key is not None or options.expires_in is not None


def _envelope(type_name: str, options: JobOptions) -> Envelope:
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


def _unique_key(type_name: str, options: JobOptions, payload: msgspec.Raw, job: Job | None) -> str:
    """What two pushes must have in common to be the same job."""
    wanted = options.unique_key
    if isinstance(wanted, str):
        return f"{type_name}:{wanted}"
    if callable(wanted):
        key = wanted(decode_payload(payload) if job is None else job)
        if not isinstance(key, str) or not key:
            raise InvalidInput(f"{type_name}: unique_key must return a text that is not empty, not {key!r}")
        return f"{type_name}:{key}"
    if wanted is not None:
        fields = decode_payload(payload)
        payload = msgspec.Raw(msgspec.json.encode([fields.get(name) for name in wanted]))
    return f"{type_name}:{hashlib.blake2b(payload, digest_size=16).hexdigest()}"
