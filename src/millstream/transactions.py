"""The caller's own transaction, whatever library it was begun with.

The outbox and the inbox write beside what the caller writes, on the caller's connection. They commit nothing
and roll nothing back; what the connection's library raises is raised as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError

from millstream.drivers.sql.joining import BareConnection
from millstream.errors import ConfigurationError, InvalidInput
from millstream.sql.schema import MYSQL

_MODULES = {"psycopg": "postgresql", "pymysql": "mysql"}
_IN_TRANSACTION = 1  # of MySQL's server status
_IDLE = 0  # of psycopg's transaction status


class CallerTransaction:
    """Writes in the transaction of ``session``. Raises InvalidInput for what is none.

    ``session`` is a SQLAlchemy Session or Connection, or a connection of psycopg, sqlite3 or PyMySQL.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._is_session = callable(getattr(session, "connection", None)) and hasattr(session, "get_bind")
        if isinstance(session, Connection) or self._is_session:
            name = self._writer().dialect.name
            self.backend = "mysql" if name in MYSQL else name
        else:
            self.backend = _family(session)
        if self.backend not in ("sqlite", "postgresql", "mysql"):
            raise InvalidInput(f"a database of {self.backend} is none that Millstream knows")

    def _writer(self) -> Any:
        """What to write with. Asked for each time: after a commit, a Session has another connection."""
        if isinstance(self._session, Connection):
            return self._session
        if not self._is_session:
            return BareConnection(self._session)
        connection = self._session.connection()
        if not isinstance(connection, Connection):
            if hasattr(connection, "close"):
                connection.close()  # a coroutine that nobody awaits would warn
            raise InvalidInput(
                f"{type(self._session).__name__} is for asyncio; use session.run_sync(lambda plain: ...), "
                "which gives a plain Session"
            )
        return connection

    def _bare(self) -> Any:
        """The connection of the database's driver."""
        writer = self._writer()
        return writer.connection.dbapi_connection if isinstance(writer, Connection) else self._session

    def check_begun(self, what: str) -> None:
        """Raise InvalidInput where the connection would commit the next statement by itself."""
        if _commits_by_itself(self._bare(), self.backend):
            raise InvalidInput(
                f"{what} must be part of a transaction, and this connection commits each statement by "
                "itself; begin a transaction first, or turn its autocommit off"
            )

    def execute(self, text: str, parameters: Any, table: str) -> Any:
        """Run a statement on ``table``. Raises ConfigurationError where that table is not there."""
        try:
            return self._writer().exec_driver_sql(text, parameters)
        except Exception as error:
            if _is_missing(error, table):
                raise ConfigurationError(
                    f"the database of this transaction has no table {table}; create it with: "
                    "millstream migrate schema URL  (before the transaction begins)"
                ) from error
            raise

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call when the transaction is committed, where the caller's library says when that is."""
        writer = self._writer()
        if isinstance(writer, Connection):
            with suppress(SQLAlchemyError):
                event.listen(writer, "commit", lambda _: call(), once=True)


def _family(session: Any) -> str:
    if isinstance(session, sqlite3.Connection):
        return "sqlite"
    family = _MODULES.get(type(session).__module__.partition(".")[0])
    if family is None or not hasattr(session, "cursor") or hasattr(session, "fetchone"):
        raise InvalidInput(
            "give a SQLAlchemy Session or Connection, or a connection of psycopg, sqlite3 or PyMySQL, not "
            f"{type(session).__name__}"
        )
    return family


def _commits_by_itself(bare: Any, backend: str) -> bool:
    if backend == "sqlite":
        by_itself = bare.isolation_level is None or getattr(bare, "autocommit", None) is True
        return by_itself and not bare.in_transaction
    if backend == "postgresql":
        return bool(getattr(bare, "autocommit", False)) and int(bare.info.transaction_status) == _IDLE
    return bool(bare.get_autocommit()) and not getattr(bare, "server_status", 1) & _IN_TRANSACTION


def _is_missing(error: Exception, table: str) -> bool:
    """Whether a library says that there is no such table."""
    said = str(error)
    return table in said and any(
        words in said for words in ("no such table", "does not exist", "doesn't exist")
    )
