"""Pushing the jobs of a ledger: in order, at the rate asked for, none twice.

Two guards, because a driver remembers a job's id only while it has the job. The ledger says which rows are
pushed; and as a crash may come after a push and before the ledger knows it, each push also holds a unique key
for ``remember`` seconds: pushed again within that time, the job is not added, even if it has run and is gone.
A run that finds rows in doubt after that time refuses to guess.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from millstream.drivers.base import Driver, PushItem
from millstream.envelope import Envelope
from millstream.errors import InvalidInput, ReplayInDoubt, UnsupportedByDriver
from millstream.options import DEFAULTS, JobOptions
from millstream.queue import Queue
from millstream.spark.replaying.ledger import Ledger, Progress

REMEMBER = 86_400.0  # a day: a crashed replay is noticed by then; the keys take room on the server so long
STEP = 5000  # rows between two commits of the ledger
STEP_SECONDS = 10.0  # and no more than so much of a slow replay
_MARGIN = 60.0  # seconds by which two clocks may differ
IN_DOUBT = ("refuse", "push", "skip")
Report = Callable[[str, int, int | None], None]


def check_driver(driver: Driver) -> None:
    """Raise UnsupportedByDriver for one that cannot tell a job that it was given before."""
    if not (driver.capabilities.unique and driver.capabilities.idempotent_push):
        raise UnsupportedByDriver(driver.name, "a replay, which needs unique keys and idempotent pushes")


class ReplayPusher:
    """Pushes the rest of one ledger, ``rate`` jobs per second at the most."""

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        *,
        rate: float | None,
        remember: float = REMEMBER,
        stop: threading.Event,
        report: Report,
        after: Callable[[str, int], None],
    ) -> None:
        check_driver(queue.driver)
        self._queue, self._ledger, self._remember = queue, ledger, remember
        self._rate, self._stop, self._report, self._after = rate, stop, report, after
        self._options: dict[str, JobOptions] = {}

    def push_rest(self, in_doubt: str) -> int:
        """Push what is left, until the end or until ``stop`` is set; how many rows."""
        progress = self._ledger.progress()
        start = place = self._settle(progress, in_doubt)
        total = progress.total
        self._report("pushing", start, total)
        pace, rows = Pace(self._rate, self._stop), _Rows(self._ledger, start)
        size = STEP if self._rate is None else max(1, min(STEP, int(self._rate * STEP_SECONDS)))
        while place < total and not self._stop.is_set():
            end = min(place + size, total)
            progress = self._ledger.record(progress, pushed=place, pushing=end)
            self._after("recorded", place)
            for part in pace.parts(rows.take(end - place)):
                self._queue.driver.push([self.item(row) for row in part])
                place += len(part)
                self._report("pushing", place, total)
            self._after("pushed", place)
        if (progress.pushed, progress.pushing) != (place, place):
            self._ledger.record(progress, pushed=place, pushing=place)
        return place - start

    def _settle(self, progress: Progress, in_doubt: str) -> int:
        """Where to begin: at the first row that is not known to be pushed."""
        if progress.pushing <= progress.pushed:
            return progress.pushed
        if in_doubt == "skip":
            return progress.pushing
        age = time.time() - progress.pushing_at
        if in_doubt == "refuse" and age > self._remember - min(_MARGIN, self._remember / 2):
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(progress.pushing_at))
            raise ReplayInDoubt(self._ledger.name, progress.pushed + 1, progress.pushing, when)
        return progress.pushed

    def item(self, row: dict[str, Any]) -> PushItem:
        """The job of a row, under its new id and linked to the old one."""
        codec, options = self._queue.codec, self._options_of(row["type"])
        payload = msgspec.Raw(row["payload"].encode())
        if codec.name != "json":
            payload = codec.encode_payload(msgspec.json.decode(payload))
        now = time.time()
        envelope = Envelope(
            id=row["new_id"],
            type=row["type"],
            payload=payload,
            queue=row["queue"],
            priority=row["priority"],
            version=row["version"],
            max_attempts=row["max_attempts"],
            backoff=options.backoff,
            multiplier=options.multiplier,
            max_backoff=options.max_backoff,
            jitter=options.jitter,
            timeout=options.timeout,
            pushed_at=now,
            tags=list(row["tags"]),
            headers=dict(row["headers"]),
            replay_of=row["job_id"],
        )
        # The key is the push's alone: the job itself need not know it, nor give it back.
        key = f"replay:{row['new_id']}"
        return PushItem(
            row["new_id"],
            row["queue"],
            row["priority"],
            codec.encode(envelope),
            unique_key=key,
            unique_for=self._remember,
        )

    def _options_of(self, type_name: str) -> JobOptions:
        """How the type is retried where this process knows it; a record does not say it."""
        found = self._options.get(type_name)
        if found is None:
            known = self._queue.registry.get(type_name)
            found = self._options[type_name] = DEFAULTS if known is None else known.options
        return found


class _Rows:
    """The rows of a ledger, taken in any number."""

    def __init__(self, ledger: Ledger, start: int) -> None:
        self._pages = ledger.rows(start)
        self._waiting: list[dict[str, Any]] = []

    def take(self, count: int) -> list[dict[str, Any]]:
        while len(self._waiting) < count:
            page = next(self._pages, None)
            if page is None:
                break
            self._waiting += page
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


class Pace:
    """Cuts rows into parts, and waits before each until it may go, by one schedule for all."""

    def __init__(self, rate: float | None, stop: threading.Event) -> None:
        if rate is not None and not rate > 0:
            raise InvalidInput(f"rate must be a number of jobs per second above 0, not {rate!r}")
        self._rate, self._stop = rate, stop
        self._next = time.monotonic()

    def parts(self, rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
        """The parts; fewer where ``stop`` is set meanwhile."""
        size = 1000 if self._rate is None else max(1, min(1000, int(self._rate / 10)))
        for at in range(0, len(rows), size):
            part = rows[at : at + size]
            if self._rate is not None:
                # Behind schedule, after a slow push: go on from now, and never faster than asked for.
                self._next = max(self._next, time.monotonic())
                self._stop.wait(self._next - time.monotonic())
                self._next += len(part) / self._rate
            if self._stop.is_set():
                return
            yield part
