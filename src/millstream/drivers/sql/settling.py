"""Settling and extending: every change is fenced by the reservation's token."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from millstream.drivers.base import Reservation, Settlement
from millstream.drivers.sql.calls import Calls, beside
from millstream.drivers.sql.layout import DEAD, DELAYED, LEVELS, Words, seq_of, text_of, ticks
from millstream.drivers.sql.pushing import Pusher
from millstream.drivers.sql.waking import JobHub, due_key, waiting_key
from millstream.sql import arrays
from millstream.sql.database import Database

# The rows that tokens name, locked, found one by one through the primary key. Joined in a plainer way,
# PostgreSQL may decide to read the whole queue instead, and to go on doing so when the queue has become
# long.
#
# A row that somebody changed while the statement waited for its lock (the heartbeat renewed it) is locked,
# but its new version is not in the statement's snapshot: it is left out, as if it were not owned. So what
# these statements find settles the matter, and what they do not find is looked for again the long way.
_OWNED = """
    SELECT r.ctid FROM {first} unnest(
        CAST(? AS TEXT[]), CAST(? AS BIGINT[]), CAST(? AS TEXT[]), CAST(? AS INTEGER[])
    ) AS t (id, seq, owner, deliveries)
    CROSS JOIN LATERAL (
        SELECT j.ctid FROM {{p}}jobs j
        WHERE j.queue = ? AND j.id = t.id
            AND j.seq = t.seq AND j.owner = t.owner AND j.deliveries = t.deliveries
        LIMIT 1 FOR UPDATE
    ) AS r
