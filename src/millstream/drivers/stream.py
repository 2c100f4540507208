"""StreamDriver: job delivery on a stream broker, in memory or on Redis.

The driver checks arguments and cuts calls into atomic steps; `local_steps.py` and `redis_steps.py` make
them. What is true of both beyond the contract:

* A job that holds its unique key "until it is gone" gives it back when it is completed, cancelled, cleared or
  buried: a dead job is no longer on its way, and must not keep the next one from being tried. A dead
  letter that is retried takes its key again where it is free.
* A job goes first when it has waited for four fifths of ``max_wait``: it has started when all of it is over.
* A released job goes to the front of its priority and keeps its delivery count.
* ``moved_at`` of a dead letter is in seconds since the epoch. An edited letter keeps its place.
* An owner's name is one driver object's at a time: what the server gave to the owner in a reply that was lost
  is found again by comparing with what this object handed out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from millstream.brokers.base import StreamBroker
from millstream.brokers.local import LocalStreamBroker
from millstream.brokers.payload import check_name
from millstream.config import open_broker, scheme_of
from millstream.drivers import checks
from millstream.drivers.base import (
    DeadLetter,
    Driver,
    FoundJob,
    PlainBatch,
    PushItem,
    QueueSize,
    RateLimit,
    Reservation,
    Settlement,
    WorkerInfo,
)
from millstream.drivers.keys import QueueKeys
from millstream.drivers.steps import Steps
from millstream.errors import BrokerClosed, ConfigurationError

CHUNK = 1000  # jobs per step: a script stops the server while it runs
DEFAULT_PREFIX = "millstream"
T = TypeVar("T")


class StreamDriver(Driver):
    """Jobs on a LocalStreamBroker or a RedisStreamBroker.

    Drivers on the same broker, or on the same server, and with the same ``prefix`` see the same jobs. The
    broker stays the caller's to close, unless ``owned``. ``retry_for`` is for how many seconds a call
    is repeated when the connection is lost (Redis only).
    """

    name = "stream"

    def __init__(
        self,
        broker: StreamBroker,
        prefix: str = DEFAULT_PREFIX,
        *,
        retry_for: float = 30.0,
        owned: bool = False,
    ) -> None:
        checks.check_prefix(prefix)
        checks.check_seconds("retry_for", retry_for)
        self.broker, self.prefix = broker, prefix
        self._owned = owned
        self._steps = _steps_for(broker, prefix, retry_for)
        self._closed = False
        self.capabilities = self._steps.capabilities

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, items: Sequence[PushItem]) -> list[str]:
        steps = self._open()
        checks.check_items(items, steps.max_payload)
        if len(items) == 1:
            return steps.push(items[0].queue, items)
        return _by_queue(items, _queue_of_item, steps.push)

    def push_batches(self, batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        for queue, those in groupby(batches, _only_queue):
            if queue is None:
                yield from map(self.push, map(list, those))
            else:
                steps = self._open()
                yield from steps.push_ahead(queue, _checked(those, steps.max_payload))

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        steps = self._open()
        checks.check_numbered(queue, line, number, items, steps.max_payload)
        return steps.push_numbered(queue, line, number, items)

    def last_number(self, queue: str, line: str) -> int:
        return self._open().last_number(checks.check_queue(queue), check_name("line", line))

    # -- working -----------------------------------------------------------------------------------

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
        steps = self._open()
        names = checks.check_queues(queues)
        checks.check_owner(owner)
        checks.check_count("count", count)
        checks.check_seconds("wait", wait)
        if max_wait is not None:
            checks.check_seconds("max_wait", max_wait)
        found = checks.check_limits(limits)
        return steps.reserve(names, owner, count, wait, max_wait, found)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        steps = self._open()
        limit = steps.max_payload
        for settlement in settlements:
            if settlement.outcome != "complete":
                checks.check_settlement(settlement, limit)
        return _by_queue(settlements, _queue_of_settlement, steps.settle)

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        return _by_queue(reservations, _queue_of_reservation, self._open().extend)

    def recover(self, queues: Sequence[str], owner: str, lease: float, count: int = 100) -> list[Reservation]:
        steps = self._open()
        checks.check_owner(owner)
        checks.check_seconds("lease", lease, above=0)
        checks.check_count("count", count)
        found: list[Reservation] = []
        for queue in checks.check_queues(queues):
            if len(found) < count:
                found += steps.recover(queue, owner, lease, min(count - len(found), CHUNK))
        return found

    def lease_lost(self, reservation: Reservation) -> bool:
        return self._open().lease_lost(reservation)

    # -- time --------------------------------------------------------------------------------------

    def promote_due(self, queues: Sequence[str], limit: int = 1000) -> int:
        steps = self._open()
        checks.check_count("limit", limit)
        promoted = 0
        for queue in checks.check_queues(queues):
            while promoted < limit:
                asked = min(CHUNK, limit - promoted)
                done = steps.promote(queue, asked)
                promoted += done
                if done < asked:
                    break
        return promoted

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._open().next_due(checks.check_queues(queues))

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        steps = self._open()
        names = checks.check_queues(queues)
        checks.check_seconds("timeout", timeout)
        steps.wait_for_due(names, timeout, stop)

    # -- looking -----------------------------------------------------------------------------------

    def size(self, queue: str) -> QueueSize:
        return self._open().size(checks.check_queue(queue))

    def queues(self) -> list[str]:
        return self._open().queues()

    def stream_keys(self, queue: str) -> list[str]:
        return list(QueueKeys(self.prefix, checks.check_queue(queue)).streams)

    def find(self, job_id: str, queue: str | None = None) -> FoundJob | None:
        steps = self._open()
        check_name("job id", job_id)
        for name in self._asked(queue):
            found = steps.find(name, job_id)
            if found is not None:
                return found
        return None

    def delayed(self, queue: str, count: int = 100) -> list[FoundJob]:
        checks.check_count("count", count)
        return self._open().delayed(checks.check_queue(queue), count)

    # -- keeping house -----------------------------------------------------------------------------

    def clear(self, queue: str) -> int:
        return self._open().clear(checks.check_queue(queue))

    def pause(self, queue: str) -> None:
        self._open().pause(checks.check_queue(queue))

    def resume(self, queue: str) -> None:
        self._open().resume(checks.check_queue(queue))

    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        steps = self._open()
        check_name("job id", job_id)
        return any(steps.cancel(name, job_id) for name in self._asked(queue))

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, queue: str, *, start: str = "", count: int = 100) -> list[DeadLetter]:
        checks.check_count("count", count)
        return self._open().dead(checks.check_queue(queue), start, count)

    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        check_name("job id", job_id)
        return self._open().dead_letter(checks.check_queue(queue), job_id)

    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        steps = self._open()
        checks.check_queue(queue)
        checks.check_items(items, steps.max_payload)
        return [answer for chunk in _chunks(items) for answer in steps.retry_dead(queue, chunk)]

    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool:
        steps = self._open()
        check_name("job id", job_id)
        checks.check_body(body, steps.max_payload)
        return steps.update_dead(checks.check_queue(queue), job_id, body)

    def clear_dead(self, queue: str, job_ids: Sequence[str] | None = None) -> int:
        steps = self._open()
        checks.check_queue(queue)
        if job_ids is None:
            return steps.clear_dead(queue, None)
        for job_id in job_ids:
            check_name("job id", job_id)
        return sum(steps.clear_dead(queue, chunk) for chunk in _chunks(list(job_ids)))

    # -- workers -----------------------------------------------------------------------------------

    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        check_name("worker", worker.id)
        checks.check_seconds("ttl", ttl, above=0)
        self._open().beat(worker, ttl)

    def workers(self) -> list[WorkerInfo]:
        return self._open().workers()

    def retire(self, worker_id: str, queues: Sequence[str]) -> None:
        check_name("worker", worker_id)
        self._open().retire(worker_id, checks.check_queues(queues))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._steps.close()
            if self._owned:
                self.broker.close()

    # -- helpers -----------------------------------------------------------------------------------

    def _open(self) -> Steps:
        if self._closed:
            raise BrokerClosed
        return self._steps

    def _asked(self, queue: str | None) -> list[str]:
        return self._steps.queues() if queue is None else [checks.check_queue(queue)]


def open_stream_driver(
    url: str = "memory://", *, prefix: str = DEFAULT_PREFIX, retry_for: float = 30.0, **options: Any
) -> StreamDriver:
    """A StreamDriver on the broker that ``url`` names, which it closes with itself.

    ``options`` are the broker's. Nothing unprocessed is ever trimmed, so a limit on the length of streams is
    refused. Raises what `open_broker` raises.
    """
    if options.get("max_stream_length") is not None:
        raise ConfigurationError("a job queue's streams are never trimmed: leave out max_stream_length")
    if scheme_of(url) == "memory":
        options["max_stream_length"] = None
    return StreamDriver(open_broker(url, **options), prefix, retry_for=retry_for, owned=True)


def _steps_for(broker: StreamBroker, prefix: str, retry_for: float) -> Steps:
    if isinstance(broker, LocalStreamBroker):
        from millstream.drivers.local_steps import LocalSteps  # noqa: PLC0415 - either of the two is needed

        return LocalSteps(broker, prefix)
    try:
        from millstream.brokers.redis import RedisStreamBroker  # noqa: PLC0415 - an extra
        from millstream.drivers.redis_steps import RedisSteps  # noqa: PLC0415
    except ModuleNotFoundError:
        pass  # without the extra it can be no broker of that kind
    else:
        if isinstance(broker, RedisStreamBroker):
            return RedisSteps(broker, prefix, retry_for)
    raise ConfigurationError(
        f"StreamDriver works on a LocalStreamBroker or a RedisStreamBroker, not on {type(broker).__name__}"
    )


def _only_queue(items: Sequence[PushItem]) -> str | None:
    """The queue of a batch that can be one step."""
    queues = {items.queue} if isinstance(items, PlainBatch) else set(map(_queue_of_item, items))
    return queues.pop() if len(queues) == 1 and len(items) <= CHUNK else None


def _checked(batches: Iterable[Sequence[PushItem]], max_payload: int) -> Iterator[Sequence[PushItem]]:
    for items in batches:
        checks.check_items(items, max_payload)
        yield items


def _queue_of_item(item: PushItem) -> str:
    return item.queue


def _queue_of_settlement(settlement: Settlement) -> str:
    return settlement.reservation.queue


def _queue_of_reservation(reservation: Reservation) -> str:
    return reservation.queue


def _chunks(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[at : at + CHUNK] for at in range(0, len(items), CHUNK))


def _by_queue(items: Sequence[T], queue_of: Any, step: Any) -> list[Any]:
    """``step(queue, chunk)`` for each queue and thousand; the answers in the order of ``items``."""
    if not items:
        return []
    queues = set(map(queue_of, items))
    if len(queues) == 1:
        queue = queues.pop()
        if len(items) <= CHUNK:
            found: list[Any] = step(queue, items)
            return found
        return [answer for chunk in _chunks(items) for answer in step(queue, chunk)]
    positions: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        positions.setdefault(queue_of(item), []).append(position)
    answers: list[Any] = [None] * len(items)
    for queue, places in positions.items():
        for chunk in _chunks(places):
            for position, answer in zip(chunk, step(queue, [items[place] for place in chunk]), strict=True):
                answers[position] = answer
    return answers
