"""The retry rule: what becomes of a job after an attempt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream import Bury, Cancel, Retry, Snooze
from millstream.drivers.base import Reservation, Settlement
from millstream.drivers.checks import LONGEST_DELAY
from millstream.envelope import KEPT_ATTEMPTS, Envelope, JsonCodec
from millstream.errors import InvalidInput, InvalidPayload, JobTimeout, UnknownJobType, UnreadableEnvelope
from millstream.retry import (
    ERROR_LIMIT,
    REJECTED_DELAYS,
    TRACEBACK_LIMIT,
    Expired,
    backoff_delay,
    is_expired,
    settle_failure,
    settle_poison,
    settle_success,
)

CODEC = JsonCodec()
NOW = 1000.0


def envelope(**fields: Any) -> Envelope:
    return Envelope(**{"id": "j1", "type": "app.Job", "jitter": 0.0} | fields)


def reserved(made: Envelope | None = None) -> Reservation:
    body = b"???" if made is None else CODEC.encode(made)
    return Reservation("j1", "default", "default", "1-0", body, "me", 1)


def fail(made: Envelope, error: BaseException, now: float = NOW) -> tuple[Settlement, bool]:
    return settle_failure(made, reserved(made), error, codec=CODEC, worker="w1", seconds=0.5, now=now)


def kept(settlement: Settlement) -> Envelope:
    return CODEC.decode(settlement.body)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - with its traceback
        return caught


@pytest.mark.parametrize(("attempt", "delay"), [(1, 2.0), (2, 6.0), (3, 18.0), (4, 50.0), (2000, 50.0)])
def test_backoff_grows_to_its_cap(attempt: int, delay: float) -> None:
    made = envelope(attempt=attempt, backoff=2.0, multiplier=3.0, max_backoff=50.0)
    assert backoff_delay(made) == delay


def test_no_backoff_is_longer_than_a_delay_can_be() -> None:
    assert backoff_delay(envelope(backoff=1e9, max_backoff=1e12, jitter=0.0)) == LONGEST_DELAY


def test_jitter_takes_a_share_away_and_never_adds() -> None:
    made = envelope(backoff=10.0, jitter=0.2)
    assert backoff_delay(made, random=lambda: 0.0) == 10.0
    assert backoff_delay(made, random=lambda: 1.0) == 8.0


def test_success_completes() -> None:
    assert settle_success(reserved(envelope())).outcome == "complete"


def test_a_failure_is_retried_with_its_history() -> None:
    settlement, finished = fail(envelope(backoff=3.0), raised(ValueError("no")))
    assert (settlement.outcome, settlement.delay, finished) == ("retry", 3.0, False)
    after = kept(settlement)
    assert (after.id, after.attempt, after.due_at) == ("j1", 2, NOW + 3.0)
    (past,) = after.history
    assert (past.number, past.outcome, past.error, past.worker, past.seconds, past.at) == (
        1,
        "failed",
        "ValueError: no",
        "w1",
        0.5,
        NOW,
    )
    assert "test_retry.py" in past.traceback


def test_the_last_attempt_buries() -> None:
    settlement, finished = fail(envelope(attempt=3, max_attempts=3), raised(ValueError("no")))
    assert (settlement.outcome, settlement.reason, finished) == ("bury", "failed", True)
    assert (settlement.error, settlement.attempts) == ("ValueError: no", 3)
    assert "ValueError: no" in settlement.traceback
    assert kept(settlement).history[-1].number == 3


def test_a_timeout_is_a_failure_with_its_own_name() -> None:
    settlement, finished = fail(envelope(), JobTimeout("j1", 5))
    assert (settlement.outcome, finished) == ("retry", False)
    assert kept(settlement).history[0].outcome == "timeout"
    settlement, finished = fail(envelope(attempt=3), JobTimeout("j1", 5))
    assert (settlement.outcome, settlement.reason, finished) == ("bury", "timeout", True)


def test_retry_names_its_own_time_and_counts() -> None:
    settlement, finished = fail(envelope(), Retry(after=7, reason="busy"))
    assert (settlement.outcome, settlement.delay, finished) == ("retry", 7.0, False)
    assert kept(settlement).attempt == 2
    assert kept(settlement).history[0].error == "Retry: busy"
    settlement, _ = fail(envelope(backoff=4.0), Retry())
    assert settlement.delay == 4.0
    settlement, finished = fail(envelope(attempt=3), Retry(after=7))
    assert (settlement.outcome, finished) == ("bury", True)


def test_retry_at_once_is_not_due_later() -> None:
    settlement, _ = fail(envelope(), Retry(after=0))
    assert (settlement.delay, kept(settlement).due_at) == (0.0, None)


def test_snooze_does_not_count_as_an_attempt() -> None:
    settlement, finished = fail(envelope(attempt=3, max_attempts=3), Snooze(seconds=60))
    assert (settlement.outcome, settlement.delay, finished) == ("retry", 60.0, False)
    assert kept(settlement).attempt == 3
    assert kept(settlement).history[0].outcome == "snoozed"


def test_cancel_makes_the_job_go_and_is_no_failure() -> None:
    settlement, finished = fail(envelope(), Cancel("order withdrawn"))
    assert (settlement.outcome, finished) == ("complete", False)


@pytest.mark.parametrize(("reason", "expected"), [("bad card", "bad card"), ("", "buried")])
def test_bury_buries_at_once(reason: str, expected: str) -> None:
    settlement, finished = fail(envelope(max_attempts=10), Bury(reason))
    assert (settlement.outcome, settlement.reason, finished) == ("bury", expected, True)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", None, 20 * 366 * 86400])
def test_control_exceptions_check_their_time(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        Snooze(wrong)
    if wrong is not None:
        with pytest.raises(InvalidInput):
            Retry(after=wrong)


@pytest.mark.parametrize("error", [UnknownJobType("app.Job"), InvalidPayload("app.Job", "x: wrong")])
def test_what_cannot_be_built_is_handed_back_a_few_times_then_buried(error: Exception) -> None:
    made = envelope(max_attempts=1)
    for delay in REJECTED_DELAYS:
        settlement, finished = fail(made, error)
        assert (settlement.outcome, settlement.delay, finished) == ("retry", delay, False)
        made = kept(settlement)
        assert made.attempt == 1  # another version that knows it has all its attempts
    settlement, finished = fail(made, error)
    assert (settlement.outcome, settlement.reason, finished) == ("bury", "rejected", True)
    assert [past.outcome for past in kept(settlement).history] == ["rejected"] * 4


def test_a_handler_that_pushes_a_wrong_job_has_failed_not_its_own_payload() -> None:
    settlement, _ = fail(envelope(), InvalidPayload("another.Job", "x: wrong"))
    assert kept(settlement).history[0].outcome == "failed"


def test_an_unreadable_body_is_buried_as_it_is() -> None:
    settlement, finished = settle_failure(
        None, reserved(), UnreadableEnvelope("bad"), codec=CODEC, worker="w", seconds=0.0, now=NOW
    )
    assert (settlement.outcome, settlement.reason, settlement.body, finished) == (
        "bury",
        "unreadable",
        b"???",
        True,
    )
    assert "UnreadableEnvelope" in settlement.error


def test_a_job_that_would_come_too_late_is_buried_as_expired() -> None:
    assert is_expired(envelope(expires_at=NOW), NOW)
    assert not is_expired(envelope(expires_at=NOW + 1), NOW)
    assert not is_expired(envelope(), NOW)
    settlement, finished = fail(envelope(expires_at=NOW + 5, backoff=10.0), ValueError("no"))
    assert (settlement.outcome, settlement.reason, finished) == ("bury", "expired", True)
    assert settlement.attempts == kept(settlement).attempt == 1  # the second one never was
    settlement, finished = fail(envelope(expires_at=NOW - 1), Expired())
    assert (settlement.outcome, settlement.reason, finished) == ("bury", "expired", True)
    assert kept(settlement).history[0].outcome == "expired"


def test_poison_is_buried_with_its_reason() -> None:
    settlement = settle_poison(envelope(), reserved(envelope()), codec=CODEC, limit=3, now=NOW)
    assert (settlement.outcome, settlement.reason) == ("bury", "poison")
    assert "3 times" in settlement.error
    assert kept(settlement).history[0].outcome == "lost"
    bare = settle_poison(None, reserved(), codec=CODEC, limit=3, now=NOW)
    assert (bare.outcome, bare.reason, bare.body) == ("bury", "poison", b"???")


def test_history_is_bounded_and_keeps_the_first_attempt() -> None:
    made = envelope(max_attempts=10_000)
    for _ in range(KEPT_ATTEMPTS + 30):
        settlement, _ = fail(made, raised(ValueError("x" * 10_000)))
        made = kept(settlement)
    assert len(made.history) == KEPT_ATTEMPTS
    assert made.history[0].number == 1
    assert made.history[-1].number == KEPT_ATTEMPTS + 30
    assert [bool(past.traceback) for past in made.history].count(True) == 4
    assert len(CODEC.encode(made)) < 200_000


def test_texts_are_bounded_and_can_be_stored() -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise ValueError("\ud800" + "x" * 10_000)

    try:
        deep(300)
    except ValueError as error:
        settlement, _ = fail(envelope(max_attempts=1), error)
    assert len(settlement.error) <= ERROR_LIMIT
    assert len(settlement.traceback) <= TRACEBACK_LIMIT
    assert settlement.traceback.rstrip().endswith("x")
    msgspec.json.encode(settlement.error)


def test_an_exception_that_cannot_be_printed_does_not_stop_the_worker() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    settlement, _ = fail(envelope(), Unprintable())
    assert kept(settlement).history[0].error.startswith("Unprintable: ")


def test_the_envelope_that_was_given_is_left_as_it_was() -> None:
    made = envelope()
    fail(made, ValueError("no"))
    assert (made.attempt, made.history) == (1, [])
