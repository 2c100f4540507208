"""Replies that never arrive: nothing is run twice, nothing is lost, nobody is told the wrong thing."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import ResponseError

from millstream.drivers.redis_calls import Numbers
from millstream.drivers.stream import StreamDriver
from millstream.errors import BrokerUnavailable
from tests.contract.drivers.helpers import (
    Background,
    Q,
    bury,
    complete,
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
from tests.integration.drivers.conftest import Open
from tests.integration.redis.conftest import blocked
from tests.servers import RedisServer, TcpProxy


def through(proxy: TcpProxy, opened: Open, **options: object) -> StreamDriver:
    return opened(f"redis://127.0.0.1:{proxy.port}/0", **options)


def cut_off(proxy: TcpProxy, text: str) -> None:
    """Let the reply to the request with ``text`` be lost, and nobody connect again."""
    proxy.drop_next_reply(text.encode())


@pytest.mark.parametrize("special", [False, True], ids=["plain", "unique"])
@pytest.mark.parametrize("remembers", [True, False], ids=["as it is", "control without the memory"])
def test_a_push_whose_reply_was_lost_adds_nothing_though_the_job_ran_in_between(
    server: RedisServer, proxy: TcpProxy, opened: Open, special: bool, remembers: bool
) -> None:
    producer, worker = through(proxy, opened), opened(server.url)
    # The script must be known to the server, or the reply that is lost only says that it is not.
    push(producer, "warm-up", queue="other", unique_key="k" if special else None)
    items = [item(n, unique_key=f"k{n}" if special else None) for n in range(3)]
    cut_off(proxy, items[0].id)
    call = Background(producer.push, items)
    assert proxy.fired.wait(10)
    proxy.refuse()
    assert numbers(drain(worker)) == [0, 1, 2]
    assert not call.done
    if not remembers:
        with server.client() as client:
            client.delete(*client.keys("*:producer:*"))
    proxy.heal()
    assert call.result() == ids(items)
    assert proxy.faults["dropped_replies"] == 1
    # The control shows that the call was repeated, and what would have happened.
    assert numbers(drain(worker)) == ([] if remembers else [0, 1, 2])


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "second", "last"])
def test_thousands_that_were_sent_ahead_are_added_once_each_and_in_order(
    server: RedisServer, proxy: TcpProxy, opened: Open, lost: int
) -> None:
    producer, worker = through(proxy, opened), opened(server.url)
    push(producer, "warm-up", queue="other")
    batches = [[item(1000 * part + n) for n in range(1000)] for part in range(3)]
    cut_off(proxy, batches[lost][0].id)
    answers = [answer for ids in producer.push_batches(batches) for answer in ids]
    assert proxy.faults["dropped_replies"] == 1
    assert answers == [each.id for batch in batches for each in batch]
    assert numbers(drain(worker)) == list(range(3000))


def test_thousands_that_the_server_does_not_know_the_script_for(server: RedisServer, opened: Open) -> None:
    producer = opened(server.url)
    with server.client() as client:
        client.script_flush()
    batches = [[item(1000 * part + n) for n in range(1000)] for part in range(3)]
    assert sum(len(ids) for ids in producer.push_batches(batches)) == 3000
    assert numbers(drain(producer)) == list(range(3000))


def test_a_copy_of_a_push_that_arrives_late_does_nothing(
    server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = opened(server.url)
    sent = []
    exchange = producer._steps._writes.link.exchange  # type: ignore[attr-defined]

    def noted(key: str, args: tuple[object, ...], *how: object) -> object:
        sent.append((key, args))
        return exchange(key, args, *how)

    monkeypatch.setattr(producer._steps._writes, "_exchange", noted)  # type: ignore[attr-defined]
    push(producer, "first")
    late = next((key, args) for key, args in sent if args[0] == "EVALSHA")
    push(producer, "second")
    drain(producer)
    with pytest.raises(ResponseError, match="STALE"):
        exchange(*late)
    assert producer.size(Q).waiting == 0


def test_a_push_that_gave_up_and_is_made_again_adds_nothing(
    server: RedisServer, proxy: TcpProxy, opened: Open
) -> None:
    producer, worker = through(proxy, opened, retry_for=0.2), opened(server.url)
    push(producer, "warm-up", queue="other")
    items = [item(1)]
    cut_off(proxy, items[0].id)
    call = Background(producer.push, items)
    assert proxy.fired.wait(10)
    proxy.refuse()
    with pytest.raises(BrokerUnavailable):
        call.result()
    assert numbers(drain(worker)) == [1]
    proxy.heal()
    assert producer.push(items) == ids(items)
    assert drain(worker) == []
    assert producer.push(items) == ids(items), "a third call is a new one"
    assert numbers(drain(worker)) == [1]


def test_a_settlement_whose_reply_was_lost_is_told_as_it_was(
    server: RedisServer, proxy: TcpProxy, opened: Open
) -> None:
    driver = through(proxy, opened)
    push(driver, *range(3))
    found = take(driver)
    stale = found[2]
    complete(opened(server.url), stale)
    cut_off(proxy, found[0].id)
    assert complete(driver, *found) == [True, True, False]
    assert proxy.faults["dropped_replies"] == 1
    assert counts(driver) == (0, 0, 0, 0)


def test_a_retried_letter_is_told_as_it_was(server: RedisServer, proxy: TcpProxy, opened: Open) -> None:
    driver = through(proxy, opened)
    (job_id,) = push(driver, 1)
    bury(driver, one(driver))
    cut_off(proxy, job_id)
    assert driver.retry_dead(Q, [item("again", job_id=job_id)]) == [True]
    assert proxy.faults["dropped_replies"] == 1
    assert numbers(drain(driver)) == ["again"]


def test_jobs_of_a_lost_read_are_found_at_once(server: RedisServer, proxy: TcpProxy, opened: Open) -> None:
    driver = through(proxy, opened)
    push(driver, *range(5))
    kept = one(driver, "me")
    cut_off(proxy, "EVALSHA")
    found = take(driver, 3, "me")
    assert proxy.faults["dropped_replies"] == 1
    assert numbers(found) == [1, 2, 3]
    assert {one.delivery_count for one in found} == {1}
    assert complete(driver, kept, *found) == [True] * 4
    assert counts(driver) == (1, 0, 0, 0)


def test_a_job_of_a_lost_blocking_read_is_found_at_once(
    server: RedisServer, proxy: TcpProxy, opened: Open
) -> None:
    driver, other = through(proxy, opened), opened(server.url)
    assert take(driver, owner="me") == []
    cut_off(proxy, "BLOCK")
    call = Background(take, driver, 5, "me", wait=30)
    blocked(server)
    push(other, 1)
    (found,) = call.result()
    assert proxy.faults["dropped_replies"] == 1
    assert (numbers([found]), found.delivery_count) == ([1], 1)
    assert complete(driver, found) == [True]


def test_jobs_of_a_lost_takeover_wait_again(server: RedisServer, proxy: TcpProxy, opened: Open) -> None:
    driver, other = through(proxy, opened), opened(server.url)
    push(driver, 1)
    one(other, "dead")
    until(lambda: driver.recover([Q], "me", 60) == [], "a first call")
    time.sleep(0.03)
    cut_off(proxy, "EVALSHA")
    assert driver.recover([Q], "me", 0.02) == []
    assert proxy.faults["dropped_replies"] == 1
    (found,) = until(lambda: take(driver, 1, "me"), "the job")
    assert found.delivery_count == 2
    assert complete(driver, found) == [True]


def test_a_forked_child_has_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Numbers()
    with calls.one() as first:
        name = first.id
    monkeypatch.setattr("os.getpid", lambda: -1)
    with calls.one() as second:
        assert second.id != name


def test_calls_at_the_same_time_have_slots_of_their_own() -> None:
    calls = Numbers()
    with calls.one() as first, calls.one() as second:
        assert first.id != second.id
    with calls.one() as third:
        assert third.number == 2
