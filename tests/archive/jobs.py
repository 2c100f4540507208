"""Jobs whose stories the tests of the archive follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

from millstream import Bury, Cancel, Job, Snooze


class Note(Job, queue="notes", name="archive.Note", max_attempts=2, backoff=0.01, tags=("mail", "50%_off")):
    """Does what its ``how`` says."""

    number: int = 0
    how: str = "done"
    ran: ClassVar[list[int]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    def handle(self) -> None:
        with self.lock:
            self.ran.append(self.number)
        if self.how == "fail":
            raise ValueError(f"no such NOTE: {self.number}")
        if self.how == "fail once" and self.attempt == 1:
            raise KeyError("not yet")
        if self.how == "snooze" and len(self.ran) == 1:
            raise Snooze(0.01, "too early")
        if self.how == "cancel":
            raise Cancel("nobody wants it")
        if self.how == "bury":
            raise Bury("hopeless")


class Late(Job, queue="notes", name="archive.Late", expires_in=0.001):
    """Expired before anybody can start it."""

    def handle(self) -> None: ...


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread or process brings about."""
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, "it did not come to be within half a minute"
        time.sleep(0.005)
