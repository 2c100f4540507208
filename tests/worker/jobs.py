"""Jobs for the tests of the worker. What they did is in ``ran``, and tests wait on its condition."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

from millstream.job import Job
from millstream.retry import Bury, Cancel, Retry, Snooze


class Record:
    """What happened, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []
        self.times: list[float] = []
        self._changed = threading.Condition()

    def add(self, kind: str, value: object = None) -> None:
        with self._changed:
            self.events.append((kind, value))
            self.times.append(time.monotonic())
            self._changed.notify_all()

    def of(self, kind: str) -> list[object]:
        return [value for each, value in self.events if each == kind]

    def wait(self, condition: Callable[[Record], object], what: str, timeout: float = 60.0) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout):
                raise AssertionError(f"waited {timeout} s in vain for {what}; there were {self.events[-20:]}")

    def wait_for(self, kind: str, count: int = 1, timeout: float = 60.0) -> None:
        self.wait(lambda record: len(record.of(kind)) >= count, f"{count} × {kind}", timeout)

    def clear(self) -> None:
        with self._changed:
            self.events.clear()
            self.times.clear()


ran = Record()
gate = threading.Event()  # what `Waiting` waits for
mark: ContextVar[str] = ContextVar("mark", default="clean")


class Note(Job):
    text: str

    def handle(self) -> None:
        ran.add("note", self.text)


class NoteAsync(Job):
    text: str

    async def handle(self) -> None:
        await asyncio.sleep(0)
        ran.add("note", self.text)


class Waiting(Job):
    """Runs until the gate opens; can be interrupted every few milliseconds."""

    def handle(self) -> None:
        ran.add("started", self.id)
        while not gate.wait(0.005):
            pass
        ran.add("ended", self.id)


class WaitingAsync(Job):
    async def handle(self) -> None:
        ran.add("started", self.id)
        try:
            while not gate.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            ran.add("cancelled", self.id)
            raise
        ran.add("ended", self.id)


class Failing(Job, max_attempts=3, backoff=0.05, jitter=0.0):
    succeed_at: int = 99

    def handle(self) -> None:
        ran.add("attempt", self.attempt)
        if self.attempt < self.succeed_at:
            raise ValueError(f"attempt {self.attempt}")

    def failed(self, error: Exception) -> None:
        ran.add("failed", str(error))


class FailingAsync(Job, max_attempts=2, backoff=0.05, jitter=0.0):
    async def handle(self) -> None:
        await asyncio.sleep(0)
        ran.add("attempt", self.attempt)
        raise ValueError(f"attempt {self.attempt}")

    async def failed(self, error: Exception) -> None:
        await asyncio.sleep(0)
        ran.add("failed", str(error))


class SyncWithAsyncFailed(Job, max_attempts=1):
    def handle(self) -> None:
        raise ValueError("no")

    async def failed(self, error: Exception) -> None:
        await asyncio.sleep(0)
        ran.add("failed", threading.current_thread().name)


class AsyncWithSyncFailed(Job, max_attempts=1):
    async def handle(self) -> None:
        raise ValueError("no")

    def failed(self, error: Exception) -> None:
        ran.add("failed", str(error))
        raise RuntimeError("failed() may fail as well")


class Exiting(Job, max_attempts=1):
    """Calls sys.exit(), which must end the job and not the thread."""

    def handle(self) -> None:
        raise SystemExit(3)

    def failed(self, error: Exception) -> None:
        ran.add("failed", str(error))


class Controlled(Job, max_attempts=2, backoff=0.01):
    what: str

    def handle(self) -> None:
        ran.add("attempt", (self.what, self.attempt))
        if len(ran.of("attempt")) > 1:
            return
        if self.what == "retry":
            raise Retry(after=0.1)
        if self.what == "snooze":
            raise Snooze(0.1)
        if self.what == "cancel":
            raise Cancel("no need")
        raise Bury("hopeless")

    def failed(self, error: Exception) -> None:
        ran.add("failed", type(error).__name__)


class Slow(Job, timeout=0.1, max_attempts=1):
    """A loop in Python, which a soft timeout ends."""

    def handle(self) -> None:
        ran.add("started")
        try:
            while True:
                time.sleep(0.005)
        finally:
            ran.add("cleaned up")

    def failed(self, error: Exception) -> None:
        ran.add("failed", error)


class SlowAsync(Job, timeout=0.1, max_attempts=1):
    async def handle(self) -> None:
        ran.add("started")
        try:
            await asyncio.sleep(60)
        finally:
            ran.add("cleaned up")

    def failed(self, error: Exception) -> None:
        ran.add("failed", error)


class Hung(Job, timeout=0.1, max_attempts=1):
    """Waits in C, where nothing can be raised."""

    def handle(self) -> None:
        ran.add("started")
        try:
            gate.wait(30)
        finally:
            ran.add("ended")

    def failed(self, error: Exception) -> None:
        ran.add("failed", error)


class Quick(Job, timeout=0.002, max_attempts=1):
    """Ends at about the moment of its timeout, so that the two race."""

    def handle(self) -> None:
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass


class Marking(Job):
    def handle(self) -> None:
        ran.add("mark", mark.get())
        mark.set("dirty")


class MarkingAsync(Job):
    async def handle(self) -> None:
        ran.add("mark", mark.get())
        mark.set("dirty")
        await asyncio.sleep(0.001)
        ran.add("own mark", mark.get())


class Cancelling(Job, max_attempts=1):
    """An async handler that cancels itself must not take its runner along."""

    async def handle(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        await asyncio.sleep(1)

    def failed(self, error: Exception) -> None:
        ran.add("failed", type(error).__name__)
