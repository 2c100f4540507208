"""Many threads and several driver objects at once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from millstream.drivers.base import Driver, Settlement
from tests.contract.drivers.helpers import Background, Q, body_of, complete, counts, ids, item, push, take

PRODUCERS = CONSUMERS = 8


def test_each_of_twenty_thousand_jobs_is_run_once(driver: Driver, second: Driver) -> None:
    total = 20_000
    each = total // PRODUCERS
    seen: Counter[str] = Counter()
    lock = threading.Lock()
    priorities = ("critical", "high", "default", "low")

    def produce(number: int) -> list[str]:
        which = (driver, second)[number % 2]
        added = []
        for at in range(0, each, 100):
            added += which.push(
                [
                    item(n, priority=priorities[n % 4], queue=("x", "y")[number % 2])
                    for n in range(at, at + 100)
                ]
            )
        return added

    def consume(number: int) -> None:
        which = (driver, second)[number % 2]
        while True:
            found = which.reserve(["x", "y"], f"c{number}", 50, wait=0.2)
            assert all(complete(which, *found))
            with lock:
                seen.update(ids(found))
                if seen.total() >= total:
                    return

    producers = [Background(produce, number) for number in range(PRODUCERS)]
    consumers = [Background(consume, number) for number in range(CONSUMERS)]
    pushed = [job_id for producer in producers for job_id in producer.result(60)]
    for consumer in consumers:
        consumer.result(60)
    assert len(set(pushed)) == total
    assert set(seen) == set(pushed)
    assert set(seen.values()) == {1}
    assert counts(driver, "x") == counts(driver, "y") == (0, 0, 0, 0)


@pytest.mark.needs("fencing")
def test_of_many_that_settle_the_same_jobs_one_succeeds(driver: Driver, second: Driver) -> None:
    push(driver, *range(200))
    found = take(driver, 200)
    barrier = threading.Barrier(6)

    def settle(number: int) -> int:
        barrier.wait(10)
        which = (driver, second)[number % 2]
        outcome = ("complete", "retry", "bury")[number % 3]
        answers = which.settle(
            [Settlement(one, outcome, body=body_of(one.id)) for one in found[:: 1 if number % 2 else -1]]  # type: ignore[arg-type]
        )
        return sum(answers)

    assert sum(call.result() for call in [Background(settle, n) for n in range(6)]) == 200
    waiting, reserved, delayed, dead = counts(driver)
    assert (reserved, delayed) == (0, 0)
    assert waiting + dead <= 200


def test_pushes_of_the_same_ids_by_many_add_each_once(driver: Driver, second: Driver) -> None:
    items = [item(n, unique_key=f"k{n}" if n % 2 else None) for n in range(300)]
    calls = [Background((driver, second)[n % 2].push, items) for n in range(6)]
    for call in calls:
        assert call.result() == ids(items)
    assert counts(driver) == (300, 0, 0, 0)


def test_pausing_and_resuming_under_load_loses_nothing(driver: Driver, second: Driver) -> None:
    total = 1500
    stop = threading.Event()

    def blink() -> None:
        while not stop.is_set():
            second.pause(Q)
            second.resume(Q)

    def produce() -> None:
        for n in range(total // 10):
            push(second, *range(10), priority=("high", "low")[n % 2])

    calls = [Background(blink), Background(produce)]
    found: list[str] = []
    while len(found) < total:
        got = take(driver, 20, wait=5)
        assert got, "the queue is resumed again and again, so something must come"
        assert all(complete(driver, *got))
        found += ids(got)
    stop.set()
    for call in calls:
        call.result()
    assert len(set(found)) == total
    assert counts(driver) == (0, 0, 0, 0)
