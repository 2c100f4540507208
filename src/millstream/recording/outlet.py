"""The outlet: a bounded buffer, and a thread that empties it into a sink when nobody is disturbed by it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from millstream.drivers.base import PushItem, Settlement
from millstream.errors import (
    AccessDenied,
    BrokerClosed,
    BrokerFull,
    BrokerUnavailable,
    ConfigurationError,
    MillstreamError,
)
from millstream.recording.notes import OVERHEAD, Cancelled, Cleared, Dated, Note, size_of

log = logging.getLogger("millstream.history")

BATCH = 1000  # notes per write: one step of every broker, and a transaction that holds nobody up for long
QUIET = 0.05  # seconds without a new note after which it is a good moment to write
DEFAULT_DELAY = 1.0  # seconds that a note may wait for such a moment
DEFAULT_BUFFER = 64 * 1024 * 1024  # bytes that an outlet may hold: some 150,000 small jobs
LAST_WORDS = 5.0  # seconds to write what is left when a program ends
# These pass: a server that is away or full, a table that is not there yet. Anything else is about the notes.
PASSING = (BrokerUnavailable, BrokerFull, AccessDenied, ConfigurationError)


class Sink(Protocol):
    """Where notes go. `write` takes a batch in one step, and may be called again with the same one."""

    name: str

    def write(self, notes: Sequence[Note]) -> None: ...

    def close(self) -> None: ...


class OutletStats(msgspec.Struct, frozen=True):
    """How an outlet fares. ``dropped`` counts records that are lost for good."""

    written: int
    buffered_bytes: int
    dropped: int
    failing_since: float | None = None  # seconds since the epoch, while the sink does not answer
    last_error: str = ""


class _Mark:
    """Stands in the buffer for a caller of `flush`."""

    def __init__(self) -> None:
        self.reached = threading.Event()


class Outlet:
    """Takes notes from any thread, and writes them from one of its own, which begins with the first note.

    While notes keep coming the thread waits (`delay` at most, or until a quarter of the buffer is full): a
    program that pushes should not have to share the interpreter with what is written for it.
    """

    def __init__(self, sink: Sink, *, buffer: int = DEFAULT_BUFFER, delay: float = DEFAULT_DELAY) -> None:
        self.sink, self.limit, self.delay = sink, buffer, delay
        self._reset()
        _outlets.add(self)

    def _reset(self) -> None:
        """Begin with an empty buffer; also in a forked child, as the parent's notes are the parent's."""
        # A list of items that were pushed, or (things, when), or a mark.
        self._buffer: deque[list[PushItem] | tuple[Sequence[Any], float] | _Mark] = deque()
        self._held = 0
        self._awake = self._closed = False
        self._deadline = float("inf")  # of the last attempts, once it is closed
        self.written = self.dropped = self._said_dropped = 0
        self.failing_since: float | None = None
        self.last_error = ""
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # -- taking: called by whoever pushes or settles, so every step counts ----------------------------

    def pushed(self, items: list[PushItem]) -> None:
        """Note that ``items`` were pushed."""
        size = OVERHEAD * len(items) + sum([len(item.body) for item in items])
        if self._held + size > self.limit or self._closed:
            return self._drop(len(items))
        self._held += size  # two threads may lose one of their additions; an empty buffer sets it right
        self._buffer.append(items)
        if not self._awake:
            self._rouse()

    def put(self, things: Sequence[Settlement | PushItem | Cancelled | Cleared], at: float) -> None:
        """Note anything else."""
        size = size_of(things)
        if self._held + size > self.limit or self._closed:
            return self._drop(len(things))
        self._held += size
        self._buffer.append((things, at))
        if not self._awake:
            self._rouse()

    def _rouse(self) -> None:
        self._awake = True
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    name = f"millstream-{self.sink.name}"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()
        self._wake.set()

    def _drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count
            first, self._said_dropped = self._said_dropped == 0, self.dropped
        if first:
            log.error(
                "%s: records are dropped from now on, as %s; jobs are not affected",
                self.sink.name,
                "it is closed" if self._closed else f"the buffer of {self.limit:,} bytes is full",
            )

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._gather()
            self._drain()
            self._awake = False  # before looking: whoever adds from here on wakes this thread
            if self._buffer:
                self._awake = True
                self._wake.set()
            elif self._closed:
                return
            else:
                self._held = 0

    def _gather(self) -> None:
        deadline, seen = time.monotonic() + self.delay, -1
        while self._held != seen and time.monotonic() < deadline and self._held < self.limit // 4:
            seen = self._held
            if self._hurry.wait(QUIET):
                return

    def _drain(self) -> None:
        """Write what is there, a batch at a time."""
        notes: list[Note] = []
        while self._buffer:
            entry = self._buffer.popleft()
            if isinstance(entry, list):
                notes += entry
            elif isinstance(entry, _Mark):
                self._write(notes)
                notes = []
                entry.reached.set()
            else:
                things, at = entry
                notes += [Dated(thing, at) for thing in things]
            while len(notes) >= BATCH:
                self._write(notes[:BATCH])
                del notes[:BATCH]
        self._write(notes)

    def _write(self, notes: list[Note]) -> None:
        """Write for as long as it takes, or until the outlet is closed and its time is over."""
        if not notes:
            return
        pause = 0.05
        while True:
            try:
                self.sink.write(notes)
            except PASSING as error:
                self._failed(error)
                if self._closed and (time.monotonic() > self._deadline):
                    self._drop(len(notes))
                    break
                self._nap(pause)
                pause = min(pause * 2, 1.0)
            except BrokerClosed:
                self._drop(len(notes))  # its owner closed the broker first: nothing can be written any more
                break
            except Exception as error:  # noqa: BLE001 - logged there, with the note that causes it
                self._isolate(notes, error)
                return
            else:
                self.written += len(notes)
                self._works()
                break
        self._held -= _held_by(notes)

    def _isolate(self, notes: list[Note], error: Exception) -> None:
        """One note that cannot be written must not hold back the others."""
        if len(notes) > 1:
            middle = len(notes) // 2
            self._write(notes[:middle])
            self._write(notes[middle:])
            return
        log.error("%s: a record cannot be written and is dropped", self.sink.name, exc_info=error)
        self._held -= _held_by(notes)
        with self._lock:
            self.dropped += 1

    def _nap(self, seconds: float) -> None:
        if self._closed or self._hurry.wait(seconds):
            time.sleep(0.05)

    def _failed(self, error: MillstreamError) -> None:
        self.last_error = str(error)
        if self.failing_since is None:
            self.failing_since = time.time()
            log.warning("%s: records wait, jobs are not affected: %s", self.sink.name, error)

    def _works(self) -> None:
        if self.failing_since is not None:
            seconds = time.time() - self.failing_since
            self.failing_since, self.last_error = None, ""
            log.warning("%s: records are written again, after %.1f s", self.sink.name, seconds)
        if self._said_dropped:
            with self._lock:
                dropped, self._said_dropped = self._said_dropped, 0
            log.error("%s: %d records were dropped so far", self.sink.name, dropped)

    # -- the end -------------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Write everything that was noted before this call; whether that was done in time."""
        reached = self.mark()
        try:
            return reached.wait(timeout)
        finally:
            self._hurry.clear()

    def mark(self) -> threading.Event:
        """Begin to write everything that was noted before this call; set when that is done."""
        mark = _Mark()
        if not self._buffer and not self._awake:
            mark.reached.set()
            return mark.reached
        self._buffer.append(mark)
        self._hurry.set()
        self._rouse()
        return mark.reached

    def close(self, timeout: float = LAST_WORDS) -> None:
        """Write what is left, and end; what could not be written in time is dropped, and said."""
        if self._closed:
            return
        self._deadline = time.monotonic() + timeout
        self._closed = True
        self._hurry.set()
        thread = self._thread
        if thread is not None:
            self._awake = True
            self._wake.set()
            thread.join(timeout + 1.0)
        if self.dropped:
            log.error("%s: %d records were dropped", self.sink.name, self.dropped)
        self.sink.close()
        _outlets.discard(self)

    def stats(self) -> OutletStats:
        return OutletStats(
            self.written, max(0, self._held), self.dropped, self.failing_since, self.last_error
        )


def _held_by(notes: list[Note]) -> int:
    return size_of([note.what if isinstance(note, Dated) else note for note in notes])


_outlets: weakref.WeakSet[Outlet] = weakref.WeakSet()


def _after_fork() -> None:
    for outlet in list(_outlets):
        outlet._reset()


def _at_exit() -> None:
    deadline = time.monotonic() + LAST_WORDS
    for outlet in list(_outlets):
        if not outlet.flush(max(0.1, deadline - time.monotonic())):
            log.error("%s: the program ends before every record was written", outlet.sink.name)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
