"""Dead letters: list, find, edit, retry, clear."""

from __future__ import annotations

import pytest

from millstream.drivers.base import Driver
from tests.contract.drivers.helpers import (
    Background,
    Q,
    body_of,
    bury,
    counts,
    drain,
    ids,
    item,
    numbers,
    one,
    push,
    take,
    until,
)

pytestmark = pytest.mark.needs("dead_letters")


def kill(driver: Driver, count: int, **options: object) -> list[str]:
    """Dead letters with the numbers 0 and up; their ids."""
    driver.push([item(n, **options) for n in range(count)])  # type: ignore[arg-type]
    found = take(driver, count)
    for n, reservation in enumerate(found):
        assert bury(driver, reservation, n)
    return ids(found)


def test_oldest_first_page_by_page(driver: Driver) -> None:
    assert driver.dead(Q) == []
    dead = kill(driver, 7)
    assert ids(driver.dead(Q)) == dead
    assert ids(driver.dead(Q, count=3)) == dead[:3]
    assert ids(driver.dead(Q, start=dead[2], count=3)) == dead[3:6]
    assert ids(driver.dead(Q, start=dead[6])) == []


def test_a_listing_goes_on_after_a_letter_that_is_gone(driver: Driver) -> None:
    dead = kill(driver, 6)
    page = driver.dead(Q, count=3)
    driver.clear_dead(Q, ids(page))
    assert ids(driver.dead(Q, start=page[-1].id)) == dead[3:]


def test_one_letter(driver: Driver) -> None:
    dead = kill(driver, 2)
    letter = driver.dead_letter(Q, dead[1])
    assert letter is not None
    assert letter == driver.dead(Q)[1]
    push(driver, 1)
    assert driver.dead_letter(Q, "unknown") is None
    assert driver.dead_letter(Q, one(driver).id) is None


def test_retry_makes_it_waiting_with_the_body_given(driver: Driver) -> None:
    dead = kill(driver, 3)
    assert driver.retry_dead(Q, [item("again", job_id=dead[1], priority="high"), item(job_id="unknown")]) == [
        True,
        False,
    ]
    assert counts(driver) == (1, 0, 0, 2)
    found = one(driver)
    assert (found.id, found.priority, found.delivery_count, numbers([found])) == (
        dead[1],
        "high",
        1,
        ["again"],
    )
    assert ids(driver.dead(Q)) == [dead[0], dead[2]]
    assert driver.retry_dead(Q, [item(job_id=dead[1])]) == [False], "it is reserved, not dead"


def test_retry_with_a_delay(driver: Driver) -> None:
    (dead,) = kill(driver, 1)
    assert driver.retry_dead(Q, [item("later", job_id=dead, delay=0.02)]) == [True]
    assert counts(driver) == (0, 0, 1, 0)
    until(lambda: driver.promote_due([Q]), "the promotion")
    assert numbers(drain(driver)) == ["later"]


def test_a_retried_letter_takes_its_unique_key_where_it_is_free(driver: Driver) -> None:
    (dead,) = kill(driver, 1, unique_key="k")
    driver.retry_dead(Q, [item("again", job_id=dead, unique_key="k")])
    assert push(driver, 2, unique_key="k") == [dead]


def test_a_retried_letter_leaves_a_key_that_another_holds(driver: Driver) -> None:
    (dead,) = kill(driver, 1, unique_key="k")
    (holder,) = push(driver, 2, unique_key="k")
    assert driver.retry_dead(Q, [item("again", job_id=dead, unique_key="k")]) == [True]
    assert push(driver, 3, unique_key="k") == [holder]
    assert numbers(drain(driver)) == [2, "again"]


def test_of_many_that_retry_one_succeeds(driver: Driver, second: Driver) -> None:
    dead = kill(driver, 40)
    items = [item("again", job_id=job_id) for job_id in dead]
    calls = [Background((driver, second)[n % 2].retry_dead, Q, items) for n in range(4)]
    won = [answer for call in calls for answer in call.result()]
    assert won.count(True) == 40
    assert sorted(ids(drain(driver))) == sorted(dead)


def test_an_edited_letter_keeps_its_place_and_its_story(driver: Driver) -> None:
    dead = kill(driver, 3)
    before = driver.dead(Q)
    assert driver.update_dead(Q, dead[1], body_of(dead[1], "edited"))
    after = driver.dead(Q)
    assert numbers(after) == [0, "edited", 2]
    assert ids(after) == dead
    assert (after[1].reason, after[1].moved_at) == (before[1].reason, before[1].moved_at)
    assert numbers([driver.dead_letter(Q, dead[1])]) == ["edited"]
    assert numbers([driver.find(dead[1])]) == ["edited"]
    assert not driver.update_dead(Q, "unknown", b"x")
    (waiting,) = push(driver, 1)
    assert not driver.update_dead(Q, waiting, b"x")


def test_clear_forgets_those_named_or_all(driver: Driver) -> None:
    dead = kill(driver, 10)
    assert driver.clear_dead(Q, []) == 0
    assert driver.clear_dead(Q, [dead[0], dead[5], "unknown", dead[0]]) == 2
    assert ids(driver.dead(Q)) == [job_id for n, job_id in enumerate(dead) if n not in (0, 5)]
    assert driver.find(dead[0]) is None
    assert driver.clear_dead(Q) == 8
    assert driver.dead(Q) == []
    assert driver.clear_dead(Q) == 0
    assert counts(driver) == (0, 0, 0, 0)


def test_a_cleared_id_can_be_pushed_again(driver: Driver) -> None:
    (dead,) = kill(driver, 1)
    driver.update_dead(Q, dead, body_of(dead, "edited"))
    driver.clear_dead(Q)
    driver.push([item("new", job_id=dead)])
    assert numbers(drain(driver)) == ["new"]


def test_clear_does_not_touch_other_states(driver: Driver) -> None:
    kill(driver, 1)
    push(driver, 1)
    push(driver, 2, delay=60)
    (waiting,) = (job.id for job in [driver.find(one(driver).id)] if job)
    assert driver.clear_dead(Q, [waiting]) == 0
    assert driver.clear_dead(Q) == 1
    assert counts(driver) == (0, 1, 1, 0)
