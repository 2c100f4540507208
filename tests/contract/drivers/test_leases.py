"""extend, recover and lease_lost."""

from __future__ import annotations

import threading
import time

from millstream.drivers.base import Driver, Reservation
from tests.contract.drivers.helpers import (
    Background,
    Q,
    complete,
    counts,
    give_up,
    ids,
    one,
    push,
    retry,
    take,
    until,
)


def test_a_job_is_taken_over_when_its_lease_has_ended_and_not_before(driver: Driver) -> None:
    push(driver, 1, priority="high")
    first = one(driver, "a")
    assert driver.recover([Q], "b", 30) == []
    assert not driver.lease_lost(first)
    (again,) = give_up(driver, "b", lease=0.05)
    assert (again.id, again.queue, again.priority, again.body) == (first.id, Q, "high", first.body)
    assert (again.owner, again.delivery_count, again.entry_id) == ("b", 2, first.entry_id)
    assert driver.lease_lost(first)
    assert counts(driver) == (0, 1, 0, 0)
    (third,) = give_up(driver, "c", lease=0.02)
    assert third.delivery_count == 3
    assert complete(driver, again, third) == [False, True]


def test_the_takeover_begins_a_new_lease(driver: Driver) -> None:
    for lease in (0.05, 2.0):
        queue = f"{Q}-{lease}"
        push(driver, 1, queue=queue)
        one(driver, "a", queues=[queue])
        time.sleep(lease * 1.2)
        began = time.monotonic()
        give_up(driver, "b", lease, queue=queue)
        found = driver.recover([queue], "c", lease)
        if time.monotonic() - began < lease:
            break  # otherwise the machine is so busy that the new lease has lapsed, too
    assert found == []


def test_extend_begins_the_lease_anew_and_counts_no_delivery(driver: Driver, second: Driver) -> None:
    push(driver, 1, 2)
    kept, lost = take(driver, 2, "a")
    end = time.monotonic() + 0.25
    taken = []
    while time.monotonic() < end:
        assert driver.extend([kept]) == [True]
        taken += second.recover([Q], "b", 0.15)
        time.sleep(0.01)
    assert ids(taken) == [lost.id]
    assert driver.extend([kept, lost]) == [True, False]
    found = driver.find(kept.id, Q)
    assert found is not None
    assert (found.state, found.owner, found.delivery_count) == ("reserved", "a", 1)


def test_an_outcome_that_meets_a_renewal_is_accepted(driver: Driver, second: Driver) -> None:
    """The heartbeat renews a lease while the settler ends the job: neither may make the other refuse."""
    push(driver, *range(400))
    held = take(driver, 400)
    done: set[Reservation] = set()
    refused = 0
    over = threading.Event()

    def renew() -> None:
        nonlocal refused
        while not over.is_set():
            asked = [each for each in held if each not in done]
            answers = second.extend(asked)
            ended = done.copy()
            refused += sum(not a for a, each in zip(answers, asked, strict=True) if each not in ended)

    renewing = Background(renew)
    try:
        for start in range(0, 400, 8):
            batch = held[start : start + 8]
            done.update(batch)
            assert complete(driver, *batch) == [True] * 8
    finally:
        over.set()
    renewing.result()
    assert refused == 0
    assert counts(driver) == (0, 0, 0, 0)


def test_a_dead_owners_job_behind_many_live_ones_is_reached(driver: Driver) -> None:
    push(driver, *range(2500))
    alive = take(driver, 2400, "alive")
    dead = take(driver, 100, "dead")
    found: list[str] = []

    def sweep() -> bool:
        assert all(driver.extend(alive))
        found.extend(ids(driver.recover([Q], "b", 0.5, 50)))
        return len(found) >= 100

    until(sweep, "all of the dead owner's jobs")
    assert sorted(found) == sorted(ids(dead))


def test_recover_takes_no_more_than_asked_and_goes_on(driver: Driver) -> None:
    push(driver, *range(25))
    taken = take(driver, 25, "dead")
    time.sleep(0.03)
    found: list[str] = []
    for _ in range(20):
        got = driver.recover([Q], "b", 0.02, 4)
        assert len(got) <= 4
        found += ids(got)
        complete(driver, *got)
        if len(found) == 25:
            break
    assert sorted(found) == sorted(ids(taken))


def test_recover_looks_at_every_queue_and_priority(driver: Driver) -> None:
    for queue in ("x", "y"):
        for priority in ("critical", "low"):
            push(driver, 1, queue=queue, priority=priority)
    taken = take(driver, 10, "dead", ["x", "y"])
    found: set[str] = set()  # on a busy machine some may lapse again, and be found twice

    def sweep() -> bool:
        found.update(ids(driver.recover(["x", "y"], "b", 0.02)))
        return len(found) >= 4

    until(sweep, "all four")
    assert found == set(ids(taken))


def test_one_of_many_takes_each(driver: Driver, second: Driver) -> None:
    for lease in (0.2, 2.0):
        queue = f"{Q}-{lease}"
        push(driver, *range(50), queue=queue)
        taken = take(driver, 50, "dead", [queue])
        time.sleep(lease * 1.2)
        found, began = [], time.monotonic()
        for _ in range(5):
            found += ids(driver.recover([queue], "b", lease)) + ids(second.recover([queue], "c", lease))
        if time.monotonic() - began < lease:
            break  # otherwise the machine is so busy that what was taken over has lapsed again
    assert sorted(found) == sorted(ids(taken))


def test_recover_of_an_unused_queue_finds_nothing(driver: Driver) -> None:
    assert driver.recover([Q], "b", 1) == []


def test_settled_and_waiting_jobs_have_no_lease_to_lose(driver: Driver) -> None:
    push(driver, 1, 2)
    first, other = take(driver)
    complete(driver, first)
    retry(driver, other)
    time.sleep(0.02)
    assert driver.recover([Q], "b", 0.01) == []
