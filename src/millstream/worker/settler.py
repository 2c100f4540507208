"""The settler tells the broker what became of jobs, many in one call, until the broker has accepted it.

A handler's thread only appends to a list. This part's own thread empties it when many have gathered, when
the handlers have nothing more to do, or a few milliseconds after the first one came.
"""

from __future__ import annotations

import threading
import time

from millstream.drivers.base import Driver, Settlement
from millstream.errors import BrokerError
from millstream.worker.parts import Holdings, Patience, log

MANY = 250  # settlements that make a call worth while
SOON = 0.004  # seconds that an outcome may wait for company


class Settler:
    """Gathers settlements; `run` is its thread. The counters only move when the broker has answered."""

    def __init__(self, driver: Driver, holdings: Holdings) -> None:
        self._driver, self._holdings = driver, holdings
        self._gathered: list[Settlement] = []
        self._sending = 0
        self._first, self._now = threading.Event(), threading.Event()
        self._stop = threading.Event()
        self._deadline = float("inf")
        self.counts = {"complete": 0, "retry": 0, "bury": 0, "release": 0}
        self.stale = 0

    def put(self, settlement: Settlement) -> None:
        """Take an outcome; called by any thread, once per job, and therefore without a lock."""
        gathered = self._gathered
        gathered.append(settlement)
        size = len(gathered)
        if size == 1:
            self._first.set()
        elif size == MANY:
            self._now.set()

    def hurry(self) -> None:
        """The handlers have nothing to do: send what there is."""
        if self._gathered:
            self._now.set()

    @property
    def unsettled(self) -> int:
        """Outcomes that the broker has not accepted yet."""
        return len(self._gathered) + self._sending

    def run(self) -> None:
        while True:
            self._first.wait()
            self._first.clear()
            self._now.wait(SOON)
            self._now.clear()
            if not self._flush() or (self._stop.is_set() and not self._gathered):
                return

    def stop(self, deadline: float) -> None:
        """Send everything and end; give up at ``deadline`` (monotonic), as the leases bring the jobs back."""
        self._deadline = deadline
        self._stop.set()
        self._now.set()
        self._first.set()

    def _flush(self) -> bool:
        """Send what has gathered, for as long as it takes. Whether everything was sent."""
        patience = Patience("settler", self._stop)
        while size := len(self._gathered):
            batch = self._gathered[:size]
            del self._gathered[:size]  # threads append meanwhile; what they add stays
            self._sending = size  # after the line above: `unsettled` may be too low, but never too high
            while not self._send(batch, patience):
                if time.monotonic() > self._deadline:
                    log.error("%d outcomes could not be sent in time; these jobs will run again", len(batch))
                    return False
            self._sending = 0
        return True

    def _send(self, batch: list[Settlement], patience: Patience) -> bool:
        try:
            accepted = self._driver.settle(batch)
        except BrokerError as error:
            # An ack is done only when it was accepted. Repeating is safe: what took effect is refused.
            patience.wait(error)
            if self._stop.is_set():
                time.sleep(0.02)  # patience no longer sleeps
            return False
        except Exception as error:  # noqa: BLE001 - logged there, with the job
            return self._isolate(batch, error)
        patience.over()
        self._sending -= len(batch)
        self._note(batch, accepted)
        return True

    def _isolate(self, batch: list[Settlement], error: Exception) -> bool:
        """One outcome that cannot be sent must not hold back the others."""
        if len(batch) > 1:
            patience = Patience("settler", self._stop)
            for settlement in batch:
                while not self._send([settlement], patience):
                    if time.monotonic() > self._deadline:
                        return False
            return True
        reservation = batch[0].reservation
        log.error("the outcome of job %s cannot be sent; its lease will end", reservation.id, exc_info=error)
        self._sending -= 1
        self._holdings.drop(reservation)
        return True

    def _note(self, batch: list[Settlement], accepted: list[bool]) -> None:
        counts = self.counts
        for settlement, done in zip(batch, accepted, strict=True):
            if done:
                counts[settlement.outcome] += 1
            else:
                self.stale += 1
                log.warning(
                    "job %s was not this worker's any more (delivery %d): its outcome %r was refused",
                    settlement.reservation.id,
                    settlement.reservation.delivery_count,
                    settlement.outcome,
                )
        self._holdings.held.difference_update([each.reservation for each in batch])
        if self._holdings.lost:
            self._holdings.lost.difference_update([each.reservation for each in batch])
