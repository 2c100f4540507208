"""The part of a queue that operators use: where jobs are, how many, and what to do about them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from millstream.deadletters import DeadLetters
from millstream.drivers.base import Driver, FoundJob, QueueSize, WorkerInfo
from millstream.envelope import Codec, Envelope
from millstream.options import DEFAULTS, check_queue_name
from millstream.registry import Registry, decode_payload
from millstream.unpacking import Unpacker


class JobView(msgspec.Struct, frozen=True):
    """A job as `Queue.find` sees it."""

    id: str
    queue: str
    state: Literal["waiting", "reserved", "delayed", "dead"]
    priority: str
    envelope: Envelope | None  # None where it cannot be read
    due_in: float | None = None  # delayed: seconds from now
    owner: str | None = None  # reserved: by whom
    delivery_count: int = 0

    @property
    def type(self) -> str | None:
        """The job's type."""
        return None if self.envelope is None else self.envelope.type

    @property
    def payload(self) -> dict[str, Any]:
        """The job's fields as plain values."""
        return {} if self.envelope is None else decode_payload(self.envelope.payload)


class QueueKeeper:
    """What can be asked of the queues on one driver, and done to them. Without a name it is "default"."""

    def __init__(self, driver: Driver, codec: Codec, registry: Registry, max_payload: int) -> None:
        self.driver, self.codec, self.registry, self.max_payload = driver, codec, registry, max_payload
        self._unpacker = Unpacker(codec)

    # -- looking -----------------------------------------------------------------------------------

    def size(self, queue: str | None = None) -> int:
        """How many jobs are still to be done: waiting, delayed and running. `sizes` tells them apart."""
        return self.sizes(queue).total

    def sizes(self, queue: str | None = None) -> QueueSize:
        """How many jobs there are in each state, by priority, and how old the oldest is."""
        return self.driver.size(self._queue(queue))

    def queues(self) -> list[str]:
        """The queues that were ever pushed to."""
        return self.driver.queues()

    def workers(self) -> list[WorkerInfo]:
        """The worker processes that are alive."""
        return self.driver.workers()

    def stream_keys(self, queue: str | None = None) -> list[str]:
        """The names of what holds the waiting jobs, in priority order."""
        return self.driver.stream_keys(self._queue(queue))

    def find(self, job_id: str, queue: str | None = None) -> JobView | None:
        """Where a job is and what it carries; None where it is not known, or done."""
        found = self.driver.find(job_id, None if queue is None else check_queue_name(queue))
        return None if found is None else self._view(found)

    def delayed(self, queue: str | None = None, count: int = 100) -> list[JobView]:
        """The delayed jobs that are due first."""
        return [self._view(found) for found in self.driver.delayed(self._queue(queue), count)]

    def dead(self, queue: str | None = None) -> DeadLetters:
        """The queue's jobs that failed for good: list, show, edit, retry, clear."""
        return DeadLetters(self.driver, self._unpacker, self.registry, self._queue(queue), self.max_payload)

    def _view(self, found: FoundJob) -> JobView:
        envelope, _ = self._unpacker.unpack(found.body)
        return JobView(
            id=found.id,
            queue=found.queue,
            state=found.state,
            priority=found.priority,
            envelope=envelope,
            due_in=found.due_in,
            owner=found.owner,
            delivery_count=found.delivery_count,
        )

    # -- keeping house -----------------------------------------------------------------------------

    def initialize(self, queues: str | Sequence[str] | None = None) -> None:
        """Ask the server once, so that a wrong address shows now. Queues come to be with their first use."""
        for name in self._queues(queues) or [DEFAULTS.queue]:
            self.driver.size(name)

    def promote_due(self, queues: str | Sequence[str] | None = None) -> int:
        """Make delayed jobs available whose time has come; how many. Workers do that by themselves."""
        names = self._queues(queues)
        total = 0
        while names:
            moved = self.driver.promote_due(names, 1000)
            total += moved
            if moved < 1000:
                break
        return total

    def drain(self, queues: str | Sequence[str] | None = None, *, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do in ``queues`` (all, if left out); whether that came in time.

        Delayed jobs and retries count as to be done. For tests, scripts and the end of a program: it asks the
        server fifty times a second.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(self.driver.size(name).total for name in self._queues(queues)):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def clear(self, queue: str | None = None) -> int:
        """Forget every waiting and delayed job; how many. Running ones and dead letters stay."""
        return self.driver.clear(self._queue(queue))

    def pause(self, queue: str | None = None) -> None:
        """Let nobody take jobs from the queue until `resume`; pushing goes on."""
        self.driver.pause(self._queue(queue))

    def resume(self, queue: str | None = None) -> None:
        """End a pause."""
        self.driver.resume(self._queue(queue))

    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        """Forget a job that waits or is delayed; whether there was one. A running job is not touched."""
        return self.driver.cancel(job_id, None if queue is None else check_queue_name(queue))

    def _queue(self, queue: str | None) -> str:
        return DEFAULTS.queue if queue is None else check_queue_name(queue)

    def _queues(self, queues: str | Sequence[str] | None) -> list[str]:
        if queues is None:
            return self.driver.queues()
        return [check_queue_name(name) for name in ([queues] if isinstance(queues, str) else queues)]
