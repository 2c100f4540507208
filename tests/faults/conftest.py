"""The fault campaign: short with every test run, long with ``make faults`` (MILLSTREAM_FAULTS=long).

Each test proves that its fault fired, counts what was lost and what ran twice, and prints its figures. Each
has a control: a way of working that is known to lose jobs must be reported as losing them, by the same check.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.servers import RedisServer

LONG = os.environ.get("MILLSTREAM_FAULTS", "") == "long"


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


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server of the test's own, whose data survive a crash."""
    with RedisServer("redis7", args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server
