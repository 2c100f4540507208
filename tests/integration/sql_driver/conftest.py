"""Drivers on SQLite, PostgreSQL and MariaDB, opened by tests and closed for them."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.drivers.sql import SqlDriver

Open = Callable[..., SqlDriver]
ROOT = Path(__file__).parents[3]
DATABASES = ("sqlite", "postgres", "mariadb")


@pytest.fixture
def space() -> str:
    """A prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def opened(space: str) -> Iterator[Open]:
    """Opens drivers that see the same jobs, and closes them after the test."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> SqlDriver:
            driver = SqlDriver(url, **{"create": True, "prefix": space, **options})
            stack.callback(driver.close)
            return driver

        yield open_one


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest) -> str:
    """Each of the three databases in turn."""
    if request.param == "sqlite":
        return f"{request.getfixturevalue('file_url')}?synchronous=normal"
    found: str = request.getfixturevalue(request.param).url
    return found


def start(script: str, *args: str) -> subprocess.Popen[str]:
    """A Python process that runs ``script``."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
