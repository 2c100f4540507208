"""The Driver contract: delivery of jobs, in verbs that say what is meant.

A driver moves opaque bodies (encoded envelopes) between states; it never looks inside. The states:

    push ──► waiting ──reserve──► reserved ──complete──► gone
      │         ▲                  │  │ │
      │         ├───── release ────┘  │ └──bury──► dead ──(retry_dead)──► waiting
      └──► delayed ◄──── retry ───────┘
              └─promote_due─► waiting           reserved ──lease ends, recover──► reserved by another

The rules that hold for every method:

* A driver may be used from any number of threads.
* Each verb is atomic for each job: a crash between two calls leaves every job in exactly one state.
* A reservation is a lease. `settle` (complete, retry, bury, release) and `extend` carry its token, the owner
  and the delivery count, and are refused for a job that somebody else owns by now: they answer False for it
  and change nothing.
* Where a call has to tell the time, the server's clock decides.
* What a driver cannot do is said by its `Capabilities`; asking for it raises UnsupportedByDriver.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, overload

import msgspec

from millstream.errors import InvalidInput, UnsupportedByDriver


class Capabilities(msgspec.Struct, frozen=True):
    """What a driver can do. A test of the contract that needs a missing one is skipped by its name."""

    priorities: bool = True
    delays: bool = True
    unique: bool = True
    fencing: bool = True
    idempotent_push: bool = True
    rate_limits: bool = True
    find: bool = True
    cancel: bool = True
    pause: bool = True
    dead_letters: bool = True
    durable: bool = True  # survives the end of this process
    shared: bool = True  # several processes see the same jobs
    numbered_push: bool = True  # see push_numbered: what the outbox and cron stand on
    max_delay: float | None = None  # seconds; None for any


class PushItem(msgspec.Struct, frozen=True, gc=False):
    """A job to push, as far as a driver needs to know it."""

    id: str
    queue: str
    priority: str
    body: bytes
    delay: float = 0.0  # seconds from now, by the server's clock
    unique_key: str | None = None
    unique_for: float = 0.0  # seconds; 0: until the job is gone
    fresh: bool = False  # its id was made for this push: no job can have it yet, and nobody needs to look


class PlainBatch(Sequence[PushItem]):
    """Fresh jobs of one queue and level with nothing special about them, as their ids and bodies.

    A driver that adds them by the thousand takes the two lists; for any other this is a sequence of items.
    """

    __slots__ = ("bodies", "ids", "priority", "queue")

    def __init__(self, queue: str, priority: str, ids: list[str], bodies: list[bytes]) -> None:
        self.queue, self.priority, self.ids, self.bodies = queue, priority, ids, bodies

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> PushItem: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PushItem]: ...

    def __getitem__(self, index: int | slice) -> PushItem | Sequence[PushItem]:
        if isinstance(index, slice):
            return PlainBatch(self.queue, self.priority, self.ids[index], self.bodies[index])
        return PushItem(self.ids[index], self.queue, self.priority, self.bodies[index], fresh=True)


class Reservation(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A job that its owner may run until the lease ends. (owner, delivery_count) is the fencing token."""

    id: str  # the job's
    queue: str
    priority: str
    entry_id: str  # where the driver keeps it
    body: bytes
    owner: str
    delivery_count: int  # 1 for the first delivery; more where an earlier owner was lost


class RateLimit(msgspec.Struct, frozen=True):
    """At most ``limit`` starts in any ``per`` seconds, over all workers of the queue together."""

    limit: int
    per: float = 1.0

    def __post_init__(self) -> None:
        whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        timed = isinstance(self.per, (int, float)) and not isinstance(self.per, bool)
        if not whole or self.limit < 1 or not timed or not 0 < self.per < math.inf:
            raise InvalidInput(
                f"a rate limit needs a whole number of at least 1 and a time above 0, not {self!r}"
            )


