"""push: what becomes of an item, and that nothing is added twice."""

from __future__ import annotations

import pytest

from millstream.drivers.base import Driver, PushItem, Settlement
from millstream.envelope import PRIORITIES
from tests.contract.drivers.helpers import (
    Background,
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
    release,
    retry,
    state,
    take,
    until,
)


def test_a_pushed_job_waits_and_is_reserved_as_it_was_pushed(driver: Driver) -> None:
    pushed = item(7, priority="high")
    assert driver.push([pushed]) == [pushed.id]
    assert counts(driver) == (1, 0, 0, 0)
    found = one(driver, "me")
    assert (found.id, found.queue, found.priority, found.body) == (pushed.id, Q, "high", pushed.body)
    assert (found.owner, found.delivery_count) == ("me", 1)
    assert found.entry_id


def test_nothing_pushed_is_nothing_done(driver: Driver) -> None:
    assert driver.push([]) == []
    assert driver.queues() == []


def test_ids_come_back_in_the_order_of_the_items_over_queues_and_thousands(driver: Driver) -> None:
    items = [
        item(n, queue=("x", "y")[n % 2], priority=PRIORITIES[n % 4] if n % 3 else "default")
        for n in range(2500)
    ]
    assert driver.push(items) == ids(items)
    assert driver.size("x").waiting == driver.size("y").waiting == 1250
    assert sorted(ids(drain(driver, ["x", "y"], count=1000))) == sorted(ids(items))


def test_binary_bodies_pass_unchanged(driver: Driver) -> None:
    body = b'{"id":"bin"}' + bytes(range(256)) + "ü€".encode()
    driver.push([PushItem("bin", Q, "default", body)])
    assert one(driver).body == body


@pytest.mark.parametrize("how", ["read", "waited", "retried", "delayed", "released", "taken over", "dead"])
def test_a_body_that_says_nothing_keeps_its_id(driver: Driver, how: str) -> None:
    """A driver never looks inside: bodies may be encrypted."""
    opaque = PushItem("secret-1", Q, "high", b"\x00\xff\x93" * 10, delay=0.001 if how == "delayed" else 0.0)
    call = Background(take, driver, wait=30) if how == "waited" else None
    driver.push([opaque])
    if how == "delayed":
        until(lambda: driver.promote_due([Q]), "the promotion")
    (found,) = call.result() if call else take(driver)
    assert (found.id, found.body) == (opaque.id, opaque.body)
    if how == "retried":
        assert driver.settle([Settlement(found, "retry", body=b"\x01")]) == [True]
        (found,) = take(driver)
    elif how == "released":
        release(driver, found)
        (found,) = take(driver)
    elif how == "taken over":
        (found,) = give_up(driver)
    elif how == "dead":
        assert driver.settle([Settlement(found, "bury", body=b"\x02")]) == [True]
        assert ids(driver.dead(Q)) == [opaque.id]
        assert driver.retry_dead(Q, [opaque]) == [True]
        (found,) = take(driver)
    assert found.id == opaque.id
    assert driver.push([opaque]) == [opaque.id]
    assert counts(driver) == (0, 1, 0, 0), "it exists, so it is not added again"
    assert complete(driver, found) == [True]
    assert driver.find(opaque.id, Q) is None
    driver.push([opaque])
    assert driver.clear(Q) == 1
    assert driver.push([opaque]) == [opaque.id]
    assert counts(driver) in ((1, 0, 0, 0), (0, 0, 1, 0))


@pytest.mark.parametrize(
    "where", ["waiting", "reserved", "delayed", "dead", "released", "retried", "taken over"]
)
def test_an_id_that_exists_is_not_added_again(driver: Driver, where: str) -> None:
    first = item(1, delay=60 if where == "delayed" else 0.0)
    driver.push([first])
    if where not in ("waiting", "delayed"):
        reservation = one(driver)
        if where == "dead":
            bury(driver, reservation)
        elif where == "released":
            release(driver, reservation)
        elif where == "retried":
            retry(driver, reservation, 1)
        elif where == "taken over":
            give_up(driver)
    before = counts(driver)
    again = item(2, job_id=first.id, priority="critical")
    assert driver.push([again]) == [first.id]
    assert counts(driver) == before
    assert numbers([driver.find(first.id)]) in ([1], [0])  # never the second body


def test_an_id_twice_in_one_call_is_one_job(driver: Driver) -> None:
    first = item(1)
    assert driver.push([first, first, item(2, job_id=first.id)]) == [first.id] * 3
    assert numbers(drain(driver)) == [1]


