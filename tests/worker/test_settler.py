"""The settler against a driver that fails: an outcome is done only when the broker has accepted it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from millstream.drivers.base import Reservation, Settlement
from millstream.errors import BrokerFull, BrokerUnavailable
from millstream.worker.parts import Holdings
from millstream.worker.settler import MANY, Settler
from tests.worker.conftest import until


class Scripted:
    """Answers settle() by a list of functions, and then always yes."""

    def __init__(self, *answers: Callable[[Sequence[Settlement]], list[bool]]) -> None:
        self.answers, self.batches = list(answers), []

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self.batches.append(list(settlements))
        return self.answers.pop(0)(settlements) if self.answers else [True] * len(settlements)


def fail(error: Exception) -> Callable[[Sequence[Settlement]], list[bool]]:
    def answer(_: Sequence[Settlement]) -> list[bool]:
        raise error

    return answer


def outcome(number: int = 0) -> Settlement:
    return Settlement(Reservation(f"job-{number}", "q", "default", f"{number}-0", b"", "me", 1), "complete")


class Running:
    def __init__(self, driver: Scripted) -> None:
        self.holdings = Holdings()
        self.settler = Settler(driver, self.holdings)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.settler.run, daemon=True)
        self.thread.start()

    def put(self, *settlements: Settlement) -> None:
        self.holdings.held.update(each.reservation for each in settlements)
        for settlement in settlements:
            self.settler.put(settlement)

    def completed(self) -> int:
        return self.settler.counts["complete"]


@pytest.fixture
def run() -> Iterator[Callable[[Scripted], Running]]:
    running: list[Running] = []

    def start(driver: Scripted) -> Running:
        running.append(Running(driver))
        return running[-1]

    yield start
    for each in running:
        each.settler.stop(time.monotonic() + 1)
        each.thread.join(5)


def test_a_lone_outcome_is_sent_within_milliseconds(run: Callable[[Scripted], Running]) -> None:
    running = run(Scripted())
    running.put(outcome())
    until(lambda: running.completed() == 1, "it to be sent", 1.0)
    assert not running.holdings.held


def test_many_outcomes_are_sent_in_few_calls(run: Callable[[Scripted], Running]) -> None:
    driver = Scripted()
    running = run(driver)
    running.put(*[outcome(number) for number in range(4 * MANY)])
    until(lambda: running.completed() == 4 * MANY, "all to be sent")
    assert len(driver.batches) <= 8


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), BrokerFull("no memory")])
def test_what_the_broker_did_not_accept_is_sent_again(
    run: Callable[[Scripted], Running], error: Exception
) -> None:
    driver = Scripted(fail(error), fail(error))
    running = run(driver)
    running.put(outcome(1), outcome(2))
    until(lambda: running.completed() == 2, "both to be accepted")
    assert not running.holdings.held


def test_what_is_held_stays_held_until_it_is_accepted(run: Callable[[Scripted], Running]) -> None:
    """Otherwise its lease would not be renewed, and another worker would run the job again."""
    gate = threading.Event()

    def answer(settlements: Sequence[Settlement]) -> list[bool]:
        gate.wait(5)
        return [True] * len(settlements)

    running = run(Scripted(answer))
    one = outcome()
    running.put(one)
    until(lambda: not running.settler._gathered, "it to be on its way")
    assert one.reservation in running.holdings.held
    assert running.settler.unsettled == 1
    gate.set()
    until(lambda: not running.holdings.held, "it to be let go")


def test_a_refused_outcome_is_counted_and_said(
    run: Callable[[Scripted], Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = run(Scripted(lambda settlements: [False] * len(settlements)))
    running.put(outcome())
    until(lambda: running.settler.stale == 1, "the refusal")
    assert running.completed() == 0
    assert "job-0 was not this worker's any more" in caplog.text
    assert not running.holdings.held


def test_one_outcome_that_cannot_be_sent_does_not_hold_back_the_others(
    run: Callable[[Scripted], Running], caplog: pytest.LogCaptureFixture
) -> None:
    def picky(settlements: Sequence[Settlement]) -> list[bool]:
        if any(each.reservation.id == "job-3" for each in settlements):
            raise ValueError("too long")
        return [True] * len(settlements)

    running = run(Scripted(*[picky] * 20))
    running.put(*[outcome(number) for number in range(6)])
    until(lambda: running.completed() == 5, "the other five")
    until(lambda: not running.holdings.held, "nothing to be held")
    assert "the outcome of job job-3 cannot be sent" in caplog.text


def test_stopping_gives_up_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    running = Running(Scripted(*[fail(BrokerUnavailable("away"))] * 1000))
    running.put(outcome())
    running.settler.stop(time.monotonic() + 0.1)
    running.thread.join(5)
    assert not running.thread.is_alive()
    assert "1 outcomes could not be sent in time" in caplog.text
