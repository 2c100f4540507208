"""The recording driver: it passes everything on to the driver of the queue, and notes what changed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from millstream.drivers.base import (
    DeadLetter,
    Driver,
    FoundJob,
    PushItem,
    QueueSize,
    RateLimit,
    Reservation,
    Settlement,
    WorkerInfo,
)
from millstream.recording.notes import Cancelled, Cleared
from millstream.recording.outlet import Outlet, OutletStats


class Closing(Protocol):
    """What can be closed."""

    def close(self) -> None: ...


class Recorder:
    """The outlets of one queue object."""

    def __init__(
        self, outlets: Mapping[str, Outlet], *, on_push: Sequence[str], owned: Closing | None = None
    ) -> None:
        """``owned`` is closed with the outlets."""
        self.outlets, self._owned = dict(outlets), owned
        self.all = tuple(outlets.values())
        self.on_push = tuple(self.outlets[name] for name in on_push)  # those that want to know of pushes

    def flush(self, timeout: float = 30.0) -> bool:
        """Write everything that was recorded before this call; whether that was done in time."""
        deadline = time.monotonic() + timeout
        for outlet in self.all:
            outlet.mark()  # all of them at once
        written = [outlet.flush(max(0.01, deadline - time.monotonic())) for outlet in self.all]
        return all(written)

    def stats(self) -> dict[str, OutletStats]:
        """How the outlets fare, by name: "history" and "archive"."""
        return {name: outlet.stats() for name, outlet in self.outlets.items()}

    def close(self) -> None:
        """Write what is left, for a few seconds at most, and end."""
        for outlet in self.all:
            outlet.mark()
        for outlet in self.all:
            outlet.close()
        if self._owned is not None:
            self._owned.close()


class RecordingDriver(Driver):
    """A driver that notes what changed, after it changed. What the driver refused is not noted.

    A push in the caller's own transaction (``push_in``) is not noted either: nobody knows yet whether it will
    be committed.
    """

    def __init__(self, inner: Driver, recorder: Recorder) -> None:
        self.inner, self.recorder = inner, recorder
        self.name, self.capabilities = inner.name, inner.capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what a driver has beyond the contract: its broker, its prefix

    # -- what is noted -------------------------------------------------------------------------------

    def push(self, items: Sequence[PushItem]) -> list[str]:
        ids = self.inner.push(items)
        self._pushed(items, ids)
        return ids

    def push_batches(self, batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        sent: deque[Sequence[PushItem]] = deque()

        def watched() -> Iterator[Sequence[PushItem]]:
            for batch in batches:
                sent.append(batch)
                yield batch

        for ids in self.inner.push_batches(watched()):
            self._pushed(sent.popleft(), ids)
            yield ids

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        done = self.inner.push_numbered(queue, line, number, items)
        if done:
            self._pushed(items, [item.id for item in items])
        return done

    def _pushed(self, items: Sequence[PushItem], ids: list[str]) -> None:
        if len(ids) == 1:
            if items[0].id != ids[0]:
                return  # an earlier job stands for it
            new = list(items)
        else:
            new = [item for item, job_id in zip(items, ids, strict=True) if item.id == job_id]
            if not new:
                return
        for outlet in self.recorder.on_push:
            outlet.pushed(new)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        accepted = self.inner.settle(settlements)
        done = [each for each, fine in zip(settlements, accepted, strict=True) if fine]
        if done:
            now = time.time()
            for outlet in self.recorder.all:
                outlet.put(done, now)
        return accepted

    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        accepted = self.inner.retry_dead(queue, items)
        done = [each for each, fine in zip(items, accepted, strict=True) if fine]
        if done:
            now = time.time()
            for outlet in self.recorder.on_push:
                outlet.put(done, now)
        return accepted

    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        found = self.inner.find(job_id, queue) if self.capabilities.find else None
        done = self.inner.cancel(job_id, queue)
        if done:
            if found is None:
                note = Cancelled(job_id, queue or "default")
            else:
                note = Cancelled(job_id, found.queue, found.body)
            for outlet in self.recorder.all:
                outlet.put([note], time.time())
        return done

    def clear(self, queue: str) -> int:
        count = self.inner.clear(queue)
        for outlet in self.recorder.all:
            outlet.put([Cleared(queue)], time.time())
        return count

    # -- what is passed on ---------------------------------------------------------------------------

    def last_number(self, queue: str, line: str) -> int:
        return self.inner.last_number(queue, line)

    def reserve(
        self,
        queues: Sequence[str],
        owner: str,
        count: int,
        *,
        wait: float = 0.0,
        max_wait: float | None = 60.0,
        limits: Mapping[str, RateLimit] | None = None,
    ) -> list[Reservation]:
        return self.inner.reserve(queues, owner, count, wait=wait, max_wait=max_wait, limits=limits)

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        return self.inner.extend(reservations)

    def recover(self, queues: Sequence[str], owner: str, lease: float, count: int = 100) -> list[Reservation]:
        return self.inner.recover(queues, owner, lease, count)

    def lease_lost(self, reservation: Reservation) -> bool:
        return self.inner.lease_lost(reservation)

    def promote_due(self, queues: Sequence[str], limit: int = 1000) -> int:
        return self.inner.promote_due(queues, limit)

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self.inner.next_due(queues)

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        self.inner.wait_for_due(queues, timeout, stop)

    def size(self, queue: str) -> QueueSize:
        return self.inner.size(queue)

    def queues(self) -> list[str]:
        return self.inner.queues()

    def stream_keys(self, queue: str) -> list[str]:
        return self.inner.stream_keys(queue)

    def find(self, job_id: str, queue: str | None = None) -> FoundJob | None:
        return self.inner.find(job_id, queue)

    def delayed(self, queue: str, count: int = 100) -> list[FoundJob]:
        return self.inner.delayed(queue, count)

    def pause(self, queue: str) -> None:
        self.inner.pause(queue)

    def resume(self, queue: str) -> None:
        self.inner.resume(queue)

    def dead(self, queue: str, *, start: str = "", count: int = 100) -> list[DeadLetter]:
        return self.inner.dead(queue, start=start, count=count)

    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        return self.inner.dead_letter(queue, job_id)

    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool:
        return self.inner.update_dead(queue, job_id, body)

    def clear_dead(self, queue: str, job_ids: Sequence[str] | None = None) -> int:
        return self.inner.clear_dead(queue, job_ids)

    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        self.inner.beat(worker, ttl)

    def workers(self) -> list[WorkerInfo]:
        return self.inner.workers()

    def retire(self, worker_id: str, queues: Sequence[str]) -> None:
        self.inner.retire(worker_id, queues)

    def close(self) -> None:
        self.inner.close()
