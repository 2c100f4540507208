"""Pushing: in a transaction of the driver's own, or in the caller's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from millstream.drivers.base import PushItem
from millstream.drivers.sql.calls import Calls
from millstream.drivers.sql.gathering import Gathering, Push
from millstream.drivers.sql.layout import DELAYED, LEVELS, Words, key_hash, text_of, ticks
from millstream.drivers.sql.waking import JobHub, due_key, waiting_key
from millstream.errors import MillstreamError
from millstream.sql import arrays
from millstream.sql.database import Database
from millstream.sql.writing import driver_of, execute

PURGE_EVERY = 64  # pushes with a unique key between two looks for keys whose time has passed
PURGED = 1000  # of them at a time


class Pusher:
    """Adds jobs to one queue at a time, a thousand at the most."""

    def __init__(self, database: Database, words: Words, hub: JobHub, calls: Calls, retry_for: float) -> None:
        self._database, self._words, self._hub, self._calls = database, words, hub, calls
        self._retry_for = retry_for
        self._unique_pushes = itertools.count(1)
        self._gathering = Gathering(self._write)
        self._insert = words(
            "INSERT INTO {p}jobs (queue, id, lane, pos, level, seq, hold, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        ) + words.if_new("queue", "id")
        self._insert_one = words(
            "INSERT INTO {p}jobs (queue, id, lane, pos, level, seq, hold, body)"
            " VALUES (?, ?, ?, {now} + ?, ?, ({now}) * ?, ?, ?)"
        ) + words.if_new("queue", "id")
        self._existing = words("SELECT id FROM {p}jobs WHERE queue = ? AND id IN (%)")
        self._lock_queue = words("SELECT id FROM {p}queues WHERE id = ?") + words.for_update
        # Locked, so that a caller's transaction that began earlier sees them as they are now (MySQL).
        self._held = (
            words("SELECT hash, holder, until FROM {p}holds WHERE queue = ? AND hash IN (%)")
            + words.for_update
        )
        self._hold = words(
            "INSERT INTO {p}holds (queue, hash, holder, until) VALUES (?, ?, ?, ?)"
        ) + words.or_replace(("queue", "hash"), ("holder", "until"))
        self._free_holds = words(
            "DELETE FROM {p}holds WHERE queue = ? AND hash = ? AND holder = ? AND until = 0"
        )
        self._purge = words(
            {
                "sqlite": "DELETE FROM {p}holds WHERE rowid IN"
                " (SELECT rowid FROM {p}holds WHERE until BETWEEN 1 AND ? LIMIT ?)",
                "postgresql": "DELETE FROM {p}holds WHERE ctid = ANY(ARRAY(SELECT ctid FROM {p}holds"
                " WHERE until BETWEEN 1 AND ? LIMIT ? FOR UPDATE SKIP LOCKED))",
                "mysql": "DELETE FROM {p}holds WHERE until BETWEEN 1 AND ? LIMIT ?",
            }[words.backend]
        )
        # One statement: the call's number, the jobs, the notification. The first form is for ids that are
        # not there yet, which is nearly always so; looking for each of them before adding it takes the server
        # a quarter longer.
        self._at_once_new, self._at_once = (
            words(self._at_once_text(if_there)) for if_there in ("", "ON CONFLICT (queue, id) DO NOTHING")
        )

    @staticmethod
    def _at_once_text(if_there: str) -> str:
        return f"""
            WITH s AS (
                UPDATE {{p}}calls SET number = ?, answer = NULL, seen_at = ({{now}}) / {1024 * 1000}
                WHERE slot = ? AND number < ? RETURNING 1
            ), j AS (
                INSERT INTO {{p}}jobs (queue, id, lane, pos, level, seq, body)
                SELECT ?, t.id, CASE WHEN t.delay > 0 THEN {DELAYED} ELSE t.level END,
                    {{now}} + t.delay + t.n, t.level,
                    CASE WHEN t.delay > 0 THEN 0 ELSE {{now}} + t.n END, t.body
                FROM s, unnest(
                        CAST(? AS TEXT[]), CAST(? AS SMALLINT[]), CAST(? AS BIGINT[]), CAST(? AS BYTEA[])
                    )
                    WITH ORDINALITY AS t (id, level, delay, body, n)
                {if_there}
            )
            SELECT (SELECT count(*) FROM s), (SELECT CAST(pg_notify(?, ?) AS TEXT) FROM {{p}}queues
                WHERE id = ? AND watched_until > {{now}})
            """

    def push(self, queue: int, items: Sequence[PushItem]) -> list[str]:
        own = [item.id for item in items]
        keys = _keys(queue, items)
        if any(item.unique_key is not None for item in items):
            answer = self._calls.once(lambda connection: self.unique(connection, queue, items), own)
            self._sweep()
        else:
            answer = own
            if self._words.backend == "postgresql":
                self._push_at_once(queue, items, keys)
            elif self._words.backend == "sqlite":
                self._gathering.push(queue, items)
            else:
                self._calls.once(lambda connection: self.plain(connection, queue, items), own)
        self._hub.ring_keys(keys)
        return answer

    def _write(self, pushes: Sequence[Push]) -> None:
        """Write the pushes of several threads to a SQLite file, in one transaction."""

        def work(connection: Connection) -> None:
            place, rows = self._words.now(connection), []
            for queue, items in pushes:
                rows += [_row(queue, item, None, place + number) for number, item in enumerate(items)]
                place += len(items)
            execute(driver_of(connection), self._insert, rows)

        self._database.write(work, repeat=False)

    def within(self, connection: Any, queue: int, items: Sequence[PushItem]) -> list[str]:
        """Push in somebody's transaction."""
        if any(item.unique_key is not None for item in items):
            return self.unique(connection, queue, items)
        return self.plain(connection, queue, items)

    def ring(self, queue: int, items: Sequence[PushItem]) -> None:
        """Wake those in this process who wait for what has just been committed."""
        self._hub.ring_keys(_keys(queue, items))

    def _push_at_once(self, queue: int, items: Sequence[PushItem], keys: Sequence[str]) -> None:
        first = self._at_once_new if all(item.fresh for item in items) else self._at_once
        with self._calls.slot() as slot:
            given = (
                *(slot.number, slot.name, slot.number, queue),
                arrays.texts([item.id for item in items]),
                arrays.smallints([LEVELS[item.priority] for item in items]),
                arrays.bigints([ticks(item.delay) if item.delay else 0 for item in items]),
                arrays.byteas([item.body for item in items]),
                *(self._hub.channel, self._hub.payload(keys), queue),
            )

            def work(connection: Connection) -> None:
                try:
                    done = connection.exec_driver_sql(first, given).scalar()
                except IntegrityError:  # some are there: nothing has happened, and only the others are added
                    done = connection.exec_driver_sql(self._at_once, given).scalar()
                if not done and not self._calls.took_effect(connection, slot):
                    connection.exec_driver_sql(self._at_once, given)

            self._database.run(work, repeat=True, retry_for=self._retry_for)

    def plain(self, connection: Any, queue: int, items: Sequence[PushItem]) -> list[str]:
        """Add items without a unique key."""
        self._add(connection, queue, [(item, None) for item in items])
        self._hub.notify(connection, _keys(queue, items))
        return [item.id for item in items]

    def _add(self, connection: Any, queue: int, items: Iterable[tuple[PushItem, bytes | None]]) -> None:
        items = list(items)
        if len(items) == 1 and self._words.backend == "mysql":
            self._add_one(connection, queue, *items[0])
            return
        now = self._words.now(connection)
        rows = [_row(queue, item, hold, now + place) for place, (item, hold) in enumerate(items)]
        if rows:
            connection.exec_driver_sql(self._insert, rows)

    def _add_one(self, connection: Any, queue: int, item: PushItem, hold: bytes | None) -> None:
        """The same for one item, without asking for the time first: a round trip less."""
        level, delay = LEVELS[item.priority], ticks(item.delay)
        lane = DELAYED if item.delay else level
        given = (queue, item.id, lane, delay, level, int(not item.delay), hold, item.body)
        connection.exec_driver_sql(self._insert_one, given)

    # -- unique keys -------------------------------------------------------------------------------

    def unique(self, connection: Any, queue: int, items: Sequence[PushItem]) -> list[str]:
        """Add items of which some have a unique key; the ids that stand for them.

        The queue's row is locked, so that of two who want the same new key one comes first.
        """
        connection.exec_driver_sql(self._lock_queue, (queue,))
        now = self._words.now(connection)
        text = self._existing.replace("(%)", f"({self._words.marks(len(items))})")
        rows = connection.exec_driver_sql(text, (queue, *(item.id for item in items))).all()
        existing = {text_of(row[0]) for row in rows}
        held = self.holders(connection, queue, items, now)
        answer, added, holds = [], [], []
        for item in items:
            if item.id in existing:
                answer.append(item.id)
                continue
            digest = key_hash(item.unique_key) if item.unique_key is not None else None
            if digest is not None:
                if digest in held:
                    answer.append(held[digest])
                    continue
                held[digest] = item.id
                holds.append((queue, digest, item.id, now + ticks(item.unique_for) if item.unique_for else 0))
            existing.add(item.id)
            answer.append(item.id)
            added.append((item, None if item.unique_for else digest))
        self._add(connection, queue, added)
        if holds:
            connection.exec_driver_sql(self._hold, holds)
        self._hub.notify(connection, _keys(queue, items))
        return answer

    def holders(self, connection: Any, queue: int, items: Sequence[PushItem], now: int) -> dict[bytes, str]:
        """Who holds the items' keys, where somebody does."""
        digests = list({key_hash(item.unique_key) for item in items if item.unique_key is not None})
        if not digests:
            return {}
        text = self._held.replace("(%)", f"({self._words.marks(len(digests))})")
        return {
            bytes(digest): text_of(holder)
            for digest, holder, until in connection.exec_driver_sql(text, (queue, *digests)).all()
            if until == 0 or until > now
        }

    def lock_queue(self, connection: Any, queue: int) -> None:
        connection.exec_driver_sql(self._lock_queue, (queue,))

    def hold(self, connection: Any, holds: list[tuple[int, bytes, str, int]]) -> None:
        """Let jobs hold keys: queue, hash, holder, and until when; 0 for as long as the job is there."""
        if holds:
            connection.exec_driver_sql(self._hold, holds)

    def let_go(self, connection: Any, holds: list[tuple[int, bytes, str]]) -> None:
        """Free keys that jobs held for as long as they were there."""
        if holds:
            connection.exec_driver_sql(self._free_holds, holds)

    def _sweep(self) -> None:
        """Forget keys whose time has passed."""
        if next(self._unique_pushes) % PURGE_EVERY:
            return

        def work(connection: Connection) -> None:
            connection.exec_driver_sql(self._purge, (self._words.now(connection), PURGED))

        with suppress(MillstreamError):  # housekeeping; the push is done
            self._database.write(work, repeat=True, durable=False)


def _row(queue: int, item: PushItem, hold: bytes | None, pos: int) -> tuple[Any, ...]:
    """The values of a new job's row."""
    level = LEVELS[item.priority]
    if item.delay:
        return (queue, item.id, DELAYED, pos + ticks(item.delay), level, 0, hold, item.body)
    return (queue, item.id, level, pos, level, pos, hold, item.body)


def _keys(queue: int, items: Sequence[PushItem]) -> list[str]:
    """For whom to ring."""
    delayed = sum(1 for item in items if item.delay)
    keys = [waiting_key(queue)] if delayed < len(items) else []
    return [*keys, due_key(queue)] if delayed else keys
