"""Archives on SQLite, PostgreSQL and MariaDB, each with tables of its own, closed after the test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream import Queue, connect
from millstream.archive import SqlArchive

TABLES = "archivetests_"
OpenArchive = Callable[..., SqlArchive]
OpenQueue = Callable[..., Queue]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closed after the test, the last one first: queues before the archives that they write to."""
    with ExitStack() as closing:
        yield closing


@pytest.fixture
def tables() -> str:
    """For tests that need tables which nobody made yet."""
    return f"t{uuid.uuid4().hex[:12]}_"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/archive.db"


@pytest.fixture(params=("sqlite", "postgres", "mariadb"))
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the three databases in turn."""
    if request.param == "sqlite":
        found: str = request.getfixturevalue("file_url")
        return found
    server: Any = request.getfixturevalue(request.param)
    url: str = server.url
    return url


@pytest.fixture
def open_archive(stack: ExitStack) -> OpenArchive:
    """Opens archives that are empty. Their tables are made once for all tests, as that takes a while."""
    emptied: set[str] = set()

    def open_one(url: str, **options: Any) -> SqlArchive:
        archive = stack.enter_context(SqlArchive(url, **{"tables": TABLES, "create": True, **options}))
        if url not in emptied:
            emptied.add(url)
            database = archive._store.database()
            for table in ("history", "archive"):
                database.run(lambda c, t=table: c.exec_driver_sql(f"DELETE FROM {TABLES}{t}"), repeat=True)  # type: ignore[misc]
        return archive

    return open_one


@pytest.fixture
def archive(open_archive: OpenArchive, database_url: str) -> SqlArchive:
    """An empty archive on each of the three databases."""
    return open_archive(database_url)


@pytest.fixture
def open_queue(stack: ExitStack) -> OpenQueue:
    def open_one(url: str = "memory://", **options: Any) -> Queue:
        return stack.enter_context(connect(url, **options))

    return open_one


@pytest.fixture
def prefix() -> str:
    return f"archive-{uuid.uuid4().hex}"
