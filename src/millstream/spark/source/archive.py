"""The SQL archive of jobs: the table ``millstream_history``, a record of the history in each row.

A row's number is its place in the log: row 7 has the id ``0-7``, its time is that of the record, and its
data is the record as JSON, as the history stream would have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import BigInteger, Column, Connection, MetaData, Select, Table, func, inspect, select, text

from millstream.errors import StreamNotFound
from millstream.history import HISTORY, Record
from millstream.message import Id
from millstream.spark.source.log import Log, Probe, State, Stride
from millstream.spark.source.pages import Page, Row, RowsPage
from millstream.spark.source.sql import open_database

T = TypeVar("T")
MOST_ROWS = 5_000
MOST = (1 << 63) - 1  # the last number that a row can have
PATIENCE = 15.0  # seconds; a writer holds its transaction for less, or the database ends it
GAP_WINDOW = 20_000  # how far behind the newest row a number may still be missing for a moment
FIELDS = tuple(Record.__struct_fields__)
_JSON = ("tags", "headers")  # kept as JSON text
_encode = msgspec.json.Encoder().encode


class ArchiveLog(Log):
    """Reads the table by its ``seq``. There is one "stream" in it, whatever it is called."""

    def __init__(self, url: str) -> None:
        self._database, self._retry_for = open_database(url)
        name = f"{self._database.prefix}{HISTORY}"
        columns: list[Any] = [Column(field) for field in FIELDS]  # untyped: values as the driver gives them
        self._gaps: dict[int, float] = {}  # numbers that are missing, and since when that is known
        self._table = Table(name, MetaData(), Column("seq", BigInteger, primary_key=True), *columns)
        if not self._read(lambda connection: inspect(connection).has_table(name)):
            self._database.close()
            raise StreamNotFound(name)

    def close(self) -> None:
        self._database.close()

    def find(self, pattern: str) -> list[str]:
        return [self._table.name]

    def state(self, stream: str) -> State | None:
        seq = self._table.c.seq
        query = select(func.min(seq), func.max(seq))
        first, last = self._read(lambda connection: connection.execute(query).one())
        return State(None if first is None else _id(first), _id(last or 0), 0)

    def settled(self, stream: str, after: Id, last: Id) -> Id:
        """A row has its number before it is committed, so a lower one may still appear after a higher one."""
        if self._database.backend == "postgresql":
            self._read(self._wait_for_writers)
            return last
        return last if self._database.backend == "sqlite" else self._before_young_gap(after, last)

    def _wait_for_writers(self, connection: Connection) -> None:
        """Until the transactions that were writing to the table a moment ago have ended, for better or worse.

        Whoever took a number up to the newest one had the lock of a writer when that one was seen. Later
        writers get later numbers, and need not be waited for.
        """
        query = text(
            "SELECT virtualtransaction FROM pg_locks WHERE relation = CAST(:name AS regclass) "
            "AND mode = 'RowExclusiveLock' AND granted"
        ).bindparams(name=self._table.name)
        deadline = time.monotonic() + PATIENCE
        writers = set(connection.execute(query).scalars())
        while writers and time.monotonic() < deadline:
            time.sleep(0.005)
            writers &= set(connection.execute(query).scalars())

    def _before_young_gap(self, after: Id, last: Id) -> Id:
        """Up to the first missing number that was missing for less than the patience of any writer."""
        begin = max(after[1], last[1] - GAP_WINDOW)
        seq = self._table.c.seq
        query = select(seq).where(seq > begin, seq <= last[1]).order_by(seq)
        present = set(self._read(lambda connection: connection.execute(query).scalars().all()))
        missing = [number for number in range(begin + 1, last[1] + 1) if number not in present]
        now = time.monotonic()
        self._gaps = {number: self._gaps.get(number, now) for number in missing}
        young = [number for number, since in self._gaps.items() if now - since < PATIENCE]
        return _id(min(young) - 1) if young else last

    def pages(self, stream: str, low: Id, high: Id) -> Iterator[Page]:
        t = self._table
        begin, end = _numbers(low, high)
        while begin <= end:
            query = select(t).where(t.c.seq >= begin, t.c.seq <= end).order_by(t.c.seq).limit(MOST_ROWS)
            rows = self._rows(query)
            if not rows:
                return
            yield RowsPage([_row(row) for row in rows])
            begin = rows[-1][0] + 1

    def stride(self, stream: str, low: Id, high: Id, rows: int, size: int | None, *, first: bool) -> Stride:
        t = self._table
        begin, end = _numbers(low, high)
        weight = func.coalesce(func.length(t.c.payload), 0) + 200  # the payload is what varies
        last: Id | None = None
        taken = nbytes = 0
        while begin <= end and taken < rows:
            want = min(MOST_ROWS, rows - taken)
            inside = (t.c.seq >= begin, t.c.seq <= end)
            found = self._rows(select(t.c.seq, weight).where(*inside).order_by(t.c.seq).limit(want))
            for seq, heavy in found:
                if size is not None and nbytes + heavy > size and (taken or not first):
                    return Stride(last, taken, nbytes, False)
                last, taken, nbytes, begin = _id(seq), taken + 1, nbytes + heavy, seq + 1
            if len(found) < want:
                return Stride(last, taken, nbytes, True)
        return Stride(last, taken, nbytes, begin > end)

    def probe(self, stream: str, probes: Sequence[Probe]) -> list[Id | None]:
        seq = self._table.c.seq

        def work(connection: Connection) -> list[Id | None]:
            found: list[Id | None] = []
            for probe in probes:
                begin, end = _numbers(probe.low, probe.high)
                wanted = func.max(seq) if probe.newest else func.min(seq)
                number = connection.execute(select(wanted).where(seq >= begin, seq <= end)).scalar()
                found.append(None if number is None else _id(number))
            return found

        return self._read(work)

    def count(self, stream: str, low: Id, high: Id) -> int | None:
        seq = self._table.c.seq
        begin, end = _numbers(low, high)
        query = select(func.count()).select_from(self._table).where(seq >= begin, seq <= end)
        return int(self._rows(query)[0][0])

    def _rows(self, query: Select[Any]) -> Sequence[Any]:
        return self._read(lambda connection: connection.execute(query).all())

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(work, retry_for=self._retry_for)


def _id(seq: int) -> Id:
    return (0, seq)


def _numbers(low: Id, high: Id) -> tuple[int, int]:
    """The first and the last row of a range of ids; those with a time are past every row."""
    return (low[1] if low[0] == 0 else MOST), (min(high[1], MOST) if high[0] == 0 else MOST)


def _row(values: Sequence[Any]) -> Row:
    record = {name: value for name, value in zip(FIELDS, values[1:], strict=True) if value is not None}
    for name in _JSON:
        if isinstance(record.get(name), str):
            record[name] = msgspec.Raw(record[name].encode() or b"null")
    return Row(_id(values[0]), _encode(record).decode(), ms=int(record.get("at", 0) * 1000))
