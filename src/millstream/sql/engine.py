"""From a URL to an engine: which database, how to reach it, and how its connections are set up.

    sqlite:///file.db                  beside the program; sqlite:////var/lib/app/file.db for an absolute path
    postgresql://user:password@host:5432/name        with psycopg 3; postgres:// means the same
    mysql://user:password@host:3306/name             with PyMySQL; mariadb:// means the same

``?name=value`` gives an option of EngineOptions, or (not for SQLite) one of the driver, such as
``sslmode=require``.

Every connection is in autocommit mode, and a transaction is begun in so many words (`database.py`). A single
statement is then one round trip, and SQLite's writers can ask for the lock before they read.
"""

from __future__ import annotations

import select
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import QueuePool

from millstream.connecting import ENGINE, readers
from millstream.errors import ConfigurationError, MissingExtra, UnknownScheme
from millstream.sql import arrays
from millstream.sql.clock import SQLITE_FUNCTION, sqlite_now

BACKENDS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
SCHEMES = tuple(BACKENDS)
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_OLDEST_SQLITE = (3, 24)  # the first with ON CONFLICT


@dataclass(frozen=True)
class EngineOptions:
    """How connections are made and kept."""

    # Nothing waits for entries on a connection, so a few serve many threads; the rest is for bursts.
    pool_size: int = 10
    max_overflow: int = 20
    # How long to wait for a connection of the pool, for a new one, and for somebody else's lock.
    pool_timeout: float = 30.0
    connect_timeout: float = 5.0
    lock_timeout: float = 10.0
    # SQLite only. "full" syncs each addition to the disk before it returns, as the servers do by default,
    # so that it survives a power failure; "normal" survives the end of the process and leaves the syncing
    # to checkpoints. "always" syncs deliveries and acknowledgements too, which after a power failure would
    # otherwise happen again.
    synchronous: str = "full"

    def __post_init__(self) -> None:
        for name, option in ENGINE.items():
            option.check(name, getattr(self, name))


ENGINE_OPTIONS = readers(ENGINE)


@dataclass(frozen=True)
class Target:
    """What a URL says."""

    backend: str  # "sqlite", "postgresql" or "mysql"
    url: URL = field(repr=False)  # a password may be in it
    asked: Mapping[str, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # options of the caller's

    @property
    def address(self) -> str:
        """Where the database is, for error messages: never with the password."""
        if self.backend == "sqlite":
            return str(self.url.database)
        host = f"[{self.url.host}]" if ":" in (self.url.host or "") else self.url.host or "localhost"
        port = self.url.port or (5432 if self.backend == "postgresql" else 3306)
        return f"{host}:{port}/{self.url.database or ''}"

    @property
    def safe_url(self) -> str:
        """The URL without its password and its driver's options, for messages that name a command."""
        bare = self.url.set(drivername=self.backend, query={})
        # set() keeps what is None, and hiding a password as *** would make a command that cannot be run.
        return URL.create(
            bare.drivername, bare.username, None, bare.host, bare.port, bare.database
        ).render_as_string()


def parse_url(url: str, known: Mapping[str, Callable[[str], Any]] | None = None) -> Target:
    """What ``url`` says. ``known`` are the caller's own options, with the readers of their texts.

    Raises UnknownScheme or ConfigurationError; neither says the password.
    """
    scheme, separator, rest = url.partition("://")
    name = scheme.lower().partition("+")[0]
    if not separator or name not in BACKENDS:
        raise UnknownScheme(scheme if separator else "", SCHEMES)
    backend = BACKENDS[name]
    if scheme.lower() not in (name, _DRIVERS[backend], f"mariadb+{_DRIVERS['mysql'][6:]}"):
        raise ConfigurationError(
            f"{scheme}:// names a driver; write {name}://, which uses {_DRIVERS[backend]}"
        )
    try:
        parsed = make_url(f"{_DRIVERS[backend]}://{rest}")
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            f"the {name}:// URL cannot be read; expected {_example(backend)}, with %40 for an @ in a password"
        ) from error
    readers = {**ENGINE_OPTIONS, **(known or {})}
    asked = {key: _convert(key, text, readers[key]) for key, text in parsed.query.items() if key in readers}
    parsed = parsed.set(query={key: text for key, text in parsed.query.items() if key not in readers})
    if backend == "sqlite":
        parsed = _check_sqlite(parsed)
    return Target(backend, parsed, asked)


