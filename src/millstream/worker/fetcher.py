"""The fetcher keeps the buffer filled, in few round trips, and waits at the broker when there is nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millstream.drivers.base import Driver, RateLimit, Reservation
from millstream.errors import BrokerError
from millstream.worker.intake import Intake
from millstream.worker.options import WorkerOptions
from millstream.worker.parts import Patience, log

FULL = 0.05  # seconds between looks while the handlers are busy; one that falls idle ends the wait
GIVE_WAY = 0.0004  # seconds in which a lone job's handler has begun, or even ended


class Fetcher:
    """`run` is its thread."""

    def __init__(self, driver: Driver, intake: Intake, options: WorkerOptions, owner: str) -> None:
        self._driver, self._intake, self._options, self._owner = driver, intake, options, owner
        self._stop, self._room = threading.Event(), threading.Event()
        self.fetches = 0  # round trips, for the figures

    def run(self) -> None:
        patience = Patience("fetcher", self._stop)
        limits = self._limits()
        while not self._stop.is_set():
            count = self._wanted()
            if not count:
                self._room.wait(FULL)
                self._room.clear()
                continue
            try:
                reservations = self._driver.reserve(
                    self._options.queues,
                    self._owner,
                    count,
                    wait=self._options.poll,
                    max_wait=self._options.max_wait,
                    limits=limits or None,
                )
            except BrokerError as error:
                patience.wait(error)
                continue
            patience.over()
            self.fetches += 1
            self._hand_over(reservations)

    def _limits(self) -> dict[str, RateLimit]:
        """The limits of the queues that are served. Any other is said aloud, because it may be misspelt."""
        served = self._options.queues
        used = {queue: limit for queue, limit in self._options.rate_limits.items() if queue in served}
        for queue in self._options.rate_limits.keys() - used.keys():
            log.warning(
                "the rate limit of the queue %r is not used: this worker serves %s", queue, ", ".join(served)
            )
        return used

    def _hand_over(self, reservations: Sequence[Reservation]) -> None:
        if len(reservations) != 1:
            return self._intake.admit(reservations)
        # An idle queue: what counts is how soon this one starts. Going on to the next read right away would
        # hold the interpreter's lock for a tenth of a millisecond, for which the handler's thread waits.
        self._room.clear()
        self._intake.admit(reservations)
        self._room.wait(GIVE_WAY)

    def stop(self) -> None:
        """Take no more. A read that waits at the broker ends within ``poll`` seconds."""
        self._stop.set()
        self._room.set()

    def nudge(self) -> None:
        """A handler has nothing to do."""
        self._room.set()

    def _wanted(self) -> int:
        """How many jobs to ask for; 0 until asking is worth a round trip."""
        prefetch = self._intake.prefetch
        room = self._options.concurrency + prefetch - self._intake.outstanding
        if room <= prefetch // 2:
            return 0
        most = self._options.max_jobs
        return room if most is None else max(0, min(room, most - self._intake.admitted))