Outcome: TypeAlias = Literal["complete", "retry", "bury", "release"]


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What became of a reserved job."""

    reservation: Reservation
    outcome: Outcome
    body: bytes = b""  # retry and bury: the envelope as it is to be kept
    delay: float = 0.0  # retry: seconds from now
    reason: str = ""  # bury
    error: str = ""  # bury
    traceback: str = ""  # bury
    attempts: int = 0  # bury


class QueueSize(msgspec.Struct, frozen=True):
    """How much there is in each state. ``oldest`` is the age in seconds of the oldest waiting job."""

    waiting: int
    reserved: int
    delayed: int
    dead: int
    by_priority: dict[str, int]
    oldest: float | None = None
    paused: bool = False

    @property
    def total(self) -> int:
        """What is still to be done: waiting, reserved and delayed."""
        return self.waiting + self.reserved + self.delayed


class FoundJob(msgspec.Struct, frozen=True):
    """Where a job is now."""

    id: str
    queue: str
    state: Literal["waiting", "reserved", "delayed", "dead"]
    priority: str
    body: bytes
    due_in: float | None = None  # delayed: seconds
    owner: str | None = None  # reserved
    delivery_count: int = 0


class DeadLetter(msgspec.Struct, frozen=True):
    """A job that failed for good, with everything that is needed to work on it."""

    id: str  # the job's
    queue: str
    body: bytes
    original_stream: str
    original_id: str
    reason: str
    error: str
    traceback: str
    attempts: int
    moved_at: float


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker process that is alive."""

    id: str
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    started_at: float
    running: int = 0
    completed: int = 0
    failed: int = 0
    age: float = 0.0  # seconds since it was last heard of


