"""The driver under test, once for each implementation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from millstream.drivers.base import Driver
from tests.contract.drivers.factories import FACTORIES, Implementation
from tests.contract.drivers.helpers import until
from tests.contract.drivers.skips import reason_to_skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): capabilities that a driver must have for this test")


@pytest.fixture(scope="session", params=FACTORIES)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return FACTORIES[request.param](request)


@pytest.fixture
def space() -> str:
    """A prefix that no other test uses, so that a shared server needs no clearing."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def opened(
    implementation: Implementation, space: str, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Driver]]:
    """Opens drivers that see the same jobs, and closes them."""
    with ExitStack() as stack:

        def open_one() -> Driver:
            driver = implementation.open(space)
            stack.callback(driver.close)
            return driver

        yield open_one


@pytest.fixture
def driver(
    opened: Callable[[], Driver], implementation: Implementation, request: pytest.FixtureRequest
) -> Driver:
    found = opened()
    needs = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    reason = reason_to_skip(implementation.name, found.capabilities, needs)
    if reason:
        pytest.skip(reason)
    return found


@pytest.fixture
def second(opened: Callable[[], Driver], driver: Driver) -> Driver:
    """Another driver object on the same jobs, as another process would have."""
    return opened()


@pytest.fixture
def waiting(implementation: Implementation, space: str) -> Callable[[int], None]:
    """waiting(n) returns when n calls of reserve are blocked."""

    def wait(count: int = 1) -> None:
        until(lambda: implementation.waiting(space) >= count, f"{count} calls to be waiting")

    return wait
