"""Applications that are wrong on purpose: the campaign must report what they lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.drivers.base import Driver, Reservation, Settlement
from millstream.queue import Queue
from tests.worker.app import queue


class Careless:
    """Passes everything on to a real driver, except for what a subclass does wrongly."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class AcksBeforeRunning(Careless):
    """Settles a job when it takes it, as a plain XREADGROUP NOACK or a BLPOP does."""

    def reserve(self, *args: Any, **options: Any) -> list[Reservation]:
        found = self._driver.reserve(*args, **options)
        self._driver.settle([Settlement(each, "complete") for each in found])
        return found

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return [True] * len(settlements)

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        return [True] * len(reservations)


class NeverRenews(Careless):
    """Has a visibility timeout in place of a lease that is renewed."""

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        return [True] * len(reservations)


acks_before_running = Queue(AcksBeforeRunning(queue.driver))  # type: ignore[arg-type]
never_renews = Queue(NeverRenews(queue.driver))  # type: ignore[arg-type]
