"""Reading as a member of a group: delivering, reading again, claiming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection

from millstream.brokers.sql.postgres import PostgresStatements
from millstream.brokers.sql.rows import BATCH, body_of, chunks, messages
from millstream.brokers.sql.statements import Statements
from millstream.errors import GroupNotFound, OutcomeUnknown, StreamNotFound
from millstream.message import ClaimPage, Id, Message
from millstream.sql.database import Database
from millstream.sql.schema import id_text, pack_id, unpack_id, unsigned

T = TypeVar("T")
SCAN_FACTOR = 10  # how many pending entries a claim may look at for each that it may return
# How exact `last_activity` is for a consumer that asks and gets nothing: a question is not worth a write.
SEEN_EVERY_MS = 1000


@dataclass(slots=True)
class Handed:
    """What a transaction hands out, so that its fate can be found out if the commit's answer is lost."""

    group_id: int = 0
    consumer_id: int = 0
    now: int = 0
    ids: list[bytes] = field(default_factory=list)


class GroupReader:
    """Reads and claims for one broker."""

    def __init__(self, database: Database, statements: Statements, retry_for: float) -> None:
        self._database, self._sql, self._retry_for = database, statements, retry_for
        self._postgres = PostgresStatements(database.prefix) if database.backend == "postgresql" else None
        # Where the last read found something, the next one takes the lock without looking first.
        self._busy: set[tuple[str, str]] = set()
        self._members: dict[
            tuple[int, str], int
        ] = {}  # ids of consumers; each use proves that it is still right

    # -- delivering --------------------------------------------------------------------------------

    def deliver(self, stream: str, group: str, consumer: str, count: int) -> list[Message]:
        """Up to ``count`` entries that the group was not given yet. Raises what is missing."""
        place = (stream, group)
        if place not in self._busy and not self.look(stream, group, consumer):
            return []
        found = self._surely(lambda c, handed: self._deliver(c, stream, group, consumer, count, handed))
        if found:
            self._busy.add(place)
        else:
            self._busy.discard(place)
        return found

    def look(self, stream: str, group: str, consumer: str) -> bool:
        """Whether there may be something new; without a lock. The consumer joins if it is new."""
        names = {"stream": stream, "group": group, "consumer": consumer}
        row = self._read(lambda connection: connection.execute(self._sql.look, names).first())
        if row is None:
            raise StreamNotFound(stream)
        _, ms, seq, length, group_id, last, consumer_id, seen_at, now = row
        if group_id is None:
            raise GroupNotFound(stream, group)
        if length and (unsigned(ms), unsigned(seq)) > unpack_id(last):
            return True
        if consumer_id is None or now - seen_at >= SEEN_EVERY_MS:
            self._write(lambda connection: self._enter(connection, stream, group, consumer))
        return False

    def _deliver(
        self, connection: Connection, stream: str, group: str, consumer: str, count: int, handed: Handed
    ) -> list[Message]:
        if self._postgres is not None:
            found = self._deliver_at_once(connection, stream, group, consumer, count, handed)
            if found is not None:
                return found
        group_id, stream_id, last, consumer_id, now = self._enter(connection, stream, group, consumer)
        rows = connection.execute(self._sql.after, {"sid": stream_id, "low": last, "limit": count}).all()
        if not rows:
            return []
        handed.group_id, handed.consumer_id, handed.now = group_id, consumer_id, now
        handed.ids = [row[0] for row in rows]
        rows_of_pending = [(group_id, entry, consumer_id, now, 1) for entry in handed.ids]
        connection.exec_driver_sql(self._sql.deliver, rows_of_pending)
        connection.execute(self._sql.move_group, {"gid": group_id, "high": handed.ids[-1]})
        return messages(stream, rows, 1)

    def _deliver_at_once(
        self, connection: Connection, stream: str, group: str, consumer: str, count: int, handed: Handed
    ) -> list[Message] | None:
        """PostgreSQL, in one statement. None where the group or the consumer is not there."""
        assert self._postgres is not None
        names = {"stream": stream, "group": group, "consumer": consumer, "limit": count}
        rows = connection.execute(self._postgres.deliver, names).all()
        if not rows or rows[0][5] is None:
            return None
        if rows[0][0] is None:
            return []
        handed.group_id, handed.consumer_id, handed.now = rows[0][4:]
        handed.ids = [row[0] for row in rows]
        return messages(stream, rows, 1)

    def read_again(self, stream: str, group: str, consumer: str, after: Id, count: int) -> list[Message]:
        """A consumer's own pending entries after an id."""

        def work(connection: Connection, handed: Handed) -> list[Message]:
            group_id, stream_id, _, consumer_id, now = self._enter(connection, stream, group, consumer)
            found: dict[bytes, tuple[Any, int]] = {}
            low, size = pack_id(after), min(count, BATCH)
            while len(found) < count:
                page = {"cid": consumer_id, "low": low, "limit": size}
                rows = connection.execute(self._sql.own_pending, page).all()
                entries = self._entries(connection, stream_id, [row[0] for row in rows])
                for entry, deliveries in rows:
                    if entry in entries and len(found) < count:  # what was deleted meanwhile is left out
                        found[entry] = (entries[entry], deliveries)
                if len(rows) < size:
                    break
                low = rows[-1][0]
            self._redeliver(connection, group_id, consumer_id, now, list(found), handed)
            return [
                Message(id_text(entry), stream, body, deliveries + 1)
                for entry, (body, deliveries) in found.items()
            ]

        return self._surely(work)

    # -- claiming ----------------------------------------------------------------------------------

    def claim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: Sequence[bytes]
    ) -> list[Message]:
        """Those of ``ids`` that are pending and idle, in the order given."""
        found: list[Message] = []
        for batch in chunks(ids):

            def work(connection: Connection, handed: Handed, batch: Sequence[bytes] = batch) -> list[Message]:
                group_id, stream_id, _, consumer_id, now = self._enter(connection, stream, group, consumer)
                given = {"gid": group_id, "ids": self._sql.ids(sorted(batch))}
                pending = connection.execute(self._sql.some_pending, given).all()
                entries = self._entries(connection, stream_id, [row[0] for row in pending])
                self._forget_missing(
                    connection, group_id, [row[0] for row in pending if row[0] not in entries]
                )
                ready = {
                    row[0]: row[2]
                    for row in pending
                    if row[0] in entries and max(now - row[1], 0) >= min_idle_ms
                }
                self._redeliver(connection, group_id, consumer_id, now, list(ready), handed)
                return [
                    Message(id_text(entry), stream, entries[entry], ready[entry] + 1)
                    for entry in batch
                    if entry in ready
                ]

            found += self._surely(work)
        return found

    def claim_page(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, start: Id, count: int
    ) -> ClaimPage:
        """One step of an automatic claim."""
        looks = SCAN_FACTOR * count

        def work(connection: Connection, handed: Handed) -> ClaimPage:
            group_id, stream_id, _, consumer_id, now = self._enter(connection, stream, group, consumer)
            given = {"gid": group_id, "low": pack_id(start), "limit": looks + 1}
            pending = connection.execute(self._sql.page_of_pending, given).all()
            entries: dict[bytes, Any] = {}
            for batch in chunks([row[0] for row in pending[:looks]]):
                entries |= self._entries(connection, stream_id, batch)
            ready: dict[bytes, int] = {}
            gone: list[bytes] = []
            cursor = "0-0"
            for position, (entry, delivered_at, deliveries) in enumerate(pending):
                if position == looks or len(ready) + len(gone) == count:
                    cursor = id_text(entry)
                    break
                if entry not in entries:
                    gone.append(entry)
                elif max(now - delivered_at, 0) >= min_idle_ms:  # the lock may have been waited for
                    ready[entry] = deliveries
            self._forget_missing(connection, group_id, gone)
            self._redeliver(connection, group_id, consumer_id, now, list(ready), handed)
            claimed = [
                Message(id_text(entry), stream, entries[entry], deliveries + 1)
                for entry, deliveries in ready.items()
            ]
            return ClaimPage(cursor, claimed, [id_text(entry) for entry in gone])

        return self._surely(work)

    def _entries(self, connection: Connection, stream_id: int, ids: Sequence[bytes]) -> dict[bytes, Any]:
        if not ids:
            return {}
        rows = connection.execute(self._sql.some_entries, {"sid": stream_id, "ids": self._sql.ids(list(ids))})
        return {row[0]: body_of(row[1], row[2], row[3]) for row in rows}

    def _forget_missing(self, connection: Connection, group_id: int, ids: Sequence[bytes]) -> None:
        for batch in chunks(ids):
            connection.execute(self._sql.settle, {"gid": group_id, "ids": self._sql.ids(list(batch))})

    def _redeliver(
        self,
        connection: Connection,
        group_id: int,
        consumer_id: int,
        now: int,
        ids: list[bytes],
        handed: Handed,
    ) -> None:
        given = {"gid": group_id, "cid": consumer_id, "now": now}
        for batch in chunks(ids):
            connection.execute(self._sql.redeliver, {**given, "ids": self._sql.ids(list(batch))})
        handed.group_id, handed.consumer_id, handed.now, handed.ids = group_id, consumer_id, now, ids

    # -- groups and consumers ----------------------------------------------------------------------

    def lock_group(self, connection: Connection, stream: str, group: str) -> tuple[int, int, bytes, int]:
        """The group's id, its stream's, its position and the time; locked. Raises what is missing."""
        row = connection.execute(self._sql.lock_group, {"stream": stream, "group": group}).first()
        if row is None:
            self.missing(connection, stream, group)
        return row[0], row[1], row[2], row[3]

    def missing(self, connection: Connection, stream: str, group: str) -> NoReturn:
        """Say what there is not: the stream or the group."""
        if connection.execute(self._sql.stream, {"stream": stream}).first() is None:
            raise StreamNotFound(stream)
        raise GroupNotFound(stream, group)

    def _enter(
        self, connection: Connection, stream: str, group: str, consumer: str
    ) -> tuple[int, int, bytes, int, int]:
        """Lock the group and see the consumer, which joins if it is new."""
        group_id, stream_id, last, now = self.lock_group(connection, stream, group)
        member = (group_id, consumer)
        names = {"gid": group_id, "consumer": consumer}
        consumer_id = self._members.get(member)
        if consumer_id is not None:
            given = {**names, "now": now, "cid": consumer_id}
            if connection.execute(self._sql.see_consumer, given).rowcount:
                return group_id, stream_id, last, consumer_id, now
            self._members.pop(member, None)
        consumer_id = connection.execute(self._sql.consumer, names).scalar()
        if consumer_id is None:
            connection.execute(self._sql.make_consumer, {**names, "now": now})
            consumer_id = connection.execute(self._sql.consumer, names).scalar_one()
        else:
            connection.execute(self._sql.see_consumer, {**names, "now": now, "cid": consumer_id})
        if len(self._members) > 10_000:
            self._members.clear()
        self._members[member] = consumer_id
        return group_id, stream_id, last, consumer_id, now

    # -- running -----------------------------------------------------------------------------------

    def _surely(self, work: Callable[[Connection, Handed], T]) -> T:
        """Run a transaction that hands out entries, and find out its fate if the commit's answer is lost.

        Repeating it blindly would leave what it handed out pending for a consumer that never saw it.
        """
        while True:
            handed = Handed()
            result: list[T] = []

            def attempt(connection: Connection, handed: Handed = handed, result: list[T] = result) -> T:
                handed.ids = []
                result[:] = [work(connection, handed)]
                return result[0]

            try:
                return self._write(attempt, repeat=False)
            except OutcomeUnknown:
                if handed.ids and self._took_effect(handed):
                    return result[0]

    def _took_effect(self, handed: Handed) -> bool:
        given = {
            "gid": handed.group_id,
            "cid": handed.consumer_id,
            "now": handed.now,
            "ids": self._sql.ids(handed.ids[:1]),
        }
        return bool(
            self._read(lambda connection: connection.execute(self._sql.delivered, given).scalar_one())
        )

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(work, retry_for=self._retry_for)

    def _write(self, work: Callable[[Connection], T], *, repeat: bool = True) -> T:
        # A delivery or a claim that a power failure takes back happens again: at least once.
        return self._database.write(work, repeat=repeat, durable=False, retry_for=self._retry_for)
