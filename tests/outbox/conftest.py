"""Outboxes on SQLite, PostgreSQL and MariaDB, with tables of their own, empty for each test."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from millstream import Job, Queue, connect
from millstream.outbox import OutboxKeeper, Relay
from millstream.sql import Database, parse_url

DATABASES = ("sqlite", "postgres", "mariadb")
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


class Note(Job, queue="notes", name="outboxtest.Note"):
    text: str

    def handle(self) -> None: ...


class Source:
    """A database with an outbox, and a table of the user's own: ``{prefix}orders``."""

    def __init__(self, url: str) -> None:
        self.url, self.tables = url, f"t{uuid.uuid4().hex[:10]}_"
        self.orders = f"{self.tables}orders"
        target = parse_url(url)
        self.backend = target.backend
        self.engine: Engine = create_engine(target.url.set(drivername=DRIVERS[self.backend]))
        Database.open(target, prefix=self.tables, create=True).close()
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.orders} (id INTEGER NOT NULL PRIMARY KEY)"))

    def bare(self) -> Any:
        """A connection of the database's own driver, which is no SQLAlchemy."""
        if self.backend == "sqlite":
            return sqlite3.connect(str(parse_url(self.url).url.database))
        raw = self.engine.raw_connection()
        connection: Any = raw.driver_connection
        raw.detach()
        return connection

    def count(self) -> int:
        with self.engine.connect() as connection:
            return connection.execute(text(f"SELECT COUNT(*) FROM {self.orders}")).scalar_one()

    def ask(self, statement: str) -> Any:
        """What a statement gives, with {p} for the tables' prefix; committed."""
        with self.engine.begin() as connection:
            done = connection.exec_driver_sql(statement.replace("{p}", self.tables))
            return done.all() if done.returns_rows else done.rowcount

    def clear(self) -> None:
        for table in ("orders", "outbox", "outbox_lanes", "inbox"):
            self.ask(f"DELETE FROM {{p}}{table}")

    def close(self) -> None:
        self.engine.dispose()


@pytest.fixture(scope="session")
def sources(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Source]]:
    """sources(database) gives that database, made once: creating tables takes longer than most tests."""
    made: dict[str, Source] = {}

    def find(database: str) -> Source:
        if database not in made:
            if database == "sqlite":
                url = f"sqlite:///{tmp_path_factory.mktemp('outbox')}/own.db?synchronous=normal"
            else:
                url = request.getfixturevalue(database).url
            made[database] = Source(url)
        return made[database]

    yield find
    for source in made.values():
        source.close()


@pytest.fixture(params=DATABASES)
def source(request: pytest.FixtureRequest, sources: Callable[[str], Source]) -> Source:
    """Each of the three databases in turn."""
    found = sources(request.param)
    found.clear()
    return found


@pytest.fixture(params=["Session", "Connection", "driver"])
def begin(request: pytest.FixtureRequest, source: Source) -> Iterator[Callable[[], Any]]:
    """begin() gives a session in which nothing has happened: of SQLAlchemy, or of the database's driver."""
    with ExitStack() as stack:

        def make() -> Any:
            if request.param == "Session":
                made: Any = Session(source.engine)
            elif request.param == "Connection":
                made = source.engine.connect()
            else:
                made = source.bare()
            stack.callback(made.close)
            return made

        yield make


def insert(session: Any, source: Source, number: int) -> None:
    """Write into the user's own table."""
    statement = f"INSERT INTO {source.orders} (id) VALUES ({number})"
    if isinstance(session, Session) or hasattr(session, "exec_driver_sql"):
        session.execute(text(statement))
    else:
        session.cursor().execute(statement)


@pytest.fixture
def queue() -> Iterator[Queue]:
    """A target that is quick and private."""
    with connect("memory://") as opened:
        yield opened


@pytest.fixture
def relay(source: Source, queue: Queue) -> Iterator[Relay]:
    made = Relay(source.url, queue, tables=source.tables)
    yield made
    made.close()


@pytest.fixture
def keeper(source: Source) -> Iterator[OutboxKeeper]:
    with OutboxKeeper(source.url, tables=source.tables) as opened:
        yield opened


def texts(queue: Queue, name: str = "notes") -> list[str]:
    """What the waiting jobs of a queue say; they are gone then."""
    found = []
    while (job := queue.pop(name)) is not None:
        assert isinstance(job, Note)
        found.append(job.text)
        queue.complete(job)
    return found
