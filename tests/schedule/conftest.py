"""A queue on each driver in turn, as the contract suite has them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from millstream import Queue
from tests.contract.drivers.factories import FACTORIES, Implementation


@pytest.fixture(scope="session", params=["memory", "redis7", "sqlite", "postgres", "mariadb"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return FACTORIES[request.param](request)


@pytest.fixture
def opened(implementation: Implementation) -> Iterator[Callable[[], Queue]]:
    """Opens queue objects that see the same jobs, as other processes would."""
    space = f"test-{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:

        def open_one() -> Queue:
            queue = Queue(implementation.open(space))
            stack.callback(queue.close)
            return queue

        yield open_one


@pytest.fixture
def queue(opened: Callable[[], Queue]) -> Queue:
    return opened()
