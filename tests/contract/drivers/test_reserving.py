"""reserve: order, turns, pauses, age, and waiting."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from millstream.drivers.base import Driver
from millstream.envelope import PRIORITIES
from tests.contract.drivers.helpers import (
    Background,
    Q,
    complete,
    counts,
    ids,
    item,
    numbers,
    one,
    push,
    release,
    take,
    timed,
    until,
)

Waiting = Callable[[int], None]


def test_an_unused_queue_gives_nothing(driver: Driver) -> None:
    found, seconds = timed(lambda: take(driver))
    assert found == []
    assert seconds < 2


def test_first_in_first_out_and_no_more_than_asked(driver: Driver) -> None:
    push(driver, *range(10))
    assert numbers(take(driver, 4)) == [0, 1, 2, 3]
    assert numbers(take(driver, 100)) == [4, 5, 6, 7, 8, 9]
    assert counts(driver) == (0, 10, 0, 0)


def test_a_job_is_given_to_one_owner(driver: Driver, second: Driver) -> None:
    push(driver, *range(6))
    assert numbers(take(driver, 3, "a") + take(second, 3, "b") + take(driver, 3, "c")) == list(range(6))


@pytest.mark.needs("priorities")
def test_higher_priorities_go_first_whatever_came_first(driver: Driver) -> None:
    for n, priority in enumerate(("low", "default", "high", "critical", "low", "critical")):
        push(driver, f"{priority}-{n}", priority=priority)
    expected = ["critical-3", "critical-5", "high-2", "default-1", "low-0", "low-4"]
    assert numbers(take(driver, 4)) == expected[:4]
    assert numbers(take(driver, 4)) == expected[4:]


@pytest.mark.needs("priorities")
def test_priority_is_strict_over_all_queues(driver: Driver) -> None:
    for queue in ("x", "y", "z"):
        for priority in reversed(PRIORITIES):
            push(driver, *(f"{priority}" for _ in range(5)), queue=queue, priority=priority)
    found: list[str] = []
    while got := take(driver, 7, queues=["x", "y", "z"]):
        found += numbers(got)
    assert found == sorted(found, key=PRIORITIES.index)
    assert len(found) == 60


def test_queues_take_turns(driver: Driver) -> None:
    for queue in ("x", "y"):
        push(driver, *range(100), queue=queue)
    served = Counter(one(driver, queues=["x", "y"]).queue for _ in range(20))
    assert served == {"x": 10, "y": 10}
    served = Counter(found.queue for _ in range(5) for found in take(driver, 10, queues=["x", "y"]))
    assert served == {"x": 25, "y": 25}


def test_what_one_queue_lacks_the_others_give(driver: Driver) -> None:
    push(driver, *range(3), queue="x")
    push(driver, *range(50), queue="y")
    assert Counter(found.queue for found in take(driver, 40, queues=["x", "y", "z"])) == {"x": 3, "y": 37}


@pytest.mark.needs("priorities")
def test_a_job_that_waited_too_long_goes_first(driver: Driver) -> None:
    push(driver, "old", priority="low")
    until(lambda: (driver.size(Q).oldest or 0) > 0.1, "the job to be old")
    push(driver, *("new" for _ in range(10)), priority="critical")
    assert numbers(take(driver, 2, max_wait=None)) == ["new", "new"]
    assert numbers(take(driver, 2, max_wait=60)) == ["new", "new"]
    assert numbers(take(driver, 2, max_wait=0.1)) == ["old", "new"]


@pytest.mark.needs("priorities")
def test_a_released_job_grows_old_too(driver: Driver) -> None:
    push(driver, "old", priority="low")
    release(driver, one(driver))
    until(lambda: (driver.size(Q).oldest or 0) > 0.1, "the job to be old")
    push(driver, "new", priority="critical")
    assert numbers(take(driver, 2, max_wait=0.1)) == ["old", "new"]


@pytest.mark.needs("priorities")
def test_a_permanent_flood_does_not_starve_the_lowest(driver: Driver) -> None:
    push(driver, *range(200), priority="critical")
    (low,) = push(driver, "low", priority="low")
    began = asked = time.monotonic()
    while low not in ids(found := take(driver, 10, max_wait=1.0)):
        # Not when the call ends, which a busy machine puts off: one that begins so late has to bring it.
        assert asked - began < 0.95, "the low one would not have started within max_wait"
        complete(driver, *found)
        push(driver, *range(len(found)), priority="critical")
        asked = time.monotonic()
    assert time.monotonic() - began > 0.5, "it went first too early"


@pytest.mark.needs("priorities")
def test_the_oldest_of_the_old_goes_first(driver: Driver) -> None:
    for n, priority in enumerate(("default", "low", "high")):
        push(driver, n, priority=priority)
        until(lambda n=n: (driver.size(Q).oldest or 0) > 0.01 * (n + 1), "time to pass")
    assert numbers(take(driver, 3, max_wait=0)) == [0, 1, 2]


class TestWaiting:
    def test_a_push_ends_the_wait(self, driver: Driver, second: Driver, waiting: Waiting) -> None:
        call = Background(take, driver, 5, wait=30)
        waiting(1)
        began = time.monotonic()
        push(second, 1, priority="low")
        assert numbers(call.result()) == [1]
        assert call.finished_at - began < 1

    def test_the_wait_ends_by_itself(self, driver: Driver) -> None:
        found, seconds = timed(lambda: take(driver, wait=0.2))
        assert found == []
        assert 0.19 < seconds < 2

    def test_no_more_than_asked_when_several_queues_wake_one(self, driver: Driver, waiting: Waiting) -> None:
        queues = ["x", "y"]
        call = Background(take, driver, 2, queues=queues, wait=30)
        waiting(1)
        driver.push([item(n, queue=queues[n % 2], priority=PRIORITIES[n % 4]) for n in range(20)])
        got = call.result()
        assert 1 <= len(got) <= 2
        found = ids(got)
        while more := take(driver, 5, queues=queues):
            found += ids(more)
        assert len(found) == len(set(found)) == 20

    @pytest.mark.needs("delays")
    def test_a_promotion_ends_the_wait(self, driver: Driver, second: Driver, waiting: Waiting) -> None:
        push(driver, 1, delay=0.05)
        call = Background(take, driver, wait=30)
        waiting(1)
        until(lambda: second.promote_due([Q]), "the promotion")
        assert numbers(call.result()) == [1]

    @pytest.mark.needs("pause")
    def test_resume_ends_the_wait(self, driver: Driver, second: Driver, waiting: Waiting) -> None:
        driver.pause(Q)
        push(driver, 1)
        call = Background(take, driver, wait=30)
        waiting(1)
        began = time.monotonic()
        second.resume(Q)
        assert numbers(call.result()) == [1]
        assert call.finished_at - began < 1

    def test_a_release_ends_the_wait(self, driver: Driver, waiting: Waiting) -> None:
        push(driver, 1)
        reservation = one(driver, "a")
        call = Background(take, driver, 1, "b", wait=30)
        waiting(1)
        began = time.monotonic()
        release(driver, reservation)
        assert numbers(call.result()) == [1]
        assert call.finished_at - began < 1

    def test_each_that_waits_gets_one(self, driver: Driver, waiting: Waiting) -> None:
        calls = [Background(take, driver, 1, f"w{n}", wait=30) for n in range(4)]
        waiting(4)
        pushed = push(driver, *range(4))
        assert sorted(ids(call.result()[0] for call in calls)) == sorted(pushed)

    @pytest.mark.needs("pause")
    def test_many_released_at_once_wake_many(self, driver: Driver, waiting: Waiting) -> None:
        driver.pause(Q)
        push(driver, *range(4))
        calls = [Background(take, driver, 1, f"w{n}", wait=30) for n in range(4)]
        waiting(4)
        began = time.monotonic()
        driver.resume(Q)
        assert sorted(numbers(call.result()[0] for call in calls)) == [0, 1, 2, 3]
        assert max(call.finished_at for call in calls) - began < 3


@pytest.mark.needs("pause")
class TestPause:
    def test_a_paused_queue_gives_nothing_and_takes_everything(self, driver: Driver, second: Driver) -> None:
        push(driver, 0)
        before = one(driver)
        driver.pause(Q)
        push(driver, 1)
        push(driver, 2, priority="critical")
        release(driver, before)
        assert take(driver) == take(second, owner="b") == []
        assert counts(driver) == (3, 0, 0, 0)
        assert driver.size(Q).paused
        driver.resume(Q)
        assert not driver.size(Q).paused
        assert numbers(take(driver)) == [2, 0, 1]

    def test_a_call_that_waits_already_gets_nothing(
        self, driver: Driver, second: Driver, waiting: Waiting
    ) -> None:
        call = Background(take, driver, wait=30)
        waiting(1)
        second.pause(Q)
        push(second, 1)
        time.sleep(0.1)  # nothing to wait for: this is about what must not happen
        assert not call.done
        assert counts(driver) == (1, 0, 0, 0)
        second.resume(Q)
        assert numbers(call.result()) == [1]

    def test_other_queues_go_on(self, driver: Driver) -> None:
        push(driver, 1, queue="x")
        push(driver, 2, queue="y")
        driver.pause("x")
        assert numbers(take(driver, queues=["x", "y"])) == [2]

    def test_settling_and_recovery_go_on(self, driver: Driver) -> None:
        push(driver, 1, 2)
        first, other = take(driver)
        driver.pause(Q)
        assert complete(driver, first) == [True]
        assert driver.extend([other]) == [True]
        assert counts(driver) == (0, 1, 0, 0)

    def test_twice_is_once(self, driver: Driver) -> None:
        push(driver, 1)
        take(driver)
        push(driver, 2)
        for _ in range(2):
            driver.pause(Q)
        for _ in range(2):
            driver.resume(Q)
        assert numbers(take(driver)) == [2]

    def test_a_queue_that_nobody_used_can_be_paused(self, driver: Driver) -> None:
        driver.pause(Q)
        push(driver, 1)
        assert take(driver) == []
        driver.resume(Q)
        assert numbers(take(driver)) == [1]
