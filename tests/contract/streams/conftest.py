"""The broker under test, once for each implementation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from millstream import StreamBroker
from tests.contract.streams.factories import FACTORIES, Implementation
from tests.contract.streams.helpers import until


@pytest.fixture(scope="session", params=FACTORIES)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return FACTORIES[request.param](request)


@pytest.fixture
def opened(implementation: Implementation) -> Iterator[Callable[..., StreamBroker]]:
    """Opens brokers with options of the test's own, and closes them."""
    with ExitStack() as stack:

        def open_one(**options: object) -> StreamBroker:
            broker = implementation.open(**options)
            stack.callback(broker.close)
            return broker

        yield open_one


@pytest.fixture
def broker(opened: Callable[..., StreamBroker]) -> StreamBroker:
    return opened()


@pytest.fixture
def stream() -> str:
    """A name that no other test uses, so that a shared server needs no clearing."""
    return f"test:{uuid.uuid4().hex}"


@pytest.fixture
def other() -> str:
    return f"other:{uuid.uuid4().hex}"


@pytest.fixture
def waiting(implementation: Implementation) -> Callable[[int], None]:
    """waiting(n) returns when n readers are blocked in the broker."""
    # A server may not have noticed yet that those of the test before are gone.
    until(lambda: implementation.waiting() == 0, "no reader to be waiting")

    def wait(count: int) -> None:
        until(lambda: implementation.waiting() == count, f"{count} readers to be waiting")

    return wait
