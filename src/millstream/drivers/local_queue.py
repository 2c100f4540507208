"""A queue in memory. Every method is called under the lock of the state that the queue belongs to.

The jobs themselves are objects here; the broker's streams hold the same entries, so that they can be read
like any stream: an entry is added when a job becomes waiting and deleted when it is settled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count
from time import monotonic, time

from millstream.brokers.local import LocalStreamBroker
from millstream.drivers.base import (
    DeadLetter,
    FoundJob,
    PushItem,
    QueueSize,
    Reservation,
    Settlement,
)
from millstream.drivers.keys import QueueKeys
from millstream.drivers.local_parts import NEVER, Starts, UniqueKeys
from millstream.envelope import PRIORITIES
from millstream.errors import PayloadTooLarge


class LocalJob:
    """One job, in one state: waiting, reserved, delayed, dead or gone."""

    __slots__ = (
        "body",
        "count",
        "due",
        "entry_id",
        "id",
        "letter",
        "level",
        "owner",
        "since",
        "state",
    )

    def __init__(self, item: PushItem) -> None:
        self.id, self.body = item.id, item.body
        self.level = PRIORITIES.index(item.priority)
        self.state = "gone"
        self.entry_id = ""
        self.since = 0.0  # monotonic: since when it waits, or when its lease began
        self.due = 0.0
        self.owner: str | None = None
        self.count = 0  # deliveries of this entry
        self.letter: DeadLetter | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Where its entry stands in the stream."""
        ms, _, seq = self.entry_id.partition("-")
        return int(ms), int(seq)


