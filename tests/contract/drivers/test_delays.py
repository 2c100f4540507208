"""promote_due, next_due, wait_for_due, delayed."""

from __future__ import annotations

import threading
import time

import pytest

from millstream.drivers.base import Driver
from tests.contract.drivers.helpers import (
    Background,
    Q,
    complete,
    counts,
    drain,
    ids,
    item,
    numbers,
    one,
    push,
    retry,
    take,
    until,
)

pytestmark = pytest.mark.needs("delays")
NEVER = threading.Event()


def test_due_jobs_wait_in_the_order_in_which_they_are_due(driver: Driver) -> None:
    driver.push([item(n, delay=0.02 * (3 - n)) for n in range(3)])
    until(lambda: driver.promote_due([Q]) >= 0 and counts(driver)[0] == 3, "all to be due")
    assert numbers(drain(driver)) == [2, 1, 0]


def test_nothing_is_promoted_before_its_time(driver: Driver) -> None:
    push(driver, 1, delay=30)
    assert driver.promote_due([Q]) == 0
    assert take(driver) == []
    assert counts(driver) == (0, 0, 1, 0)


def test_priority_and_body_survive_the_delay(driver: Driver) -> None:
    (job_id,) = push(driver, 1, priority="critical", delay=0.01)
    until(lambda: driver.promote_due([Q]), "the promotion")
    found = one(driver)
    assert (found.id, found.priority, numbers([found])) == (job_id, "critical", [1])


def test_the_limit_bounds_a_call_over_all_queues(driver: Driver) -> None:
    for queue in ("x", "y"):
        push(driver, *range(1500), queue=queue, delay=0.001)
    time.sleep(0.01)
    assert driver.promote_due(["x", "y"], 10) == 10
    assert driver.promote_due(["x", "y"], 2000) == 2000
    assert driver.promote_due(["x", "y"], 2000) == 990
    assert driver.promote_due(["x", "y"]) == 0
    assert driver.size("x").waiting == driver.size("y").waiting == 1500


def test_next_due(driver: Driver) -> None:
    assert driver.next_due([Q]) is None
    push(driver, 1)
    assert driver.next_due([Q]) is None
    push(driver, 1, delay=100)
    push(driver, 2, delay=50, queue="other")
    seconds = driver.next_due([Q])
    assert seconds is not None
    assert 90 < seconds <= 100
    seconds = driver.next_due([Q, "other"])
    assert seconds is not None
    assert 40 < seconds <= 50
    push(driver, 3, delay=0.001)
    until(lambda: driver.next_due([Q]) == 0, "the job to be due")


def test_the_delayed_jobs_that_are_due_first(driver: Driver) -> None:
    assert driver.delayed(Q) == []
    driver.push([item(n, delay=100 - n, priority="high") for n in range(10)])
    found = driver.delayed(Q, 3)
    assert numbers(found) == [9, 8, 7]
    assert {(one.state, one.queue, one.priority) for one in found} == {("delayed", Q, "high")}
    assert [round(one.due_in or 0) for one in found] == [91, 92, 93]
    assert len(driver.delayed(Q)) == 10


def test_racing_schedulers_promote_each_once(driver: Driver, second: Driver) -> None:
    total = 2000
    pushed = driver.push([item(n, delay=0.001 + 0.2 * n / total) for n in range(total)])
    stop = threading.Event()

    def schedule(which: Driver) -> int:
        promoted = 0
        while not stop.is_set():
            promoted += which.promote_due([Q], 37)
        return promoted

    calls = [Background(schedule, (driver, second)[n % 2]) for n in range(5)]
    found: list[str] = []

    def taken() -> bool:
        got = take(driver, 500)
        complete(driver, *got)
        found.extend(ids(got))
        return len(found) >= total

    until(taken, "every job")
    stop.set()
    assert sum(call.result() for call in calls) == total
    assert sorted(found) == sorted(pushed)
    assert counts(driver) == (0, 0, 0, 0)


class TestWaitForDue:
    def test_it_sleeps_until_the_first_is_due(self, driver: Driver) -> None:
        push(driver, 1, delay=0.25)
        began = time.monotonic()
        driver.wait_for_due([Q], 30, NEVER)
        assert 0.2 < time.monotonic() - began < 1
        assert driver.promote_due([Q]) == 1

    def test_it_returns_at_once_for_what_is_due(self, driver: Driver) -> None:
        push(driver, 1, delay=0.001)
        time.sleep(0.005)
        began = time.monotonic()
        driver.wait_for_due([Q], 30, NEVER)
        assert time.monotonic() - began < 1

    def test_it_ends_with_the_timeout(self, driver: Driver) -> None:
        push(driver, 1, delay=60)
        began = time.monotonic()
        driver.wait_for_due([Q], 0.15, NEVER)
        assert 0.14 < time.monotonic() - began < 1

    def test_it_ends_soon_after_stop(self, driver: Driver) -> None:
        stop = threading.Event()
        call = Background(driver.wait_for_due, [Q], 30, stop)
        time.sleep(0.05)
        assert not call.done
        began = time.monotonic()
        stop.set()
        call.result()
        assert call.finished_at - began < 1

    @pytest.mark.parametrize("how", ["push", "retry"])
    def test_an_earlier_job_wakes_it(self, driver: Driver, second: Driver, how: str) -> None:
        push(driver, 1, delay=60)
        push(driver, 2)
        reservation = one(driver)
        call = Background(driver.wait_for_due, [Q, "other"], 30, NEVER)
        time.sleep(0.05)
        assert not call.done
        began = time.monotonic()
        if how == "push":
            push(second, 3, delay=0.1)
        else:
            retry(second, reservation, 3, delay=0.1)
        call.result()
        assert call.finished_at - began < 1
        until(lambda: driver.promote_due([Q]), "the promotion")
        assert numbers(take(driver)) == [3]

    def test_a_later_job_does_not_end_the_wait_for_good(self, driver: Driver, second: Driver) -> None:
        push(driver, 1, delay=0.3)
        call = Background(driver.wait_for_due, [Q], 30, NEVER)
        push(second, 2, delay=60)
        call.result()
        until(lambda: driver.promote_due([Q]), "the promotion")
        assert numbers(take(driver)) == [1]

    def test_jobs_come_on_time(self, driver: Driver, second: Driver) -> None:
        stop = threading.Event()

        def schedule() -> None:
            while not stop.is_set():
                driver.promote_due([Q])
                driver.wait_for_due([Q], 5, stop)

        call = Background(schedule)
        lateness = []
        for n in range(8):
            delay = 0.02 + 0.02 * n
            began = time.monotonic()
            push(second, n, delay=delay)
            found = take(second, 1, wait=10)
            lateness.append(time.monotonic() - began - delay)
            complete(second, *found)
        stop.set()
        call.result()
        assert min(lateness) > -0.002, "a job came before its time"
        # On a busy machine a single one may be late; that most are not is what shows that nobody polls.
        assert sorted(lateness)[len(lateness) * 3 // 4] < 0.5, lateness
