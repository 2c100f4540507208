"""The watch ends attempts that take too long.

A sync handler gets JobTimeout raised in its thread when its soft timeout is over (an async one is cancelled
by its loop). A handler that is still there ``hard_timeout_grace`` seconds later hangs in something that
Python cannot interrupt: its job is settled as timed out, and the worker is told, because the thread is lost.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

from millstream.errors import JobTimeout
from millstream.worker.parts import Task


class SoftTimeout(JobTimeout):
    """What is raised in a handler's thread; the interpreter makes it there, without arguments."""

    def __init__(self) -> None:
        Exception.__init__(self, "the attempt's timeout is over")


class Interrupted(BaseException):
    """Raised in a handler's thread when the worker's grace is over and the job is handed back."""


class Watched:
    """One attempt with a timeout. Without ``thread`` only the hard timeout is watched."""

    __slots__ = ("fired", "hard_at", "soft_at", "task", "thread")

    def __init__(self, task: Task, timeout: float, thread: int | None) -> None:
        self.task, self.thread = task, thread
        self.soft_at = time.monotonic() + timeout
        self.hard_at = self.soft_at  # the watch adds its grace
        self.fired = False


class Watch:
    """`run` is its thread; ``on_hung`` is called from it with a task that outlived its hard timeout."""

    def __init__(self, grace: float, on_hung: Callable[[Task], None]) -> None:
        self._grace, self._on_hung = grace, on_hung
        self._watched: set[Watched] = set()
        # A plain lock, taken by `with`: where SoftTimeout is raised while a thread enters a Condition, whose
        # __enter__ is Python, the lock stays taken for ever. Entering a plain lock cannot be interrupted.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wakes_at = 0.0
        self._stopped = False

    def arm(self, watched: Watched) -> None:
        """Watch an attempt that begins now."""
        watched.hard_at += self._grace
        with self._lock:
            self._watched.add(watched)
            if watched.soft_at < self._wakes_at:
                self._changed.notify()

    def disarm(self, watched: Watched) -> None:
        """The attempt is over: when this has returned, nothing is raised in its thread any more.

        The timeout may still come while this runs; then call it again. It comes once.
        """
        with self._lock:
            self._watched.discard(watched)
            if watched.fired and watched.thread is not None:
                # The exception may have been set and not yet raised; then it would hit the next job.
                raise_in_thread(watched.thread, None)

    def run(self) -> None:
        while not self._stopped:
            hung = []
            with self._lock:
                now = time.monotonic()
                self._wakes_at = now + 3600.0
                for watched in tuple(self._watched):
                    if not watched.fired and watched.thread is not None and now >= watched.soft_at:
                        watched.fired = True
                        raise_in_thread(watched.thread, SoftTimeout)
                    if now >= watched.hard_at:
                        self._watched.discard(watched)
                        watched.task.abandoned = True
                        hung.append(watched.task)
                        continue
                    waits_for_soft = watched.thread is not None and not watched.fired
                    self._wakes_at = min(
                        self._wakes_at, watched.soft_at if waits_for_soft else watched.hard_at
                    )
                if not hung:
                    self._changed.wait(self._wakes_at - now)
            for task in hung:
                self._on_hung(task)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._changed.notify()


def raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Have ``error`` raised in a thread at its next step in Python; None takes that back in time."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(error) if error is not None else None
    )
