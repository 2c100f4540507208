"""What becomes of a job after an attempt: the retry rule, and how a handler decides for itself.

A worker turns the end of every attempt into a `Settlement`:

    it returned                 settle_success     complete
    it raised                   settle_failure     retry after the backoff; after the last attempt, bury
    it raised Retry             settle_failure     retry after the time it names, as one more attempt
    it raised Snooze            settle_failure     retry after the time it names, not counted as an attempt
    it raised Cancel            settle_failure     complete: the job is gone
    it raised Bury              settle_failure     bury at once
    it took too long            settle_failure     with JobTimeout: as any failure
    it could not be built       settle_failure     handed back thrice (another version may know it); then bury
    it was not started in time  settle_failure     with Expired: bury
    it killed its workers       settle_poison      bury
"""

from __future__ import annotations

import random as _random
import traceback as _traceback
from collections.abc import Callable
from typing import Literal

import msgspec

from millstream.drivers.base import Reservation, Settlement
from millstream.drivers.checks import LONGEST_DELAY, check_delay
from millstream.envelope import KEPT_ATTEMPTS, Attempt, Codec, Envelope
from millstream.errors import InvalidPayload, JobTimeout, UnknownJobType, UnreadableEnvelope
from millstream.options import Seconds
from millstream.options import seconds as _seconds

ERROR_LIMIT = 2 * 1024  # characters of an error's text that are kept
TRACEBACK_LIMIT = 8 * 1024
KEPT_TRACEBACKS = 3  # of the newest attempts; with the first one's, enough to see what changed
# A type or a schema that is not known here is often being deployed at this moment.
REJECTED_DELAYS = (1.0, 5.0, 25.0)

Reason = Literal["failed", "timeout", "rejected", "unreadable", "expired", "buried", "poison"]
_replace = msgspec.structs.replace


class JobControl(Exception):
    """The base of what a handler raises to decide itself what becomes of its job. Not errors."""


class Retry(JobControl):
    """Try again after ``after`` seconds (None: the job's backoff). Counts as an attempt."""

    def __init__(self, after: Seconds | None = None, reason: str = "") -> None:
        self.after = None if after is None else check_delay(_seconds("after", after))
        self.reason = reason
        super().__init__(reason)


class Snooze(JobControl):
    """It is too early: try again in so many seconds. Does not count as an attempt."""

    def __init__(self, seconds: Seconds, reason: str = "") -> None:
        self.seconds = check_delay(_seconds("seconds", seconds))
        self.reason = reason
        super().__init__(reason)


class Cancel(JobControl):
    """There is nothing to do any more: the job is gone, and it did not fail."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Bury(JobControl):
    """It makes no sense to try again: the job goes to the dead letters now."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Expired(JobControl):
    """The worker's word for a job that it took after the job's ``expires_at``."""


def is_expired(envelope: Envelope, now: float) -> bool:
    """Whether an attempt must not be started any more."""
    return envelope.expires_at is not None and now >= envelope.expires_at


def backoff_delay(envelope: Envelope, random: Callable[[], float] = _random.random) -> float:
    """Seconds to wait after the attempt ``envelope.attempt`` failed.

    ``backoff`` for the first, ``multiplier`` times more for each further one, ``max_backoff`` at the most; of
    that the share ``jitter`` is random.
    """
    try:
        delay = envelope.backoff * envelope.multiplier ** (envelope.attempt - 1)
    except OverflowError:
        delay = envelope.max_backoff
    delay = min(delay, envelope.max_backoff, LONGEST_DELAY)
    return delay * (1.0 - envelope.jitter * random())


def settle_success(reservation: Reservation) -> Settlement:
    """The job is done."""
    return Settlement(reservation, "complete")


def settle_failure(
    envelope: Envelope | None,
    reservation: Reservation,
    error: BaseException,
    *,
    codec: Codec,
    worker: str,
    seconds: float,
    now: float,
) -> tuple[Settlement, bool]:
    """What to do after an attempt that ended with ``error``; and whether the job is finished for good.

    Finished means that ``failed()`` is due. It is not after Cancel, because a cancelled job did not fail.
    ``envelope`` is None where the body could not be read at all: then it is buried as it is, since there is
    nothing in it to count on.
    """
    if envelope is None:
        return _bury_unreadable(reservation, error), True
    if isinstance(error, Cancel):
        return settle_success(reservation), False
    attempt = _describe(envelope, error, worker=worker, seconds=seconds, now=now)
    kept = _replace(envelope, history=_remember(envelope.history, attempt))
    if isinstance(error, Snooze):
        return _again(kept, reservation, error.seconds, codec, now)
    if isinstance(error, Bury):
        return _bury(kept, reservation, error.reason or "buried", attempt, codec), True
    if isinstance(error, Expired):
        return _bury(kept, reservation, "expired", attempt, codec), True
    if attempt.outcome == "rejected":
        earlier = envelope.rejections
        if earlier >= len(REJECTED_DELAYS):
            return _bury(kept, reservation, "rejected", attempt, codec), True
        kept = _replace(kept, rejections=earlier + 1)
        return _again(kept, reservation, REJECTED_DELAYS[earlier], codec, now)
    if envelope.attempt >= envelope.max_attempts:
        reason = "timeout" if attempt.outcome == "timeout" else "failed"
        return _bury(kept, reservation, reason, attempt, codec), True
    delay = error.after if isinstance(error, Retry) and error.after is not None else backoff_delay(envelope)
    return _again(kept, reservation, delay, codec, now, attempt=envelope.attempt + 1)


