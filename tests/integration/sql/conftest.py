"""Brokers on SQLite, PostgreSQL and MariaDB, opened by tests and closed for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.brokers.sql import SqlStreamBroker
from tests.servers import MariaDbServer, PostgresServer

Open = Callable[..., SqlStreamBroker]
SERVERS = ("postgres", "mariadb")
DATABASES = ("sqlite", *SERVERS)


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens brokers and closes them after the test."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> SqlStreamBroker:
            broker = SqlStreamBroker(url, **{"create": True, **options})
            stack.callback(broker.close)
            return broker

        yield open_one


@pytest.fixture
def stream() -> str:
    return f"test:{uuid.uuid4().hex}"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/streams.db"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest) -> str:
    """Each of the three databases in turn."""
    if request.param == "sqlite":
        found: str = request.getfixturevalue("file_url")
        return found
    server: PostgresServer | MariaDbServer = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> PostgresServer | MariaDbServer:
    """Each of the two servers in turn."""
    found: PostgresServer | MariaDbServer = request.getfixturevalue(request.param)
    return found


def apart(number: int) -> dict[str, int]:
    """Options that give a broker its own connections and waiting readers, as another process would have.

    Brokers with the same URL and the same options share theirs.
    """
    return {"pool_size": 11 + number}