"""

_by_id = attrgetter("id")


class Settler:
    """Settles the jobs of one queue, a thousand at the most."""

    def __init__(
        self, database: Database, words: Words, hub: JobHub, calls: Calls, pusher: Pusher, retry_for: float
    ) -> None:
        self._database, self._words, self._hub = database, words, hub
        self._calls, self._pusher, self._retry_for = calls, pusher, retry_for
        self._owned = (
            words("SELECT id, seq, owner, deliveries, hold, level FROM {p}jobs WHERE queue = ? AND id IN (%)")
            + (
                " ORDER BY id" if words.for_update else ""
            )  # locked in one order: two settlers then do not block
            + words.for_update
        )
        self._delete = words("DELETE FROM {p}jobs WHERE queue = ? AND id IN (%)")
        self._release = words(
            "UPDATE {p}jobs SET lane = level, pos = seq, owner = NULL, deliveries = deliveries - 1"
            " WHERE queue = ? AND id IN (%)"
        )
        self._retry = words(
            "UPDATE {p}jobs SET lane = ?, pos = ?, seq = ?, owner = NULL, deliveries = 0, body = ?"
            " WHERE queue = ? AND id = ?"
        )
        self._bury = words(
            f"UPDATE {{p}}jobs SET lane = {DEAD}, pos = ?, owner = NULL, deliveries = 0, hold = NULL,"
            " body = ? WHERE queue = ? AND id = ?"
        )
        self._write_letter = words(
            "INSERT INTO {p}letters (queue, id, reason, error, traceback, attempts) VALUES (?, ?, ?, ?, ?, ?)"
        )
        self._extend = words("UPDATE {p}jobs SET pos = ? WHERE queue = ? AND id IN (%)")
        # until + 0: not by the index of that column, in which all the keys without an end stand together.
        self._complete_at_once = words(
            f"""
            WITH s AS (
                UPDATE {{p}}calls SET number = ?, answer = NULL, seen_at = ({{now}}) / {1024 * 1000}
                WHERE slot = ? AND number < ? RETURNING 1
            ), d AS (
                DELETE FROM {{p}}jobs WHERE ctid = ANY(ARRAY({_OWNED.format(first="s,")})) RETURNING id, hold
            ), h AS (
                DELETE FROM {{p}}holds WHERE ctid = ANY(ARRAY(
                    SELECT r.ctid FROM d CROSS JOIN LATERAL (
                        SELECT h.ctid FROM {{p}}holds h
                        WHERE h.queue = ? AND h.hash = d.hold AND h.holder = d.id AND h.until + 0 = 0
                        LIMIT 1 FOR UPDATE
                    ) AS r WHERE d.hold IS NOT NULL
                ))
            ), a AS (
                SELECT array_agg(id) AS ids, count(*) AS n FROM d
            ), k AS (
                INSERT INTO {{p}}calls (slot, number, answer, seen_at)
                SELECT ?, ?, CAST(array_to_json(ids) AS TEXT), ({{now}}) / {1024 * 1000} FROM a, s WHERE n < ?
                ON CONFLICT (slot) DO UPDATE SET number = excluded.number, answer = excluded.answer
            )
            SELECT (SELECT count(*) FROM s), n, CASE WHEN n < ? THEN ids END FROM a
            """
        )
        self._extend_at_once = words(
            f"UPDATE {{p}}jobs SET pos = {{now}} WHERE ctid = ANY(ARRAY({_OWNED.format(first='')}))"
        )

    # -- settling ----------------------------------------------------------------------------------

    def settle(self, queue: int, settlements: Sequence[Settlement]) -> list[bool]:
        if self._words.backend == "postgresql" and all(one.outcome == "complete" for one in settlements):
            ids = {one.reservation.id for one in settlements}
            if len(ids) == len(settlements):  # one that is named twice is for the long way
                owned = self._complete(queue, [one.reservation for one in settlements])
                left = [one for one in settlements if one.reservation.id not in owned]
                if left:
                    answers = self._settle_each(queue, left)
                    owned.update(one.reservation.id for one, done in zip(left, answers, strict=True) if done)
                return [one.reservation.id in owned for one in settlements]
        return self._settle_each(queue, settlements)

    def _settle_each(self, queue: int, settlements: Sequence[Settlement]) -> list[bool]:
        usual = [True] * len(settlements)
        answers = self._calls.once(
            lambda connection: self._settle(connection, queue, settlements), usual, durable=False
        )
        for one in settlements:
            if one.outcome == "release":
                self._hub.floors.forget(queue, LEVELS[one.reservation.priority])
        self._hub.ring_keys(_keys(queue, settlements))
        return answers

    def _complete(self, queue: int, reservations: Sequence[Reservation]) -> set[str]:
        """Complete jobs in one statement; the ids of those that were seen to be owned."""
        ids = [reservation.id for reservation in reservations]
        with self._calls.slot() as slot:
            token = _columns(reservations)
            # Where not all were owned, the list of those that were is kept beside the slot's own row, which
            # the statement has changed already.
            second = beside(slot.name)
            given = (
                *(slot.number, slot.name, slot.number, *token, queue, queue),
                *(second, slot.number, len(ids), len(ids)),
            )

            def work(connection: Connection) -> set[str]:
                done, number, owned = connection.exec_driver_sql(self._complete_at_once, given).one()
                if not done:
                    if self._calls.took_effect(connection, slot):
                        return set(self._calls.answer(connection, slot, ids, second) or ())
                    done, number, owned = connection.exec_driver_sql(self._complete_at_once, given).one()
                return set(ids if number == len(ids) else owned or ())

            return self._database.run(work, repeat=True, retry_for=self._retry_for)

    def _settle(self, connection: Connection, queue: int, settlements: Sequence[Settlement]) -> list[bool]:
        rows = self._rows(connection, queue, [one.reservation for one in settlements])
        answers: list[bool] = []
        gone: list[str] = []
        released: list[str] = []
        again: list[Settlement] = []
        buried: list[Settlement] = []
        freed: list[tuple[int, bytes, str]] = []
        for settlement in settlements:
            row = _owned(rows, settlement.reservation)
            answers.append(row is not None)
            if row is None:
                continue
            job_id = settlement.reservation.id
            del rows[job_id]
            outcome = settlement.outcome
            if outcome == "complete":
                gone.append(job_id)
            elif outcome == "release":
                released.append(job_id)
            elif outcome == "retry":
                again.append(settlement)
            else:
                buried.append(settlement)
            if row[4] is not None and outcome in ("complete", "bury"):
                freed.append((queue, bytes(row[4]), job_id))
        self._some(connection, self._delete, queue, gone)
        self._some(connection, self._release, queue, released)
        if again or buried:
            now = self._words.now(connection)
            self._put_back(connection, queue, again, now)
            self._put_away(connection, queue, buried, now)
        self._pusher.let_go(connection, freed)
        self._hub.notify(connection, _keys(queue, settlements))
        return answers

    def _put_back(self, connection: Any, queue: int, settlements: Sequence[Settlement], now: int) -> None:
        rows = []
        for place, one in enumerate(settlements):
            level, pos = LEVELS[one.reservation.priority], now + place
            if one.delay:
                rows.append((DELAYED, pos + ticks(one.delay), 0, one.body, queue, one.reservation.id))
            else:
                rows.append((level, pos, pos, one.body, queue, one.reservation.id))
        if rows:
            connection.exec_driver_sql(self._retry, rows)

    def _put_away(self, connection: Any, queue: int, settlements: Sequence[Settlement], now: int) -> None:
        if not settlements:
            return
        connection.exec_driver_sql(
            self._bury,
            [(now + place, one.body, queue, one.reservation.id) for place, one in enumerate(settlements)],
        )
        # As bytes: a traceback may have characters in it that no database's text takes.
        connection.exec_driver_sql(
            self._write_letter,
            [
                (queue, one.reservation.id, *map(_raw, (one.reason, one.error, one.traceback)), one.attempts)
                for one in settlements
            ],
        )

    # -- extending ---------------------------------------------------------------------------------

    def extend(self, queue: int, reservations: Sequence[Reservation]) -> list[bool]:
        if self._words.backend == "postgresql":
            given = (*_columns(reservations), queue)
            renewed = self._database.run(
                lambda connection: connection.exec_driver_sql(self._extend_at_once, given).rowcount,
                repeat=True,
                retry_for=self._retry_for,
            )
            if renewed == len(reservations):
                return [True] * renewed
        return self._database.write(
            lambda connection: self._extend_each(connection, queue, reservations),
            repeat=True,
            durable=False,
            retry_for=self._retry_for,
        )

    def _extend_each(
        self, connection: Connection, queue: int, reservations: Sequence[Reservation]
    ) -> list[bool]:
        rows = self._rows(connection, queue, reservations)
        answers = [_owned(rows, one) is not None for one in reservations]
        mine = list({one.id for one, owned in zip(reservations, answers, strict=True) if owned})
        self._some(connection, self._extend, queue, mine, self._words.now(connection))
        return answers

    def owned(self, queue: int, reservation: Reservation) -> bool:
        """Whether the reservation still holds its job."""
        text = self._owned.replace(self._words.for_update, "") if self._words.for_update else self._owned
        rows = self._database.read(
            lambda connection: connection.exec_driver_sql(
                text.replace("(%)", f"({self._words.marks(1)})"), (queue, reservation.id)
            ).all(),
            retry_for=self._retry_for,
        )
        return _owned({text_of(row[0]): row for row in rows}, reservation) is not None

    # -- helpers -----------------------------------------------------------------------------------

    def _rows(self, connection: Any, queue: int, reservations: Sequence[Reservation]) -> dict[str, Any]:
        """The jobs' rows, locked."""
        ids = sorted({reservation.id for reservation in reservations})
        text = self._owned.replace("(%)", f"({self._words.marks(len(ids))})")
        return {text_of(row[0]): row for row in connection.exec_driver_sql(text, (queue, *ids)).all()}

    def _some(self, connection: Any, text: str, queue: int, ids: Sequence[str], *values: Any) -> None:
        """Run a statement for those of ``ids``."""
        if ids:
            connection.exec_driver_sql(
                text.replace("(%)", f"({self._words.marks(len(ids))})"), (*values, queue, *ids)
            )


def _owned(rows: dict[str, Any], reservation: Reservation) -> Any:
    """The row of a reservation that still holds; None for one that does not."""
    row = rows.get(reservation.id)
    if (
        row is None
        or row[1] != seq_of(reservation)
        or text_of(row[2]) != reservation.owner
        or row[3] != reservation.delivery_count
    ):
        return None
    return row


def _columns(reservations: Sequence[Reservation]) -> tuple[arrays.Array, ...]:
    """The tokens, in the order in which everybody locks rows: two who want the same do not block."""
    tokens = sorted(reservations, key=_by_id)
    return (
        arrays.texts([one.id for one in tokens]),
        arrays.bigints([seq_of(one) for one in tokens]),
        arrays.texts([one.owner for one in tokens]),
        arrays.integers([one.delivery_count for one in tokens]),
    )


def _keys(queue: int, settlements: Sequence[Settlement]) -> list[str]:
    """For whom to ring."""
    waiting = any(
        one.outcome == "release" or (one.outcome == "retry" and not one.delay) for one in settlements
    )
    delayed = any(one.outcome == "retry" and one.delay for one in settlements)
    return [waiting_key(queue)] * waiting + [due_key(queue)] * delayed


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
