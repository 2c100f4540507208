"""The relay's side of the tables: taking a lane, opening a batch, closing it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection

from millstream.drivers.base import PushItem
from millstream.drivers.sql.layout import text_of
from millstream.errors import MillstreamError
from millstream.outbox.statements import FIRST_LANE, MOST_BYTES, WAITING, Statements
from millstream.sql.database import Database

KEPT_ERROR = 2000  # characters: enough for any of our messages


@dataclass(frozen=True)
class Lane:
    """The rows for one queue of one connection."""

    key: bytes
    connection: str
    queue: str


@dataclass(frozen=True)
class Batch:
    """What is pushed in one step. ``reopened``: an earlier relay may have pushed it already."""

    line: str
    number: int
    rows: Sequence[int]
    items: Sequence[PushItem]
    reopened: bool
    refused: int = 0  # how many were set aside on the way


Row = tuple[int, PushItem]  # a row's id, and what it pushes
Check = Callable[[PushItem], None]


@dataclass
class LaneStore:
    """The outbox tables as a relay uses them. Each method is one transaction."""

    database: Database
    owner: str
    lease: float
    statements: Statements = field(init=False)

    def __post_init__(self) -> None:
        self.statements = Statements(self.database.backend, self.database.prefix)

    def lanes(self) -> list[Lane]:
        """The lanes that have something to relay: one short look for each, however many rows there are."""

        def work(connection: Connection) -> list[Lane]:
            found: list[Lane] = []
            last = FIRST_LANE
            while True:
                row = connection.exec_driver_sql(self.statements.next_lane, (last,)).first()
                if row is None:
                    return found
                last = bytes(row[0])
                names = connection.exec_driver_sql(self.statements.names, (last,)).first()
                if names is not None:
                    found.append(Lane(last, text_of(names[0]), text_of(names[1])))

        return self.database.read(work)

    def open_batch(self, lane: Lane, check: Check, most: int) -> Batch | None:
        """The lane's batch: the one that was left open, or a new one, written down before it is pushed.

        None where another relay works on the lane, or where nothing is left. Rows that ``check`` refuses are
        set aside. The lane's row is locked meanwhile, so that two relays never open two batches.
        """
        return self.database.write(lambda connection: self._open(connection, lane, check, most), repeat=True)

    def _open(self, connection: Connection, lane: Lane, check: Check, most: int) -> Batch | None:
        run, words = connection.exec_driver_sql, self.statements
        row = run(words.lane, (lane.key,)).first()
        if row is None:
            line = f"outbox-{secrets.token_hex(8)}"
            run(words.make_lane, (lane.key, lane.connection, lane.queue, line))
            row = run(words.lane, (lane.key,)).first()
            if row is None:  # somebody else has it locked
                return None
        line, number, text, owner, until, now = row
        if owner is not None and text_of(owner) != self.owner and until > now:
            return None
        run(words.lease, (self.owner, int(self.lease * 1000), lane.key))
        if text is not None:
            rows = self._rows(connection, msgspec.json.decode(text, type=list[int]), now)
            return Batch(text_of(line), number, [each[0] for each in rows], [each[1] for each in rows], True)
        batch = self._begin(connection, lane, check, most, text_of(line), number, now)
        if batch is None:  # nothing is left: whoever comes first takes what comes next
            run(words.hand_back, (lane.key, self.owner))
        return batch

    def _begin(
        self, connection: Connection, lane: Lane, check: Check, most: int, line: str, number: int, now: int
    ) -> Batch | None:
        chosen: list[int] = []
        total = 0
        for row_id, size in connection.exec_driver_sql(self.statements.sizes, (lane.key,)).all():
            total += size
            if chosen and (total > MOST_BYTES or len(chosen) >= most):
                break
            chosen.append(row_id)
        if not chosen:
            return None
        good: list[Row] = []
        refused = 0
        for row_id, item in self._rows(connection, chosen, now):
            try:
                check(item)
            except MillstreamError as error:
                self._set_aside(connection, row_id, error)
                refused += 1
            else:
                good.append((row_id, item))
        # Above every number that this line ever had, also if the database was put back to an older state.
        number = max(number + 1, time.time_ns() // 1000)
        ids = [row[0] for row in good]
        if ids:
            connection.exec_driver_sql(
                self.statements.open, (number, msgspec.json.encode(ids).decode(), lane.key)
            )
        return Batch(line, number, ids, [row[1] for row in good], False, refused)

    def _rows(self, connection: Connection, ids: Sequence[int], now: int) -> list[Row]:
        if not ids:
            return []
        text = self.statements.some(self.statements.rows, len(ids))
        found = connection.exec_driver_sql(text, tuple(ids)).all()
        return [_row(values, now) for values in found if values[10] == WAITING]

    def close_batch(self, lane: Lane, batch: Batch) -> None:
        """The batch was pushed: its rows go. A later batch that another relay has opened is left alone."""

        def work(connection: Connection) -> None:
            if batch.rows:
                text = self.statements.some(self.statements.delete, len(batch.rows))
                connection.exec_driver_sql(text, tuple(batch.rows))
            connection.exec_driver_sql(self.statements.close, (lane.key, batch.number))

        self.database.write(work, repeat=True)

    def drop_batch(self, lane: Lane, batch: Batch, error: MillstreamError | None = None) -> None:
        """The batch was not pushed and never will be: its rows wait again; with ``error``: are set aside."""

        def work(connection: Connection) -> None:
            for row_id in batch.rows if error is not None else ():
                assert error is not None
                self._set_aside(connection, row_id, error)
            connection.exec_driver_sql(self.statements.close, (lane.key, batch.number))

        self.database.write(work, repeat=True)

    def note_failure(self, lane: Lane, batch: Batch, error: Exception) -> None:
        """Say why the batch could not be pushed yet, for those who look at the status."""
        text = f"{type(error).__name__}: {error}"[:KEPT_ERROR]
        self.database.write(
            lambda connection: connection.exec_driver_sql(
                self.statements.fail, (text, lane.key, batch.number)
            ),
            repeat=True,
        )

    def hand_back(self, lane: Lane) -> None:
        """Let other relays work on the lane at once."""
        self.database.write(
            lambda connection: connection.exec_driver_sql(self.statements.hand_back, (lane.key, self.owner)),
            repeat=True,
        )

    def _set_aside(self, connection: Connection, row_id: int, error: MillstreamError) -> None:
        text = f"{type(error).__name__}: {error}"[:KEPT_ERROR]
        connection.exec_driver_sql(self.statements.set_aside, (text, row_id))


def _row(values: Any, now: int) -> Row:
    row_id, _, queue, job_id, priority, body, delay, unique_key, unique_for, created_at, _ = values
    left = max(0, delay - max(0, now - created_at)) if delay else 0
    item = PushItem(
        *(text_of(job_id), text_of(queue), text_of(priority), bytes(body), left / 1000),
        *(None if unique_key is None else bytes(unique_key).decode(), unique_for / 1000),
    )
    return row_id, item
