"""size, queues, stream_keys, find, cancel, clear."""

from __future__ import annotations

import pytest

from millstream.drivers.base import Driver
from tests.contract.drivers.helpers import (
    Q,
    bury,
    complete,
    counts,
    drain,
    give_up,
    ids,
    item,
    numbers,
    one,
    push,
    take,
    until,
)


def test_the_size_of_an_unused_queue_is_zero(driver: Driver) -> None:
    size = driver.size("nobody")
    assert (size.waiting, size.reserved, size.delayed, size.dead, size.total) == (0, 0, 0, 0, 0)
    assert size.oldest is None
    assert not size.paused
    assert set(size.by_priority.values()) == {0}
    assert driver.queues() == []


def test_sizes_are_exact_through_every_change(driver: Driver) -> None:
    push(driver, *range(6))
    push(driver, *range(3), priority="critical")
    push(driver, 1, delay=60)
    size = driver.size(Q)
    assert size.by_priority == {"critical": 3, "high": 0, "default": 6, "low": 0}
    assert (size.waiting, size.total) == (9, 10)
    found = take(driver, 5)
    assert counts(driver) == (4, 5, 1, 0)
    assert driver.size(Q).by_priority["default"] == 4
    complete(driver, *found[:2])
    bury(driver, found[2])
    assert counts(driver) == (4, 2, 1, 1)
    driver.cancel(driver.delayed(Q)[0].id)
    drain(driver)
    assert counts(driver) == (0, 2, 0, 1)
    assert driver.size(Q).oldest is None


def test_the_age_of_the_oldest_that_waits(driver: Driver) -> None:
    push(driver, 1, 2)
    until(lambda: (driver.size(Q).oldest or 0) > 0.03, "time to pass")
    one(driver)
    push(driver, 3, priority="critical")
    assert (driver.size(Q).oldest or 0) > 0.02
    take(driver)
    assert driver.size(Q).oldest is None


def test_queues_lists_what_was_ever_pushed_to(driver: Driver, second: Driver) -> None:
    for queue in ("b", "a", "c"):
        push(driver, 1, queue=queue)
    drain(driver, ["a", "b", "c"])
    assert driver.queues() == second.queues() == ["a", "b", "c"]


def test_stream_keys_are_four_in_the_order_of_priority(driver: Driver) -> None:
    keys = driver.stream_keys(Q)
    assert len(keys) == len(set(keys)) == 4
    assert [key.rpartition(":")[2] for key in keys] == ["critical", "high", "default", "low"]


@pytest.mark.needs("find")
class TestFind:
    def test_each_state_is_told(self, driver: Driver) -> None:
        (waiting,) = push(driver, 1, priority="low")
        found = driver.find(waiting)
        assert found is not None
        assert (found.id, found.queue, found.state, found.priority) == (waiting, Q, "waiting", "low")
        assert numbers([found]) == [1]
        assert (found.owner, found.due_in) == (None, None)

        reservation = one(driver, "me")
        found = driver.find(waiting)
        assert found is not None
        assert (found.state, found.owner, found.delivery_count) == ("reserved", "me", 1)
        (reservation,) = give_up(driver, "you")
        found = driver.find(waiting, Q)
        assert found is not None
        assert (found.state, found.owner, found.delivery_count) == ("reserved", "you", 2)

        bury(driver, reservation, 2)
        found = driver.find(waiting)
        assert found is not None
        assert (found.state, found.priority, numbers([found])) == ("dead", "low", [2])

        (delayed,) = push(driver, 3, delay=100, priority="high")
        found = driver.find(delayed)
        assert found is not None
        assert (found.state, found.priority, numbers([found])) == ("delayed", "high", [3])
        assert 90 < (found.due_in or 0) <= 100

    def test_every_queue_is_asked_unless_one_is_named(self, driver: Driver, second: Driver) -> None:
        push(driver, 1, queue="x")
        (job_id,) = push(driver, 2, queue="y")
        found = second.find(job_id)
        assert found is not None
        assert found.queue == "y"
        assert second.find(job_id, "x") is None
        assert second.find("unknown") is None


@pytest.mark.needs("cancel")
class TestCancel:
    def test_a_waiting_job_is_forgotten(self, driver: Driver) -> None:
        pushed = push(driver, *range(5))
        assert driver.cancel(pushed[2])
        assert not driver.cancel(pushed[2])
        assert driver.find(pushed[2]) is None
        assert counts(driver) == (4, 0, 0, 0)
        assert numbers(drain(driver)) == [0, 1, 3, 4]

    def test_a_delayed_job_is_forgotten(self, driver: Driver) -> None:
        first, other = push(driver, 1, 2, delay=0.05)
        assert driver.cancel(first, Q)
        assert counts(driver) == (0, 0, 1, 0)
        until(lambda: driver.promote_due([Q]), "the other one")
        assert ids(take(driver)) == [other]

    def test_a_reserved_or_dead_one_is_not_touched(self, driver: Driver) -> None:
        push(driver, 1, 2)
        reserved, dead = take(driver)
        bury(driver, dead)
        assert not driver.cancel(reserved.id)
        assert not driver.cancel(dead.id)
        assert not driver.cancel("unknown")
        assert counts(driver) == (0, 1, 0, 1)
        assert complete(driver, reserved) == [True]

    def test_a_cancelled_id_can_be_pushed_again(self, driver: Driver) -> None:
        again = item(1)
        driver.push([again])
        driver.cancel(again.id)
        driver.push([again])
        assert numbers(drain(driver)) == [1]


class TestClear:
    def test_waiting_and_delayed_go_and_the_rest_stays(self, driver: Driver) -> None:
        push(driver, 0, 1)
        reserved, dead = take(driver)
        bury(driver, dead)
        push(driver, *range(1200))
        push(driver, *range(30), priority="critical")
        push(driver, *range(700), delay=60)
        assert driver.clear(Q) == 1930
        assert counts(driver) == (0, 1, 0, 1)
        assert take(driver) == []
        assert driver.next_due([Q]) is None
        assert complete(driver, reserved) == [True]
        assert driver.clear(Q) == 0

    def test_other_queues_stay(self, driver: Driver) -> None:
        push(driver, 1, queue="x")
        push(driver, 2, queue="y")
        assert driver.clear("x") == 1
        assert numbers(drain(driver, ["x", "y"])) == [2]

    def test_a_paused_queue_can_be_cleared(self, driver: Driver) -> None:
        push(driver, 1, 2)
        one(driver)
        driver.pause(Q)
        push(driver, 3)
        assert driver.clear(Q) == 2
        driver.resume(Q)
        assert take(driver) == []

    def test_cleared_ids_can_be_pushed_again(self, driver: Driver) -> None:
        again = [item(n) for n in range(3)]
        driver.push(again)
        driver.clear(Q)
        driver.push(again)
        assert numbers(drain(driver)) == [0, 1, 2]
