"""The worker's part that pushes what schedules say: see `millstream.schedule`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from millstream.errors import BrokerError, ConfigurationError, UnsupportedByDriver
from millstream.schedule import Ticker
from millstream.worker.parts import Patience, log

if TYPE_CHECKING:
    from millstream.queue import Queue

LOOK = 1.0  # seconds: a schedule that was added, or a clock that was set, is noticed that soon


class TickerPart:
    """`run` is its thread. Every worker has one; a tick that several push is one job."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._ticker = queue, Ticker(queue)
        self._stop = threading.Event()
        queue.schedules()  # a schedule that cannot work shows when the worker is made

    @property
    def ticks(self) -> int:
        """Ticks that this worker was the first to push."""
        return self._ticker.pushed

    def run(self) -> None:
        patience = Patience("ticker", self._stop)
        while not self._stop.is_set():
            try:
                upcoming = self._ticker.tick(time.time())
            except UnsupportedByDriver as error:
                log.error("schedules do not run here: %s", error)
                return
            except ConfigurationError as error:  # of a job type that was imported later
                log.error("a schedule cannot work: %s", error)
                self._stop.wait(60 * LOOK)
                continue
            except BrokerError as error:
                patience.wait(error)
                continue
            patience.over()
            self._stop.wait(min(max(upcoming - time.time(), 0.001), LOOK))

    def stop(self) -> None:
        self._stop.set()
