"""The steps of StreamDriver in memory: one lock, under which each of them is atomic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from weakref import WeakKeyDictionary

import msgspec

from millstream.brokers.local import LocalStreamBroker
from millstream.brokers.payload import MAX_NAME
from millstream.drivers.base import (
    Capabilities,
    DeadLetter,
    FoundJob,
    PushItem,
    QueueSize,
    RateLimit,
    Reservation,
    Settlement,
    WorkerInfo,
)
from millstream.drivers.keys import QueueKeys
from millstream.drivers.local_queue import LocalQueue
from millstream.drivers.steps import Steps
from millstream.envelope import PRIORITIES
from millstream.errors import BrokerClosed

GOES_FIRST = 0.8  # of max_wait, so that the job has started when all of it is over
STOP_CHECK = 0.05  # seconds until a wait notices that it is to stop
_NEVER = float("inf")


class LocalState:
    """What the drivers on one broker share, for one prefix."""

    def __init__(self, broker: LocalStreamBroker, prefix: str) -> None:
        self._broker, self._prefix = broker, prefix
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)  # something may be reserved
        self.sooner = threading.Condition(self.lock)  # a delayed job is due before all others
        self.waiting = 0  # how many wait for a change, so that nobody is woken for nothing
        self.queues: dict[str, LocalQueue] = {}
        self.pushed: set[str] = set()
        self.workers: dict[str, tuple[WorkerInfo, float, float]] = {}  # when heard of, when forgotten
        self.turns = 0
        self.numbers: dict[tuple[str, str], int] = {}  # by queue and line, the last number

    def queue(self, name: str) -> LocalQueue:
        found = self.queues.get(name)
        if found is None:
            keys = QueueKeys(self._prefix, name)
            for stream in (*keys.streams, keys.dead):
                if len(stream) > MAX_NAME:  # the queue's name is not, and there is more to this one
                    self._broker._keep_stream(stream)
            found = self.queues[name] = LocalQueue(self._broker, keys)
        return found

    def tell(self, waiting: int, sooner: bool) -> None:
        """Wake who waits for what has just happened."""
        if waiting and self.waiting:
            self.changed.notify_all()
        if sooner:
            self.sooner.notify_all()


_states: WeakKeyDictionary[LocalStreamBroker, dict[str, LocalState]] = WeakKeyDictionary()
_states_lock = threading.Lock()


def state_of(broker: LocalStreamBroker, prefix: str) -> LocalState:
    with _states_lock:
        by_prefix = _states.setdefault(broker, {})
        return by_prefix.get(prefix) or by_prefix.setdefault(prefix, LocalState(broker, prefix))


class LocalSteps(Steps):
    """See `steps.py` for what each method is."""

    capabilities = Capabilities(durable=False, shared=False)

    def __init__(self, broker: LocalStreamBroker, prefix: str) -> None:
        self.max_payload = broker._max_payload
        self._state = state_of(broker, prefix)
        self._closed = False

    def close(self) -> None:
        with self._state.lock:
            self._closed = True
            self._state.changed.notify_all()
            self._state.sooner.notify_all()

    # -- pushing and working -----------------------------------------------------------------------

    def push(self, queue: str, items: Sequence[PushItem]) -> list[str]:
        state = self._state
        with state.lock:
            ids, waiting, sooner = state.queue(queue).push(items)
            state.pushed.add(queue)
            state.tell(waiting, sooner)
        return ids

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        state = self._state
        with state.lock:
            if state.numbers.get((queue, line), 0) >= number:
                return False
            if items:
                _, waiting, sooner = state.queue(queue).push(items)
                state.pushed.add(queue)
                state.tell(waiting, sooner)
            state.numbers[queue, line] = number
        return True

    def last_number(self, queue: str, line: str) -> int:
        with self._state.lock:
            return self._state.numbers.get((queue, line), 0)

    def reserve(
        self,
        queues: Sequence[str],
        owner: str,
        count: int,
        wait: float,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> list[Reservation]:
        state = self._state
        deadline = monotonic() + wait
        with state.lock:
            while True:
                found, next_start = self._take(queues, owner, count, max_wait, limits)
                left = deadline - monotonic()
                if found or left <= 0:
                    return found
                state.waiting += 1
                try:
                    state.changed.wait(min(left, next_start))
                finally:
                    state.waiting -= 1
                if self._closed:
                    raise BrokerClosed

    def _take(
        self,
        names: Sequence[str],
        owner: str,
        count: int,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> tuple[list[Reservation], float]:
        """What there is now, and the seconds until a limit allows a start that it does not allow now."""
        state, now = self._state, monotonic()
        state.turns += 1
        turn = state.turns % len(names)
        allowed: dict[LocalQueue, int] = {}
        next_start = _NEVER
        for name in (*names[turn:], *names[:turn]):
            queue = state.queue(name)
            if queue.paused:
                continue
            free, span = queue.starts.free(limits[name], now) if name in limits else (count, 0.0)
            if free:
                allowed[queue] = free
            else:
                next_start = min(next_start, max(span, 0.0001))
        found: list[Reservation] = []

        def take(queue: LocalQueue, level: int, most: int) -> int:
            got = queue.take(level, min(most, allowed[queue], count - len(found)), owner, now)
            allowed[queue] -= len(got)
            if got and queue.name in limits:
                queue.starts.note(len(got), now)
            found.extend(got)
            return len(got)

        if max_wait is not None:
            self._take_old(list(allowed), now - max_wait * GOES_FIRST, lambda: count - len(found), take)
        for level in range(len(PRIORITIES)):
            # Each queue gets its share first; what the others leave goes to those that have more.
            more = [queue for queue in allowed if queue.has_waiting(level) and allowed[queue]]
            while more and len(found) < count:
                share = -(-(count - len(found)) // len(more))
                more = [queue for queue in more if take(queue, level, share) == share]
        return found, next_start

    @staticmethod
    def _take_old(
        queues: Sequence[LocalQueue],
        cutoff: float,
        left: Callable[[], int],
        take: Callable[[LocalQueue, int, int], int],
    ) -> None:
        """Take jobs that wait since before ``cutoff``, the oldest first."""
        while left():
            heads = sorted(
                (queue.oldest(level), position, level)
                for position, queue in enumerate(queues)
                for level in range(len(PRIORITIES))
                if queue.oldest(level) <= cutoff
            )
            if not any(take(queues[position], level, 1) for _, position, level in heads):
                return

    def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[bool]:
        state = self._state
        with state.lock:
            answers, waiting, sooner = state.queue(queue).settle(settlements)
            state.tell(waiting, sooner)
        return answers

    def extend(self, queue: str, reservations: Sequence[Reservation]) -> list[bool]:
        with self._state.lock:
            return self._state.queue(queue).extend(reservations)

    def recover(self, queue: str, owner: str, lease: float, count: int) -> list[Reservation]:
        with self._state.lock:
            return self._state.queue(queue).recover(owner, lease, count)

    def lease_lost(self, reservation: Reservation) -> bool:
        with self._state.lock:
            return self._state.queue(reservation.queue).owned(reservation) is None

    # -- time --------------------------------------------------------------------------------------

    def promote(self, queue: str, limit: int) -> int:
        state = self._state
        with state.lock:
            promoted = state.queue(queue).promote(limit)
            state.tell(promoted, False)
        return promoted

    def next_due(self, queues: Sequence[str]) -> float | None:
        with self._state.lock:
            due = self._first_due(queues)
        return None if due == _NEVER else max(0.0, due - monotonic())

    def _first_due(self, queues: Sequence[str]) -> float:
        return min(self._state.queue(name).next_due() for name in queues)

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        deadline = monotonic() + timeout
        state = self._state
        with state.lock:
            first = self._first_due(queues)
            while not stop.is_set() and not self._closed:
                due = self._first_due(queues)
                left = min(deadline, due) - monotonic()
                if left <= 0 or due < first:
                    return
                state.sooner.wait(min(left, STOP_CHECK))

    # -- looking and keeping house -----------------------------------------------------------------

    def size(self, queue: str) -> QueueSize:
        with self._state.lock:
            return self._state.queue(queue).size()

    def queues(self) -> list[str]:
        with self._state.lock:
            return sorted(self._state.pushed)

    def find(self, queue: str, job_id: str) -> FoundJob | None:
        with self._state.lock:
            place = self._state.queue(queue)
            job = place.jobs.get(job_id)
            return None if job is None else place.describe(job)

    def delayed(self, queue: str, count: int) -> list[FoundJob]:
        with self._state.lock:
            return self._state.queue(queue).delayed(count)

    def clear(self, queue: str) -> int:
        with self._state.lock:
            return self._state.queue(queue).clear()

    def pause(self, queue: str) -> None:
        with self._state.lock:
            self._state.queue(queue).paused = True

    def resume(self, queue: str) -> None:
        with self._state.lock:
            self._state.queue(queue).paused = False
            self._state.tell(1, False)

    def cancel(self, queue: str, job_id: str) -> bool:
        with self._state.lock:
            return self._state.queue(queue).cancel(job_id)

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, queue: str, start: str, count: int) -> list[DeadLetter]:
        with self._state.lock:
            return self._state.queue(queue).dead(start, count)

    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        with self._state.lock:
            job = self._state.queue(queue).dead_job(job_id)
            return None if job is None else job.letter

    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        state = self._state
        with state.lock:
            answers, waiting, sooner = state.queue(queue).retry_dead(items)
            state.tell(waiting, sooner)
        return answers

    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool:
        with self._state.lock:
            job = self._state.queue(queue).dead_job(job_id)
            if job is None or job.letter is None:
                return False
            job.body, job.letter = body, msgspec.structs.replace(job.letter, body=body)
            return True

    def clear_dead(self, queue: str, job_ids: Sequence[str] | None) -> int:
        with self._state.lock:
            return self._state.queue(queue).clear_dead(job_ids)

    # -- workers -----------------------------------------------------------------------------------

    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        with self._state.lock:
            now = monotonic()
            self._state.workers[worker.id] = (worker, now, now + ttl)

    def workers(self) -> list[WorkerInfo]:
        with self._state.lock:
            now = monotonic()
            alive = {name: row for name, row in self._state.workers.items() if row[2] > now}
            self._state.workers = alive
            return [msgspec.structs.replace(worker, age=now - heard) for worker, heard, _ in alive.values()]

    def retire(self, worker_id: str, queues: Sequence[str]) -> None:
        with self._state.lock:
            self._state.workers.pop(worker_id, None)