class LocalQueue:
    """The jobs of one queue by state."""

    def __init__(self, broker: LocalStreamBroker, keys: QueueKeys) -> None:
        self._broker, self._keys = broker, keys
        self.name = keys.queue
        self.jobs: dict[str, LocalJob] = {}
        self.paused = False
        self._lines: list[deque[LocalJob]] = [
            deque() for _ in PRIORITIES
        ]  # cancelled ones stay until passed by
        self._waiting = [0] * len(PRIORITIES)
        self._reserved: dict[str, LocalJob] = {}  # in the order in which their leases began
        self._delayed: list[tuple[float, int, LocalJob]] = []  # a heap; cancelled ones stay until passed by
        self._delayed_count = 0
        self._order = count()
        self._dead: dict[str, LocalJob] = {}
        self._dead_order: dict[str, int] = {}  # also of some that are no longer there
        self._unique = UniqueKeys()
        self.starts = Starts()

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, items: Sequence[PushItem]) -> tuple[list[str], int, bool]:
        """The ids that stand for the items; how many wait now; whether one is due before all others."""
        now = monotonic()
        first = self.next_due()
        ids, waiting = [], []
        for item in items:
            stands = item.id if item.id in self.jobs else self._unique.holder(item.unique_key, now)
            if stands is not None:
                ids.append(stands)
                continue
            ids.append(item.id)
            job = self.jobs[item.id] = LocalJob(item)
            self._unique.hold(item, now)
            if item.delay:
                self._delay(job, now + item.delay)
            else:
                waiting.append(job)
        self._line_up(waiting)
        return ids, len(waiting), self.next_due() < first

    def _line_up(self, jobs: Sequence[LocalJob]) -> None:
        """Make jobs waiting, at the end of their lines."""
        now = monotonic()
        by_level: dict[int, list[LocalJob]] = {}
        for job in jobs:
            by_level.setdefault(job.level, []).append(job)
        for level, some in by_level.items():
            entry_ids = self._add(self._keys.streams[level], [{"job": _text(job.body)} for job in some])
            for job, entry_id in zip(some, entry_ids, strict=True):
                job.entry_id, job.state, job.since, job.count, job.owner = entry_id, "waiting", now, 0, None
            self._lines[level].extend(some)
            self._waiting[level] += len(some)

    def _add(self, stream: str, entries: list[dict[str, object]]) -> list[str]:
        try:
            return self._broker.xadd_many(stream, entries)
        except PayloadTooLarge:
            # As JSON text it is larger than the body, which was within the limit. The stream is for reading
            # only; the job itself is kept here.
            return [self._broker.xadd(stream, {"job": None}) for _ in entries]

    def _delay(self, job: LocalJob, due: float) -> None:
        job.state, job.due, job.owner = "delayed", due, None
        heapq.heappush(self._delayed, (due, next(self._order), job))
        self._delayed_count += 1

    # -- reserving ---------------------------------------------------------------------------------

    def oldest(self, level: int) -> float:
        """Since when the first in line waits."""
        line = self._lines[level]
        while line and line[0].state != "waiting":
            line.popleft()
        return line[0].since if line else NEVER

    def take(self, level: int, most: int, owner: str, now: float) -> list[Reservation]:
        line = self._lines[level]
        priority, name, reserved = PRIORITIES[level], self.name, self._reserved
        found: list[Reservation] = []
        while line and len(found) < most:
            job = line.popleft()
            if job.state != "waiting":
                continue
            job.state, job.owner, job.since = "reserved", owner, now
            job.count += 1
            reserved[job.id] = job
            found.append(Reservation(job.id, name, priority, job.entry_id, job.body, owner, job.count))
        self._waiting[level] -= len(found)
        return found

    def has_waiting(self, level: int) -> bool:
        return self._waiting[level] > 0

    # -- settling ----------------------------------------------------------------------------------

    def owned(self, reservation: Reservation) -> LocalJob | None:
        """The job, if the reservation is still the one that holds it."""
        job = self._reserved.get(reservation.id)
        if (
            job is None
            or job.owner != reservation.owner
            or job.count != reservation.delivery_count
            or job.entry_id != reservation.entry_id
        ):
            return None
        return job

    def _put_back(self, job: LocalJob) -> None:
        """To the front of its line, behind those that were put back before it and are older."""
        line, older = self._lines[job.level], []
        while line and line[0].place < job.place:
            older.append(line.popleft())
        line.appendleft(job)
        line.extendleft(reversed(older))
        self._waiting[job.level] += 1

    def settle(self, settlements: Sequence[Settlement]) -> tuple[list[bool], int, bool]:
        """Whether each was owned; how many wait now; whether one is due before all others."""
        first = self.next_due()
        answers, waiting = [], 0
        gone: list[list[str]] = [[] for _ in PRIORITIES]
        now = monotonic()
        for settlement in settlements:
            job = self.owned(settlement.reservation)
            answers.append(job is not None)
            if job is None:
                continue
            del self._reserved[job.id]
            outcome = settlement.outcome
            if outcome == "release":
                job.state, job.owner, job.count = "waiting", None, job.count - 1
                job.since = int(job.entry_id.partition("-")[0]) / 1000 - time() + now  # it keeps its age
                self._put_back(job)
                waiting += 1
                continue
            gone[job.level].append(job.entry_id)
            if outcome == "complete":
                self._forget(job)
            elif outcome == "bury":
                self._bury(job, settlement)
            else:
                job.body = settlement.body
                if settlement.delay:
                    self._delay(job, now + settlement.delay)
                else:
                    self._line_up((job,))
                    waiting += 1
        for level, entry_ids in enumerate(gone):
            if entry_ids:
                self._broker.xdel(self._keys.streams[level], entry_ids)
        return answers, waiting, self.next_due() < first

    def _forget(self, job: LocalJob) -> None:
        job.state = "gone"
        del self.jobs[job.id]
        self._unique.let_go(job.id)

    def _bury(self, job: LocalJob, settlement: Settlement) -> None:
        original_stream, moved_at = self._keys.streams[job.level], time()
        job.state, job.body, job.owner = "dead", settlement.body, None
        job.letter = DeadLetter(
            *(job.id, self.name, job.body, original_stream, job.entry_id),
            *(settlement.reason, settlement.error, settlement.traceback, settlement.attempts, moved_at),
        )
        self._unique.let_go(job.id)
        entry: dict[str, object] = {
            **{"job": _text(job.body), "id": job.id, "original_stream": original_stream},
            **{"original_id": job.entry_id, "reason": settlement.reason, "error": settlement.error},
            **{"traceback": settlement.traceback, "attempts": settlement.attempts},
            **{"moved_at": int(moved_at * 1000), "level": PRIORITIES[job.level][0]},
        }
        job.entry_id = self._add(self._keys.dead, [entry])[0]
        self._dead[job.id] = job
        self._dead_order[job.id] = next(self._order)
        if len(self._dead_order) > 2 * len(self._dead) + 1000:
            self._dead_order = {name: self._dead_order[name] for name in self._dead}

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        now, answers = monotonic(), []
        for reservation in reservations:
            job = self.owned(reservation)
            if job is not None:
                self._begin_lease(job, now)
            answers.append(job is not None)
        return answers

    def _begin_lease(self, job: LocalJob, now: float) -> None:
        job.since = now
        del self._reserved[job.id]
        self._reserved[job.id] = job  # at the end: the first is the one whose lease is the oldest

    def recover(self, owner: str, lease: float, most: int) -> list[Reservation]:
        now = monotonic()
        found: list[Reservation] = []
        while self._reserved and len(found) < most:
            job = next(iter(self._reserved.values()))
            if now - job.since < lease:
                break
            job.owner = owner
            job.count += 1
            self._begin_lease(job, now)
            found.append(
                Reservation(
                    job.id, self.name, PRIORITIES[job.level], job.entry_id, job.body, owner, job.count
                )
            )
        return found

    # -- time --------------------------------------------------------------------------------------

    def next_due(self) -> float:
        """When the next delayed job is due, on the monotonic clock."""
        while self._delayed and not self._is_delayed(self._delayed[0]):
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else NEVER

    @staticmethod
    def _is_delayed(place: tuple[float, int, LocalJob]) -> bool:
        return place[2].state == "delayed" and place[2].due == place[0]

    def promote(self, limit: int) -> int:
        now = monotonic()
        due: list[LocalJob] = []
        while len(due) < limit and self.next_due() <= now:
            due.append(heapq.heappop(self._delayed)[2])
        self._delayed_count -= len(due)
        self._line_up(due)
        return len(due)

    def delayed(self, number: int) -> list[FoundJob]:
        places = heapq.nsmallest(number, filter(self._is_delayed, self._delayed))
        return [self.describe(job) for _, _, job in places]

    # -- looking and keeping house -----------------------------------------------------------------

    def size(self) -> QueueSize:
        oldest = min(self.oldest(level) for level in range(len(PRIORITIES)))
        return QueueSize(
            sum(self._waiting),
            len(self._reserved),
            self._delayed_count,
            len(self._dead),
            dict(zip(PRIORITIES, self._waiting, strict=True)),
            None if oldest == NEVER else max(0.0, monotonic() - oldest),
            self.paused,
        )

    def describe(self, job: LocalJob) -> FoundJob:
        assert job.state in ("waiting", "reserved", "delayed", "dead")
        return FoundJob(
            *(job.id, self.name, job.state, PRIORITIES[job.level], job.body),  # type: ignore[arg-type]
            due_in=max(0.0, job.due - monotonic()) if job.state == "delayed" else None,
            owner=job.owner,
            delivery_count=job.count if job.state in ("waiting", "reserved") else 0,
        )

    def cancel(self, job_id: str) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("waiting", "delayed"):
            return False
        if job.state == "waiting":
            self._waiting[job.level] -= 1
            self._broker.xdel(self._keys.streams[job.level], job.entry_id)
        else:
            self._delayed_count -= 1
        self._forget(job)
        return True

    def clear(self) -> int:
        return sum([self.cancel(job_id) for job_id in list(self.jobs)])

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, start: str, number: int) -> list[DeadLetter]:
        letters = [job.letter for job in self._dead.values() if job.letter is not None]
        if start:
            # A letter that is gone by now still tells where to go on.
            place = self._dead_order.get(start, -1)
            letters = [letter for letter in letters if self._dead_order[letter.id] > place]
        return letters[:number]

    def dead_job(self, job_id: str) -> LocalJob | None:
        return self._dead.get(job_id)

    def retry_dead(self, items: Sequence[PushItem]) -> tuple[list[bool], int, bool]:
        first = self.next_due()
        now, answers, waiting = monotonic(), [], 0
        for item in items:
            job = self._dead.pop(item.id, None)
            answers.append(job is not None)
            if job is None:
                continue
            self._broker.xdel(self._keys.dead, job.entry_id)
            job.body, job.level, job.letter = item.body, PRIORITIES.index(item.priority), None
            if self._unique.holder(item.unique_key, now) is None:
                self._unique.hold(item, now)
            if item.delay:
                self._delay(job, now + item.delay)
            else:
                self._line_up((job,))
                waiting += 1
        return answers, waiting, self.next_due() < first

    def clear_dead(self, job_ids: Sequence[str] | None) -> int:
        cleared = 0
        for job_id in list(self._dead) if job_ids is None else job_ids:
            job = self._dead.pop(job_id, None)
            if job is not None:
                self._broker.xdel(self._keys.dead, job.entry_id)
                self._forget(job)
                cleared += 1
        return cleared


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")
