"""The atomic steps that StreamDriver is made of: each concerns one queue, a thousand jobs at the most.

Arguments were checked by the driver. A step takes effect as a whole or not at all.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

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


class Steps(ABC):
    """What differs between the brokers. The meaning of each is that of the driver's method of that name."""

    capabilities: Capabilities
    max_payload: int

    @abstractmethod
    def push(self, queue: str, items: Sequence[PushItem]) -> list[str]: ...

    def push_ahead(self, queue: str, batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        """Push one batch after the other; a broker that takes its time is sent the next one meanwhile."""
        return (self.push(queue, list(items)) for items in batches)

    @abstractmethod
    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool: ...

    @abstractmethod
    def last_number(self, queue: str, line: str) -> int: ...

    @abstractmethod
    def reserve(
        self,
        queues: Sequence[str],
        owner: str,
        count: int,
        wait: float,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> list[Reservation]: ...

    @abstractmethod
    def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[bool]: ...

    @abstractmethod
    def extend(self, queue: str, reservations: Sequence[Reservation]) -> list[bool]: ...

    @abstractmethod
    def recover(self, queue: str, owner: str, lease: float, count: int) -> list[Reservation]: ...

    @abstractmethod
    def lease_lost(self, reservation: Reservation) -> bool: ...

    @abstractmethod
    def promote(self, queue: str, limit: int) -> int: ...

    @abstractmethod
    def next_due(self, queues: Sequence[str]) -> float | None: ...

    @abstractmethod
    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None: ...

    @abstractmethod
    def size(self, queue: str) -> QueueSize: ...

    @abstractmethod
    def queues(self) -> list[str]: ...

    @abstractmethod
    def find(self, queue: str, job_id: str) -> FoundJob | None: ...

    @abstractmethod
    def delayed(self, queue: str, count: int) -> list[FoundJob]: ...

    @abstractmethod
    def clear(self, queue: str) -> int: ...

    @abstractmethod
    def pause(self, queue: str) -> None: ...

    @abstractmethod
    def resume(self, queue: str) -> None: ...

    @abstractmethod
    def cancel(self, queue: str, job_id: str) -> bool: ...

    @abstractmethod
    def dead(self, queue: str, start: str, count: int) -> list[DeadLetter]: ...

    @abstractmethod
    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None: ...

    @abstractmethod
    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]: ...

    @abstractmethod
    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool: ...

    @abstractmethod
    def clear_dead(self, queue: str, job_ids: Sequence[str] | None) -> int: ...

    @abstractmethod
    def beat(self, worker: WorkerInfo, ttl: float) -> None: ...

    @abstractmethod
    def workers(self) -> list[WorkerInfo]: ...

    @abstractmethod
    def retire(self, worker_id: str, queues: Sequence[str]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...
