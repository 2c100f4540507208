"""The history of jobs: one record for each change of a job's state.

Records are flat, so that the same fields are an entry of the history stream, a row of the archive table and a
row of a DataFrame. A record never changes: a job's story is its records in the order of ``at``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.brokers.payload import check_name
from millstream.drivers.base import Settlement
from millstream.envelope import Envelope
from millstream.errors import ConfigurationError
from millstream.options import unknown_option

HISTORY = "history"  # the stream is "{prefix}:history", beside the queues of that prefix
STATES = ("enqueued", "completed", "retried", "snoozed", "released", "failed", "cancelled", "expired")
FINAL_STATES = ("completed", "failed", "cancelled", "expired")  # nothing comes after these but a replay


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happened to a job, and when. Times are seconds since the epoch; field names are on the wire."""

    job_id: str
    type: str
    state: str  # one of STATES
    at: float  # when it came to that state
    queue: str = "default"
    priority: str = "default"
    attempt: int = 1  # the attempt that ended so; of "enqueued": the one that comes
    max_attempts: int = 1
    enqueued_at: float = 0.0
    due_at: float | None = None  # where it was delayed
    started_at: float | None = None  # of this attempt
    seconds: float | None = None  # how long this attempt ran
    worker: str = ""
    error_type: str = ""  # the exception's class
    error: str = ""  # "Type: message"
    traceback: str = ""
    tags: list[str] = []
    tenant: str = ""  # of the header "tenant"
    headers: dict[str, str] = {}
    payload: str = ""  # JSON text: the job's fields
    version: int = 1  # of the payload's schema
    replay_of: str | None = None


class HistoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The history stream: its name, and how much of it is kept.

    It lives beside the queues, so its length is a hard bound: a reader that falls behind by more than
    ``length`` entries misses some. What has to be kept for longer belongs in an archive.
    """

    name: str = HISTORY  # the stream is "{prefix}:{name}"
    length: int | None = 100_000  # entries; about 50 MB on Redis. None: by age alone
    age: float | None = None  # seconds; older ones go

    def __post_init__(self) -> None:
        check_name("history stream", self.name)
        length, age = self.length, self.age
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise ConfigurationError(
                f"history: length must be a whole number above 0, or None, not {length!r}"
            )
        if age is not None and (isinstance(age, bool) or not isinstance(age, (int, float)) or not age > 0):
            raise ConfigurationError(
                f"history: age must be a number of seconds above 0, or None, not {age!r}"
            )


def history_options(value: object) -> HistoryOptions | None:
    """What ``history=`` of `connect` means: True, a name, a mapping of options, or HistoryOptions."""
    if value is None or value is False:
        return None
    if value is True:
        return HistoryOptions()
    if isinstance(value, HistoryOptions):
        return value
    if isinstance(value, str):
        return HistoryOptions(name=value)
    if isinstance(value, Mapping):
        for name in value:
            if name not in HistoryOptions.__struct_fields__:
                raise ConfigurationError(
                    unknown_option("history option", name, HistoryOptions.__struct_fields__)
                )
        return HistoryOptions(**value)
    raise ConfigurationError(
        f"history must be True, False, the stream's name or its options (name, length, age), not {value!r}"
    )


class Ended(Settlement, frozen=True, gc=False):
    """A settlement that knows more than the broker needs: when the attempt ended, and how long it ran.

    Workers make these for successful attempts where somebody records them. Of a failed one, the envelope's
    own history says it.
    """

    at: float = 0.0
    seconds: float = 0.0
    cancelled: bool = False


def enqueued(envelope: Envelope, at: float | None = None) -> Record:
    """The record of a push; ``at`` where it was not the envelope's own, as of a dead letter tried again."""
    return _record(envelope, "enqueued", envelope.pushed_at if at is None else at)


def settled(settlement: Settlement, envelope: Envelope | None, at: float) -> Record:
    """The record of an accepted settlement.

    ``envelope`` is that of the settlement's body where it has one (a retry, a burial), else that of the
    reservation; None where it cannot be read. ``at`` is used where nothing more exact is known.
    """
    reservation, outcome = settlement.reservation, settlement.outcome
    if envelope is None:
        return Record(
            job_id=reservation.id,
            type="",
            state={"complete": "completed", "retry": "retried", "bury": "failed"}.get(outcome, "released"),
            at=at,
            queue=reservation.queue,
            priority=reservation.priority,
            worker=reservation.owner,
            error=settlement.error,
            error_type=_class_of(settlement.error),
        )
    if outcome == "complete":
        if not isinstance(settlement, Ended):
            return _record(envelope, "completed", at, worker=reservation.owner)
        return _record(
            envelope,
            "cancelled" if settlement.cancelled else "completed",
            settlement.at,
            worker=reservation.owner,
            seconds=settlement.seconds,
            error=settlement.error,
        )
    if outcome == "release" or not envelope.history:
        state = "released" if outcome == "release" else "retried" if outcome == "retry" else "failed"
        return _record(envelope, state, at, worker=reservation.owner, error=settlement.error)
    last = envelope.history[-1]
    if outcome == "retry":
        state = "snoozed" if last.outcome == "snoozed" else "retried"
    else:
        state = "expired" if settlement.reason == "expired" else "failed"
    return _record(
        envelope,
        state,
        last.at,
        attempt=last.number,
        worker=last.worker or reservation.owner,
        seconds=last.seconds,
        error=last.error,
        traceback=last.traceback,
    )


def cancelled(job_id: str, queue: str, envelope: Envelope | None, at: float) -> Record:
    """The record of a job that was cancelled from outside, while it waited."""
    if envelope is None:
        return Record(job_id=job_id, type="", state="cancelled", at=at, queue=queue)
    return _record(envelope, "cancelled", at)


def _record(
    envelope: Envelope,
    state: str,
    at: float,
    *,
    attempt: int | None = None,
    worker: str = "",
    seconds: float | None = None,
    error: str = "",
    traceback: str = "",
) -> Record:
    return Record(
        job_id=envelope.id,
        type=envelope.type,
        state=state,
        at=at,
        queue=envelope.queue,
        priority=envelope.priority,
        attempt=envelope.attempt if attempt is None else attempt,
        max_attempts=envelope.max_attempts,
        enqueued_at=envelope.pushed_at,
        due_at=envelope.due_at,
        started_at=None if seconds is None else at - seconds,
        seconds=seconds,
        worker=worker,
        error_type=_class_of(error),
        error=error,
        traceback=traceback,
        tags=envelope.tags,
        tenant=envelope.headers.get("tenant", ""),
        headers=envelope.headers,
        payload=payload_text(envelope.payload),
        version=envelope.version,
        replay_of=envelope.replay_of,
    )


def payload_text(payload: msgspec.Raw) -> str:
    """The job's fields as JSON text, whichever codec wrote them."""
    raw = bytes(payload)
    if raw[:1] == b"{":  # msgpack has a small number there, and no map
        return raw.decode("utf-8", "replace")
    return msgspec.json.encode(msgspec.msgpack.decode(raw)).decode()


def _class_of(error: str) -> str:
    """The class in ``"Type: message"``; empty for a text that begins with no class's name."""
    name = error.partition(":")[0]
    return name if name.replace(".", "_").isidentifier() else ""
