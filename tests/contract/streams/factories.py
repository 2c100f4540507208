"""Every implementation that the contract suite runs on. A new one joins by adding one line to FACTORIES.

MILLSTREAM_BROKER_UNDER_TEST="module:Class" runs the suite on that class alone, constructed with the options
as keyword arguments: how the suite itself is tested, and how somebody tests a broker of their own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from millstream import StreamBroker, open_broker
from tests.servers import RedisServer

UNDER_TEST = "MILLSTREAM_BROKER_UNDER_TEST"


@dataclass(frozen=True)
class Implementation:
    """How to open a broker, and how to see from outside that readers wait in it."""

    name: str
    open: Callable[..., StreamBroker]
    waiting: Callable[[], int]  # how many readers are blocked now, in any broker of this kind


def memory(request: pytest.FixtureRequest) -> Implementation:
    return Implementation("memory", lambda **options: open_broker("memory://", **options), _waiting_threads)


def redis(request: pytest.FixtureRequest) -> Implementation:
    server: RedisServer = request.getfixturevalue(request.param)
    client = server.client()
    request.addfinalizer(client.close)
    return Implementation(
        request.param,
        lambda **options: open_broker(server.url, **options),
        lambda: int(client.info("clients")["blocked_clients"]),
    )


def sql(request: pytest.FixtureRequest) -> Implementation:
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
        url = f"sqlite:///{folder}/streams.db?synchronous=normal"
    else:
        url = request.getfixturevalue(request.param).url
    kept = open_broker(url, create=True)  # keeps the connections, which all brokers on a database share
    request.addfinalizer(kept.close)
    return Implementation(
        request.param,
        lambda **options: open_broker(url, create=True, **options),
        _waiting_threads,
    )


def under_test(request: pytest.FixtureRequest) -> Implementation:
    module, _, name = os.environ[UNDER_TEST].partition(":")
    kind: Any = getattr(importlib.import_module(module), name)
    return Implementation(name, kind, _waiting_threads)


FACTORIES: dict[str, Callable[[pytest.FixtureRequest], Implementation]] = (
    {"under_test": under_test}
    if UNDER_TEST in os.environ
    else {"memory": memory, "redis7": redis, "redis8": redis, "valkey": redis}
    | dict.fromkeys(("sqlite", "postgres", "mariadb"), sql)
)


def _waiting_threads() -> int:
    """The threads that sleep inside of a read: their innermost function is some `wait`, called by a read."""
    return sum(map(_waits_in_a_read, sys._current_frames().values()))


def _waits_in_a_read(frame: FrameType | None) -> bool:
    if frame is None or frame.f_code.co_name != "wait":
        return False
    if frame.f_globals["__name__"].startswith("psycopg"):  # it waits for the database: it is not asleep yet
        return False
    while frame is not None and frame.f_code.co_name not in ("xreadgroup", "xread"):
        frame = frame.f_back
    return frame is not None
