"""Rate limits: at most so many starts in any span, over all owners together."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from millstream.drivers.base import Driver, RateLimit
from tests.contract.drivers.helpers import (
    Background,
    Q,
    complete,
    counts,
    numbers,
    push,
    release,
    take,
    timed,
)

pytestmark = pytest.mark.needs("rate_limits")
TIGHT = {Q: RateLimit(3, per=60)}


def test_no_more_start_than_allowed_and_the_rest_waits(driver: Driver, second: Driver) -> None:
    push(driver, *range(10))
    assert numbers(take(driver, 2, "a", limits=TIGHT)) == [0, 1]
    assert numbers(take(second, 5, "b", limits=TIGHT)) == [2]
    assert take(driver, 5, "a", limits=TIGHT) == take(second, 5, "b", limits=TIGHT) == []
    assert counts(driver) == (7, 3, 0, 0)


def test_a_limit_is_for_its_queue_only(driver: Driver) -> None:
    push(driver, *range(5), queue="x")
    push(driver, *range(5), queue="y")
    found = take(driver, 10, queues=["x", "y"], limits={"x": RateLimit(1, per=60)})
    assert [one.queue for one in found].count("x") == 1
    assert len(found) == 6


def test_priorities_hold_under_a_limit(driver: Driver) -> None:
    push(driver, *("low",) * 5, priority="low")
    push(driver, "high", priority="high")
    assert numbers(take(driver, 5, limits={Q: RateLimit(2, per=60)})) == ["high", "low"]


def test_completing_does_not_free_a_start(driver: Driver) -> None:
    push(driver, *range(5))
    complete(driver, *take(driver, 5, limits=TIGHT))
    assert take(driver, 5, limits=TIGHT) == []


def test_a_call_waits_for_the_next_free_start(driver: Driver) -> None:
    limits = {Q: RateLimit(2, per=0.3)}
    push(driver, *range(3))
    assert len(take(driver, 5, limits=limits)) == 2
    found, seconds = timed(lambda: take(driver, 5, wait=30, limits=limits))
    assert numbers(found) == [2]
    assert 0.2 < seconds < 1.5


def test_a_push_to_another_queue_ends_the_wait_for_a_start(
    driver: Driver, waiting: Callable[[int], None]
) -> None:
    limits = {"x": RateLimit(1, per=60)}
    push(driver, 1, 2, queue="x")
    assert len(take(driver, 5, queues=["x", "y"], limits=limits)) == 1
    call = Background(take, driver, 5, queues=["x", "y"], wait=30, limits=limits)
    waiting(1)
    push(driver, 3, queue="y")
    assert numbers(call.result()) == [3]


def test_those_who_wait_together_start_no_more_than_allowed(
    driver: Driver, waiting: Callable[[int], None]
) -> None:
    limits = {Q: RateLimit(2, per=60)}
    calls = [Background(take, driver, 3, f"w{n}", wait=2, limits=limits) for n in range(4)]
    waiting(4)
    for n in range(6):
        push(driver, n, priority=("low", "high")[n % 2])
    assert sum(len(call.result()) for call in calls) == 2
    assert counts(driver) == (4, 2, 0, 0)
    assert len(take(driver, 10)) == 4  # who sets no limit is not limited


@pytest.mark.parametrize("limit", [RateLimit(5, per=0.2), RateLimit(1, per=0.03)])
def test_never_more_in_any_span_by_two_owners(driver: Driver, second: Driver, limit: RateLimit) -> None:
    push(driver, *range(40))
    starts: list[float] = []

    def work(which: Driver, owner: str) -> None:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            # When the call begins is too early and when it returns is too late: both are noted.
            found = take(which, 4, owner, wait=0.1, limits={Q: limit})
            starts.extend([time.monotonic()] * len(found))
            complete(which, *found)

    for call in [Background(work, driver, "a"), Background(work, second, "b")]:
        call.result()
    starts.sort()
    # The answer takes its time, so a span as seen from here may be shorter than the server's by that much.
    tolerance = 0.03
    for first, last in zip(starts, starts[limit.limit :], strict=False):
        assert last - first > limit.per - tolerance
    assert len(starts) >= 0.3 * limit.limit / limit.per, "far fewer started than the limit allows"


def test_a_released_job_starts_again_only_when_allowed(driver: Driver) -> None:
    push(driver, 1)
    limits = {Q: RateLimit(1, per=60)}
    release(driver, *take(driver, limits=limits))
    assert take(driver, limits=limits) == []
    assert counts(driver) == (1, 0, 0, 0)
