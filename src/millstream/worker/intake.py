"""The intake turns reservations into tasks: read the envelope, find the type, hand to threads or loop.

It also knows how much more the worker should take: as many jobs as it can run at once, and beyond that
no more than a fraction of a second's work, by the rate at which jobs are being finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream import retry
from millstream.drivers.base import Reservation, Settlement
from millstream.envelope import Envelope
from millstream.errors import JobError
from millstream.worker.options import WorkerOptions
from millstream.worker.parts import Holdings, Task, log
from millstream.worker.settler import Settler

if TYPE_CHECKING:
    from millstream.queue import Queue

WINDOW = 0.02  # seconds over which a rate is measured


class Intake:
    """Where every reserved job comes in, whether fetched or recovered."""

    def __init__(
        self, queue: Queue, options: WorkerOptions, holdings: Holdings, settler: Settler, worker: str
    ) -> None:
        self._codec, self._registry = queue.codec, queue.registry
        self._options, self._holdings, self._settler, self._worker = options, holdings, settler, worker
        self.for_threads: deque[Task] = deque()
        self.for_loop: deque[Task] = deque()
        self.wake_threads: Callable[[], None] = _nobody
        self.wake_loop: Callable[[], None] = _nobody
        self.closed = False
        self.admitted = 0
        self._rate = 0.0
        self._measured_at, self._measured = time.monotonic(), 0

    # -- how much ----------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Jobs that were taken and have no outcome yet."""
        return len(self._holdings.held) - self._settler.unsettled

    @property
    def buffered(self) -> int:
        return len(self.for_threads) + len(self.for_loop)

    @property
    def prefetch(self) -> int:
        """How many jobs may be held beyond those that run."""
        now, done = time.monotonic(), self.admitted - self.outstanding
        passed = now - self._measured_at
        if passed >= WINDOW:
            self._rate = (self._rate + (done - self._measured) / passed) / 2
            self._measured_at, self._measured = now, done
        return min(self._options.max_prefetch, int(self._rate * self._options.prefetch_seconds))

    # -- what --------------------------------------------------------------------------------------

    def admit(self, reservations: Sequence[Reservation], *, first: bool = False) -> None:
        """Take reserved jobs in; ``first`` puts them before what waits already."""
        if not reservations:
            return
        self._holdings.held.update(reservations)
        self.admitted += len(reservations)
        if self.closed:
            return self.hand_back(reservations)
        threads: list[Task] = []
        loop: list[Task] = []
        decode, resolve = self._codec.decode, self._registry.resolve
        limit = self._options.max_deliveries
        for reservation in reservations:
            envelope = None
            try:
                envelope = decode(reservation.body)
                if reservation.delivery_count > limit:
                    self._poison(envelope, reservation)
                    continue
                kind = resolve(envelope.type)
            except JobError as error:
                self._reject(envelope, reservation, error)
                continue
            (loop if kind.is_async else threads).append(Task(reservation, envelope, kind))
        if threads:
            _insert(self.for_threads, threads, first)
            self.wake_threads()
        if loop:
            _insert(self.for_loop, loop, first)
            self.wake_loop()

    def close(self) -> None:
        """Start no further job: give back what waits here, and whatever still comes in."""
        self.closed = True
        for buffer in (self.for_threads, self.for_loop):
            waiting = []
            while buffer:
                try:
                    waiting.append(buffer.popleft().reservation)
                except IndexError:  # a thread took the last one
                    break
            self.hand_back(waiting)

    def hand_back(self, reservations: Sequence[Reservation]) -> None:
        """Make jobs waiting again, at the front, as if they had not been taken."""
        for reservation in reservations:
            self._settler.put(Settlement(reservation, "release"))
        self._settler.hurry()

    def _poison(self, envelope: Envelope | None, reservation: Reservation) -> None:
        limit = self._options.max_deliveries
        log.error(
            "job %s was lost with its worker %d times and is buried",
            reservation.id,
            reservation.delivery_count - 1,
        )
        self._settler.put(
            retry.settle_poison(envelope, reservation, codec=self._codec, limit=limit, now=time.time())
        )

    def _reject(self, envelope: Envelope | None, reservation: Reservation, error: JobError) -> None:
        """A job that cannot be built here: another version of the program may know it."""
        log.warning("job %s cannot be run here: %s", reservation.id, error)
        settlement, _ = retry.settle_failure(
            envelope, reservation, error, codec=self._codec, worker=self._worker, seconds=0.0, now=time.time()
        )
        self._settler.put(settlement)
        self._settler.hurry()


def _insert(buffer: deque[Task], tasks: list[Task], first: bool) -> None:
    if first:
        buffer.extendleft(reversed(tasks))
    else:
        buffer.extend(tasks)


def _nobody() -> None:
    """Stands in until the executors are there."""
