"""Drivers on real servers, opened by tests and closed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from millstream.drivers.stream import StreamDriver, open_stream_driver
from tests.servers import RedisServer, TcpProxy

Open = Callable[..., StreamDriver]


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> StreamDriver:
            driver = open_stream_driver(url, **options)
            stack.callback(driver.close)
            return driver

        yield open_one


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that the test may break."""
    with RedisServer("redis7", args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy
