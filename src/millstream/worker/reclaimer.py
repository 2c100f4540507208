"""The reclaimer takes over the jobs of workers that died, and puts them before everything else."""

from __future__ import annotations

import threading

from millstream.drivers.base import Driver, Reservation
from millstream.errors import BrokerError
from millstream.worker.heartbeat import MOST, Heartbeat
from millstream.worker.intake import Intake
from millstream.worker.options import WorkerOptions
from millstream.worker.parts import Patience, log

SOON = 0.05  # seconds until a slot may be free again, where a dead worker's jobs wait for one


class Reclaimer:
    """`run` is its thread. Each worker looks for itself: there is no leader whose death could stop it."""

    def __init__(
        self, driver: Driver, intake: Intake, heartbeat: Heartbeat, options: WorkerOptions, owner: str
    ) -> None:
        self._driver, self._intake, self._options, self._owner = driver, intake, options, owner
        self._heartbeat = heartbeat
        self._stop = threading.Event()
        self._interval = min(options.recover_every, options.lease)
        self._outage = False
        self.recovered = 0

    def run(self) -> None:
        patience = Patience("reclaimer", self._stop)
        more = False  # whether somebody left more than this worker could take the last time
        while not self._stop.is_set():
            count = self._wanted()
            try:
                found = self._recover(count) if count else []
            except BrokerError as error:
                self._outage = True
                patience.wait(error)
                continue
            patience.over()
            if found:
                log.warning("took over %d jobs whose lease had ended", len(found))
                self.recovered += len(found)
                self._intake.admit(found, first=True)
            if count:
                more = len(found) == count
            if not (count and more):
                self._stop.wait(SOON if more else self._interval)

    def _recover(self, count: int) -> list[Reservation]:
        if self._outage:
            # After an outage every lease looks as if it had ended. Let the living renew theirs first.
            self._heartbeat.beat()
            self._outage = False
            self._stop.wait(min(self._options.lease / 3, MOST) + 0.5)
        if self._stop.is_set():
            return []
        self._heartbeat.confirm()  # so that this worker does not take over what it is running itself
        return self._driver.recover(self._options.queues, self._owner, self._options.lease, count)

    def stop(self) -> None:
        self._stop.set()

    def _wanted(self) -> int:
        """What can start at once or almost; a worker whose every slot is taken leaves them to others."""
        prefetch = self._intake.prefetch
        running = self._intake.outstanding - self._intake.buffered
        return min(100, max(self._options.concurrency - running, prefetch // 2))
