"""What operators ask of an outbox, and do to it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from sqlalchemy import Connection, Engine

from millstream.drivers.sql.layout import text_of
from millstream.outbox.source import open_source
from millstream.outbox.statements import ASIDE, WAITING, Statements
from millstream.sql.schema import DEFAULT_PREFIX


class LaneStatus(msgspec.Struct, frozen=True):
    """How far the jobs for one queue have got."""

    queue: str
    connection: str  # empty: that of the relay
    waiting: int  # to be relayed, those of an open batch among them
    opened: int  # in a batch that is on its way
    aside: int
    oldest: float | None  # seconds since the first that waits was pushed
    relay: str | None  # who works on it
    error: str | None  # what kept the last batch from being pushed


class SetAside(msgspec.Struct, frozen=True):
    """A job that cannot be pushed, and why."""

    row: int
    job_id: str
    queue: str
    connection: str
    age: float
    size: int
    error: str


class OutboxStatus(msgspec.Struct, frozen=True):
    """What is in an outbox."""

    waiting: int
    aside: int
    oldest: float | None
    lanes: list[LaneStatus]
    set_aside: list[SetAside]


class OutboxKeeper:
    """The outbox in the database of a URL or an engine: `status`, `retry` and `drop`."""

    def __init__(
        self, source: str | Engine, *, tables: str = DEFAULT_PREFIX, create: bool | None = None
    ) -> None:
        self._database = open_source(source, tables, create)
        self._statements = Statements(self._database.backend, self._database.prefix)

    def status(self, limit: int = 100) -> OutboxStatus:
        """How much waits for which queue and since when, who relays it, and what was set aside."""
        return self._database.read(lambda connection: self._status(connection, limit), snapshot=True)

    def retry(self, rows: Sequence[int] | None = None) -> int:
        """Let rows that were set aside be relayed again, all of them or those named; how many."""
        return self._change(self._statements.put_back, rows)

    def drop(self, rows: Sequence[int] | None = None) -> int:
        """Delete rows that were set aside, all of them or those named; how many."""
        return self._change(self._statements.forget, rows)

    def close(self) -> None:
        """Give back the connections."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _change(self, text: str, rows: Sequence[int] | None) -> int:
        if rows is not None and not rows:
            return 0
        if rows is not None:
            text = self._statements.some(f"{text} AND id IN (%)", len(rows))
        return self._database.write(
            lambda connection: int(connection.exec_driver_sql(text, tuple(rows or ())).rowcount), repeat=True
        )

    def _status(self, connection: Connection, limit: int) -> OutboxStatus:
        run = connection.exec_driver_sql
        now = int(run(self._statements.now).scalar() or 0)
        counts: dict[bytes, dict[int, tuple[int, int]]] = {}
        for lane, state, count, first in run(self._statements.counts).all():
            counts.setdefault(bytes(lane), {})[state] = (count, first)
        known = {bytes(row[0]): row[1:] for row in run(self._statements.all_lanes).all()}
        lanes = []
        for lane in dict.fromkeys((*counts, *known)):
            lanes.append(self._lane(connection, lane, counts.get(lane, {}), known.get(lane), now))
        lanes.sort(key=lambda each: (each.connection, each.queue))
        rows = run(self._statements.aside, (limit,)).all()
        return OutboxStatus(
            waiting=sum(each.waiting for each in lanes),
            aside=sum(each.aside for each in lanes),
            oldest=max((each.oldest for each in lanes if each.oldest is not None), default=None),
            lanes=lanes,
            set_aside=[_set_aside(row, now) for row in rows],
        )

    def _lane(
        self, connection: Connection, lane: bytes, counts: dict[int, tuple[int, int]], row: Any, now: int
    ) -> LaneStatus:
        waiting, first = counts.get(WAITING, (0, now))
        aside, _ = counts.get(ASIDE, (0, 0))
        if row is None:  # nothing of it was ever relayed
            state = WAITING if waiting else ASIDE
            names = connection.exec_driver_sql(self._statements.lane_names, (lane, state)).first()
            row = (*(("", "?") if names is None else names), None, None, 0, None)
        name, queue, batch, owner, left, error = row
        return LaneStatus(
            queue=text_of(queue),
            connection=text_of(name),
            waiting=waiting,
            opened=0 if batch is None else len(msgspec.json.decode(batch, type=list[int])),
            aside=aside,
            oldest=max(0.0, (now - first) / 1000) if waiting else None,
            relay=text_of(owner) if owner is not None and left > 0 else None,
            error=error,
        )


def _set_aside(row: Any, now: int) -> SetAside:
    row_id, connection, queue, job_id, created_at, size, error = row
    return SetAside(
        row=row_id,
        job_id=text_of(job_id),
        queue=text_of(queue),
        connection=text_of(connection),
        age=max(0.0, (now - created_at) / 1000),
        size=size,
        error=error or "",
    )
