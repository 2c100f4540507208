"""Reserving: which lanes to take from, in which order, and waiting where there is nothing.

A look at the heads of all lanes says what to take: first what has waited for too long, then level by level,
each queue its share. Taking skips what others hold at that moment. On PostgreSQL each take is one statement
and its own transaction; on the others all of a call's are one transaction. Under a rate limit everything
happens in one transaction behind a lock on the limited queues' rows, because the number of starts is
shared.

Where the answer is lost, the jobs that it held are recovered when their lease ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from sqlalchemy import Connection

from millstream.drivers.base import RateLimit, Reservation
from millstream.drivers.sql.layout import CHUNK, LAST, RESERVED, WAITING, Words, seconds, ticks
from millstream.drivers.sql.taking import Taker
from millstream.drivers.sql.waking import Heads, JobHub, waiting_key
from millstream.errors import BrokerClosed
from millstream.sql.database import Database

GOES_FIRST = 0.8  # of max_wait, so that the job has started when all of it is over
CONTENDED = 0.02  # seconds until another look where the last one may have missed something
SWEEP_EVERY = 5.0  # seconds between two recoveries that look through everything
_NEVER = float("inf")
Queues = Mapping[str, int]


class Caller(Protocol):
    """Who waits."""

    closed: bool


class Limits:
    """Counts the starts of queues, over all workers."""

    def __init__(self, words: Words) -> None:
        self._lock = words("SELECT id FROM {p}queues WHERE id = ?") + words.for_update
        self._forget = words("DELETE FROM {p}starts WHERE queue = ? AND started_at <= ?")
        self._count = words(
            "SELECT COALESCE(SUM(number), 0), MIN(started_at) FROM {p}starts"
            " WHERE queue = ? AND started_at > ?"
        )
        self._note = words("INSERT INTO {p}starts (queue, started_at, number) VALUES (?, ?, ?)")
        self._words = words

    def free(
        self, connection: Any, queues: Queues, limits: Mapping[str, RateLimit]
    ) -> tuple[dict[str, int], float]:
        """How many may start now in each limited queue, and the seconds until one may where it is none."""
        free: dict[str, int] = {}
        span = _NEVER
        for name, number in sorted(queues.items(), key=lambda item: item[1]):
            if name in limits:
                connection.exec_driver_sql(self._lock, (number,))
        now = self._words.now(connection)  # after the lock: nobody notes a start behind it
        for name, number in queues.items():
            limit = limits.get(name)
            if limit is None:
                continue
            since = now - ticks(limit.per)
            connection.exec_driver_sql(self._forget, (number, since))
            started, first = connection.exec_driver_sql(self._count, (number, since)).one()
            free[name] = max(limit.limit - int(started), 0)
            if not free[name]:
                span = min(span, max(seconds(first - since), 0.001))
        return free, span

    def note(self, connection: Any, queue: int, number: int) -> None:
        connection.exec_driver_sql(self._note, (queue, self._words.now(connection), number))


class Reserver:
    """Takes jobs for owners."""

    def __init__(self, database: Database, words: Words, hub: JobHub, retry_for: float) -> None:
        self._database, self._words, self._hub, self._retry_for = database, words, hub, retry_for
        self._heads = Heads(words, WAITING)
        self._taker = Taker(words)
        self._limits = Limits(words)
        self._floors = hub.floors
        self._next_sweep: dict[int, float] = {}
        self._turns = itertools.count()

    def reserve(
        self,
        caller: Caller,
        queues: Queues,
        owner: str,
        count: int,
        wait: float,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> list[Reservation]:
        limits = {name: limit for name, limit in limits.items() if name in queues}
        asked = _Asked(queues, owner, count, max_wait, limits, next(self._turns))
        if wait <= 0:
            return self._look(asked)[0]
        deadline = monotonic() + wait
        waiter = self._hub.join_any(caller, [waiting_key(number) for number in queues.values()])
        try:
            while True:
                if (
                    waiter.error is not None or caller.closed
                ):  # it may have been closed before the waiter joined
                    raise BrokerClosed
                version = self._hub.version(waiter)
                found, pause = self._look(asked)
                if found or monotonic() >= deadline:
                    return found
                if not self._hub.arm(
                    waiter
                ):  # what came before others began to notify is found by looking again
                    waiter.wait(version, min(deadline, monotonic() + pause))
        finally:
            self._hub.leave(waiter)

    def _look(self, asked: _Asked) -> tuple[list[Reservation], float]:
        """What there is now, and the seconds after which it is worth looking again in any case."""
        database = self._database
        if asked.limits:
            return database.write(
                lambda connection: self._take_limited(connection, asked),
                repeat=True,
                durable=False,
                retry_for=self._retry_for,
            )
        numbers = tuple(asked.queues.values())
        from_front = self._floors.front_due(numbers)
        began = monotonic()
        now, heads = database.read(
            lambda connection: self._heads.ask(connection, numbers, None if from_front else self._floors.get),
            retry_for=self._retry_for,
        )
        self._floors.looked(numbers, monotonic() - began, from_front)
        lanes = _open_lanes(heads)
        if not lanes:
            return [], _NEVER if from_front else CONTENDED
        found = self._take_now(asked, now, lanes, asked.count)
        return found, CONTENDED

    def _take_now(
        self, asked: _Asked, now: int, lanes: dict[tuple[int, int], int], count: int
    ) -> list[Reservation]:
        def work(connection: Connection) -> list[Reservation]:
            free = dict.fromkeys(asked.queues, count)
            return self._take(connection, asked, now, lanes, free, count)

        if self._words.backend == "postgresql":
            return self._database.run(work, repeat=True, retry_for=self._retry_for)
        return self._database.write(work, repeat=True, durable=False, retry_for=self._retry_for)

    def _take_limited(self, connection: Connection, asked: _Asked) -> tuple[list[Reservation], float]:
        free, span = self._limits.free(connection, asked.queues, asked.limits)
        for name in asked.queues:
            free.setdefault(name, asked.count)
        allowed = {name: number for name, number in asked.queues.items() if free[name]}
        now, heads = self._heads.ask(connection, list(allowed.values()))
        lanes = _open_lanes(heads)
        if not lanes:
            return [], span
        found = self._take(connection, asked, now, lanes, free, asked.count)
        for name in asked.limits:
            started = sum(1 for reservation in found if reservation.queue == name)
            if started:
                self._limits.note(connection, asked.queues[name], started)
        return found, min(span, CONTENDED)

    # -- what to take ------------------------------------------------------------------------------

    def _take(
        self,
        connection: Connection,
        asked: _Asked,
        now: int,
        lanes: dict[tuple[int, int], int],
        free: dict[str, int],
        count: int,
    ) -> list[Reservation]:
        """Take by the rules from ``lanes``, the heads by queue and lane."""
        found: list[Reservation] = []

        def take(name: str, lane: int, most: int, high: int = LAST) -> list[tuple[int, Reservation]]:
            number = asked.queues[name]
            most = min(most, free[name], count - len(found), CHUNK)
            if most <= 0:
                return []
            low = lanes[number, lane]
            got = self._taker.take(connection, (name, number), lane, most, asked.owner, now, low, high)
            free[name] -= len(got)
            found.extend(reservation for _, reservation in got)
            if got:
                lanes[number, lane] = got[-1][0]
                self._floors.rise(number, lane, got[-1][0])
            return got

        if asked.max_wait is not None:
            self._take_old(connection, asked, now - ticks(asked.max_wait * GOES_FIRST), lanes, count, take)
        for lane in WAITING:
            # Each queue gets its share first; what the others leave goes to those that have more.
            more = [name for name in asked.in_turn if (asked.queues[name], lane) in lanes and free[name] > 0]
            while more and len(found) < count:
                share = min(-(-(count - len(found)) // len(more)), CHUNK)
                more = [name for name in more if len(take(name, lane, share)) == share]
        return found

    def _take_old(
        self,
        connection: Connection,
        asked: _Asked,
        cutoff: int,
        lanes: dict[tuple[int, int], int],
        count: int,
        take: Any,
    ) -> None:
        """Take what has waited since ``cutoff`` or longer, the oldest first."""
        names = {number: name for name, number in asked.queues.items()}
        old = sorted((head, *place) for place, head in lanes.items() if head <= cutoff)
        if len(old) == 1:
            _, number, lane = old[0]
            take(names[number], lane, count, cutoff)
            return
        # Several lanes have some: their positions say how many of each are among the oldest.
        places = sorted(
            (pos, number, lane)
            for head, number, lane in old
            for pos in self._taker.positions(connection, number, lane, head, cutoff, min(count, CHUNK))
        )[:count]
        for _, run in itertools.groupby(places, key=lambda place: place[1:]):
            some = list(run)
            last, number, lane = some[-1]
            take(names[number], lane, len(some), last)

    # -- recovering --------------------------------------------------------------------------------

    def recover(self, queue: tuple[str, int], owner: str, lease: float, count: int) -> list[Reservation]:
        """Take over jobs of one queue whose lease has ended, the oldest first."""
        number = queue[1]
        # Leases begin now or later, so nothing comes to lie before the place where nothing was found;
        # except by a transaction that is committed or rolled back late. So all is looked through now and
        # then.
        from_front = monotonic() >= self._next_sweep.get(number, 0.0)
        if from_front:
            self._next_sweep[number] = monotonic() + SWEEP_EVERY

        def work(connection: Connection) -> list[Reservation]:
            now = self._words.now(connection)
            ended = now - ticks(lease)
            low = 0 if from_front else self._floors.get(number, RESERVED)
            got = self._taker.take(connection, queue, RESERVED, count, owner, now, low, ended)
            if len(got) < count:
                self._floors.rise(number, RESERVED, max(ended - ticks(SWEEP_EVERY), 0))
            return [reservation for _, reservation in got]

        if self._words.backend == "postgresql":
            return self._database.run(work, repeat=True, retry_for=self._retry_for)
        return self._database.write(work, repeat=True, durable=False, retry_for=self._retry_for)


class _Asked:
    """The arguments of one call."""

    __slots__ = ("count", "in_turn", "limits", "max_wait", "owner", "queues")

    def __init__(
        self,
        queues: Queues,
        owner: str,
        count: int,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
        turn: int,
    ) -> None:
        self.queues, self.owner, self.count = queues, owner, count
        self.max_wait, self.limits = max_wait, limits
        names = list(queues)
        first = turn % len(names)
        self.in_turn: Sequence[str] = (*names[first:], *names[:first])


def _open_lanes(heads: Mapping[int, Any]) -> dict[tuple[int, int], int]:
    """The heads of the lanes that have something, of queues that are not paused."""
    return {
        (number, lane): head
        for number, row in heads.items()
        if not row[1]
        for lane, head in zip(WAITING, row[3:], strict=True)
        if head is not None
    }