def settle_poison(
    envelope: Envelope | None, reservation: Reservation, *, codec: Codec, limit: int, now: float
) -> Settlement:
    """Bury a job that was running when each of ``limit`` workers died."""
    error = f"its worker died while it ran, {limit} times in a row"
    if envelope is None:
        return Settlement(reservation, "bury", body=reservation.body, reason="poison", error=error)
    attempt = Attempt(number=envelope.attempt, at=now, outcome="lost", error=error)
    kept = _replace(envelope, history=_remember(envelope.history, attempt))
    return _bury(kept, reservation, "poison", attempt, codec)


def _again(
    envelope: Envelope,
    reservation: Reservation,
    delay: float,
    codec: Codec,
    now: float,
    *,
    attempt: int | None = None,
) -> tuple[Settlement, bool]:
    """Hand the job back for later, as its ``attempt`` or as the same one, unless it would come too late."""
    if is_expired(envelope, now + delay):
        last = envelope.history[-1]
        return _bury(envelope, reservation, "expired", last, codec), True
    kept = _replace(envelope, attempt=attempt or envelope.attempt, due_at=now + delay if delay else None)
    return Settlement(reservation, "retry", body=codec.encode(kept), delay=delay), False


def _bury(
    envelope: Envelope, reservation: Reservation, reason: str, attempt: Attempt, codec: Codec
) -> Settlement:
    return Settlement(
        reservation,
        "bury",
        body=codec.encode(envelope),
        reason=_bounded(reason, ERROR_LIMIT),
        error=attempt.error,
        traceback=attempt.traceback,
        attempts=envelope.attempt,
    )


def _bury_unreadable(reservation: Reservation, error: BaseException) -> Settlement:
    text = _bounded(f"{type(error).__name__}: {_text(error)}", ERROR_LIMIT)
    body = reservation.body or b"null"  # an entry without a body can be kept, too
    return Settlement(reservation, "bury", body=body, reason="unreadable", error=text)


def _describe(
    envelope: Envelope, error: BaseException, *, worker: str, seconds: float, now: float
) -> Attempt:
    outcome, with_traceback = _outcome(envelope, error)
    trace = "".join(_traceback.format_exception(error)) if with_traceback else ""
    return Attempt(
        number=envelope.attempt,
        at=now,
        outcome=outcome,
        error=_bounded(_summary(envelope, error), ERROR_LIMIT),
        traceback=_bounded(trace, TRACEBACK_LIMIT, end=True),
        worker=worker,
        seconds=round(seconds, 6),
    )


def _outcome(envelope: Envelope, error: BaseException) -> tuple[str, bool]:
    """The name of how it ended, and whether a traceback says more than the error itself."""
    if isinstance(error, Snooze):
        return "snoozed", False
    if isinstance(error, Expired):
        return "expired", False
    if isinstance(error, JobControl):
        return "failed", error.__cause__ is not None
    if isinstance(error, JobTimeout):
        return "timeout", True
    # The handler may push jobs too: only what concerns this very job means that it could not be built.
    if isinstance(error, UnreadableEnvelope):
        return "rejected", False
    if isinstance(error, (UnknownJobType, InvalidPayload)) and error.type_name == envelope.type:
        return "rejected", False
    return "failed", True


def _summary(envelope: Envelope, error: BaseException) -> str:
    if isinstance(error, Expired):
        return "Expired: it was not started in time"
    text = _text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's that cannot even be printed
        return "(its text cannot be had)"


def _bounded(text: str, limit: int, *, end: bool = False) -> str:
    """``text`` as it can be stored: valid Unicode, no longer than ``limit``; with ``end`` its end stays."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= limit:
        return text
    return "…\n" + text[2 - limit :] if end else text[: limit - 1] + "…"


def _remember(history: list[Attempt], attempt: Attempt) -> list[Attempt]:
    """``history`` with one more attempt, bounded: the first and the newest stay, tracebacks of few."""
    kept = [*history, attempt]
    if len(kept) > KEPT_ATTEMPTS:
        kept = [kept[0], *kept[1 - KEPT_ATTEMPTS :]]
    faded = len(kept) - KEPT_TRACEBACKS - 1
    if faded >= 1 and kept[faded].traceback:
        kept[faded] = _replace(kept[faded], traceback="")
    return kept
