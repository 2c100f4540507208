"""SqlDriver: job delivery on a table of SQLite, PostgreSQL, MySQL or MariaDB.

What is true of it beyond the contract, in the words of StreamDriver where it is the same:

* A job that holds its unique key "until it is gone" gives it back when it is completed, cancelled, cleared or
  buried. A dead letter that is retried takes its key again where it is free.
* A job goes first when it has waited for four fifths of ``max_wait``.
* A released job goes to the front of its priority and keeps its delivery count.
* A delayed job that is promoted stands in line as if it had been pushed when it was due.
* ``moved_at`` of a dead letter is in seconds since the epoch. An edited letter keeps its place.
* A push may join a transaction of the caller's: `push_in`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD, check_name
from millstream.connecting import OF_SQL, readers
from millstream.drivers import checks
from millstream.drivers.base import (
    Capabilities,
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
from millstream.drivers.keys import QueueKeys
from millstream.drivers.sql.calls import Calls
from millstream.drivers.sql.cutting import by_queue, check_prefix, check_version, chunks
from millstream.drivers.sql.joining import joined
from millstream.drivers.sql.keeping import Keeper
from millstream.drivers.sql.layout import CHUNK, LAST, Words
from millstream.drivers.sql.names import QueueNames
from millstream.drivers.sql.numbering import Numbering
from millstream.drivers.sql.pushing import Pusher
from millstream.drivers.sql.reserving import Reserver
from millstream.drivers.sql.settling import Settler
from millstream.drivers.sql.waking import JobHub, due_key, waiting_key
from millstream.drivers.sql.workers import Workers
from millstream.envelope import PRIORITIES
from millstream.errors import BrokerClosed, ConfigurationError
from millstream.sql.database import Database
from millstream.sql.engine import ENGINE_OPTIONS, EngineOptions, parse_url
from millstream.sql.schema import DEFAULT_PREFIX as DEFAULT_TABLES

DEFAULT_PREFIX = "millstream"
STOP_CHECK = 0.05  # seconds until a wait notices that it is to stop
_OLDEST_SQLITE = (3, 35)  # the first with RETURNING
_NOTHING = QueueSize(0, 0, 0, 0, dict.fromkeys(PRIORITIES, 0))


# What may stand in the URL, with the readers of the texts.
OPTIONS = readers({name: OF_SQL[name] for name in ("max_payload", "retry_for", "prefix", "tables", "create")})


class SqlDriver(Driver):
    """Jobs in a SQL database.

    ``url`` is explained in `millstream.sql.engine`; what it says wins over the arguments. The database is
    asked at once, so that a wrong address, a wrong password or a missing schema shows here.

    Drivers with the same ``prefix`` see the same jobs. ``tables`` begins the names of the tables.
    ``create`` brings the schema up to date; the default is to do so for SQLite and not for a server.
    ``retry_for`` is for how many seconds a call is repeated when the connection is lost. Other ``options``
    are those of `EngineOptions`.
    """

    name = "sql"
    capabilities = Capabilities()

    def __init__(
        self,
        url: str = "sqlite:///millstream.db",
        *,
        prefix: str = DEFAULT_PREFIX,
        tables: str = DEFAULT_TABLES,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        retry_for: float = 30.0,
        create: bool | None = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name not in ENGINE_OPTIONS:
                known = ", ".join(sorted({**OPTIONS, **ENGINE_OPTIONS}))
                raise ConfigurationError(f"unknown option {name!r}; allowed are: {known}")
        target = parse_url(url, OPTIONS)
        settings: dict[str, Any] = {
            **{"prefix": prefix, "tables": tables, "max_payload": max_payload},
            **{"retry_for": retry_for, "create": create},
            **options,
            **target.asked,
        }
        self.prefix = check_prefix(settings["prefix"])
        self._max_payload: int = settings["max_payload"]
        patience: float = checks.check_seconds("retry_for", settings["retry_for"])
        if target.backend == "sqlite" and sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old for jobs; 3.35 or newer is needed"
            )
        engine = EngineOptions(**{name: settings[name] for name in ENGINE_OPTIONS if name in settings})
        self.closed = False
        self._database = database = Database.open(
            target, engine, prefix=settings["tables"], create=settings["create"]
        )
        try:
            check_version(database)
        except BaseException:
            database.close()
            raise
        words = Words(database)
        self._hub = hub = database.part(JobHub)
        self._names = QueueNames(database, words, self.prefix, patience)
        self._calls = calls = Calls(database, words, patience)
        self._pusher = Pusher(database, words, hub, calls, patience)
        self._numbering = Numbering(database, words, self._pusher, patience)
        self._reserver = Reserver(database, words, hub, patience)
        self._settler = Settler(database, words, hub, calls, self._pusher, patience)
        self._keeper = Keeper(database, words, hub, calls, self._pusher, self.prefix, patience)
        self._workers = Workers(database, words, self.prefix, patience)

    # -- pushing -----------------------------------------------------------------------------------

    def push(self, items: Sequence[PushItem]) -> list[str]:
        self._check_open()
        checks.check_items(items, self._max_payload)
        if len(items) == 1:  # the usual call, without the way round
            return self._pusher.push(self._names.for_push(items[0].queue), items)
        return by_queue(
            items,
            lambda item: item.queue,
            lambda queue, some: self._pusher.push(self._names.for_push(queue), some),
        )

    def push_in(self, connection: Any, items: Sequence[PushItem]) -> list[str]:
        """Push in the transaction of ``connection``: committed with it, rolled back with it.

        ``connection`` is a SQLAlchemy Connection or Session, or a connection of psycopg, sqlite3 or PyMySQL,
        to the database of this driver. Who waits for jobs is woken when the transaction is committed
        (PostgreSQL), or finds them within the twentieth part of a second.

        An item with a unique key locks its queue for other such items until the transaction ends. What the
        connection's library raises is raised as it is.
        """
        self._check_open()
        checks.check_items(items, self._max_payload)
        keys = {queue: self._names.known(queue) for queue in {item.queue for item in items}}

        def after_commit() -> None:
            for number in keys.values():
                if number is not None:
                    self._hub.ring_keys((waiting_key(number), due_key(number)))

        writer = joined(connection, self._database.backend, after_commit)

        def step(queue: str, some: Sequence[PushItem]) -> list[str]:
            if self._database.backend == "sqlite":
                number = self._names.within(writer, queue)  # the caller has the only lock there is
            else:
                number = self._names.for_push(queue)
            return self._pusher.within(writer, number, some)

        return by_queue(items, lambda item: item.queue, step)

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        self._check_open()
        checks.check_numbered(queue, line, number, items, self._max_payload)
        known = self._names.for_push(queue) if items else self._names.of(queue)
        return self._numbering.push(known, line, number, items)

    def last_number(self, queue: str, line: str) -> int:
        self._check_open()
        number = self._names.known(checks.check_queue(queue))
        return 0 if number is None else self._numbering.last(number, check_name("line", line))

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
        self._check_open()
        names = checks.check_queues(queues)
        checks.check_owner(owner)
        checks.check_count("count", count)
        checks.check_seconds("wait", wait)
        if max_wait is not None:
            checks.check_seconds("max_wait", max_wait)
        allowed = checks.check_limits(limits)
        numbers = {name: self._names.of(name) for name in names}
        return self._reserver.reserve(self, numbers, owner, count, wait, max_wait, allowed)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._check_open()
        for settlement in settlements:
            if settlement.outcome != "complete":
                checks.check_settlement(settlement, self._max_payload)

        def step(queue: str, some: Sequence[Settlement]) -> list[bool]:
            number = self._names.known(queue)
            return [False] * len(some) if number is None else self._settler.settle(number, some)

        return by_queue(settlements, lambda one: one.reservation.queue, step)

    def extend(self, reservations: Sequence[Reservation]) -> list[bool]:
        self._check_open()

        def step(queue: str, some: Sequence[Reservation]) -> list[bool]:
            number = self._names.known(queue)
            return [False] * len(some) if number is None else self._settler.extend(number, some)

        return by_queue(reservations, lambda one: one.queue, step)

    def recover(self, queues: Sequence[str], owner: str, lease: float, count: int = 100) -> list[Reservation]:
        self._check_open()
        checks.check_owner(owner)
        checks.check_seconds("lease", lease, above=0)
        checks.check_count("count", count)
        found: list[Reservation] = []
        for queue, number in self._used(checks.check_queues(queues)):
            if len(found) < count:
                most = min(count - len(found), CHUNK)
                found += self._reserver.recover((queue, number), owner, lease, most)
        return found

    def lease_lost(self, reservation: Reservation) -> bool:
        self._check_open()
        number = self._names.known(reservation.queue)
        return number is None or not self._settler.owned(number, reservation)

    # -- time --------------------------------------------------------------------------------------

    def promote_due(self, queues: Sequence[str], limit: int = 1000) -> int:
        self._check_open()
        checks.check_count("limit", limit)
        promoted = 0
        for _, number in self._used(checks.check_queues(queues)):
            while promoted < limit:
                asked = min(CHUNK, limit - promoted)
                done = self._keeper.promote(number, asked)
                promoted += done
                if done < asked:
                    break
        return promoted

    def next_due(self, queues: Sequence[str]) -> float | None:
        self._check_open()
        numbers = [number for _, number in self._used(checks.check_queues(queues))]
        return self._keeper.next_due(numbers) if numbers else None

    def wait_for_due(self, queues: Sequence[str], timeout: float, stop: threading.Event) -> None:
        self._check_open()
        checks.check_seconds("timeout", timeout)
        numbers = [self._names.of(name) for name in checks.check_queues(queues)]
        deadline = monotonic() + timeout
        waiter = self._hub.join_any(self, [due_key(number) for number in numbers])
        try:
            earliest = LAST  # what was known to be due when the wait began
            known = False
            while not (stop.is_set() or self.closed):
                version = self._hub.version(waiter)
                pos, span = self._keeper.first_due(numbers) or (LAST, float("inf"))
                due = monotonic() + span
                if span == 0 or monotonic() >= deadline or (known and pos < earliest):
                    return
                earliest, known = pos, True
                if self._hub.arm(waiter):
                    continue
                while version == self._hub.version(waiter) and not (stop.is_set() or self.closed):
                    left = min(deadline, due) - monotonic()
                    if left <= 0:
                        break
                    waiter.wait(version, monotonic() + min(left, STOP_CHECK))
        finally:
            self._hub.leave(waiter)

    # -- looking -----------------------------------------------------------------------------------

    def size(self, queue: str) -> QueueSize:
        self._check_open()
        number = self._names.known(checks.check_queue(queue))
        return _NOTHING if number is None else self._keeper.size(number)

    def queues(self) -> list[str]:
        self._check_open()
        return self._names.pushed()

    def stream_keys(self, queue: str) -> list[str]:
        return list(QueueKeys(self.prefix, checks.check_queue(queue)).streams)

    def find(self, job_id: str, queue: str | None = None) -> FoundJob | None:
        self._check_open()
        check_name("job id", job_id)
        return self._keeper.find(self._asked(queue), job_id)

    def delayed(self, queue: str, count: int = 100) -> list[FoundJob]:
        self._check_open()
        checks.check_count("count", count)
        number = self._names.known(checks.check_queue(queue))
        return [] if number is None else self._keeper.delayed(number, queue, count)

    # -- keeping house -----------------------------------------------------------------------------

    def clear(self, queue: str) -> int:
        self._check_open()
        number = self._names.known(checks.check_queue(queue))
        return 0 if number is None else self._keeper.clear(number)

    def pause(self, queue: str) -> None:
        self._check_open()
        self._keeper.pause(self._names.of(checks.check_queue(queue)), True)

    def resume(self, queue: str) -> None:
        self._check_open()
        self._keeper.pause(self._names.of(checks.check_queue(queue)), False)

    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        self._check_open()
        check_name("job id", job_id)
        return any(self._keeper.cancel(number, job_id) for number in self._asked(queue))

    # -- dead letters ------------------------------------------------------------------------------

    def dead(self, queue: str, *, start: str = "", count: int = 100) -> list[DeadLetter]:
        self._check_open()
        checks.check_count("count", count)
        number = self._names.known(checks.check_queue(queue))
        return [] if number is None else self._keeper.dead(number, queue, start, count)

    def dead_letter(self, queue: str, job_id: str) -> DeadLetter | None:
        self._check_open()
        check_name("job id", job_id)
        number = self._names.known(checks.check_queue(queue))
        return None if number is None else self._keeper.dead_letter(number, queue, job_id)

    def retry_dead(self, queue: str, items: Sequence[PushItem]) -> list[bool]:
        self._check_open()
        checks.check_queue(queue)
        checks.check_items(items, self._max_payload)
        number = self._names.known(queue)
        if number is None:
            return [False] * len(items)
        return [answer for some in chunks(items) for answer in self._keeper.retry_dead(number, some)]

    def update_dead(self, queue: str, job_id: str, body: bytes) -> bool:
        self._check_open()
        check_name("job id", job_id)
        checks.check_body(body, self._max_payload)
        number = self._names.known(checks.check_queue(queue))
        return number is not None and self._keeper.update_dead(number, job_id, body)

    def clear_dead(self, queue: str, job_ids: Sequence[str] | None = None) -> int:
        self._check_open()
        number = self._names.known(checks.check_queue(queue))
        for job_id in job_ids or ():
            check_name("job id", job_id)
        if number is None:
            return 0
        if job_ids is None:
            return self._keeper.clear_dead(number, None)
        return sum(self._keeper.clear_dead(number, some) for some in chunks(list(job_ids)))

    # -- workers -----------------------------------------------------------------------------------

    def beat(self, worker: WorkerInfo, ttl: float) -> None:
        self._check_open()
        check_name("worker", worker.id)
        checks.check_seconds("ttl", ttl, above=0)
        self._workers.beat(worker, ttl)

    def workers(self) -> list[WorkerInfo]:
        self._check_open()
        return self._workers.alive()

    def retire(self, worker_id: str, queues: Sequence[str]) -> None:
        self._check_open()
        check_name("worker", worker_id)
        checks.check_queues(queues)
        self._workers.retire(worker_id)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._hub.broker_closed(self)
            self._calls.close()
            self._database.close()

    # -- helpers -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise BrokerClosed

    def _used(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        """The queues that somebody used, with their numbers."""
        for name in names:
            number = self._names.known(name)
            if number is not None:
                yield name, number

    def _asked(self, queue: str | None) -> dict[int, str]:
        """The queues to ask, by number."""
        if queue is None:
            return {number: name for name, number in self._names.numbers().items()}
        number = self._names.known(checks.check_queue(queue))
        return {} if number is None else {number: queue}
