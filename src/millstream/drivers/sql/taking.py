"""Taking jobs out of a lane, for an owner: the step that reserve and recover share."""

from __future__ import annotations

from time import monotonic
from typing import Any

from millstream.drivers.base import Reservation
from millstream.drivers.sql.layout import LAST, RESERVED, Words, entry_id, text_of
from millstream.envelope import PRIORITIES

CHEAP = 0.002  # seconds: a look from the front that takes no longer than this beyond the usual is always made
FRONT_SHARE = 0.1  # of the time may be spent on those that take longer


class Floors:
    """From where on to look in each lane, for all drivers of this process.

    PostgreSQL and InnoDB keep the index entries of rows that are gone until somebody cleans up, and
    everybody who looks from the front has to step over them: after a million jobs, a million steps. When
    that begins to show in the time of a look, looks begin where the last one found something. What may lie
    before that (a job that another process released, one whose transaction was committed late) is found by
    a look from the front, which is then made for a tenth of the time. SQLite has no such entries.
    """

    def __init__(self, backend: str) -> None:
        self._needed = backend != "sqlite"
        self._floors: dict[tuple[int, int], int] = {}
        self._next_front: dict[tuple[int, ...], float] = {}
        self._usual: dict[tuple[int, ...], float] = {}  # the shortest time that a look took

    def get(self, queue: int, lane: int) -> int:
        return self._floors.get((queue, lane), 0)

    def rise(self, queue: int, lane: int, pos: int) -> None:
        if self._needed:
            self._floors[queue, lane] = pos

    def forget(self, queue: int, lane: int) -> None:
        """Something was put before the place from which on to look."""
        self._floors.pop((queue, lane), None)

    def front_due(self, queues: tuple[int, ...]) -> bool:
        """Whether to look from the front."""
        return monotonic() >= self._next_front.get(queues, 0.0)

    def looked(self, queues: tuple[int, ...], cost: float, from_front: bool) -> None:
        """A look took ``cost`` seconds."""
        usual = self._usual[queues] = min(self._usual.get(queues, cost), cost)
        if from_front:
            excess = cost - usual
            self._next_front[queues] = 0.0 if excess < CHEAP else monotonic() + excess / FRONT_SHARE


class Taker:
    """Makes the first jobs of a lane an owner's."""

    def __init__(self, words: Words) -> None:
        self._words = words
        where = "queue = ? AND lane = ? AND pos >= ? AND pos <= ?"
        order = "ORDER BY queue, lane, pos LIMIT ?"
        columns = "id, level, seq, body, deliveries"
        new = f"lane = {RESERVED}, pos = %, owner = ?, deliveries = deliveries + 1"
        if words.backend == "postgresql":
            self._take = words(
                f"UPDATE {{p}}jobs SET {new.replace('%', '{now}')} WHERE ctid = ANY(ARRAY("
                f"SELECT ctid FROM {{p}}jobs WHERE {where} {order} FOR UPDATE SKIP LOCKED))"
                f" RETURNING {columns}"
            )
        elif words.backend == "sqlite":
            self._take = words(
                f"UPDATE {{p}}jobs SET {new.replace('%', '?')} WHERE rowid IN ("
                f"SELECT rowid FROM {{p}}jobs WHERE {where} {order}) RETURNING {columns}"
            )
        else:
            self._take = words(
                f"SELECT {columns} FROM {{p}}jobs FORCE INDEX ({words.prefix}jobs_lanes)"
                f" WHERE {where} {order} FOR UPDATE SKIP LOCKED"
            )
            self._keep = (
                words(f"UPDATE {{p}}jobs SET {new.replace('%', '?')} WHERE queue = ? AND id IN (") + "%)"
            )
        self._positions = words(f"SELECT pos FROM {{p}}jobs WHERE {where} {order}")

    def take(
        self,
        connection: Any,
        queue: tuple[str, int],
        lane: int,
        most: int,
        owner: str,
        now: int,
        low: int = 0,
        high: int = LAST,
    ) -> list[tuple[int, Reservation]]:
        """Up to ``most`` jobs of positions from ``low`` to ``high``, in order, each with its seq."""
        name, number = queue
        place = (number, lane, low, high, most)
        if self._words.backend == "postgresql":
            rows = connection.exec_driver_sql(self._take, (owner, *place)).all()
        elif self._words.backend == "sqlite":
            rows = connection.exec_driver_sql(self._take, (now, owner, *place)).all()
        else:
            rows = [(*row[:4], row[4] + 1) for row in connection.exec_driver_sql(self._take, place).all()]
            if rows:
                text = self._keep[:-2] + self._words.marks(len(rows)) + ")"
                connection.exec_driver_sql(text, (now, owner, number, *(row[0] for row in rows)))
        rows.sort(key=lambda row: row[2])
        return [
            (
                seq,
                Reservation(
                    *(text_of(job_id), name, PRIORITIES[level], entry_id(seq)),
                    *(bytes(body), owner, deliveries),
                ),
            )
            for job_id, level, seq, body, deliveries in rows
        ]

    def positions(self, connection: Any, queue: int, lane: int, low: int, high: int, most: int) -> list[int]:
        """The first positions from ``low`` to ``high``, without taking anything."""
        rows = connection.exec_driver_sql(self._positions, (queue, lane, low, high, most)).all()
        return [row[0] for row in rows]
