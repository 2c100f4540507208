"""Adding entries, and trimming what is too much.

Whoever adds locks the stream's row first and keeps it locked until the commit. The next one gets its id
only then, so ids of one stream become visible in their order: a reader that has seen an id has seen all
below it.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from millstream.brokers.sql.postgres import PostgresStatements
from millstream.brokers.sql.rows import chunks, columns_of
from millstream.brokers.sql.statements import Statements
from millstream.brokers.sql.waiting import Hub
from millstream.brokers.sql.watching import channel
from millstream.errors import BrokerError, IdNotGreater, MillstreamError
from millstream.message import MAX_ID, MIN_ID, Id, Typed, format_id, next_id, parse_id, previous_id
from millstream.sql.clock import now_ms
from millstream.sql.database import Database
from millstream.sql.schema import id_text, pack_id, signed, unpack_id, unsigned

Body = bytes | Typed

TRIM_STEP = 5000  # entries that one transaction removes while others wait to add
INSERT_BYTES = 4 * 1024 * 1024  # of one statement: below every server's limit for a packet
PURGE_EVERY = 256  # additions with a key between two looks for keys that may be forgotten


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream as its row says, at the server's time ``now``."""

    id: int
    last: Id
    length: int
    watched_until: int
    now: int
    created: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What to trim to."""

    maxlen: int | None
    minid: str | None
    plain: bool


class Adder:
    """Adds and trims."""

    def __init__(
        self,
        database: Database,
        statements: Statements,
        hub: Hub,
        *,
        key_ttl: float,
        max_length: int | None,
        retry_for: float,
    ) -> None:
        self._database, self._sql, self._hub = database, statements, hub
        self._postgres = PostgresStatements(database.prefix) if database.backend == "postgresql" else None
        self._key_ttl, self._max_length, self._retry_for = key_ttl, max_length, retry_for
        self._trim_at: dict[str, int] = {}
        self._keyed = itertools.count(1)
        self._trimming = threading.Lock()

    # -- adding ------------------------------------------------------------------------------------

    def add(self, stream: str, bodies: Sequence[Body]) -> list[str]:
        """Add up to a thousand under ids from the clock, in one atomic step."""
        found = None
        if self._postgres is not None:
            found = self._database.run(
                lambda connection: self._add_at_once(connection, stream, bodies),
                repeat=False,
                retry_for=self._retry_for,
            )
        if found is None:
            found = self._database.write(
                lambda connection: self._add(connection, stream, "*", bodies),
                repeat=False,
                retry_for=self._retry_for,
            )
        ids, length = found
        self._hub.ring(stream)
        self._grew(stream, length)
        return ids

    def add_many(self, stream: str, bodies: Sequence[bytes]) -> list[str]:
        """Add any number, each thousand in one atomic step."""
        ids: list[str] = []
        for chunk in chunks(bodies):
            try:
                ids += self.add(stream, chunk)
            except BrokerError as error:
                error.ids = ids
                raise
        return ids

    def add_specially(self, stream: str, body: Body, wanted: str, limits: Limits, key: str | None) -> str:
        """Add one entry with a key, a limit or an id of its own."""
        digest = None if key is None else hashlib.sha256(f"{stream}\n{key}".encode()).digest()

        def work(connection: Connection) -> tuple[str, int]:
            if digest is not None and (known := self._known(connection, digest)):
                return known, 0
            ids, length = self._add(connection, stream, wanted, [body], digest)
            if limits.maxlen is not None or limits.minid is not None:
                length -= self._trim_all(connection, stream, limits)
            return ids[0], length

        entry_id, length = self._database.write(work, repeat=key is not None, retry_for=self._retry_for)
        self._hub.ring(stream)
        self._grew(stream, length)
        if key is not None and next(self._keyed) % PURGE_EVERY == 0:
            with suppress(MillstreamError):  # housekeeping; the addition is done
                self._purge()
        return entry_id

    def _add_at_once(
        self, connection: Connection, stream: str, bodies: Sequence[Body]
    ) -> tuple[list[str], int] | None:
        """PostgreSQL, in one statement. None where it takes more than that."""
        assert self._postgres is not None
        payload = f"{self._hub.token} {stream}"
        row = self._postgres.add(connection, stream, bodies, channel(self._database.prefix), payload)
        if row is None:
            return None
        ms, last, length = row
        return [f"{ms}-{seq}" for seq in range(last - len(bodies) + 1, last + 1)], length

    def _add(
        self,
        connection: Connection,
        stream: str,
        wanted: str,
        bodies: Sequence[Body],
        digest: bytes | None = None,
    ) -> tuple[list[str], int]:
        place = self.lock_or_make(connection, stream)
        if digest is not None and (known := self._known(connection, digest)):
            return [known], 0  # another call with the key was first, while this one waited for the lock
        keys = [new_id(stream, place, wanted)]
        for _ in bodies[1:]:
            if keys[-1] == MAX_ID:
                raise IdNotGreater(stream, wanted, format_id(MAX_ID))
            keys.append(next_id(keys[-1]))
        self._insert(connection, place.id, keys, bodies)
        ms, seq = map(signed, keys[-1])
        connection.execute(self._sql.grow_stream, {"sid": place.id, "ms": ms, "seq": seq, "more": len(keys)})
        if digest is not None:
            expires_at = place.now + int(self._key_ttl * 1000)
            connection.execute(self._sql.drop_key, {"hash": digest})
            connection.execute(
                self._sql.add_key, {"hash": digest, "entry": pack_id(keys[0]), "expires_at": expires_at}
            )
        if place.created or place.watched_until > place.now:
            self.notify(connection, stream)
        return [format_id(key) for key in keys], place.length + len(keys)

    def _insert(self, connection: Connection, stream_id: int, keys: list[Id], bodies: Sequence[Body]) -> None:
        rows: list[tuple[Any, ...]] = []
        size = 0
        for key, body in zip(keys, bodies, strict=True):
            rows.append((stream_id, pack_id(key), *columns_of(body)))
            size += 2 * len(rows[-1][2])  # escaping may double it
            if size > INSERT_BYTES:
                connection.exec_driver_sql(self._sql.add_entries, rows)
                rows, size = [], 0
        if rows:
            connection.exec_driver_sql(self._sql.add_entries, rows)

    def notify(self, connection: Connection, stream: str) -> None:
        """Wake other processes' readers when this transaction is committed."""
        if self._database.backend == "postgresql":
            connection.execute(
                select(func.pg_notify(channel(self._database.prefix), f"{self._hub.token} {stream}"))
            )

    def lock(self, connection: Connection, stream: str) -> StreamRow | None:
        """The stream's row, locked until the end of the transaction."""
        row = connection.execute(self._sql.lock_stream, {"stream": stream}).first()
        return None if row is None else _stream_row(row)

    def lock_or_make(self, connection: Connection, stream: str) -> StreamRow:
        """The same; the stream comes to be if it does not exist."""
        place = self.lock(connection, stream)
        created = False
        while place is None:  # once, unless somebody deletes it between the two steps
            connection.execute(self._sql.make_stream, {"stream": stream})
            place, created = self.lock(connection, stream), True
        if created:
            return StreamRow(place.id, place.last, place.length, place.watched_until, place.now, created=True)
        return place

    # -- keys --------------------------------------------------------------------------------------

    def _known(self, connection: Connection, digest: bytes) -> str | None:
        row = connection.execute(self._sql.known_key, {"hash": digest}).first()
        return id_text(row[0]) if row is not None and row[1] > row[2] else None

    def _purge(self) -> None:
        def work(connection: Connection) -> None:
            now = connection.execute(select(now_ms())).scalar_one()
            old = list(connection.execute(self._sql.old_keys, {"now": now}).scalars())
            if old:
                connection.execute(self._sql.drop_keys, {"hashes": self._sql.ids(old)})

        self._database.run(work, repeat=True)

    # -- trimming ----------------------------------------------------------------------------------

    def trim(self, stream: str, limits: Limits) -> int:
        """Trim in steps, between which others may add; how many entries went."""
        total = 0
        while True:
            removed, more = self._database.write(
                lambda connection: self._trim_step(connection, stream, limits),
                repeat=True,
                durable=False,  # a power failure brings the entries back, and the next call removes them
                retry_for=self._retry_for,
            )
            total += removed
            if not more:
                return total

    def _trim_all(self, connection: Connection, stream: str, limits: Limits) -> int:
        total, more = 0, True
        while more:
            removed, more = self._trim_step(connection, stream, limits)
            total += removed
        return total

    def _trim_step(self, connection: Connection, stream: str, limits: Limits) -> tuple[int, bool]:
        """Remove a bounded number of entries; how many went, and whether there may be more."""
        place = self.lock(connection, stream)
        if place is None or not place.length:
            return 0, False
        where = {"sid": place.id}
        if limits.maxlen is not None:
            step = min(place.length - limits.maxlen, TRIM_STEP)
            if step <= 0:
                return 0, False
            cut = connection.execute(self._sql.nth_entry, {**where, "position": step}).scalar()
        else:
            below = parse_id(limits.minid or "")
            cut = pack_id(below)
            beyond = connection.execute(
                self._sql.nth_entry_below, {**where, "high": cut, "position": TRIM_STEP}
            ).scalar()
            cut = beyond or cut
        last = MAX_ID if cut is None else unpack_id(cut)
        last = last if cut is None or last == MIN_ID else previous_id(last)  # the last one to go
        if not limits.plain:
            last = min([last, *(self._free(row) for row in connection.execute(self._sql.needs, where))])
        removed = connection.execute(self._sql.drop_upto, {**where, "high": pack_id(last)}).rowcount
        if removed:
            connection.execute(self._sql.shrink_stream, {**where, "less": removed})
        return removed, removed == TRIM_STEP

    @staticmethod
    def _free(row: Any) -> Id:
        """The newest id up to which a group needs nothing any more."""
        last, first_pending = row
        return unpack_id(last) if first_pending is None else previous_id(unpack_id(first_pending))

    def _grew(self, stream: str, length: int) -> None:
        """Trim by ``max_stream_length``, at every twentieth of it that the stream has grown."""
        if self._max_length is None or length <= self._max_length:
            return
        step = max(self._max_length // 20, 1)
        if length < self._trim_at.get(stream, self._max_length + step) or not self._trimming.acquire(False):
            return
        try:
            removed = self.trim(stream, Limits(self._max_length, None, plain=False))
            # What a group needs stays: then the next attempt waits until there is a twentieth more.
            self._trim_at[stream] = max(length - removed, self._max_length) + step
        except MillstreamError:
            pass  # the addition is done, and the next one tries again
        finally:
            self._trimming.release()


def new_id(stream: str, place: StreamRow, wanted: str) -> Id:
    """The id that ``wanted`` asks for. Raises InvalidId or IdNotGreater."""
    last = place.last
    if wanted == "*":
        if place.now > last[0]:
            return (place.now, 0)
        if last < MAX_ID:
            return next_id(last)
    elif isinstance(wanted, str) and wanted.endswith("-*"):
        ms = parse_id(wanted[:-2])[0]
        if ms > last[0]:
            return (ms, 0)
        if ms == last[0] and last[1] < MAX_ID[1]:
            return (ms, last[1] + 1)
    else:
        key = parse_id(wanted)
        if key > last:
            return key
    raise IdNotGreater(stream, wanted, format_id(last))


def check_wanted(wanted: str) -> None:
    """Raise InvalidId for an id that cannot be given to xadd, before anything is sent."""
    if wanted != "*":
        parse_id(wanted[:-2] if isinstance(wanted, str) and wanted.endswith("-*") else wanted)


def _stream_row(row: Any) -> StreamRow:
    number, ms, seq, length, watched_until, now = row
    return StreamRow(number, (unsigned(ms), unsigned(seq)), length, watched_until, now)
