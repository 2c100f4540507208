"""What travels: a job's envelope, and the codecs that turn it into bytes.

An envelope says everything about a job except what it does: its type and payload, how often it may be
tried, and what became of earlier attempts. Payloads are data, never code: JSON by default, msgpack by choice.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from millstream.errors import ConfigurationError, UnreadableEnvelope

PRIORITIES = ("critical", "high", "default", "low")  # in the order in which they are served
PRIORITY_ALIASES = {"urgent": "critical", "normal": "default"}
KEPT_ATTEMPTS = 50  # of a job's history; the oldest but the first go, so that an entry stays small


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one attempt ended that did not succeed."""

    number: int
    at: float  # seconds since the epoch, when it ended
    outcome: str  # "failed", "timeout", "lost" (its worker died), "snoozed", "rejected" (could not be built)
    error: str = ""  # the exception, as "Type: message"
    traceback: str = ""
    worker: str = ""
    seconds: float = 0.0  # how long it ran


class Envelope(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job on its way. Field names are on the wire: they stay."""

    id: str
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")  # a JSON (or msgpack) object: the job's fields
    queue: str = "default"
    priority: str = "default"
    version: int = 1  # of the payload's schema
    attempt: int = 1  # the number of the attempt that comes next, or runs
    max_attempts: int = 3
    backoff: float = 1.0  # seconds before the second attempt
    multiplier: float = 2.0
    max_backoff: float = 3600.0
    jitter: float = 0.1  # the share of a delay that is random
    timeout: float | None = None  # seconds for one attempt
    pushed_at: float = 0.0
    due_at: float | None = None  # where it was delayed: when it becomes available
    expires_at: float | None = None  # not started by then: buried as expired
    unique_key: str | None = None
    tags: list[str] = []
    headers: dict[str, str] = {}
    history: list[Attempt] = []
    rejections: int = 0  # how often it could not be built, since it was pushed or retried by hand
    replay_of: str | None = None  # the id of the job that this one repeats


class Codec(Protocol):
    """Turns envelopes into bytes and back. Decoding anything else raises UnreadableEnvelope."""

    name: str

    def encode(self, envelope: Envelope) -> bytes: ...

    def decode(self, body: bytes) -> Envelope: ...

    def encode_payload(self, fields: object) -> msgspec.Raw: ...


class _MsgspecCodec:
    """What the codecs of one library have in common."""

    name: str

    def __init__(
        self,
        encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder,
        decoder: msgspec.json.Decoder[Envelope] | msgspec.msgpack.Decoder[Envelope],
    ) -> None:
        self._encoder, self._decoder = encoder, decoder

    def encode(self, envelope: Envelope) -> bytes:
        return self._encoder.encode(envelope)

    def decode(self, body: bytes) -> Envelope:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableEnvelope(str(error)) from error

    def encode_payload(self, fields: object) -> msgspec.Raw:
        return msgspec.Raw(self._encoder.encode(fields))


class JsonCodec(_MsgspecCodec):
    """The default: readable by any client, and by Spark."""

    name = "json"

    def __init__(self) -> None:
        super().__init__(msgspec.json.Encoder(), msgspec.json.Decoder(Envelope))


class MsgpackCodec(_MsgspecCodec):
    """Smaller, and not readable by eye."""

    name = "msgpack"

    def __init__(self) -> None:
        super().__init__(msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Envelope))


CODECS: dict[str, Callable[[], Codec]] = {"json": JsonCodec, "msgpack": MsgpackCodec}


def find_codec(codec: str | Codec) -> Codec:
    """The codec of that name, or ``codec`` itself where it is one. Raises ConfigurationError."""
    if isinstance(codec, str) and codec in CODECS:
        return CODECS[codec]()
    if isinstance(codec, str) or not hasattr(codec, "decode"):
        raise ConfigurationError(f"{codec!r} is not a codec; use one of {', '.join(CODECS)}")
    return codec


_PROCESS = secrets.token_hex(5)
_PROCESS_ID = os.getpid()
_counter = itertools.count()


def new_job_id() -> str:
    """An id that no other job has: the millisecond, so that ids sort by age; the process; a counter."""
    global _PROCESS, _PROCESS_ID  # a forked child must not repeat its parent's ids
    if os.getpid() != _PROCESS_ID:
        _PROCESS, _PROCESS_ID = secrets.token_hex(5), os.getpid()
    return f"{time.time_ns() // 1_000_000:011x}{_PROCESS}{next(_counter) & 0xFFFFFFFFFF:010x}"


def new_job_ids() -> Iterator[str]:
    """Ids for the jobs of one call, without end: the clock and the process are looked at once for all."""
    prefix = new_job_id()[:-10]
    return (f"{prefix}{number & 0xFFFFFFFFFF:010x}" for number in _counter)


def peek_id(body: bytes) -> str:
    """The job's id without decoding the rest; empty where ``body`` is no envelope."""
    if body.startswith(b'{"id":"'):  # how JsonCodec begins
        end = body.find(b'"', 7)
        return body[7:end].decode("ascii", "replace") if end > 0 else ""
    for decoder in (_json_id, _msgpack_id):
        try:
            return decoder.decode(body).id
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return ""


class _IdOnly(msgspec.Struct):
    id: str


_json_id = msgspec.json.Decoder(_IdOnly)
_msgpack_id = msgspec.msgpack.Decoder(_IdOnly)


def priority_level(name: str) -> str:
    """The level that ``name`` means. Raises ValueError for an unknown one."""
    level = PRIORITY_ALIASES.get(name, name)
    if level not in PRIORITIES:
        raise ValueError(
            f"{name!r} is not a priority; use one of {', '.join(PRIORITIES)} "
            f"(or {', '.join(PRIORITY_ALIASES)})"
        )
    return level
