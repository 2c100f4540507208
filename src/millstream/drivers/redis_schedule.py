"""Waiting on Redis for the time at which a delayed job is due."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence

from millstream.brokers.redis.link import Argument
from millstream.drivers.redis_calls import LATE_WAKE, NEAR_POLL, Connection, script

NEXT_DUE = script("next_due_n")
STOP_CHECK = 0.2  # seconds until a wait notices that it is to stop
CLUSTER_POLL = 0.02


class Schedule:
    """Sleeps until the next job is due, and wakes when one is delayed that is due earlier.

    Whoever delays a job that is due before all others adds an entry to a small stream beside the queue, which
    everybody who sleeps is reading.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._reads = connection, connection.reads

    def next_due(self, queues: Sequence[str]) -> float | None:
        dues = [due for due, _ in self._look_ahead(queues).values() if due is not None]
        return min(dues, default=None)

    def _look_ahead(self, queues: Sequence[str]) -> dict[str, tuple[float | None, str]]:
        """For each queue's news the seconds until its next job is due, and the last id of the news."""
        found: dict[str, tuple[float | None, str]] = {}
        for some in [[queue] for queue in queues] if self._connection.cluster else [queues]:
            keys = [
                key
                for queue in some
                for key in (self._connection.keys(queue).delayed, self._connection.keys(queue).due)
            ]
            for news, (due, last) in zip(keys[1::2], self._reads.script(NEXT_DUE, tuple(keys)), strict=True):
                found[news] = (None if due < 0 else due / 1000, last.decode())
        return found

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        deadline = time.monotonic() + timeout
        several_nodes = self._connection.cluster and len(queues) > 1
        ahead = self._look_ahead(queues)
        due_at = _earliest(ahead)
        while not stop.is_set():
            left = min(deadline, due_at) - time.monotonic()
            if left <= 0:
                return
            if several_nodes:  # one command cannot wait for keys on several nodes
                stop.wait(min(left, CLUSTER_POLL))
                due_at = _earliest(self._look_ahead(queues))
                continue
            if self._news(ahead, left, stop):
                ahead = self._look_ahead(queues)
                if _earliest(ahead) < due_at:
                    return
                due_at = _earliest(ahead)

    def _news(
        self, ahead: Mapping[str, tuple[float | None, str]], left: float, stop: threading.Event
    ) -> bool:
        """Whether a job was delayed that is due before all others; waits for that a part of ``left``."""
        block = min(left - LATE_WAKE, STOP_CHECK)
        args: list[Argument] = ["XREAD"]
        if block > 0:
            args += ("BLOCK", math.ceil(block * 1000))
        else:
            # So near to the end of the wait the server would wake us too late: sleep here, and look often.
            stop.wait(min(left, NEAR_POLL))
            block = 0
        args += ("STREAMS", *ahead, *(last for _, last in ahead.values()))
        timeout = block + self._connection.socket_timeout
        return bool(self._reads.call(next(iter(ahead)), *args, timeout=timeout))


def _earliest(ahead: Mapping[str, tuple[float | None, str]]) -> float:
    now = time.monotonic()
    return min((now + due for due, _ in ahead.values() if due is not None), default=float("inf"))
