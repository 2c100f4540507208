"""Connections that break: answers that are lost, servers that are restarted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from millstream.drivers.base import Reservation
from millstream.drivers.sql import SqlDriver
from tests.contract.drivers.helpers import (
    Background,
    Q,
    complete,
    counts,
    drain,
    give_up,
    ids,
    item,
    numbers,
    push,
    take,
    until,
)
from tests.integration.sql_driver.conftest import Open
from tests.servers import MariaDbServer, PostgresServer, TcpProxy

AnyServer = PostgresServer | MariaDbServer


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    found: AnyServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: AnyServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as found:
        yield found


def last_words(driver: SqlDriver, own: str | None) -> bytes:
    """What is in the request whose answer must be lost: the commit, or PostgreSQL's only statement."""
    if driver._database.backend == "postgresql":
        return b"COMMIT\0" if own is None else own.encode()  # READ COMMITTED is another one
    return b"COMMIT"


@pytest.mark.parametrize("remembers", [True, False], ids=["as it is", "control without the memory"])
@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
def test_a_push_whose_answer_was_lost_adds_nothing_though_the_jobs_ran_in_between(
    server: AnyServer, proxy: TcpProxy, opened: Open, unique: bool, remembers: bool
) -> None:
    producer, worker = opened(server.url_at(proxy.port)), opened(server.url)
    push(producer, "warm", queue=Q, unique_key="warm" if unique else None)
    drain(worker)
    items = [item(n, unique_key=f"k{n}" if unique else None) for n in range(3)]
    proxy.drop_next_reply(last_words(producer, None if unique else items[1].id))
    call = Background(producer.push, items)
    assert proxy.fired.wait(10)
    proxy.refuse()
    ran = until(lambda: numbers(drain(worker)), "the jobs that were pushed")
    assert ran == [0, 1, 2]
    assert not call.done
    if not remembers:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM millstream_calls")
    proxy.heal()
    assert call.result() == ids(items)
    assert numbers(drain(worker)) == ([] if remembers else [0, 1, 2])


def test_a_settlement_whose_answer_was_lost_is_answered_as_it_was(
    server: AnyServer, proxy: TcpProxy, opened: Open
) -> None:
    worker, other = opened(server.url_at(proxy.port)), opened(server.url)
    push(other, *range(4))
    complete(worker, *take(worker, 1))
    held = take(worker, 3)
    stolen = give_up(other, "thief", count=1)
    complete(other, *stolen)  # gone, and not by the one who asks
    proxy.drop_next_reply(last_words(worker, held[-1].id))
    call = Background(complete, worker, *held)
    assert proxy.fired.wait(10)
    assert call.result() == [one.id != stolen[0].id for one in held]
    assert counts(other) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", [PostgresServer, MariaDbServer], ids=["postgres", "mariadb"])
def test_a_restart_under_load_loses_nothing(kind: type[AnyServer], opened: Open) -> None:
    """Producers and workers go on by themselves. What was being reserved at that moment is recovered."""
    with kind() as server:
        driver = opened(server.url)
        over, lock = threading.Event(), threading.Lock()
        pushed: list[str] = []
        done: Counter[str] = Counter()

        def produce(number: int) -> None:
            while not over.is_set():
                added = driver.push([item(number) for _ in range(5)])
                with lock:
                    pushed.extend(added)

        def work(number: int) -> None:
            owner = f"w{number}"
            while True:
                last = over.is_set()
                found: list[Reservation] = take(driver, 20, owner, wait=0.1)
                found += driver.recover([Q], owner, 2.0)
                with lock:
                    done.update(
                        one.id for one, mine in zip(found, complete(driver, *found), strict=True) if mine
                    )
                if last and not found and counts(driver) == (0, 0, 0, 0):
                    return

        calls = [Background(produce, n) for n in range(2)] + [Background(work, n) for n in range(2)]
        until(lambda: len(done) > 100, "some work to be done")
        server.terminate()
        stopped_at = len(pushed)
        server.start()
        until(lambda: len(pushed) > stopped_at + 100, "the producers to go on")
        over.set()
        for call in calls:
            call.result(40)
        assert set(done) == set(pushed)
        assert len(set(pushed)) == len(pushed)
        assert set(done.values()) == {1}, "a job was completed twice"
