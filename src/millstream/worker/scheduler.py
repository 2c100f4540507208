"""The scheduler makes delayed jobs waiting when their time has come."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millstream.drivers.base import Driver
from millstream.errors import BrokerError
from millstream.worker.parts import Patience

BATCH = 1000
LOOK = 5.0  # seconds; it wakes by itself for what is due and for what is pushed, this is a second line


class Scheduler:
    """`run` is its thread. Every worker has one; promotion is atomic, so that any number may race."""

    def __init__(self, driver: Driver, queues: Sequence[str]) -> None:
        self._driver, self._queues = driver, queues
        self._stop = threading.Event()
        self.promoted = 0

    def run(self) -> None:
        patience = Patience("scheduler", self._stop)
        while not self._stop.is_set():
            try:
                count = self._driver.promote_due(self._queues, BATCH)
                self.promoted += count
                if count < BATCH:
                    self._driver.wait_for_due(self._queues, LOOK, self._stop)
            except BrokerError as error:
                patience.wait(error)
                continue
            patience.over()

    def stop(self) -> None:
        self._stop.set()
