"""The queues' numbers. A queue's row comes to be when it is first used, and stays: it may be remembered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.drivers.sql.layout import Words, text_of
from millstream.sql.database import Database


class QueueNames:
    """The queues of one space, by name and by number."""

    def __init__(self, database: Database, words: Words, space: str, retry_for: float) -> None:
        self._database, self._words, self._space, self._retry_for = database, words, space, retry_for
        self._numbers: dict[str, int] = {}
        self._pushed: set[str] = set()
        self._add = words("INSERT INTO {p}queues (space, name) VALUES (?, ?)") + words.if_new("space", "name")
        self._find = words("SELECT id, pushed FROM {p}queues WHERE space = ? AND name = ?")
        self._mark = words("UPDATE {p}queues SET pushed = 1 WHERE id = ? AND pushed = 0")
        self._all = words("SELECT name, id, pushed FROM {p}queues WHERE space = ?")

    def known(self, name: str) -> int | None:
        """The number of a queue that somebody used; None otherwise."""
        number = self._numbers.get(name)
        if number is None:
            row = self._read(
                lambda connection: connection.exec_driver_sql(self._find, (self._space, name)).first()
            )
            if row is None:
                return None
            number = self._numbers[name] = row[0]
        return number

    def of(self, name: str) -> int:
        """The number of a queue, which comes to be where it is not there."""
        number = self.known(name)
        if number is None:
            self._database.write(
                lambda connection: connection.exec_driver_sql(self._add, (self._space, name)),
                repeat=True,
                retry_for=self._retry_for,
            )
            number = self.known(name)
            assert number is not None, "a queue's row is never deleted"
        return number

    def for_push(self, name: str) -> int:
        """The same; the queue is listed from now on."""
        if name in self._pushed:
            return self._numbers[name]
        number = self.of(name)
        self._database.write(
            lambda connection: connection.exec_driver_sql(self._mark, (number,)),
            repeat=True,
            retry_for=self._retry_for,
        )
        self._pushed.add(name)
        return number

    def within(self, connection: Any, name: str) -> int:
        """The same, in somebody's transaction. Not remembered, because that may be rolled back."""
        if name in self._pushed:
            return self._numbers[name]
        connection.exec_driver_sql(self._add, (self._space, name))
        number: int = connection.exec_driver_sql(self._find, (self._space, name)).first()[0]
        connection.exec_driver_sql(self._mark, (number,))
        return number

    def numbers(self) -> dict[str, int]:
        """Every queue that somebody used."""
        return {name: number for name, number, _ in self._list()}

    def pushed(self) -> list[str]:
        """Every queue that was pushed to, sorted."""
        return sorted(name for name, _, pushed in self._list() if pushed)

    def _list(self) -> Iterable[tuple[str, int, int]]:
        rows = self._read(lambda connection: connection.exec_driver_sql(self._all, (self._space,)).all())
        return [(text_of(name), number, pushed) for name, number, pushed in rows]

    def _read(self, work: Any) -> Any:
        return self._database.read(work, retry_for=self._retry_for)
