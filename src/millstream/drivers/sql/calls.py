"""Calls that take effect once, also when their answer is lost and they are repeated.

Each call that changes something writes its number into the row of its *slot*, in the same transaction and
before anything else. A repetition finds the number there and does nothing; it returns the answer that was
kept, or the usual one. The row stays locked until the transaction ends, so a repetition cannot overtake a
first attempt that the server is still working on. A driver has as many slots as it has calls at the same
time.

With SQLite there is no connection to lose, and nothing of this happens.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Connection

from millstream.drivers.sql.layout import Words
from millstream.errors import MillstreamError
from millstream.sql.database import Database

T = TypeVar("T")
KEPT_FOR = 7 * 86400 * 1000  # milliseconds: longer than any call may be repeated


def beside(slot: str) -> str:
    """The name of a slot's second row, for an answer that the statement of the call itself has to keep."""
    return f"{slot}-owned"


class Slot:
    """One line of calls, each after the one before."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name, self.number = name, 0


class Calls:
    """The slots of one driver."""

    def __init__(self, database: Database, words: Words, retry_for: float) -> None:
        self._database, self._words, self._retry_for = database, words, retry_for
        self._free: list[Slot] = []
        self._made: list[str] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        clock_ms = f"({words.now_expression}) / {1024 * 1000}"
        self._make = words(f"INSERT INTO {{p}}calls (slot, number, seen_at) VALUES (?, 0, {clock_ms})")
        self._make += words.if_new("slot")
        self._claim = words(
            f"UPDATE {{p}}calls SET number = ?, answer = NULL, seen_at = {clock_ms}"
            " WHERE slot = ? AND number < ?"
        )
        self._keep = words("UPDATE {p}calls SET answer = ? WHERE slot = ?")
        self._answer = words("SELECT answer FROM {p}calls WHERE slot = ? AND number = ?")
        self._purge = words(f"DELETE FROM {{p}}calls WHERE seen_at < {clock_ms} - {KEPT_FOR}")

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """A slot with the next number, nobody else's until the end of the block."""
        with self._lock:
            if self._pid != os.getpid():  # the slots of a forked child's parent are the parent's
                self._free, self._made, self._pid = [], [], os.getpid()
            slot = self._free.pop() if self._free else None
        if slot is None:
            slot = Slot(secrets.token_hex(12))
            self._create(slot)
            with self._lock:
                self._made.append(slot.name)
                first = len(self._made) == 1
            if first:
                with suppress(MillstreamError):  # housekeeping
                    self._database.run(
                        lambda connection: connection.exec_driver_sql(self._purge), repeat=True
                    )
        slot.number += 1
        try:
            yield slot
        finally:
            with self._lock:
                self._free.append(slot)

    def _create(self, slot: Slot) -> None:
        self._database.run(
            lambda connection: connection.exec_driver_sql(self._make, (slot.name,)),
            repeat=True,
            retry_for=self._retry_for,
        )

    def once(self, work: Callable[[Connection], T], usual: T | None = None, *, durable: bool = True) -> T:
        """What ``work`` returns, run in one transaction that takes effect once.

        An answer that equals ``usual`` is not written down.
        """
        if self._database.backend == "sqlite":
            return self._database.write(work, repeat=False, durable=durable)
        with self.slot() as slot:

            def attempt(connection: Connection) -> T:
                if not self._claimed(connection, slot):
                    return cast(T, self.answer(connection, slot, usual))
                answer = work(connection)
                if answer != usual:
                    kept = msgspec.json.encode(answer).decode()
                    connection.exec_driver_sql(self._keep, (kept, slot.name))
                return answer

            return self._database.write(attempt, repeat=True, retry_for=self._retry_for)

    def _claimed(self, connection: Connection, slot: Slot) -> bool:
        claim = (slot.number, slot.name, slot.number)
        if connection.exec_driver_sql(self._claim, claim).rowcount:
            return True
        if connection.exec_driver_sql(self._answer, (slot.name, slot.number)).first() is not None:
            return False
        # It lay idle for so long that it was forgotten.
        connection.exec_driver_sql(self._make, (slot.name,))
        return bool(connection.exec_driver_sql(self._claim, claim).rowcount)

    def answer(self, connection: Connection, slot: Slot, usual: Any, row_of: str | None = None) -> Any:
        """What the slot's call answered, if that was kept; else ``usual``."""
        row = connection.exec_driver_sql(self._answer, (row_of or slot.name, slot.number)).first()
        return usual if row is None or row[0] is None else msgspec.json.decode(row[0])

    def took_effect(self, connection: Connection, slot: Slot) -> bool:
        """Whether the slot's call did. If not, the slot's row was forgotten; it is made anew."""
        if connection.exec_driver_sql(self._answer, (slot.name, slot.number)).first() is not None:
            return True
        connection.exec_driver_sql(self._make, (slot.name,))
        return False

    def close(self) -> None:
        with self._lock:
            made, self._made, self._free = self._made, [], []
        made += [beside(name) for name in made]
        if made and self._pid == os.getpid():
            drop = self._words("DELETE FROM {p}calls WHERE slot IN (" + ", ".join("?" * len(made)) + ")")
            with suppress(MillstreamError):  # they are forgotten by themselves after a while
                self._database.run(
                    lambda connection: connection.exec_driver_sql(drop, tuple(made)), repeat=True
                )
