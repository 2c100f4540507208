"""Drivers that are wrong on purpose, each in one way that a real one could be. The suite notices each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.drivers.base import Driver, PushItem, QueueSize, RateLimit, Reservation, Settlement
from millstream.drivers.stream import StreamDriver


class Correct(StreamDriver):
    """The control: nothing is wrong with it."""


class WithoutDelays(StreamDriver):
    """No mutant: a driver that says what it cannot do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.capabilities = msgspec.structs.replace(self.capabilities, delays=False)


class CompletesForAnyone(StreamDriver):
    """The mistake of a bare XACK: whoever names the job settles it."""

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        current = []
        for settlement in settlements:
            one = settlement.reservation
            found = self.find(one.id, one.queue)
            if found is not None and found.state == "reserved" and found.owner:
                one = msgspec.structs.replace(one, owner=found.owner, delivery_count=found.delivery_count)
            current.append(msgspec.structs.replace(settlement, reservation=one))
        return super().settle(current)


class ExtendsForAnyone(StreamDriver):
    """The mistake of XCLAIM … 0 JUSTID: a stale owner's heartbeat succeeds."""

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        super().extend(reservations)
        return [True] * len(reservations)


class PushesTwice(StreamDriver):
    """A push that is repeated adds the job again."""

    def push(self, items: Sequence[PushItem]) -> list[str]:
        fresh = []
        for item in items:
            known = self._steps.find(item.queue, item.id)
            fresh.append(msgspec.structs.replace(item, id=item.id + "x") if known else item)
        super().push(fresh)
        return [item.id for item in items]


class LosesOneInFiveHundred(StreamDriver):
    _pushed = 0

    def push(self, items: Sequence[PushItem]) -> list[str]:
        kept = []
        for item in items:
            self._pushed += 1
            if self._pushed % 500:
                kept.append(item)
        super().push(kept)
        return [item.id for item in items]


class DropsTheLastOfABatch(StreamDriver):
    """A job that was read is forgotten: nobody gets it before its lease ends."""

    def reserve(self, queues: Sequence[str], owner: str, count: int, **options: Any) -> list[Reservation]:
        found = super().reserve(queues, owner, count, **options)
        return found[:-1] if len(found) > 9 else found


class ForgetsPriorities(StreamDriver):
    def push(self, items: Sequence[PushItem]) -> list[str]:
        return super().push([msgspec.structs.replace(item, priority="default") for item in items])


class Starves(StreamDriver):
    """Strict priorities, and nothing else: a flood starves the lowest."""

    def reserve(self, queues: Sequence[str], owner: str, count: int, **options: Any) -> list[Reservation]:
        return super().reserve(queues, owner, count, **{**options, "max_wait": None})


class FirstQueueFirst(StreamDriver):
    """Queues do not take turns."""

    def reserve(self, queues: Sequence[str], owner: str, count: int, **options: Any) -> list[Reservation]:
        for queue in queues if not isinstance(queues, str) else ():
            found = super().reserve([queue], owner, count, **{**options, "wait": 0.0})
            if found:
                return found
        return super().reserve(queues, owner, count, **options)


class LimitsEachOwner(StreamDriver):
    """Each worker has the whole limit for itself."""

    def reserve(
        self,
        queues: Sequence[str],
        owner: str,
        count: int,
        *,
        limits: Mapping[str, RateLimit] | None = None,
        **options: Any,
    ) -> list[Reservation]:
        if not limits:
            return super().reserve(queues, owner, count, **options)
        taken = self.__dict__.setdefault("_taken", {})
        most = min(limit.limit for limit in limits.values()) - taken.get(owner, 0)
        found = super().reserve(queues, owner, min(count, most), **options) if most > 0 else []
        taken[owner] = taken.get(owner, 0) + len(found)
        return found


class ReleaseCountsADelivery(StreamDriver):
    """Handing back counts as a lost delivery: a graceful shutdown makes poison pills."""

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and settlement.outcome == "release":
                one = settlement.reservation
                self._steps._state.queue(one.queue).jobs[one.id].count += 1  # type: ignore[attr-defined]
        return answers


class PromotesEarly(StreamDriver):
    """Half of the delay is enough."""

    def push(self, items: Sequence[PushItem]) -> list[str]:
        return super().push([msgspec.structs.replace(item, delay=item.delay / 2) for item in items])


class SleepsThroughAnEarlierJob(StreamDriver):
    """The scheduler's sleep is not ended by a job that is due earlier."""

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        due = self.next_due(queues)
        stop.wait(timeout if due is None else min(timeout, due))


class RecoversTheLiving(StreamDriver):
    """Takes over jobs whose lease has not ended."""

    def recover(self, queues: Sequence[str], owner: str, lease: float, count: int = 100) -> list[Reservation]:
        return super().recover(queues, owner, lease / 100 if lease > 0 else lease, count)


class LengthIsTheSize(StreamDriver):
    """The mistake that dashboards make: what is in the stream shown as what is waiting."""

    def size(self, queue: str) -> QueueSize:
        size = super().size(queue)
        return msgspec.structs.replace(size, waiting=size.waiting + size.reserved)


class CancelTakesFromAnOwner(StreamDriver):
    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        found = self.find(job_id, queue)
        if found is not None and found.state == "reserved":
            one = Reservation(
                job_id, found.queue, found.priority, "", b"", found.owner or "", found.delivery_count
            )
            job = self._steps._state.queue(found.queue).jobs[job_id]  # type: ignore[attr-defined]
            one = msgspec.structs.replace(one, entry_id=job.entry_id)
            return super().settle([Settlement(one, "complete")])[0]
        return super().cancel(job_id, queue)


class ResumeWakesNobody(StreamDriver):
    def resume(self, queue: str) -> None:
        with self._steps._state.lock:  # type: ignore[attr-defined]
            self._steps._state.queue(queue).paused = False  # type: ignore[attr-defined]


class RetryDeadCopies(StreamDriver):
    """A retried letter stays on the list of the dead."""

    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        letters = {letter.id for letter in self.dead(queue, count=1000)}
        for item in items:
            if item.id in letters:
                super().push([msgspec.structs.replace(item, id=item.id + "x")])
        return [item.id in letters for item in items]


class RemembersNumbersWhileJobsExist(StreamDriver):
    """A numbered push that is repeated after its jobs are done adds them again."""

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        done = super().push_numbered(queue, line, number, items)
        super().push(items)
        return done


# Which file of the suite is expected to notice, so that a run on the mutant stays short.
MUTANTS: dict[type[Driver], str] = {
    CompletesForAnyone: "test_settling.py",
    ExtendsForAnyone: "test_settling.py",
    PushesTwice: "test_pushing.py",
    LosesOneInFiveHundred: "test_threads.py",
    DropsTheLastOfABatch: "test_settling.py",
    ForgetsPriorities: "test_reserving.py",
    Starves: "test_reserving.py",
    FirstQueueFirst: "test_reserving.py",
    LimitsEachOwner: "test_limits.py",
    ReleaseCountsADelivery: "test_settling.py",
    PromotesEarly: "test_delays.py",
    SleepsThroughAnEarlierJob: "test_delays.py",
    RecoversTheLiving: "test_leases.py",
    LengthIsTheSize: "test_looking.py",
    CancelTakesFromAnOwner: "test_looking.py",
    ResumeWakesNobody: "test_reserving.py",
    RetryDeadCopies: "test_dead.py",
    RemembersNumbersWhileJobsExist: "test_numbered.py",
}
