"""What is noted when a job changes, as it comes: cheap to keep, and turned into records later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from millstream.drivers.base import PushItem, Settlement
from millstream.envelope import Codec, Envelope
from millstream.errors import UnreadableEnvelope
from millstream.history import Record, cancelled, enqueued, settled

OVERHEAD = 200  # bytes of a note beside its body, roughly


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """A job that was cancelled while it waited; its body where it is known."""

    job_id: str
    queue: str
    body: bytes = b""


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """A queue whose waiting and delayed jobs were all forgotten."""

    queue: str


class Dated(msgspec.Struct, frozen=True, gc=False):
    """Something that happened, and when. A dated push is that of a dead letter which is tried again."""

    what: PushItem | Settlement | Cancelled | Cleared
    at: float


# A push stands for itself: its envelope says when it was. There are many, and each step counts.
Note: TypeAlias = PushItem | Dated


def size_of(notes: Iterable[PushItem | Settlement | Cancelled | Cleared]) -> int:
    """About how many bytes of memory notes hold on to."""
    bodies = list(map(_body, notes))
    return OVERHEAD * len(bodies) + sum(map(len, bodies))


def _body(what: PushItem | Settlement | Cancelled | Cleared) -> bytes:
    if isinstance(what, Settlement):
        return what.body or what.reservation.body
    return b"" if isinstance(what, Cleared) else what.body


def body_of(note: Note) -> bytes:
    """The envelope as it is kept after what happened; empty where there is none."""
    return _body(note.what if isinstance(note, Dated) else note)


def record_of(note: Note, codec: Codec) -> Record | None:
    """The record that tells of a note; None for one that concerns no single job, or no readable one."""
    envelope = _envelope(body_of(note), codec)
    if isinstance(note, PushItem):
        return None if envelope is None else enqueued(envelope)
    what, at = note.what, note.at
    if isinstance(what, Settlement):
        return settled(what, envelope, at)
    if isinstance(what, Cancelled):
        return cancelled(what.job_id, what.queue, envelope, at)
    if isinstance(what, PushItem) and envelope is not None:
        return enqueued(envelope, at)
    return None


def _envelope(body: bytes, codec: Codec) -> Envelope | None:
    try:
        return codec.decode(body) if body else None
    except UnreadableEnvelope:
        return None
