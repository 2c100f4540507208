"""Writing to a SQLite file: one connection of this process, and a lock in front of it.

A file has one writer at a time. Threads of this process wait for each other at the lock; processes wait for
each other in `SqliteWriter.turn`. The connection stays open and is nobody else's, so a transaction costs its
own statements and nothing for finding a connection and setting it up. What begins and ends it goes straight
to the driver: for a small transaction SQLAlchemy would take longer than SQLite.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from millstream.errors import BrokerUnavailable
from millstream.sql.engine import EngineOptions
from millstream.sql.failures import Kind, kind_of

_left_behind: list[Connection] = []  # of a parent process: SQLite forbids even to close them in a child


def driver_of(connection: Connection) -> sqlite3.Connection:
    """The connection of Python's own module that is beneath one of SQLAlchemy's."""
    driver: Any = connection.connection.dbapi_connection
    return driver  # type: ignore[no-any-return]


def execute(driver: sqlite3.Connection, text: str, rows: list[tuple[Any, ...]] | None = None) -> None:
    """Run a statement without an answer, once or for each of ``rows``; errors are as SQLAlchemy's."""
    try:
        if rows is None:
            driver.execute(text)
        else:
            driver.executemany(text, rows)
    except sqlite3.Error as error:
        raise DBAPIError(text, None, error, hide_parameters=True) from error


class SqliteWriter:
    """Gives out turns at writing."""

    def __init__(self, engine: Engine, options: EngineOptions, address: str) -> None:
        self._engine, self._options, self._address = engine, options, address
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._synced: bool | None = None  # whether the connection syncs what it commits; None: not known

    @contextmanager
    def turn(self, *, durable: bool) -> Iterator[Connection]:
        """A connection on which a transaction has begun; the caller ends it.

        Raises BrokerUnavailable when another thread has been writing for longer than ``lock_timeout``, and
        SQLAlchemy's error when another process has.
        """
        if not self._lock.acquire(timeout=self._options.lock_timeout):
            raise BrokerUnavailable(
                f"{self._address} is locked: another thread was writing for longer than lock_timeout"
            )
        try:
            connection = self._connection or self._open()
            driver = driver_of(connection)
            try:
                self._sync(driver, durable or self._options.synchronous != "full")
                self._begin(driver)
                yield connection
            except BaseException:
                if connection.invalidated or driver.in_transaction:
                    self._drop()
                raise
        finally:
            self._lock.release()

    def _open(self) -> Connection:
        connection = self._engine.connect()
        try:
            connection.detach()  # not one of the pool's: it is not given back
            # Waiting for other processes is done here: SQLite itself would sleep for longer and longer, up
            # to a tenth of a second, while others that came later take the lock. With four busy processes
            # some calls took more than a second.
            execute(driver_of(connection), "PRAGMA busy_timeout = 0")
        except BaseException:
            connection.close()
            raise
        self._connection, self._synced = connection, None
        return connection

    def _sync(self, driver: sqlite3.Connection, durable: bool) -> None:
        """Let commits be synced to the disk, or not; as the options say where they say "normal"."""
        if durable is not self._synced:
            full = durable and self._options.synchronous != "normal"
            execute(driver, f"PRAGMA synchronous = {'full' if full else 'normal'}")
            self._synced = durable

    def _begin(self, driver: sqlite3.Connection) -> None:
        """Take the file's lock at once: upgrading a reader's transaction may fail at any moment."""
        deadline = None
        while True:
            try:
                return execute(driver, "BEGIN IMMEDIATE")
            except SQLAlchemyError as error:
                deadline = deadline or time.monotonic() + self._options.lock_timeout
                if kind_of(error) is not Kind.BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(random.uniform(0.0002, 0.002))  # short pauses are fairer

    def _drop(self) -> None:
        """Do not use the connection again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError, sqlite3.Error):
                connection.close()

    def close(self) -> None:
        """Close the connection, when whoever writes now has ended."""
        if self._lock.acquire(timeout=self._options.lock_timeout):
            try:
                self._drop()
            finally:
                self._lock.release()

    def after_fork(self) -> None:
        """In a child process: leave the parent's connection alone, and begin with none."""
        self._lock = threading.Lock()
        if self._connection is not None:
            _left_behind.append(self._connection)
            self._connection = None
