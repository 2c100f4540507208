"""Waking those who wait for jobs, for all drivers of this process on one database.

The hub and the watching thread are the stream broker's. What differs is what is watched: for each queue the
heads of its waiting lanes (its key is its number) and the first delayed job (its key is the number and
``d``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from millstream.brokers.sql.waiting import Hub
from millstream.brokers.sql.watching import ARMED_FOR, Watch
from millstream.drivers.sql.layout import DELAYED, PLACES, WAITING, Words
from millstream.drivers.sql.taking import Floors
from millstream.sql.database import Database

MANY = 50  # queues of one question


def waiting_key(queue: int) -> str:
    return str(queue)


def due_key(queue: int) -> str:
    return f"{queue}d"


def _number(key: str) -> int:
    return int(key.rstrip("d"))


class Heads:
    """Asks for the first position of every lane of some queues, in one statement."""

    def __init__(self, words: Words, lanes: Sequence[int]) -> None:
        self._lanes = lanes
        self._words = words
        # With constants in place of a join, each head is one step into the index, on every database.
        one = ", ".join(
            f"(SELECT pos FROM {{p}}jobs WHERE queue = ? AND lane = {lane} AND pos >= ?"
            " ORDER BY queue, lane, pos LIMIT 1)"
            for lane in lanes
        )
        self._one = words(f"SELECT id, paused, {{now}}, {one} FROM {{p}}queues WHERE id = ?")

    def ask(self, connection: Any, queues: Sequence[int], floors: Any = None) -> tuple[int, dict[int, Any]]:
        """The time, and for each queue that is there a row: number, paused, the time, a head per lane.

        ``floors(queue, lane)`` is the position from which on to look.
        """
        now, found = 0, {}
        for start in range(0, len(queues), MANY):
            some = queues[start : start + MANY]
            given: list[int] = []
            for queue in some:
                for lane in self._lanes:
                    given += (queue, floors(queue, lane) if floors else 0)
                given.append(queue)
            text = " UNION ALL ".join([self._one] * len(some))
            for row in connection.exec_driver_sql(text, tuple(given)).all():
                found[row[0]] = row
                now = row[2] or 0
        if self._words.backend == "sqlite":
            now = self._words.now(connection)
        return now, found


class JobWatch(Watch):
    """Looks at queues instead of streams."""

    def __init__(self, database: Database, hub: Hub) -> None:
        super().__init__(database, hub)
        self._words = Words(database)
        self._heads = Heads(self._words, (*WAITING, DELAYED))
        self._watch_queue = self._words(
            "UPDATE {p}queues SET watched_until = ({now}) + ? WHERE id IN (%) AND watched_until < ({now}) + ?"
        )

    def channel(self) -> str:
        return job_channel(self._database.prefix)

    def arm_in(self, connection: Connection, keys: list[str]) -> None:
        numbers = sorted(set(map(_number, keys)))
        text = self._watch_queue.replace("(%)", f"({self._words.marks(len(numbers))})")
        span = int(ARMED_FOR * 1_000_000) * PLACES
        connection.exec_driver_sql(text, (span, *numbers, span))

    def poll(self, connection: Connection, keys: list[str]) -> bool:
        _, found = self._heads.ask(connection, sorted(set(map(_number, keys))))
        news = False
        for key in keys:
            row = found.get(_number(key))
            if row is None:
                continue
            heads, due = tuple(row[3:-1]), row[-1]
            if key.endswith("d"):
                news = self._hub.saw(key, (due,)) or news
                continue
            news = self._hub.saw(key, (row[1], heads)) or news
            if not row[1] and any(head is not None for head in heads):
                # The same heads may have been away in between. Who waits although there is something looks
                # again.
                self._hub.ring(key)
        return news

    def heard(self, said: str) -> None:
        for key in said.split():
            self._hub.ring(key)


class JobHub(Hub):
    """Everybody who waits for jobs. A part of its `Database`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._watch = JobWatch(database, self)
        self._words = Words(database)
        self._notify = self._words(
            "SELECT CAST(pg_notify(?, ?) AS TEXT) FROM {p}queues WHERE id = ANY(CAST(? AS BIGINT[]))"
            " AND watched_until > {now} LIMIT 1"
        )
        self.channel = job_channel(database.prefix)
        self.floors = Floors(database.backend)

    def payload(self, keys: Iterable[str]) -> str:
        return " ".join((self.token, *keys))

    def notify(self, connection: Any, keys: Sequence[str]) -> None:
        """Wake other processes when this transaction is committed. Only with PostgreSQL; else they look."""
        if keys and self._words.backend == "postgresql":
            numbers = sorted(set(map(_number, keys)))
            connection.exec_driver_sql(self._notify, (self.channel, self.payload(keys), numbers))

    def ring_keys(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.ring(key)


def job_channel(prefix: str) -> str:
    return f"{prefix}jobs"