def test_an_id_whose_job_is_gone_is_a_new_job(driver: Driver) -> None:
    again = item(1)
    for _ in range(3):
        assert driver.push([again]) == [again.id]
        assert numbers(drain(driver)) == [1]


def test_the_same_id_in_two_queues_is_two_jobs(driver: Driver) -> None:
    driver.push([item(1, job_id="same", queue="x"), item(2, job_id="same", queue="y")])
    assert sorted(numbers(drain(driver, ["x", "y"]))) == [1, 2]


@pytest.mark.needs("unique")
class TestUniqueKeys:
    def test_a_held_key_gives_the_holders_id(self, driver: Driver) -> None:
        (first,) = push(driver, 1, unique_key="k")
        assert push(driver, 2, 3, unique_key="k") == [first, first]
        assert push(driver, 4, unique_key="other") != [first]
        assert numbers(drain(driver)) == [1, 4]

    def test_a_key_is_held_in_every_state_but_death(self, driver: Driver) -> None:
        (first,) = push(driver, 1, unique_key="k", delay=0.01)
        assert push(driver, 2, unique_key="k") == [first]
        until(lambda: driver.promote_due([Q]), "the promotion")
        assert push(driver, 2, unique_key="k") == [first]
        reservation = one(driver)
        assert push(driver, 2, unique_key="k") == [first]
        retry(driver, reservation, 1, delay=60)
        assert push(driver, 2, unique_key="k") == [first]

    @pytest.mark.parametrize("how", ["complete", "cancel", "clear", "bury"])
    def test_a_key_is_free_when_its_job_is_gone_or_dead(self, driver: Driver, how: str) -> None:
        (first,) = push(driver, 1, unique_key="k")
        if how == "cancel":
            assert driver.cancel(first, Q)
        elif how == "clear":
            assert driver.clear(Q) == 1
        else:
            reservation = one(driver)
            assert complete(driver, reservation) == [True] if how == "complete" else bury(driver, reservation)
        (second,) = push(driver, 2, unique_key="k")
        assert second != first
        assert numbers(take(driver)) == [2]

    def test_a_stale_owner_does_not_free_the_key(self, driver: Driver) -> None:
        (first,) = push(driver, 1, unique_key="k")
        stale = one(driver)
        give_up(driver)
        assert complete(driver, stale) == [False]
        assert push(driver, 2, unique_key="k") == [first]

    def test_a_key_held_for_a_time_outlives_its_job_and_ends(self, driver: Driver) -> None:
        (first,) = push(driver, 1, unique_key="k", unique_for=0.15)
        drain(driver)
        assert push(driver, 2, unique_key="k", unique_for=0.15) == [first]
        assert counts(driver) == (0, 0, 0, 0)
        until(lambda: push(driver, 3, unique_key="k", unique_for=60) != [first], "the key to be free")
        assert numbers(drain(driver)) == [3]

    def test_a_key_taken_anew_is_not_freed_by_its_first_holder(self, driver: Driver) -> None:
        push(driver, 1, unique_key="k", unique_for=0.02)
        reservation = one(driver)
        until(lambda: push(driver, 2, unique_key="k") != [reservation.id], "the key to be free")
        (holder,) = push(driver, 3, unique_key="k")
        complete(driver, reservation)
        assert push(driver, 4, unique_key="k") == [holder]

    def test_keys_of_one_call_count_among_themselves(self, driver: Driver) -> None:
        items = [item(n, unique_key="k") for n in range(3)]
        assert driver.push(items) == [items[0].id] * 3

    def test_keys_are_each_queues_own(self, driver: Driver) -> None:
        push(driver, 1, unique_key="k", queue="x")
        push(driver, 2, unique_key="k", queue="y")
        assert sorted(numbers(drain(driver, ["x", "y"]))) == [1, 2]

    def test_another_drivers_push_sees_the_key(self, driver: Driver, second: Driver) -> None:
        (first,) = push(driver, 1, unique_key="k")
        assert push(second, 2, unique_key="k") == [first]


@pytest.mark.needs("delays")
def test_a_delayed_push_is_not_waiting(driver: Driver) -> None:
    (job_id,) = push(driver, 1, delay=60)
    assert counts(driver) == (0, 0, 1, 0)
    assert take(driver) == []
    assert state(driver, job_id) == "delayed"
