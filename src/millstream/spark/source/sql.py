"""Streams in a SQL database, as `SqlStreamBroker` keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, LargeBinary, Select, bindparam, func, select

from millstream.brokers.sql.broker import OPTIONS
from millstream.message import MIN_ID, Id, next_id
from millstream.spark.source.globs import fits
from millstream.spark.source.log import Log, Probe, State, Stride
from millstream.spark.source.pages import Page, Row, RowsPage
from millstream.sql.database import Database
from millstream.sql.engine import ENGINE_OPTIONS, EngineOptions, parse_url
from millstream.sql.schema import DEFAULT_PREFIX, pack_id, unpack_id, unsigned

T = TypeVar("T")
MOST_ROWS = 10_000
MOST_BYTES = 8 << 20
FIRST_ROWS = 500


class SqlLog(Log):
    """Reads with plain SELECTs: no lock is taken, and each page sees what is committed by then.

    Entries of one stream are committed in the order of their ids, so nothing can appear behind a page.
    """

    def __init__(self, url: str) -> None:
        self._database, self._retry_for = open_database(url)
        tables = self._database.tables
        s, e = tables.streams, tables.entries
        self._names = select(s.c.name)
        self._stream = select(s.c.id, s.c.last_ms, s.c.last_seq, s.c.length).where(
            s.c.name == bindparam("stream", type_=s.c.name.type)
        )
        low, high = (bindparam(word, type_=LargeBinary()) for word in ("low", "high"))
        inside = (e.c.stream_id == bindparam("sid"), e.c.id >= low, e.c.id <= high)
        up, down = (e.c.stream_id, e.c.id), (e.c.stream_id.desc(), e.c.id.desc())
        limit: Any = bindparam("limit")
        self._page = select(e.c.id, e.c.data, e.c.type, e.c.headers).where(*inside).order_by(*up).limit(limit)
        self._first = select(e.c.id).where(*inside).order_by(*up).limit(1)
        self._last = select(e.c.id).where(*inside).order_by(*down).limit(1)
        self._count = select(func.count()).select_from(e).where(*inside)
        # OCTET_LENGTH is spelled the same in all of them (SQLite has it since 3.43), LENGTH of a text is not.
        size = func.length(e.c.data) if self._database.backend == "sqlite" else func.octet_length(e.c.data)
        self._sizes = select(e.c.id, size).where(*inside).order_by(*up).limit(limit)

    def close(self) -> None:
        self._database.close()

    def find(self, pattern: str) -> list[str]:
        rows = self._read(lambda connection: connection.execute(self._names).all())
        return sorted(row[0] for row in rows if fits(pattern, row[0]))

    def state(self, stream: str) -> State | None:
        def work(connection: Connection) -> State | None:
            row = connection.execute(self._stream, {"stream": stream}).first()
            if row is None:
                return None
            sid, ms, seq, length = row
            everything = {"sid": sid, "low": b"\x00" * 16, "high": b"\xff" * 16}
            first = connection.execute(self._first, everything).scalar()
            last = (unsigned(ms), unsigned(seq))
            none_ever = 0 if last == MIN_ID else None  # a group may be made before the first entry
            return State(None if first is None else unpack_id(bytes(first)), last, length, none_ever)

        # One moment: a trim between the two statements would look like a loss.
        return self._database.read(work, snapshot=True, retry_for=self._retry_for)

    def pages(self, stream: str, low: Id, high: Id) -> Iterator[Page]:
        sid = self._stream_id(stream)
        want = FIRST_ROWS
        while sid is not None and low <= high:
            given = {"sid": sid, "low": pack_id(low), "high": pack_id(high), "limit": want}
            rows = self._rows(self._page, given)
            if not rows:
                return
            page = RowsPage([Row(unpack_id(bytes(raw)), *rest) for raw, *rest in rows])
            yield page
            if len(rows) < want or page.last >= high:
                return
            low = next_id(page.last)
            mean = sum(len(row[1]) for row in rows) // len(rows) + 1
            want = max(1, min(MOST_ROWS, MOST_BYTES // mean))

    def stride(self, stream: str, low: Id, high: Id, rows: int, size: int | None, *, first: bool) -> Stride:
        sid = self._stream_id(stream)
        last: Id | None = None
        taken = nbytes = 0
        while sid is not None and taken < rows and low <= high:
            want = min(MOST_ROWS, rows - taken)
            given = {"sid": sid, "low": pack_id(low), "high": pack_id(high), "limit": want}
            found = self._rows(self._sizes, given)
            for raw, weight in found:
                if size is not None and nbytes + weight > size and (taken or not first):
                    return Stride(last, taken, nbytes, False)
                last, taken, nbytes = unpack_id(bytes(raw)), taken + 1, nbytes + weight
            if len(found) < want or last == high:
                return Stride(last, taken, nbytes, True)
            assert last is not None
            low = next_id(last)
        return Stride(last, taken, nbytes, sid is None or low > high)

    def probe(self, stream: str, probes: Sequence[Probe]) -> list[Id | None]:
        sid = self._stream_id(stream)
        if sid is None:
            return [None] * len(probes)

        def work(connection: Connection) -> list[Id | None]:
            found: list[Id | None] = []
            for probe in probes:
                given = {"sid": sid, "low": pack_id(probe.low), "high": pack_id(probe.high)}
                raw = connection.execute(self._last if probe.newest else self._first, given).scalar()
                found.append(None if raw is None else unpack_id(bytes(raw)))
            return found

        return self._read(work)

    def count(self, stream: str, low: Id, high: Id) -> int | None:
        sid = self._stream_id(stream)
        given = {"sid": sid, "low": pack_id(low), "high": pack_id(high)}
        return int(self._read(lambda connection: connection.execute(self._count, given).scalar()) or 0)

    def _stream_id(self, stream: str) -> int | None:
        row = self._read(lambda connection: connection.execute(self._stream, {"stream": stream}).first())
        return None if row is None else int(row[0])

    def _rows(self, query: Select[Any], given: Mapping[str, Any]) -> Sequence[Any]:
        return self._read(lambda connection: connection.execute(query, given).all())

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(work, retry_for=self._retry_for)


def open_database(url: str) -> tuple[Database, float]:
    """The database of a broker's URL, and for how long a read is repeated. Creates nothing."""
    target = parse_url(url, {**OPTIONS, "tables": str})  # as the URL of a queue or an archive may say
    asked = dict(target.asked)
    prefix = asked.get("tables") or asked.get("prefix") or DEFAULT_PREFIX
    options = EngineOptions(**{name: asked[name] for name in ENGINE_OPTIONS if name in asked})
    database = Database.open(target, options, prefix=prefix, create=False)
    return database, float(asked.get("retry_for", 5.0))
