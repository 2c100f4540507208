"""The fault campaign: short with every test run, long with ``make faults`` (MILLSTREAM_FAULTS=long).

Each test proves that its fault fired, counts what was lost and what ran twice, and prints its figures. Each
has a control: a way of working that is known to lose jobs must be reported as losing them, by the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from millstream.drivers.sql import SqlDriver
from tests.conftest import LONG
from tests.servers import MariaDbServer, PostgresServer, RedisServer
from tests.servers.mariadb import SAFE as MARIADB_SAFE
from tests.servers.postgres import SAFE as POSTGRES_SAFE


def sized(short: int, long: int) -> int:
    """The size of a campaign in its form."""
    return long if LONG else short


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Lines to be printed when the test is over, whatever pytest captures."""
    lines: list[str] = []
    yield lines
    with capsys.disabled():
        for line in lines:
            print(f"\n  {line}", end="")  # noqa: T201 - the campaign's figures are its output


class Database:
    """Where a test's jobs are: on a server that the test may restart, or in a file."""

    def __init__(self, name: str, url: str, server: Any = None) -> None:
        self.name, self.url, self.server = name, url, server
        if name in ("postgres", "mariadb"):
            SqlDriver(url, create=True).close()  # the tables are there before the first worker is

    def at_port(self, port: int) -> str:
        """The URL of the server behind a proxy."""
        return f"redis://127.0.0.1:{port}/0" if self.name == "redis" else self.server.url_at(port)


# Each keeps through a crash what it has acknowledged.
SERVERS: dict[str, Callable[[], Any]] = {
    "redis": lambda: RedisServer("redis7", args=("--appendonly", "yes", "--appendfsync", "always")),
    "postgres": lambda: PostgresServer(POSTGRES_SAFE),
    "mariadb": lambda: MariaDbServer(MARIADB_SAFE),
}


def database(name: str, folder: Path) -> AbstractContextManager[Database]:
    if name == "sqlite":
        return nullcontext(Database(name, f"sqlite:///{folder}/jobs.db"))
    return _served(name)


@contextmanager
def _served(name: str) -> Iterator[Database]:
    with SERVERS[name]() as server:
        yield Database(name, server.url, server)


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A Redis of the test's own, or the database that the test's parameters name."""
    with database(getattr(request, "param", "redis"), tmp_path) as found:
        yield found


@pytest.fixture
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """The server that the whole run shares, or a file."""
    if request.param == "sqlite":
        return Database("sqlite", f"sqlite:///{tmp_path}/jobs.db")
    server = request.getfixturevalue({"redis": "redis7"}.get(request.param, request.param))
    return Database(request.param, server.url, server)


EVERYWHERE = ["redis", "sqlite", "postgres", "mariadb"]
