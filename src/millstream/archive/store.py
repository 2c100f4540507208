"""The archive's database: opened when it is first needed, asked in pages, cleaned in bounded steps."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from sqlalchemy import Connection

from millstream.archive.documents import Documents
from millstream.archive.statements import Statements
from millstream.connecting import TABLES, readers
from millstream.errors import BrokerClosed, ConfigurationError
from millstream.sql.database import Database
from millstream.sql.engine import ENGINE_OPTIONS, EngineOptions, parse_url
from millstream.sql.schema import DEFAULT_PREFIX, check_prefix

PURGE_STEP = 1000  # rows of one deletion: nobody waits long for its locks


class Purged(msgspec.Struct, frozen=True):
    """What was deleted: records of the history, and jobs that are done."""

    records: int
    jobs: int


OPTIONS = readers(TABLES)


class Store:
    """The two tables of an archive, under one prefix.

    A wrong URL shows at once; whether the database can be reached shows when it is first used, because a
    program must be able to start without its archive.
    """

    def __init__(self, url: str, tables: str | None, create: bool | None, options: dict[str, Any]) -> None:
        for name in options:
            if name not in ENGINE_OPTIONS:
                known = ", ".join(sorted(ENGINE_OPTIONS))
                raise ConfigurationError(f"archive: unknown option {name!r}; of the database: {known}")
        self.target = target = parse_url(url, OPTIONS)
        asked = {"tables": tables or DEFAULT_PREFIX, "create": create, **options, **target.asked}
        self.tables = check_prefix(asked["tables"])
        self._create: bool | None = asked["create"]
        self._options = EngineOptions(**{name: asked[name] for name in ENGINE_OPTIONS if name in asked})
        self.statements = Statements(target.backend, self.tables)
        self.documents = Documents(self.statements)
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._closed = False

    def database(self) -> Database:
        """The database. Raises BrokerUnavailable, AccessDenied, SchemaNotReady, BrokerClosed."""
        found = self._database
        if found is not None:
            return found
        with self._lock:
            if self._closed:
                raise BrokerClosed
            if self._database is None:
                self._database = Database.open(
                    self.target, self._options, prefix=self.tables, create=self._create
                )
            return self._database

    def rows(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        """What a question is answered with."""

        def work(connection: Connection) -> list[Any]:
            return list(connection.exec_driver_sql(statement, values).all())

        return self.database().read(work)

    def purge(self, before: float, *, steps: int | None = None) -> Purged:
        """Delete what happened before ``before``, but no job that is pending; ``steps`` bounds the work."""
        statements = self.statements
        return Purged(
            self._delete(statements.purge_history(), before, steps),
            self._delete(statements.purge_archive(), before, steps),
        )

    def _delete(self, statement: str, before: float, steps: int | None) -> int:
        def work(connection: Connection) -> int:
            return connection.exec_driver_sql(statement, (before, PURGE_STEP)).rowcount

        database, deleted = self.database(), 0
        while steps is None or steps > 0:
            count = database.write(work, repeat=True, durable=False)
            deleted += count
            if count < PURGE_STEP:
                break
            steps = None if steps is None else steps - 1
        return deleted

    def close(self) -> None:
        with self._lock:
            database, self._database, self._closed = self._database, None, True
        if database is not None:
            database.close()
