"""Numbered pushes: lines of calls that outlive the processes that make them.

A line's last number is a row of the table of calls. It is written in the transaction of the push, and marked
as seen in a far future, so that nobody who cleans up takes it for the trace of a process that is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sqlalchemy import Connection

from millstream.drivers.base import PushItem
from millstream.drivers.sql.layout import LAST, Words
from millstream.drivers.sql.pushing import Pusher
from millstream.sql.database import Database


class Numbering:
    """The lines of one driver's queues. A queue is its number in the database."""

    def __init__(self, database: Database, words: Words, pusher: Pusher, retry_for: float) -> None:
        self._database, self._pusher, self._retry_for = database, pusher, retry_for
        self._make = words(f"INSERT INTO {{p}}calls (slot, number, seen_at) VALUES (?, 0, {LAST})")
        self._make += words.if_new("slot")
        self._claim = words("UPDATE {p}calls SET number = ? WHERE slot = ? AND number < ?")
        self._last = words("SELECT number FROM {p}calls WHERE slot = ?")

    def push(self, queue: int, line: str, number: int, items: Sequence[PushItem]) -> bool:
        """Push, unless the line has come to ``number`` before; whether it took effect now."""
        slot = _slot(queue, line)

        def work(connection: Connection) -> bool:
            # The row stays locked until the commit: a second caller waits, and then finds the number.
            claim = (number, slot, number)
            if not connection.exec_driver_sql(self._claim, claim).rowcount:
                connection.exec_driver_sql(self._make, (slot,))
                if not connection.exec_driver_sql(self._claim, claim).rowcount:
                    return False
            if items:
                self._pusher.within(connection, queue, items)
            return True

        done = self._database.write(work, repeat=True, retry_for=self._retry_for)
        if done and items:
            self._pusher.ring(queue, items)
        return done

    def last(self, queue: int, line: str) -> int:
        """The number that the line has come to; 0 for a new one."""
        slot = _slot(queue, line)
        found = self._database.read(
            lambda connection: connection.exec_driver_sql(self._last, (slot,)).scalar(),
            retry_for=self._retry_for,
        )
        return int(found or 0)


def _slot(queue: int, line: str) -> str:
    """The name of a line's row, of one length whatever the line is called."""
    return "line-" + hashlib.sha256(f"{queue}:{line}".encode()).hexdigest()[:48]
