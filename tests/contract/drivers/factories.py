"""Every driver that the contract suite runs on. A new one joins by adding one line to FACTORIES.

MILLSTREAM_DRIVER_UNDER_TEST="module:Class" runs the suite on that class alone, constructed with a
LocalStreamBroker and a prefix: how the suite itself is tested.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from millstream import LocalStreamBroker
from millstream.drivers.base import Driver
from millstream.drivers.local_steps import state_of
from millstream.drivers.sql import SqlDriver
from millstream.drivers.stream import StreamDriver, open_stream_driver
from tests.servers import RedisServer

UNDER_TEST = "MILLSTREAM_DRIVER_UNDER_TEST"


@dataclass(frozen=True)
class Implementation:
    """How to open a driver, and how to see from outside that somebody waits in it."""

    name: str
    open: Callable[[str], Driver]  # drivers opened with the same text see the same jobs
    waiting: Callable[[str], int]  # how many calls of reserve are blocked now


def memory(request: pytest.FixtureRequest, kind: Callable[..., Driver] = StreamDriver) -> Implementation:
    brokers: dict[str, LocalStreamBroker] = {}

    def broker_of(space: str) -> LocalStreamBroker:
        return brokers.setdefault(space, LocalStreamBroker(max_stream_length=None))

    return Implementation(
        request.param,
        lambda space: kind(broker_of(space), space),
        lambda space: state_of(broker_of(space), space).waiting,
    )


def redis(request: pytest.FixtureRequest) -> Implementation:
    server: RedisServer = request.getfixturevalue(request.param)
    client = server.client()
    request.addfinalizer(client.close)
    return Implementation(
        request.param,
        lambda space: open_stream_driver(server.url, prefix=space),
        lambda space: int(client.info("clients")["blocked_clients"]),
    )


def sql(request: pytest.FixtureRequest) -> Implementation:
    if request.param == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
        url = f"sqlite:///{folder}/jobs.db?synchronous=normal"
    else:
        url = request.getfixturevalue(request.param).url
    kept = SqlDriver(url, create=True)  # keeps the connections, which all drivers on a database share
    request.addfinalizer(kept.close)
    return Implementation(
        request.param, lambda space: SqlDriver(url, prefix=space, create=True), lambda _: waiting_threads()
    )


def waiting_threads() -> int:
    """The threads that sleep inside of reserve: their innermost function is the hub's `wait`."""
    return sum(map(_waits_in_reserve, sys._current_frames().values()))


def _waits_in_reserve(frame: FrameType | None) -> bool:
    # A database's client has functions of that name, too.
    if frame is None or frame.f_code.co_name != "wait" or "millstream" not in frame.f_code.co_filename:
        return False
    while frame is not None and frame.f_code.co_name != "reserve":
        frame = frame.f_back
    return frame is not None


def under_test(request: pytest.FixtureRequest) -> Implementation:
    module, _, name = os.environ[UNDER_TEST].partition(":")
    kind: Any = getattr(importlib.import_module(module), name)
    return memory(request, kind)


FACTORIES: dict[str, Callable[[pytest.FixtureRequest], Implementation]] = (
    {"under_test": under_test}
    if UNDER_TEST in os.environ
    else {"memory": memory, "redis7": redis, "redis8": redis, "valkey": redis}
    | dict.fromkeys(("sqlite", "postgres", "mariadb"), sql)
)