class Driver(ABC):
    """Job delivery. See the module's text for the states and for what always holds."""

    name: str
    capabilities: Capabilities

    # -- pushing -----------------------------------------------------------------------------------

    @abstractmethod
    def push(self, items: Sequence[PushItem]) -> list[str]:
        """Make jobs waiting, or delayed; the id of the job that now stands for each item.

        That is the item's own id, or that of an earlier job: an item is not added again while a job of its
        id exists, nor while its unique key is held. A call whose reply was lost is repeated by the
        driver and adds nothing twice, even if the jobs were run in between. A round trip per thousand
        and queue; each is atomic. Raises BrokerFull or BrokerUnavailable: then nothing of the failed
        thousand was added.
        """

    def push_batches(self, batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        """Push batches of up to a thousand in their order, as `push` does; the ids of each when it is pushed.

        A driver may ask for the next batch while the server works at the last one: what makes the batches
        then costs no time of its own.
        """
        return map(self.push, map(list, batches))

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        """Push items to one queue as the call ``number`` of ``line``; whether that took effect now.

        A line is a sequence of calls that outlives the processes that make them. Its last number is kept
        with the queue and changes in the same atomic step that adds the jobs. A call whose number is not
        above it changes nothing and answers False: it was made before, by whomever, and its jobs may be long
        done. A line costs one small entry, however many calls it has; nothing is forgotten while it is used,
        and for ten years after. At most a thousand items; with none, only the number is kept.
        """
        raise UnsupportedByDriver(self.name, "numbered pushes, which the outbox and cron need")

    def last_number(self, queue: str, line: str) -> int:
        """The number that a line has come to; 0 for a new one."""
        raise UnsupportedByDriver(self.name, "numbered pushes, which the outbox and cron need")

    # -- working -----------------------------------------------------------------------------------

    @abstractmethod
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
        """Take up to ``count`` waiting jobs for ``owner``.

        Strictly in the order of priority over all ``queues``, except that a job that has waited longer than
        ``max_wait`` seconds goes first; within a priority the queues take turns and each is first in, first
        out. Paused queues are passed over; ``limits`` caps how many start, over all workers: what is not
        allowed yet stays waiting. With nothing to take, the call waits up to ``wait`` seconds for a push, a
        promotion, a resume or the next free start of a limit.
        """

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Say what became of reserved jobs; for each whether the caller still owned it.

        complete: the job is gone, its unique key free (unless held for a time). retry: it is delayed
        (or waiting) with its new body, its id kept. bury: it is dead, with its new body. release:
        it is waiting again at the front of its priority where the driver can do that, and this
        delivery counts as if it had not been. One round trip per queue and thousand.
        """

    @abstractmethod
    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        """Begin the leases anew; for each whether the caller still owns the job."""

    @abstractmethod
    def recover(self, queues: Sequence[str], owner: str, lease: float, count: int = 100) -> list[Reservation]:
        """Take over jobs whose lease of ``lease`` seconds ended, each with its delivery count raised.

        Looks at a bounded part of what is reserved in each call and goes on where the last one ended.
        """

    @abstractmethod
    def lease_lost(self, reservation: Reservation) -> bool:
        """Whether somebody else owns the job by now, or it is gone."""

    # -- time --------------------------------------------------------------------------------------

    @abstractmethod
    def promote_due(self, queues: Sequence[str], limit: int = 1000) -> int:
        """Make delayed jobs waiting whose time has come; how many. Any number of callers may race."""

    @abstractmethod
    def next_due(self, queues: Sequence[str]) -> float | None:
        """Seconds until the next delayed job is due (0 if it is); None where there is none."""

    @abstractmethod
    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        """Sleep until a job may be due: until the time of the first one, or for ``timeout`` seconds.

        Returns early when a job is delayed that is due earlier, and soon after ``stop`` is set.
        """

    # -- looking -----------------------------------------------------------------------------------

    @abstractmethod
    def size(self, queue: str) -> QueueSize:
        """How much there is in each state; zeros for a queue that nobody ever used."""

    @abstractmethod
    def queues(self) -> list[str]:
        """The queues that were ever pushed to, sorted."""

    @abstractmethod
    def stream_keys(self, queue: str) -> list[str]:
        """The names of what holds the waiting jobs, in priority order."""

    @abstractmethod
    def find(self, job_id: str, queue: str | None = None) -> FoundJob | None:
        """Where a job is; None where it is not known (any more). Without ``queue`` every queue is asked."""

    @abstractmethod
    def delayed(self, queue: str, count: int = 100) -> list[FoundJob]:
        """The delayed jobs that are due first."""

    # -- keeping house -----------------------------------------------------------------------------

    @abstractmethod
    def clear(self, queue: str) -> int:
        """Forget every waiting and delayed job; how many. Reserved and dead ones stay."""

    @abstractmethod
    def pause(self, queue: str) -> None:
        """Let nobody reserve from the queue until resume; pushing goes on."""

    @abstractmethod
    def resume(self, queue: str) -> None:
        """End a pause."""

    @abstractmethod
    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        """Forget a job that is waiting or delayed; whether it was. A reserved one is not touched."""

    # -- dead letters ------------------------------------------------------------------------------

    @abstractmethod
    def dead(self, queue: str, *, start: str = "", count: int = 100) -> list[DeadLetter]:
        """Dead letters, oldest first, after the job id ``start``."""

    @abstractmethod
    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        """One dead letter."""

    @abstractmethod
    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        """Make dead letters waiting (or delayed) again, under their ids and with the bodies given.

        Atomic for each: it is never lost and never in both places. False for one that is not dead.
        """

    @abstractmethod
    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool:
        """Replace a dead letter's body; whether it was there."""

    @abstractmethod
    def clear_dead(self, queue: str, job_ids: Sequence[str] | None = None) -> int:
        """Forget dead letters, all of them or those named; how many."""

    # -- workers -----------------------------------------------------------------------------------

    @abstractmethod
    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        """Say that a worker is alive; it is forgotten ``ttl`` seconds after the last call."""

    @abstractmethod
    def workers(self) -> list[WorkerInfo]:
        """The workers that are alive."""

    @abstractmethod
    def retire(self, worker_id: str, queues: Sequence[str]) -> None:
        """Forget a worker that ended in good order, and its consumers where they hold nothing."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections; any later call raises BrokerClosed."""