def _check_sqlite(url: URL) -> URL:
    if url.host:
        raise ConfigurationError(
            f"sqlite://{url.host}… has a host; a path has three slashes (sqlite:///file.db), "
            "an absolute one four (sqlite:////var/lib/app/file.db)"
        )
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        # Each connection would have a database of its own, so two threads would not see each other's entries.
        raise ConfigurationError(
            "sqlite:// needs a file, such as sqlite:///millstream.db; for streams in memory use memory://"
        )
    if url.query:
        raise ConfigurationError(f"unknown option {next(iter(url.query))!r} in the sqlite:// URL")
    # Absolute from here on: a program that changes its folder keeps its database.
    return url.set(database=str(Path(url.database).absolute()))


def _example(backend: str) -> str:
    return "sqlite:///file.db" if backend == "sqlite" else f"{backend}://user:password@host/database"


def _convert(name: str, text: str | tuple[str, ...], reader: Callable[[str], Any]) -> Any:
    try:
        return reader(text if isinstance(text, str) else text[-1])
    except (ValueError, KeyError) as error:
        raise ConfigurationError(f"the option {name!r} of the URL cannot be {text!r}") from error


def open_engine(target: Target, options: EngineOptions) -> Engine:
    """The engine for ``target``. It connects when it is first used. Raises MissingExtra."""
    try:
        engine = create_engine(
            target.url,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,  # an error's text would have the entries' data in it
            poolclass=QueuePool,
            pool_size=options.pool_size,
            max_overflow=options.max_overflow,
            pool_timeout=options.pool_timeout,
            pool_use_lifo=True,  # the same few are used again and again; the others time out
            pool_reset_on_return=None,  # `Database` ends every transaction; this would be one more round trip
            connect_args=_connect_args(target, options),
        )
    except ModuleNotFoundError as error:
        raise MissingExtra("sql", str(error.name)) from error
    _SET_UP[target.backend](engine, options)
    if target.backend != "sqlite":
        event.listen(engine, "checkout", _refuse_dead)
    return engine


def _connect_args(target: Target, options: EngineOptions) -> dict[str, Any]:
    given = target.url.query
    if target.backend == "sqlite":
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old; 3.24 or newer is needed")
        return {"timeout": options.lock_timeout, "check_same_thread": False, "cached_statements": 256}
    if target.backend == "mysql":
        # A server that hangs must not hang its clients. Longer than any wait for a lock.
        patience = options.lock_timeout + 20
        defaults = {
            "connect_timeout": max(int(options.connect_timeout), 1),
            "read_timeout": patience,
            "write_timeout": patience,
            "charset": "utf8mb4",
        }
    else:
        defaults = {
            "connect_timeout": max(int(options.connect_timeout), 1),
            "application_name": "millstream",
            "client_encoding": "UTF8",
            # A peer that is gone without a word is noticed after about half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
            "tcp_user_timeout": 30_000,
        }
    return {name: value for name, value in defaults.items() if name not in given}


def _set_up_sqlite(engine: Engine, options: EngineOptions) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.create_function(SQLITE_FUNCTION, 0, sqlite_now)
        connection.execute(f"PRAGMA busy_timeout = {int(options.lock_timeout * 1000)}")
        connection.execute(f"PRAGMA synchronous = {'normal' if options.synchronous == 'normal' else 'full'}")
        # A log that a long reader let grow is cut back, and sorting needs no file.
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute("PRAGMA temp_store = memory")


def _set_up_postgres(engine: Engine, options: EngineOptions) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.autocommit = True
        arrays.register(connection)
        connection.execute(f"SET lock_timeout = {int(options.lock_timeout * 1000)}")
        # Every statement has its index. A plan that was made and kept while a table was small would go on
        # reading all of it when it has become large.
        connection.execute("SET enable_seqscan = off")


def _set_up_mysql(engine: Engine, options: EngineOptions) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET autocommit = 1, time_zone = '+00:00',"
                f" innodb_lock_wait_timeout = {max(int(options.lock_timeout), 1)},"
                " sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
            )
            # With the default, REPEATABLE READ, who waited for a lock would go on reading what was there
            # before.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


_SET_UP = {"sqlite": _set_up_sqlite, "postgresql": _set_up_postgres, "mysql": _set_up_mysql}


def _refuse_dead(connection: Any, record: object, proxy: object) -> None:
    """Throw away a pooled connection that the server has closed meanwhile.

    An idle connection has nothing to read, unless it is the end. Finding that out here costs a microsecond;
    found out by sending a statement, nobody could say whether the statement took effect.
    """
    try:
        number = connection.fileno() if hasattr(connection, "fileno") else connection._sock.fileno()
    except Exception as error:  # whatever a driver raises for a connection that is closed
        raise DisconnectionError("closed") from error
    poll = select.poll()
    poll.register(number, select.POLLIN | select.POLLHUP | select.POLLERR)
    if poll.poll(0):
        raise DisconnectionError("the server closed it")
