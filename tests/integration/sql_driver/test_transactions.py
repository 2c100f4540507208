"""A push that joins the caller's transaction: committed together, rolled back together."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from millstream import Job, connect
from millstream.drivers.sql import SqlDriver
from millstream.errors import InvalidInput, UnsupportedByDriver
from tests.contract.drivers.helpers import Background, Q, complete, counts, drain, ids, item, numbers, take
from tests.integration.sql_driver.conftest import Open

Begin = Callable[[], Any]
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


class _Order(Job, queue="orders", name="test.sql.order"):
    number: int

    def handle(self) -> None:
        pass


class Caller:
    """A program with a database connection of its own, of each kind that a push may join."""

    def __init__(self, url: str) -> None:
        self.backend = url.partition(":")[0]
        bare = url.partition("?")[0]
        self.engine: Engine = create_engine(bare.replace(self.backend, DRIVERS[self.backend], 1))
        self._bare = self._connect(bare)
        with self.engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS orders"))
            connection.execute(text("CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY)"))

    def _connect(self, url: str) -> Any:
        if self.backend == "sqlite":
            return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)
        address = self.engine.url
        if self.backend == "postgresql":
            import psycopg

            return psycopg.connect(url)
        import pymysql

        assert address.host
        assert address.port
        return pymysql.connect(host=address.host, port=address.port, user="root", database=address.database)

    @contextmanager
    def transaction(self, kind: str) -> Iterator[tuple[Any, Callable[[str], Any], Any]]:
        """What to push with, how to add an order, and what commits and rolls back."""
        if kind == "bare":
            mark = "?" if self.backend == "sqlite" else "%s"
            cursor = self._bare.cursor()
            insert = f"INSERT INTO orders (id) VALUES ({mark})"
            yield self._bare, lambda order: cursor.execute(insert, (order,)), self._bare
            return
        opened = Session(self.engine) if kind == "session" else self.engine.connect()
        with opened:
            yield (
                opened,
                lambda order: opened.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": order}),
                opened,
            )

    def orders(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT id FROM orders")).scalars())

    def close(self) -> None:
        self._bare.close()
        self.engine.dispose()


@pytest.fixture
def caller(url: str, driver: SqlDriver) -> Iterator[Caller]:
    found = Caller(url)
    yield found
    found.close()


@pytest.fixture
def driver(url: str, opened: Open) -> SqlDriver:
    return opened(url)


KINDS = ("bare", "connection", "session")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
def test_it_is_there_with_the_commit_and_not_before(
    driver: SqlDriver, caller: Caller, kind: str, unique: bool
) -> None:
    key = {"unique_key": "k"} if unique else {}
    with caller.transaction(kind) as (session, add, end):
        add("a")
        pushed = [item(1, **key), item(2, delay=60), item(3, queue="other")]
        assert driver.push_in(session, pushed) == ids(pushed)
        assert counts(driver) == (0, 0, 0, 0)
        end.rollback()
        assert counts(driver) == (0, 0, 0, 0)
        add("b")
        driver.push_in(session, pushed)
        end.commit()
    assert caller.orders() == ["b"]
    assert counts(driver) == (1, 0, 1, 0)
    assert driver.queues() == ["other", Q]
    assert numbers(drain(driver)) == [1]


def test_of_a_thousand_transactions_exactly_the_committed_are_delivered(
    driver: SqlDriver, caller: Caller
) -> None:
    chosen = random.Random(7)
    delivered: list[str] = []
    over = threading.Event()

    def work() -> None:
        while True:
            last = over.is_set()
            found = take(driver, 50, wait=0.05)
            assert all(complete(driver, *found))
            delivered.extend(ids(found))
            if last and not found:
                return

    worker = Background(work)
    committed = []
    for number in range(1000):
        with caller.transaction(KINDS[number % 3]) as (session, add, end):
            job = item(number)
            add(job.id)
            driver.push_in(session, [job])
            if chosen.random() < 0.5:
                end.commit()
                committed.append(job.id)
            else:
                end.rollback()
    over.set()
    worker.result(30)
    assert 400 < len(committed) < 600
    assert sorted(delivered) == sorted(committed) == caller.orders()
    assert counts(driver) == (0, 0, 0, 0)


def test_who_waits_is_woken_by_the_commit(driver: SqlDriver, caller: Caller) -> None:
    call = Background(take, driver, wait=20)
    with caller.transaction("session") as (session, _, end):
        driver.push_in(session, [item(1)])
        end.commit()
    assert numbers(call.result(5)) == [1]


def test_an_id_is_pushed_once_over_both_ways(driver: SqlDriver, caller: Caller) -> None:
    job = item(1)
    driver.push([job])
    with caller.transaction("bare") as (session, _, end):
        assert driver.push_in(session, [job]) == [job.id]
        end.commit()
    assert counts(driver) == (1, 0, 0, 0)


def test_queue_push_takes_the_callers_session(url: str, caller: Caller, driver: SqlDriver) -> None:
    with connect(url, prefix=driver.prefix, create=True) as queue:
        with caller.transaction("session") as (session, add, end):
            add("x")
            queue.push_many([], session=session)
            job = _Order(number=1)
            queue.push(job, session=session)
            end.rollback()
            queue.push(_Order(number=2), session=session)
            end.commit()
        popped = queue.pop("orders")
        assert popped == _Order(number=2)
        queue.complete(popped)
        assert queue.pop("orders") is None


def test_what_is_no_transaction_of_this_database_is_refused(driver: SqlDriver, caller: Caller) -> None:
    with pytest.raises(InvalidInput, match="SQLAlchemy Connection or Session"):
        driver.push_in(object(), [item(1)])
    other = "postgresql+psycopg://u@127.0.0.1:1/x" if caller.backend == "sqlite" else "sqlite://"
    engine = create_engine(other)
    if caller.backend != "sqlite":
        with engine.connect() as connection, pytest.raises(InvalidInput, match=f"is on {caller.backend}"):
            driver.push_in(connection, [item(1)])
    with connect("memory://") as queue, pytest.raises(UnsupportedByDriver, match="transaction"):
        queue.push(_Order(number=1), session=object())
