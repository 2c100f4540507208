"""Database: an engine whose transactions are repeated when that is right, and whose errors are ours.

All users of one URL in a process share one object, and with it the connections: a broker, a driver
and an archive on the same database need no three pools.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from millstream.errors import BrokerUnavailable, ConfigurationError, NoDatabaseFile, OutcomeUnknown
from millstream.sql.engine import EngineOptions, Target, open_engine
from millstream.sql.failures import Kind, kind_of, translate
from millstream.sql.migrations import check_schema, latest_version, migrate
from millstream.sql.schema import DEFAULT_PREFIX, Tables
from millstream.sql.writing import SqliteWriter, driver_of, execute

T = TypeVar("T")
S = TypeVar("S")

_BEGIN = {
    "postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED",
    "mysql": "START TRANSACTION",
}
_SNAPSHOT = {
    "sqlite": ("BEGIN",),
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",),
    "mysql": (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ),
}


class Database:
    """A database that this process uses. Get one with `open`, give it back with `close`."""

    _shared: ClassVar[dict[tuple[Any, ...], Database]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, target: Target, options: EngineOptions, prefix: str) -> None:
        self.target, self.backend, self.prefix = target, target.backend, prefix
        self.tables = Tables(prefix)
        self.options = options
        self.engine: Engine = open_engine(target, options)
        self._writer = (
            SqliteWriter(self.engine, options, target.address) if self.backend == "sqlite" else None
        )
        self._parts: dict[type[Any], Any] = {}
        self._users = 0
        self._ready = False
        _all.add(self)

    @classmethod
    def open(
        cls,
        target: Target,
        options: EngineOptions | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        create: bool | None = None,
    ) -> Database:
        """The database of ``target``, connected and with its schema checked.

        ``create`` brings the schema to the latest version; without it, PostgreSQL and MySQL raise
        SchemaNotReady where that is needed, because there it is the administrator's business. A SQLite file
        belongs to its program, so it is the default there; ``create=False`` makes no file and changes none.
        Raises BrokerUnavailable or AccessDenied.
        """
        options = options or EngineOptions()
        identity = (str(target.url), target.url.password, options, prefix, os.getpid())
        with cls._guard:
            database = cls._shared.get(identity)
            if database is None:
                database = cls._shared[identity] = cls(target, options, prefix)
            database._users += 1
        try:
            database._make_ready(target.backend == "sqlite" if create is None else create)
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Give it back; the last user closes the connections."""
        with self._guard:
            self._users -= 1
            if self._users > 0:
                return
            for identity, database in list(self._shared.items()):
                if database is self:
                    del self._shared[identity]
        for part in self._parts.values():
            part.close()
        if self._writer is not None:
            self._writer.close()
        self.engine.dispose()

    def part(self, kind: type[S]) -> S:
        """The one object of ``kind`` that all users of this database share; closed with it."""
        with self._guard:
            found = self._parts.get(kind)
            if found is None:
                found = self._parts[kind] = kind(self)  # type: ignore[call-arg] # a part takes its database
        return cast(S, found)

    # -- running -----------------------------------------------------------------------------------

    def read(self, work: Callable[[Connection], T], *, snapshot: bool = False, retry_for: float = 0.0) -> T:
        """What ``work`` returns. Without ``snapshot`` each statement sees what is committed by then."""
        return self.run(work, repeat=True, snapshot=snapshot, retry_for=retry_for)

    def run(
        self,
        work: Callable[[Connection], T],
        *,
        repeat: bool,
        snapshot: bool = False,
        retry_for: float = 0.0,
    ) -> T:
        """Run ``work`` outside of a transaction: each of its statements is committed by itself.

        With ``repeat`` it is run again, for ``retry_for`` seconds, when the connection is lost. Without, a
        loss after the connection was there raises OutcomeUnknown.
        """
        deadline = time.monotonic() + retry_for
        pause = _Pause()
        while True:
            connected = False
            try:
                with self._connect() as connection:
                    connected = True
                    if not snapshot:
                        return work(connection)
                    for statement in _SNAPSHOT[self.backend]:
                        connection.exec_driver_sql(statement)
                    try:
                        return work(connection)
                    finally:
                        if not connection.invalidated:
                            connection.exec_driver_sql("ROLLBACK")
            except SQLAlchemyError as error:
                kind = kind_of(error)
                if kind is Kind.LOST and connected and not repeat:
                    raise self._unknown(error) from error
                if kind not in (Kind.LOST, Kind.UNREACHABLE, Kind.CONFLICT) or not pause.before(
                    deadline, kind
                ):
                    raise translate(error, self.target.address) from error

    def write(
        self,
        work: Callable[[Connection], T],
        *,
        repeat: bool,
        durable: bool = True,
        retry_for: float = 0.0,
    ) -> T:
        """Run ``work`` in one transaction and commit it.

        ``work`` is run again when another transaction was in the way, and when the connection was lost
        before the commit was sent: nothing had happened then. Where the answer to the commit is lost it is
        run again only with ``repeat``; otherwise OutcomeUnknown is raised.

        ``durable=False`` is for what may be forgotten in a power failure (not in a crash) without harm,
        such as a delivery or an acknowledgement, which then happens again. Only SQLite makes use of it.
        """
        deadline = time.monotonic() + retry_for
        pause = _Pause()
        while True:
            committing = False
            try:
                with self._writing(durable) as connection:
                    try:
                        result = work(connection)
                        committing = True
                        self._commit(connection)
                        return result
                    except BaseException:
                        self._roll_back(connection)
                        raise
            except SQLAlchemyError as error:
                kind = kind_of(error)
                if kind is Kind.LOST and committing and not repeat:
                    raise self._unknown(error) from error
                if kind not in (Kind.LOST, Kind.UNREACHABLE, Kind.CONFLICT) or not pause.before(
                    deadline, kind
                ):
                    raise translate(error, self.target.address) from error

    @contextmanager
    def _writing(self, durable: bool) -> Iterator[Connection]:
        if self._writer is not None:
            with self._writer.turn(durable=durable) as connection:
                yield connection
            return
        with self._connect() as connection:
            connection.exec_driver_sql(_BEGIN[self.backend])
            yield connection

    def _commit(self, connection: Connection) -> None:
        if self._writer is not None:
            execute(driver_of(connection), "COMMIT")
        else:
            connection.exec_driver_sql("COMMIT")

    @staticmethod
    def _roll_back(connection: Connection) -> None:
        if connection.invalidated:
            return
        try:
            connection.exec_driver_sql("ROLLBACK")
        except SQLAlchemyError:
            # SQLite rolls back by itself when the disk is full, and says so. Anything else: do not use it
            # again.
            with suppress(SQLAlchemyError):
                driver: Any = connection.connection.dbapi_connection
                if not (hasattr(driver, "in_transaction") and not driver.in_transaction):
                    connection.invalidate()

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection

    def _unknown(self, error: SQLAlchemyError) -> OutcomeUnknown:
        unknown = OutcomeUnknown(
            f"the connection to {self.target.address} was lost before the answer came: the call may have "
            "taken effect. Give a key to make a repetition harmless"
        )
        unknown.__cause__ = error
        return unknown

    # -- life --------------------------------------------------------------------------------------

    def _make_ready(self, create: bool) -> None:
        """Ask the server once, so that a wrong address or password shows when a program starts."""
        if self._ready:
            return
        if self.backend == "sqlite":
            folder = Path(self.target.address).parent
            if not folder.is_dir():
                raise ConfigurationError(f"cannot open {self.target.address}: there is no folder {folder}")
            if not create and not Path(self.target.address).exists():  # SQLite would make it, to look into it
                raise NoDatabaseFile(self.target.safe_url, self.target.address, latest_version())
        try:
            if not create:
                check_schema(self)  # before a file that may be somebody else's is switched to WAL
            if self.backend == "sqlite":
                self._use_wal()
            if create:
                migrate(self)
        except TypeError as error:  # what a driver written in Python says to an option that it does not know
            if "unexpected keyword" not in str(error):
                raise
            raise ConfigurationError(f"{self.target.address}: the driver says: {error}") from error
        self._ready = True

    def _use_wal(self) -> None:
        """Let readers and the writer of a SQLite file go on side by side. The file remembers it."""

        def work(connection: Connection) -> None:
            if connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal":
                return
            mode = connection.exec_driver_sql("PRAGMA journal_mode = wal").scalar()
            if mode != "wal":
                raise ConfigurationError(
                    f"{self.target.address} cannot serve several readers and a writer: its file system has "
                    "no shared memory (a network drive?); use a local disk, or PostgreSQL"
                )

        deadline = time.monotonic() + self.options.lock_timeout
        while True:
            try:
                return self.read(work)
            except BrokerUnavailable:
                # Another process is switching it at this moment. SQLite does not wait for that by itself.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _after_fork(self) -> None:
        """In a child process: leave the parent's connections alone, and begin with none."""
        self.engine.dispose(close=False)
        if self._writer is not None:
            self._writer.after_fork()
        for part in self._parts.values():
            part.after_fork()


class _Pause:
    """Pauses between repetitions: short after a conflict, growing while a server is away."""

    CONFLICT_PATIENCE = 10.0

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._length = 0.002

    def before(self, deadline: float, kind: Kind) -> bool:
        """Sleep and say that it is worth another attempt; False when the time is over."""
        now = time.monotonic()
        if kind is Kind.CONFLICT:
            deadline = max(deadline, self._began + self.CONFLICT_PATIENCE)
        if now >= deadline:
            return False
        # Jitter, so that those who collided do not collide again.
        time.sleep(min(self._length * (0.5 + random.random()), deadline - now))
        self._length = min(self._length * 2, 0.25)
        return True


_all: weakref.WeakSet[Database] = weakref.WeakSet()


def _forget_connections() -> None:
    Database._guard = threading.Lock()
    for database in list(_all):
        database._after_fork()


os.register_at_fork(after_in_child=_forget_connections)
