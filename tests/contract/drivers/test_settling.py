"""settle: the four outcomes, and the fence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.drivers.base import Driver, Reservation, Settlement
from tests.contract.drivers.helpers import (
    Q,
    body_of,
    bury,
    complete,
    counts,
    drain,
    give_up,
    ids,
    numbers,
    one,
    push,
    release,
    retry,
    state,
    take,
    until,
)


def test_nothing_settled_is_nothing_done(driver: Driver) -> None:
    assert driver.settle([]) == []
    assert driver.extend([]) == []


def test_complete_forgets_the_job(driver: Driver) -> None:
    push(driver, 1)
    reservation = one(driver)
    assert complete(driver, reservation) == [True]
    assert counts(driver) == (0, 0, 0, 0)
    assert driver.find(reservation.id) is None
    assert driver.lease_lost(reservation)


def test_retry_at_once_makes_it_wait_with_its_new_body(driver: Driver) -> None:
    push(driver, "first", "other")
    reservation = one(driver)
    assert retry(driver, reservation, "second")
    assert counts(driver) == (2, 0, 0, 0)
    found = take(driver)
    assert numbers(found) == ["other", "second"]
    assert found[1].id == reservation.id
    assert found[1].delivery_count == 1


@pytest.mark.needs("delays")
def test_retry_with_a_delay_makes_it_delayed(driver: Driver) -> None:
    push(driver, "first", priority="high")
    reservation = one(driver)
    before = time.monotonic()
    assert retry(driver, reservation, "second", delay=0.1)
    assert counts(driver) == (0, 0, 1, 0)
    until(lambda: driver.promote_due([Q]), "the promotion")
    assert time.monotonic() - before >= 0.099
    found = one(driver)
    assert (found.id, found.priority, numbers([found])) == (reservation.id, "high", ["second"])


@pytest.mark.needs("dead_letters")
def test_bury_keeps_it_with_the_reason(driver: Driver) -> None:
    push(driver, "first")
    reservation = one(driver)
    before = time.time()
    assert bury(driver, reservation, "second", reason="too often")
    assert counts(driver) == (0, 0, 0, 1)
    (letter,) = driver.dead(Q)
    assert (letter.id, letter.queue, numbers([letter])) == (reservation.id, Q, ["second"])
    assert (letter.reason, letter.error, letter.traceback) == ("too often", "ValueError: no", "Traceback …")
    assert letter.attempts == 3
    assert letter.original_stream in driver.stream_keys(Q)
    assert letter.original_id == reservation.entry_id
    assert before - 5 < letter.moved_at < time.time() + 5


class TestRelease:
    def test_it_waits_at_the_front_and_the_delivery_does_not_count(self, driver: Driver) -> None:
        push(driver, 0, 1, 2)
        first = one(driver, "a")
        assert release(driver, first) == [True]
        assert counts(driver) == (3, 0, 0, 0)
        assert driver.lease_lost(first)
        found = take(driver, owner="b")
        assert numbers(found) == [0, 1, 2]
        assert [one.delivery_count for one in found] == [1, 1, 1]
        assert complete(driver, first) == [False]
        assert complete(driver, *found) == [True] * 3

    def test_an_earlier_loss_still_counts(self, driver: Driver) -> None:
        push(driver, 0)
        one(driver, "dead")
        (again,) = give_up(driver, "b")
        assert again.delivery_count == 2
        release(driver, again)
        assert one(driver, "c").delivery_count == 2

    def test_many_keep_their_order(self, driver: Driver) -> None:
        push(driver, *range(20))
        found = take(driver, 10)
        release(driver, *found[6:])
        release(driver, *found[3:6])
        release(driver, *found[:3])
        assert numbers(take(driver, 10)) == list(range(10))
        assert numbers(take(driver, 10)) == list(range(10, 20))

    def test_they_keep_it_whichever_comes_back_first(self, driver: Driver) -> None:
        push(driver, *range(6))
        for part in (found := take(driver, 4))[:2], found[2:]:
            release(driver, *part)
        assert numbers(take(driver, 6)) == list(range(6))

    def test_a_released_job_is_not_recovered(self, driver: Driver) -> None:
        push(driver, 0)
        release(driver, one(driver))
        time.sleep(0.03)  # longer than the lease: this is about what must not happen
        assert driver.recover([Q], "b", 0.01) == []
        assert counts(driver) == (1, 0, 0, 0)

    def test_it_can_be_cancelled_and_cleared(self, driver: Driver) -> None:
        push(driver, 0, 1)
        release(driver, *(found := take(driver)))
        assert state(driver, found[0].id) == "waiting"
        assert driver.cancel(found[0].id, Q)
        assert counts(driver) == (1, 0, 0, 0)
        assert driver.clear(Q) == 1
        assert counts(driver) == (0, 0, 0, 0)
        assert take(driver) == []


Stale = Callable[[Driver, Reservation], Any]
STALE: dict[str, Stale] = {
    "complete": lambda driver, stale: complete(driver, stale)[0],
    "retry": lambda driver, stale: retry(driver, stale, "stale"),
    "retry later": lambda driver, stale: retry(driver, stale, "stale", 1),
    "bury": lambda driver, stale: bury(driver, stale, "stale"),
    "release": lambda driver, stale: release(driver, stale)[0],
    "extend": lambda driver, stale: driver.extend([stale])[0],
}


@pytest.mark.needs("fencing")
@pytest.mark.parametrize("verb", STALE)
class TestFence:
    def test_a_job_that_another_owns_is_not_touched(self, driver: Driver, second: Driver, verb: str) -> None:
        push(driver, "first")
        stale = one(driver, "a")
        (current,) = give_up(second, "b")
        before = driver.find(stale.id, Q)
        assert STALE[verb](driver, stale) is False
        assert driver.find(stale.id, Q) == before
        assert counts(driver) == (0, 1, 0, 0)
        assert driver.lease_lost(stale)
        assert not driver.lease_lost(current)
        assert complete(second, current) == [True]

    def test_the_same_owner_with_an_older_delivery_is_stale(self, driver: Driver, verb: str) -> None:
        push(driver, "first")
        stale = one(driver, "a")
        (current,) = give_up(driver, "a")
        assert current.delivery_count == 2
        assert STALE[verb](driver, stale) is False
        assert counts(driver) == (0, 1, 0, 0)
        assert complete(driver, current) == [True]

    def test_a_settled_job_is_stale(self, driver: Driver, verb: str) -> None:
        push(driver, "first")
        stale = one(driver)
        complete(driver, stale)
        assert STALE[verb](driver, stale) is False
        assert counts(driver) == (0, 0, 0, 0)
        assert driver.find(stale.id) is None

    def test_a_retried_job_is_stale(self, driver: Driver, verb: str) -> None:
        push(driver, "first")
        stale = one(driver)
        retry(driver, stale, "second")
        assert STALE[verb](driver, stale) is False
        assert numbers(take(driver)) == ["second"]

    def test_a_queue_that_nobody_used_knows_no_reservation(self, driver: Driver, verb: str) -> None:
        assert STALE[verb](driver, Reservation("x", Q, "default", "1-1", b"x", "a", 1)) is False
        assert counts(driver) == (0, 0, 0, 0)


@pytest.mark.needs("fencing")
def test_owned_and_stale_in_one_call_are_told_apart(driver: Driver) -> None:
    push(driver, *range(30))
    everything = take(driver, 30, "a")
    time.sleep(0.03)
    lost = driver.recover([Q], "b", 0.02, 10)
    assert len(lost) == 10
    answers = complete(driver, *everything)
    assert answers == [one.id not in ids(lost) for one in everything]
    assert counts(driver) == (0, 10, 0, 0)
    assert complete(driver, *lost) == [True] * 10


def test_named_twice_in_one_call_it_is_settled_once(driver: Driver) -> None:
    push(driver, 1, 2)
    first, other = take(driver)
    assert complete(driver, first, other, first) == [True, True, False]
    assert counts(driver) == (0, 0, 0, 0)


def test_mixed_outcomes_queues_owners_and_priorities_in_one_call(driver: Driver) -> None:
    for queue in ("x", "y"):
        for priority in ("high", "low"):
            push(driver, *range(10), queue=queue, priority=priority)
    found = [reservation for owner in ("a", "b") for reservation in take(driver, 20, owner, ["x", "y"])]
    outcomes = ("complete", "retry", "bury", "release")
    settlements = [
        Settlement(one, outcomes[n % 4], body=body_of(one.id, "kept"), delay=60.0 * (n % 8 == 1))  # type: ignore[arg-type]
        for n, one in enumerate(found)
    ]
    assert driver.settle(settlements) == [True] * 40
    totals = [sum(row) for row in zip(counts(driver, "x"), counts(driver, "y"), strict=True)]
    assert totals == [15, 0, 5, 10]
    for n, one_ in enumerate(found):
        expected = (None, "delayed" if n % 8 == 1 else "waiting", "dead", "waiting")[n % 4]
        assert state(driver, one_.id, one_.queue) == expected


def test_thousands_in_any_order(driver: Driver) -> None:
    push(driver, *range(2500))
    found = take(driver, 2500)
    assert len(found) == 2500
    shuffled = found[::2][::-1] + found[1::2]
    assert complete(driver, *shuffled) == [True] * 2500
    assert counts(driver) == (0, 0, 0, 0)


def test_settling_a_few_among_many_reserved(driver: Driver) -> None:
    push(driver, *range(1000))
    found = take(driver, 1000)
    some = found[5::100]
    assert complete(driver, *some) == [True] * 10
    assert counts(driver) == (0, 990, 0, 0)
    assert complete(driver, *found) == [one not in some for one in found]
    assert drain(driver) == []
