"""Bad input is refused with a clear error, and nothing happens. A closed driver says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from millstream.drivers.base import Driver, PushItem, RateLimit, Reservation, Settlement
from millstream.errors import BrokerClosed, InvalidInput, InvalidName, PayloadTooLarge
from tests.contract.drivers.helpers import (
    Background,
    Q,
    bury,
    complete,
    counts,
    item,
    numbers,
    one,
    push,
    retry,
    take,
)

R = Reservation("x", Q, "default", "1-1", b"x", "a", 1)

REFUSED: dict[str, tuple[Callable[[Driver], Any], type[Exception], str]] = {
    "empty queue name": (lambda d: d.push([item(queue="")]), InvalidName, "empty"),
    "brace in a queue name": (lambda d: d.push([item(queue="a}b")]), InvalidName, "brace"),
    "control character": (lambda d: d.size("a\nb"), InvalidName, "control"),
    "empty id": (lambda d: d.push([PushItem("", Q, "default", b"x")]), InvalidName, "empty"),
    "unknown priority": (lambda d: d.push([item(priority="soon")]), InvalidInput, "'soon' is not a priority"),
    "negative delay": (lambda d: d.push([item(delay=-1)]), InvalidInput, "delay must be"),
    "delay is a date": (lambda d: d.push([item(delay=1.8e9)]), InvalidInput, "ten years"),
    "delay is not a number": (lambda d: d.push([item(delay=float("nan"))]), InvalidInput, "delay must be"),
    "unique_for alone": (lambda d: d.push([item(unique_for=5)]), InvalidInput, "unique_key"),
    "negative unique_for": (
        lambda d: d.push([item(unique_key="k", unique_for=-5)]),
        InvalidInput,
        "unique_for",
    ),
    "text body": (lambda d: d.push([PushItem("x", Q, "default", "x")]), InvalidInput, "bytes"),  # type: ignore[arg-type]
    "no queues": (lambda d: d.reserve([], "a", 1), InvalidInput, "at least one queue"),
    "a text for queues": (lambda d: d.reserve("work", "a", 1), InvalidInput, "list"),
    "no owner": (lambda d: d.reserve([Q], "", 1), InvalidName, "empty"),
    "reserved owner": (lambda d: d.reserve([Q], "~released", 1), InvalidName, "~"),
    "count of zero": (lambda d: d.reserve([Q], "a", 0), InvalidInput, "count"),
    "negative wait": (lambda d: d.reserve([Q], "a", 1, wait=-1), InvalidInput, "wait"),
    "negative max_wait": (lambda d: d.reserve([Q], "a", 1, max_wait=-1), InvalidInput, "max_wait"),
    "a number for a limit": (lambda d: d.reserve([Q], "a", 1, limits={Q: 5}), InvalidInput, "RateLimit"),  # type: ignore[dict-item]
    "unknown outcome": (lambda d: d.settle([Settlement(R, "done")]), InvalidInput, "not an outcome"),  # type: ignore[arg-type]
    "retry without a body": (lambda d: d.settle([Settlement(R, "retry")]), InvalidInput, "needs the body"),
    "retry with a negative delay": (
        lambda d: d.settle([Settlement(R, "retry", body=b"x", delay=-1)]),
        InvalidInput,
        "delay",
    ),
    "no lease": (lambda d: d.recover([Q], "a", 0), InvalidInput, "lease"),
    "recover nothing": (lambda d: d.recover([Q], "a", 1, 0), InvalidInput, "count"),
    "promote nothing": (lambda d: d.promote_due([Q], 0), InvalidInput, "limit"),
    "negative timeout": (lambda d: d.wait_for_due([Q], -1, threading.Event()), InvalidInput, "timeout"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(driver: Driver, case: str) -> None:
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        call(driver)
    assert driver.queues() == []


@pytest.mark.parametrize("limit", [(0, 1.0), (1, 0.0), (-1, 1.0), (1, -1.0)])
def test_a_limit_that_allows_nothing_cannot_be_made(limit: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="rate limit"):
        RateLimit(*limit)


@pytest.mark.parametrize("name", ["x" * 512, "ü" * 512])
def test_a_queue_with_the_longest_name_works_like_any_other(driver: Driver, name: str) -> None:
    with pytest.raises(InvalidName, match="513 characters"):
        push(driver, 0, queue=name + "x")
    push(driver, 1, queue=name)
    push(driver, 2, queue=name, priority="critical")
    push(driver, 3, queue=name, delay=60)
    assert numbers([first := one(driver, queues=[name])]) == [2]
    assert retry(driver, first, 2)
    assert numbers([again := one(driver, queues=[name])]) == [2]
    assert bury(driver, again, 2)
    assert numbers(driver.dead(name)) == [2]
    assert driver.retry_dead(name, [item(2, queue=name, job_id=again.id)]) == [True]
    assert complete(driver, *take(driver, queues=[name])) == [True, True]
    assert counts(driver, name) == (0, 0, 1, 0)
    assert driver.clear(name) == 1
    assert driver.queues() == [name]


def test_one_bad_item_refuses_all(driver: Driver) -> None:
    with pytest.raises(InvalidInput):
        driver.push([item(1), item(2, queue="other"), item(3, delay=-1)])
    assert counts(driver) == counts(driver, "other") == (0, 0, 0, 0)


def test_one_bad_settlement_refuses_all(driver: Driver) -> None:
    push(driver, 1)
    reservation = one(driver)
    with pytest.raises(InvalidInput):
        driver.settle([Settlement(reservation, "complete"), Settlement(reservation, "retry")])
    assert counts(driver) == (0, 1, 0, 0)


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_passes(driver: Driver) -> None:
    limit = 1024 * 1024
    with pytest.raises(PayloadTooLarge):
        driver.push([PushItem("big", Q, "default", b"x" * (limit + 1))])
    body = b'{"id":"big","x":"' + b'"' * (limit - 17)
    driver.push([PushItem("big", Q, "default", body)])
    assert one(driver).body == body


def test_a_closed_driver_says_so(driver: Driver) -> None:
    driver.close()
    driver.close()
    for call in (
        lambda: push(driver, 1),
        lambda: take(driver),
        lambda: driver.settle([Settlement(R, "complete")]),
        lambda: driver.size(Q),
        driver.queues,
    ):
        with pytest.raises(BrokerClosed):
            call()


def test_closing_ends_a_wait(driver: Driver, waiting: Callable[[int], None]) -> None:
    call = Background(take, driver, wait=60)
    waiting(1)
    driver.close()
    with pytest.raises(BrokerClosed):
        call.result()
