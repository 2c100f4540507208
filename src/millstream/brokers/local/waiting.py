"""Readers that wait. Whoever adds an entry hands it over directly, under the broker's lock, so a reader
that came later can never take what somebody was already waiting for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.message import Id, Message


def _nothing() -> None:
    """What a waiter leaves before it has joined anything."""


class Waiter:
    """One blocked call. `outcome` is set once at the most, under the broker's lock, before the wake-up."""

    __slots__ = ("_bell", "consumer", "count", "leave", "outcome", "positions")

    def __init__(self, consumer: str, count: int | None) -> None:
        self.consumer = consumer
        self.count = count
        self.positions: dict[str, Id] = {}  # xread only: after which id of which stream
        self.leave: Callable[[], None] = _nothing  # takes the waiter off every list it stands on
        self.outcome: list[Message] | Exception | None = None
        self._bell = threading.Lock()
        self._bell.acquire()

    def wake(self, outcome: list[Message] | Exception) -> None:
        self.outcome = outcome
        self._bell.release()

    def wait(self, block_ms: int | None) -> None:
        """Sleep until woken, or until the time has passed."""
        self._bell.acquire(timeout=-1 if block_ms is None else min(block_ms / 1000, threading.TIMEOUT_MAX))

    def result(self) -> list[Message]:
        """What the call returns: empty where nobody woke it."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome or []
