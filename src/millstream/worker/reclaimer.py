"""The reclaimer takes over the jobs of workers that died, and puts them before everything else."""

from __future__ import annotations

import threading

from millstream.drivers.base import Driver
from millstream.errors import BrokerError
from millstream.worker.intake import Intake
from millstream.worker.options import WorkerOptions
from millstream.worker.parts import Patience, log


class Reclaimer:
    """`run` is its thread. Each worker looks for itself: there is no leader whose death could stop it."""

    def __init__(self, driver: Driver, intake: Intake, options: WorkerOptions, owner: str) -> None:
        self._driver, self._intake, self._options, self._owner = driver, intake, options, owner
        self._stop = threading.Event()
        self._interval = min(options.recover_every, options.lease)
        self.recovered = 0

    def run(self) -> None:
        patience = Patience("reclaimer", self._stop)
        while not self._stop.is_set():
            count = self._wanted()
            try:
                found = (
                    self._driver.recover(self._options.queues, self._owner, self._options.lease, count)
                    if count
                    else []
                )
            except BrokerError as error:
                patience.wait(error)
                continue
            patience.over()
            if found:
                log.warning("took over %d jobs whose lease had ended", len(found))
                self.recovered += len(found)
                self._intake.admit(found, first=True)
            if not count or len(found) < count:
                self._stop.wait(self._interval)

    def stop(self) -> None:
        self._stop.set()

    def _wanted(self) -> int:
        """What can start at once or almost; a worker whose every slot is taken leaves them to others."""
        prefetch = self._intake.prefetch
        running = self._intake.outstanding - self._intake.buffered
        return min(100, max(self._options.concurrency - running, prefetch // 2))
