"""Pushing in a transaction of the caller's: with SQLAlchemy, psycopg, sqlite3 or PyMySQL.

The rows are written on the caller's connection, so they are committed with what else the caller writes, and
rolled back with it. The connection must lead to the same database as the driver's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError

from millstream.errors import InvalidInput
from millstream.sql.schema import MYSQL

_MODULES = {"psycopg": "postgresql", "pymysql": "mysql"}


class BareResult:
    """What a cursor holds, in the words of SQLAlchemy's results that the driver uses."""

    def __init__(self, cursor: Any) -> None:
        self._cursor, self.rowcount = cursor, cursor.rowcount

    def all(self) -> list[Any]:
        return list(map(tuple_of, self._cursor.fetchall()))

    def first(self) -> Any:
        row = self._cursor.fetchone()
        return None if row is None else tuple_of(row)

    def one(self) -> Any:
        return self.first()

    def scalar(self) -> Any:
        row = self.first()
        return None if row is None else row[0]


def tuple_of(row: Any) -> Any:
    """A row as a tuple, also where the caller's connection makes mappings of them."""
    return tuple(row.values()) if isinstance(row, dict) else tuple(row)


class BareConnection:
    """A connection of a database driver, with the one method of SQLAlchemy's that is used here."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def exec_driver_sql(self, text: str, parameters: Any = ()) -> BareResult:
        cursor = self._connection.cursor()
        if isinstance(parameters, list):
            cursor.executemany(text, parameters)
        else:
            cursor.execute(text, parameters)
        return BareResult(cursor)


def joined(given: Any, backend: str, after_commit: Callable[[], None]) -> Any:
    """What to write with, in the transaction of ``given``. Raises InvalidInput.

    ``after_commit`` is called then, where the caller's library says when that is.
    """
    if isinstance(given, Connection):
        _check(_family(given.dialect.name), backend)
        _listen(given, after_commit)
        return given
    if callable(getattr(given, "connection", None)) and hasattr(given, "get_bind"):  # a Session
        connection = given.connection()
        _check(_family(connection.dialect.name), backend)
        _listen(connection, after_commit)
        return connection
    if isinstance(given, sqlite3.Connection):
        _check("sqlite", backend)
        return BareConnection(given)
    family = _MODULES.get(type(given).__module__.partition(".")[0])
    if family is None or not hasattr(given, "cursor"):
        raise InvalidInput(
            "a push joins the transaction of a SQLAlchemy Connection or Session, or of a connection of "
            f"psycopg, sqlite3 or PyMySQL, not of {type(given).__name__}"
        )
    _check(family, backend)
    return BareConnection(given)


def _family(name: str) -> str:
    return "mysql" if name in MYSQL else name


def _check(family: str, backend: str) -> None:
    if family != backend:
        raise InvalidInput(f"this queue is on {backend}, and the transaction is one of {family}")


def _listen(connection: Connection, after_commit: Callable[[], None]) -> None:
    with suppress(SQLAlchemyError):  # who waits finds the jobs without it, a little later
        event.listen(connection, "commit", lambda _: after_commit(), once=True)
