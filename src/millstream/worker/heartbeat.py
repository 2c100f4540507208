"""The heartbeat renews the lease of everything the worker holds, at a third of the lease.

Its own thread, so that no handler can hold it up. A lease that turns out lost is marked: a buffered job is
then not started, and the outcome of a running one will be refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from millstream.drivers.base import Driver, WorkerInfo
from millstream.errors import BrokerError
from millstream.worker.parts import Holdings, Patience, log

CHUNK = 1000
MOST = 5.0  # seconds between two signs of life, also where the lease is long


class Heartbeat:
    """`run` is its thread; `confirm` is for whoever must know now that the leases hold."""

    def __init__(
        self, driver: Driver, holdings: Holdings, lease: float, describe: Callable[[], WorkerInfo]
    ) -> None:
        self._driver, self._holdings, self._lease = driver, holdings, lease
        self._describe = describe
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._interval = min(lease / 3, MOST)
        holdings.safe_until = time.monotonic() + lease  # nothing is held yet

    def run(self) -> None:
        patience = Patience("heartbeat", self._stop, longest=min(1.0, self._lease / 10))
        while not self._stop.is_set():
            try:
                self.beat()
            except BrokerError as error:
                patience.wait(error)
                continue
            patience.over()
            self._stop.wait(self._interval)

    def stop(self) -> None:
        self._stop.set()

    def beat(self) -> None:
        """Renew every lease, and say that this worker lives."""
        with self._lock:
            self._renew()
        self._driver.beat(self._describe(), ttl=max(3 * self._interval, 10.0))

    def confirm(self) -> None:
        """Return when the leases were renewed after they may have ended (the process was stopped, say)."""
        with self._lock:
            if time.monotonic() < self._holdings.safe_until:
                return
            log.warning(
                "the worker was held up for longer than its lease; asking which jobs are still its own"
            )
            patience = Patience("heartbeat", self._stop, longest=min(1.0, self._lease / 10))
            while not self._stop.is_set():
                try:
                    return self._renew()
                except BrokerError as error:
                    patience.wait(error)

    def _renew(self) -> None:
        # Taken before the call: a lease begins at the latest when the broker reads the request.
        began = time.monotonic()
        held = [each for each in self._holdings.held.copy() if each not in self._holdings.lost]
        for start in range(0, len(held), CHUNK):
            chunk = held[start : start + CHUNK]
            for reservation, ours in zip(chunk, self._driver.extend(chunk), strict=True):
                # Whoever settled meanwhile has left `held`; only what is still there can be lost.
                if not ours and reservation in self._holdings.held:
                    self._holdings.lost.add(reservation)
        self._holdings.safe_until = began + self._lease * 0.9  # clocks of two machines do not run alike
