"""Numbered pushes: a line of calls that outlives its callers, each of which takes effect once."""

from __future__ import annotations

import threading

import pytest

from millstream.drivers.base import Driver
from millstream.errors import InvalidInput
from tests.contract.drivers.helpers import Q, counts, drain, ids, item, numbers, one, push

pytestmark = pytest.mark.needs("numbered_push")


def test_a_repeated_call_adds_nothing_also_when_its_jobs_are_done(driver: Driver, second: Driver) -> None:
    batch = [item(1, priority="high"), item(2), item(3, delay=60)]
    assert driver.push_numbered(Q, "relay", 7, batch)
    assert counts(driver) == (2, 0, 1, 0)
    assert not driver.push_numbered(Q, "relay", 7, batch)
    assert numbers(drain(driver)) == [1, 2]
    assert driver.clear(Q) == 1
    assert not second.push_numbered(Q, "relay", 7, batch), "another process, after the jobs are gone"
    assert counts(driver) == (0, 0, 0, 0)
    assert driver.last_number(Q, "relay") == second.last_number(Q, "relay") == 7


def test_a_call_that_comes_late_does_nothing(driver: Driver, second: Driver) -> None:
    """A process that was paused wakes up and sends what another one has sent for it long ago."""
    late = [item("late")]
    assert driver.push_numbered(Q, "relay", 1_700_000_000_000_001, late)
    assert driver.push_numbered(Q, "relay", 1_700_000_000_000_002, [item("next")])
    assert numbers(drain(driver)) == ["late", "next"]
    assert not second.push_numbered(Q, "relay", 1_700_000_000_000_001, late)
    assert counts(driver) == (0, 0, 0, 0)
    assert second.last_number(Q, "relay") == 1_700_000_000_000_002


def test_lines_and_queues_have_numbers_of_their_own(driver: Driver) -> None:
    assert driver.push_numbered(Q, "a", 5, [item(1)])
    assert driver.push_numbered(Q, "b", 5, [item(2)])
    assert driver.push_numbered("other", "a", 5, [item(3, queue="other")])
    assert driver.last_number(Q, "c") == 0
    assert driver.last_number("never-used", "a") == 0
    assert sorted(numbers(drain(driver, [Q, "other"]))) == [1, 2, 3]


def test_a_call_without_jobs_notes_its_number(driver: Driver) -> None:
    assert driver.push_numbered(Q, "cron", 10, [])
    assert driver.last_number(Q, "cron") == 10
    assert driver.queues() == [], "nothing was pushed"
    assert not driver.push_numbered(Q, "cron", 10, [item(1)])
    assert driver.push_numbered(Q, "cron", 11, [item(2)])
    assert numbers(drain(driver)) == [2]


def test_ids_and_unique_keys_count_as_with_push(driver: Driver) -> None:
    known = item("known")
    driver.push([known, item("holder", unique_key="k", unique_for=60)])
    again = [known, item("second", unique_key="k", unique_for=60), item("new")]
    assert driver.push_numbered(Q, "relay", 1, again)
    assert numbers(drain(driver)) == ["known", "holder", "new"]
    assert push(driver, "third", unique_key="k")
    assert counts(driver) == (0, 0, 0, 0)


def test_of_many_callers_one_takes_effect(driver: Driver, second: Driver) -> None:
    done: list[int] = []

    def call(which: Driver) -> None:
        for number in range(1, 21):
            if which.push_numbered(Q, "relay", number, [item(number)]):
                done.append(number)

    threads = [threading.Thread(target=call, args=(which,)) for which in (driver, second, driver, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done)), "a number took effect twice"
    assert sorted(numbers(drain(driver))) == sorted(done)
    assert max(done) == 20


def test_a_thousand_are_one_step_and_keep_their_order(driver: Driver) -> None:
    batch = [item(n) for n in range(1000)]
    assert driver.push_numbered(Q, "relay", 1, batch)
    assert ids(drain(driver, count=1000)) == ids(batch)


def test_a_reader_that_waits_is_woken(driver: Driver) -> None:
    assert driver.push_numbered(Q, "relay", 1, [item(1)])
    assert one(driver, wait=5).delivery_count == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((Q, "", 1, []), "line"),
        ((Q, "x", 0, []), "number must be a whole number of at least 1"),
        ((Q, "x", 1 << 54, []), "at most 2"),
        ((Q, "x", True, []), "number must be a whole number"),
        ((Q, "x", 1, [item(1, queue="other")]), "one queue"),
        ((Q, "x", 1, [item(n) for n in range(1001)]), "at most 1000"),
        (("a{b", "x", 1, []), "brace"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(driver: Driver, arguments: tuple, why: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInput, match=why):
        driver.push_numbered(*arguments)
    assert driver.last_number(Q, "x") == 0
    assert driver.queues() == []
