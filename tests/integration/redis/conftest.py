"""Brokers on real servers, opened by tests and closed for them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from millstream.brokers.redis import RedisStreamBroker
from tests.servers import RedisServer

Open = Callable[..., RedisStreamBroker]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens brokers and closes them after the test."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> RedisStreamBroker:
            broker = RedisStreamBroker(url, **options)
            stack.callback(broker.close)
            return broker

        yield open_one


@pytest.fixture
def stream() -> str:
    return f"test:{uuid.uuid4().hex}"


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that the test may break: its own Redis 7.0, with data that survive a restart."""
    with RedisServer("redis7", args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server


def until(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait for a state that only the server's own commands show."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s in vain for {what}"
        time.sleep(0.002)


def blocked(server: RedisServer, count: int = 1) -> None:
    """Wait until ``count`` clients are blocked in the server."""
    with server.client() as client:
        until(lambda: client.info("clients")["blocked_clients"] == count, f"{count} blocked clients")


def in_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """Run ``function`` in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **options))
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
