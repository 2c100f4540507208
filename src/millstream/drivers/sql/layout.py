"""How jobs lie in the database, and the words in which the databases differ.

A job is one row of ``jobs`` from its push to its end, found by (queue, id). Two columns say where it is:

    lane 0..3   waiting, one lane for each priority      pos: since when it waits
    lane 4      reserved                                 pos: when its lease began
    lane 5      delayed                                  pos: when it is due
    lane 6      dead (what happened is in ``letters``)   pos: when it was buried

So one index, (queue, lane, pos), has in its order everything that is ever asked for: the first that waits,
the oldest lease, the first that is due. Each such question reads the rows it answers with and no others,
however large the table is, and the hot table has no second index to keep.

A ``pos`` is a moment of the server's clock in *ticks*: microseconds, and below them ten bits for the place
within a call, so that the jobs of one push keep their order. ``seq`` is the pos at which the job was last
put into a waiting lane. It is the entry id, survives reservation and recovery, and is what a released job
goes back to: the front. A delayed job keeps its pos when it is promoted, and stands in line as if it had
been pushed at that moment.

The fencing token of a reservation is (seq, owner, deliveries): a row whose three values are others is
somebody else's.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from millstream.drivers.base import Reservation
from millstream.envelope import PRIORITIES
from millstream.sql.database import Database

RESERVED, DELAYED, DEAD = 4, 5, 6
WAITING = range(len(PRIORITIES))
NOT_RESERVED = (*WAITING, DELAYED)  # what may be cancelled and cleared
PLACES = 1024  # within one microsecond
SECOND = 1_000_000 * PLACES  # in ticks
LAST = (1 << 63) - 1  # above every pos
CHUNK = 1000  # jobs of one statement; below PLACES
LEVELS = {name: number for number, name in enumerate(PRIORITIES)}

# The moment at which the statement began: the same for every row, so that an index can be searched by it.
NOW = {
    "sqlite": "NULL",  # this machine's clock, which `now` asks
    "postgresql": f"CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT) * {PLACES}",
    "mysql": f"CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) * {PLACES}",
}


def ticks(seconds: float) -> int:
    return int(seconds * 1_000_000) * PLACES


def seconds(span: int) -> float:
    return span / SECOND


def entry_id(seq: int) -> str:
    return f"{seq // PLACES}-{seq % PLACES}"


def seq_of(reservation: Reservation) -> int:
    """The seq that an entry id names; one that no row has for a text that is none."""
    moment, _, place = reservation.entry_id.partition("-")
    try:
        found = int(moment) * PLACES + int(place or "0")
    except ValueError:
        return -1
    return found if 0 <= found <= LAST else -1


def key_hash(key: str) -> bytes:
    """What a unique key is kept as: short, and of one length."""
    return hashlib.sha256(key.encode()).digest()


class Words:
    """Statements in the words of one database. Written with ``?`` and ``{p}``, the tables' prefix."""

    def __init__(self, database: Database) -> None:
        self.backend, self.prefix = database.backend, database.prefix
        self.now_expression = NOW[self.backend]
        self._mark = "?" if self.backend == "sqlite" else "%s"
        # Who changes what it has read locks it. SQLite's writer has the whole file.
        self.for_update = "" if self.backend == "sqlite" else " FOR UPDATE"
        self.skip_locked = "" if self.backend == "sqlite" else " FOR UPDATE SKIP LOCKED"

    def __call__(self, text: str) -> str:
        text = text.replace("{p}", self.prefix).replace("{now}", self.now_expression)
        return " ".join(text.replace("?", self._mark).split())

    def marks(self, count: int) -> str:
        return ", ".join([self._mark] * count)

    def if_new(self, *key: str) -> str:
        """What ends an INSERT that leaves a row alone which is there already."""
        if self.backend == "mysql":  # not IGNORE, which would hide other mistakes as well
            return f" ON DUPLICATE KEY UPDATE {key[0]} = {key[0]}"
        return f" ON CONFLICT ({', '.join(key)}) DO NOTHING"

    def or_replace(self, key: tuple[str, ...], values: tuple[str, ...]) -> str:
        """What ends an INSERT that replaces ``values`` of a row which is there already."""
        if self.backend == "mysql":
            return " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in values)
        news = ", ".join(f"{name} = excluded.{name}" for name in values)
        return f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {news}"

    def now(self, connection: Any) -> int:
        """The server's clock, in ticks."""
        if self.backend == "sqlite":
            return time.time_ns() // 1000 * PLACES
        found: int = connection.exec_driver_sql(f"SELECT {self.now_expression}").scalar()
        return found


def text_of(value: Any) -> Any:
    """A name as MySQL gives it back, or as the others do."""
    return value.decode() if isinstance(value, bytes) else value
