"""SqlStreamBroker: the contract of `brokers/base.py` on SQLite, PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from sqlalchemy import Connection, Select

from millstream.brokers.arguments import check_block, check_count, check_idle, check_limits, id_list
from millstream.brokers.base import StreamBroker
from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD, check_name, encode_body, encode_data
from millstream.brokers.sql.adding import Adder, Limits, check_wanted
from millstream.brokers.sql.reading import GroupReader
from millstream.brokers.sql.rows import chunks, messages
from millstream.brokers.sql.statements import Statements
from millstream.brokers.sql.waiting import Hub
from millstream.connecting import KEY_TTL, RETRY_FOR, length_or_none, readers, switch
from millstream.errors import BrokerClosed, ConfigurationError, StreamNotFound
from millstream.message import (
    MAX_ID,
    ClaimPage,
    ConsumerInfo,
    GroupInfo,
    Id,
    Message,
    PendingMessage,
    next_id,
    parse_id,
    parse_range,
    previous_id,
)
from millstream.sql.database import Database
from millstream.sql.engine import ENGINE_OPTIONS, EngineOptions, parse_url
from millstream.sql.schema import DEFAULT_PREFIX, id_text, pack_id, unpack_id, unsigned

T = TypeVar("T")
PAGE = 5000  # entries of one query; longer answers are gathered
FOR_EVER = 1 << 62  # as a time


# What may stand in the URL, with the readers of the texts.
OPTIONS: dict[str, Callable[[str], Any]] = {
    "max_payload": int,
    "max_stream_length": length_or_none,
    **readers(KEY_TTL | RETRY_FOR),
    "prefix": str,
    "create": switch,
}


class SqlStreamBroker(StreamBroker):
    """Streams in a SQL database.

    ``url`` is explained in `millstream.sql.engine`; what it says wins over the arguments. The database is
    asked at once, so that a wrong address, a wrong password or a missing schema shows here.

    ``create`` brings the schema up to date; the default is to do so for SQLite and not for a server.
    ``prefix`` begins the names of the tables. ``max_stream_length`` trims by the safe rule of xtrim, at
    every twentieth of it that a stream has grown; None never trims by itself. ``key_ttl`` is for how many
    seconds the ``key`` of an addition is remembered, ``retry_for`` for how many a call is repeated when the
    connection is lost. Other ``options`` are those of `EngineOptions`, such as ``pool_size`` and
    ``lock_timeout``.
    """

    def __init__(
        self,
        url: str = "sqlite:///millstream.db",
        *,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        max_stream_length: int | None = None,
        key_ttl: float = 86400.0,
        retry_for: float = 5.0,
        prefix: str = DEFAULT_PREFIX,
        create: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name in options:
            if name not in ENGINE_OPTIONS:
                known = ", ".join(sorted({**OPTIONS, **ENGINE_OPTIONS}))
                raise ConfigurationError(f"unknown option {name!r}; allowed are: {known}")
        target = parse_url(url, OPTIONS)
        settings: dict[str, Any] = {
            "max_payload": max_payload,
            "max_stream_length": max_stream_length,
            "key_ttl": key_ttl,
            "retry_for": retry_for,
            "prefix": prefix,
            "create": create,
            **options,
            **target.asked,
        }
        _check_settings(settings)
        engine_options = EngineOptions(
            **{name: settings[name] for name in ENGINE_OPTIONS if name in settings}
        )
        self._max_payload: int = settings["max_payload"]
        self._retry_for: float = settings["retry_for"]
        self._closed = False
        self._database = Database.open(
            target, engine_options, prefix=settings["prefix"], create=settings["create"]
        )
        self._sql = self._database.part(_SharedStatements).statements
        self._hub = self._database.part(Hub)
        self._adder = Adder(
            self._database,
            self._sql,
            self._hub,
            key_ttl=settings["key_ttl"],
            max_length=settings["max_stream_length"],
            retry_for=self._retry_for,
        )
        self._reader = GroupReader(self._database, self._sql, self._retry_for)

    # -- adding ------------------------------------------------------------------------------------

    def xadd(
        self,
        stream: str,
        data: Mapping[str, Any],
        *,
        id: str = "*",  # noqa: A002 - the name of the Redis argument, and public
        maxlen: int | None = None,
        minid: str | None = None,
        plain: bool = False,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - the name of the wire field, and public
        headers: Mapping[str, str] | None = None,
    ) -> str:
        self._check(stream)
        body = encode_body(data, self._max_payload, type, headers)
        if id == "*" and key is None and maxlen is None and minid is None:
            return self._adder.add(stream, [body])[0]
        check_limits(maxlen, minid)
        check_wanted(id)
        if key is not None:
            check_name("key", key)
        return self._adder.add_specially(stream, body, id, Limits(maxlen, minid, plain), key)

    def xadd_many(self, stream: str, items: Iterable[Mapping[str, Any]]) -> list[str]:
        self._check(stream)
        limit = self._max_payload
        return self._adder.add_many(stream, [encode_data(item, limit) for item in items])

    # -- groups ------------------------------------------------------------------------------------

    def create_group(self, stream: str, group: str, start_id: str = "$") -> None:
        self._check(stream, group)
        start = None if start_id == "$" else parse_id(start_id)

        def work(connection: Connection) -> None:
            place = self._adder.lock_or_make(connection, stream)
            low = pack_id(place.last if start is None else start)
            given = {"sid": place.id, "group": group, "low": low}
            connection.execute(self._sql.make_group, given)

        self._write(work, durable=True)

    def delete_group(self, stream: str, group: str) -> bool:
        self._check(stream, group)

        def work(connection: Connection) -> bool:
            place = self._adder.lock(connection, stream)
            if place is None:
                return False
            row = connection.execute(self._sql.lock_group, {"stream": stream, "group": group}).first()
            if row is None:
                return False
            self._drop_group(connection, row[0])
            connection.execute(self._sql.bump_epoch, {"sid": place.id})
            self._adder.notify(connection, stream)
            return True

        existed = self._write(work, durable=True)
        self._forget_cursor(stream, group)
        self._hub.turn_away(stream, group)
        return existed

    def _drop_group(self, connection: Connection, group_id: int) -> None:
        for statement in (self._sql.drop_pending, self._sql.drop_consumers, self._sql.drop_group):
            connection.execute(statement, {"gid": group_id})

    def delete_consumer(self, stream: str, group: str, consumer: str, *, only_idle: bool = False) -> int:
        self._check(stream, group, consumer)

        def work(connection: Connection) -> int:
            group_id = self._reader.lock_group(connection, stream, group)[0]
            names = {"gid": group_id, "consumer": consumer}
            consumer_id = connection.execute(self._sql.consumer, names).scalar()
            if consumer_id is None:
                return 0
            member = {"cid": consumer_id}
            pending: int = connection.execute(self._sql.count_pending_of, member).scalar_one()
            if not (pending and only_idle):
                connection.execute(self._sql.drop_pending_of, member)
                connection.execute(self._sql.drop_consumer, member)
            return pending

        return self._write(work)

    # -- reading as a group ------------------------------------------------------------------------

    def xreadgroup(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int = 1,
        block_ms: int | None = 0,
        *,
        start: str = ">",
    ) -> list[Message]:
        self._check(stream, group, consumer)
        check_count(count)
        check_block(block_ms)
        if start != ">":
            return self._reader.read_again(stream, group, consumer, parse_id(start), count)
        if block_ms == 0:
            return self._reader.deliver(stream, group, consumer, count)
        return self._wait_for_turn(stream, group, consumer, count, _deadline(block_ms))

    def _wait_for_turn(
        self, stream: str, group: str, consumer: str, count: int, deadline: float | None
    ) -> list[Message]:
        hub = self._hub
        waiter = hub.join(self, stream, group)
        try:
            if not hub.at_head(waiter):
                self._reader.look(stream, group, consumer)  # joins the group, or says that there is none
            while True:
                if waiter.error is not None:
                    raise waiter.error
                version = None
                if hub.at_head(waiter):
                    version = hub.version(waiter)
                    found = self._reader.deliver(stream, group, consumer, count)
                    if found:
                        return found
                if deadline is not None and monotonic() >= deadline:
                    return []
                if not (hub.arm(waiter) and version is not None):
                    waiter.wait(version, deadline)
        finally:
            hub.leave(waiter)

    def xack(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        self._check(stream, group)
        # On SQLite a transaction, for its queue of writers. Elsewhere no more than a statement.
        run = self._write if self._database.backend == "sqlite" else self._run
        wanted = _packed(ids)
        return sum(run(partial(self._ack, stream, group, sorted(batch))) for batch in chunks(wanted))

    def _ack(self, stream: str, group: str, ids: list[bytes], connection: Connection) -> int:
        names = {"stream": stream, "group": group}
        if self._database.backend != "mysql":
            return connection.execute(self._sql.acknowledge, {**names, "ids": self._sql.ids(ids)}).rowcount
        # MySQL would not search the index by a group that a sub-select finds.
        row = connection.execute(self._sql.group, names).first()
        return (
            0
            if row is None
            else connection.execute(self._sql.settle, {"gid": row[0], "ids": self._sql.ids(ids)}).rowcount
        )

    def xackdel(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        self._check(stream, group)
        wanted = _packed(ids)
        return sum(self._write(partial(self._ackdel, stream, group, batch)) for batch in chunks(wanted))

    def _ackdel(self, stream: str, group: str, ids: Sequence[bytes], connection: Connection) -> int:
        # The stream's row is locked: of two groups that settle the same entry at once, one comes last and
        # deletes it.
        place = self._adder.lock(connection, stream)
        if place is None:
            return 0
        groups = connection.execute(self._sql.groups, {"sid": place.id}).all()
        own = next((row[0] for row in groups if row[1] == group), None)
        if own is None:
            return 0
        given = {"gid": own, "ids": self._sql.ids(sorted(ids))}
        mine = [row[0] for row in connection.execute(self._sql.some_pending, given)]
        if not mine:
            return 0
        connection.execute(self._sql.settle, {"gid": own, "ids": self._sql.ids(mine)})
        # Positions were read before the pending lists: an entry that moves from one to the other meanwhile
        # counts as not given yet, and stays.
        others = [row for row in groups if row[0] != own]
        if others:
            given_to_all = min(row[2] for row in others)
            mine = [entry for entry in mine if entry <= given_to_all]
            if mine:
                elsewhere = {"groups": [row[0] for row in others], "ids": self._sql.ids(mine)}
                needed = set(connection.execute(self._sql.pending_in, elsewhere).scalars())
                mine = [entry for entry in mine if entry not in needed]
        return self._drop_entries(connection, place.id, mine)

    def _drop_entries(self, connection: Connection, stream_id: int, ids: Sequence[bytes]) -> int:
        if not ids:
            return 0
        where = {"sid": stream_id}
        gone: int = connection.execute(
            self._sql.drop_entries, {**where, "ids": self._sql.ids(list(ids))}
        ).rowcount
        if gone:
            connection.execute(self._sql.shrink_stream, {**where, "less": gone})
        return gone

    def xpending(
        self,
        stream: str,
        group: str,
        consumer: str | None = None,
        *,
        min_idle_ms: int = 0,
        start: str = "-",
        end: str = "+",
        count: int | None = None,
    ) -> list[PendingMessage]:
        self._check(stream, group)
        check_idle(min_idle_ms)
        check_count(count)
        low, high = parse_range(start, end)
        if consumer is not None:
            check_name("consumer", consumer)
        found: list[PendingMessage] = []
        while low <= high:
            want = PAGE if count is None else min(PAGE, count - len(found))
            bounds = {"low": pack_id(low), "high": pack_id(high), "limit": want}
            page = self._read(partial(self._pending_page, stream, group, consumer, min_idle_ms, bounds))
            found += page
            if len(page) < want or len(found) == count or (last := parse_id(page[-1].id)) == MAX_ID:
                return found
            low = next_id(last)
        if not found:
            self._read(lambda connection: self._find_group(connection, stream, group))
        return found

    def _pending_page(
        self,
        stream: str,
        group: str,
        consumer: str | None,
        min_idle_ms: int,
        bounds: dict[str, Any],
        connection: Connection,
    ) -> list[PendingMessage]:
        group_id, now = self._find_group(connection, stream, group)
        # Without a limit, so that what was delivered between the two statements is on the list.
        given = {**bounds, "before": now - min_idle_ms if min_idle_ms else FOR_EVER}
        if consumer is None:
            rows = connection.execute(self._sql.list_pending, {**given, "gid": group_id})
        else:
            names = {"gid": group_id, "consumer": consumer}
            consumer_id = connection.execute(self._sql.consumer, names).scalar()
            if consumer_id is None:
                return []
            rows = connection.execute(self._sql.list_pending_of, {**given, "cid": consumer_id})
        return [
            PendingMessage(id_text(entry), name, max(now - delivered_at, 0), deliveries)
            for entry, name, delivered_at, deliveries in rows
        ]

    def _find_group(self, connection: Connection, stream: str, group: str) -> tuple[int, int]:
        row = connection.execute(self._sql.group, {"stream": stream, "group": group}).first()
        if row is None:
            self._reader.missing(connection, stream, group)
        return row[0], row[2]

    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: str | Sequence[str]
    ) -> list[Message]:
        self._check(stream, group, consumer)
        check_idle(min_idle_ms)
        return self._reader.claim(stream, group, consumer, min_idle_ms, _packed(ids))

    def xautoclaim_page(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, start: str = "0-0", count: int = 100
    ) -> ClaimPage:
        self._check(stream, group, consumer)
        check_idle(min_idle_ms)
        check_count(count)
        return self._reader.claim_page(stream, group, consumer, min_idle_ms, parse_id(start), count)

    # -- reading without a group -------------------------------------------------------------------

    def xrange(
        self, stream: str, start: str = "-", end: str = "+", count: int | None = None
    ) -> list[Message]:
        self._check(stream)
        check_count(count)
        low, high = parse_range(start, end)
        return self._range(self._sql.range, stream, low, high, count, forward=True)

    def xrevrange(
        self, stream: str, end: str = "+", start: str = "-", count: int | None = None
    ) -> list[Message]:
        self._check(stream)
        check_count(count)
        low, high = parse_range(start, end)
        return self._range(self._sql.reversed, stream, low, high, count, forward=False)

    def _range(
        self, query: Select[Any], stream: str, low: Id, high: Id, count: int | None, *, forward: bool
    ) -> list[Message]:
        found: list[Message] = []
        while low <= high:
            want = PAGE if count is None else min(PAGE, count - len(found))
            given = {"stream": stream, "low": pack_id(low), "high": pack_id(high), "limit": want}
            rows = self._read(partial(_rows, query, given))
            found += messages(stream, rows, 0)
            if len(rows) < want or len(found) == count:
                break
            last = unpack_id(rows[-1][0])
            if last == (high if forward else low):
                break
            low, high = (next_id(last), high) if forward else (low, previous_id(last))
        return found

    def xread(
        self, streams: Mapping[str, str], count: int | None = None, block_ms: int | None = 0
    ) -> list[Message]:
        check_count(count)
        check_block(block_ms)
        for stream in streams:
            check_name("stream", stream)
        self._open()
        positions: dict[str, Id] = {}
        for stream, after in streams.items():
            positions[stream] = self._newest(stream) if after == "$" else parse_id(after)
        if block_ms == 0 or not streams:
            return self._after(positions, count)
        deadline = _deadline(block_ms)
        waiter = self._hub.join_any(self, positions)
        try:
            while True:
                if waiter.error is not None:
                    raise waiter.error
                version = self._hub.version(waiter)
                found = self._after(positions, count)
                if found or (deadline is not None and monotonic() >= deadline):
                    return found
                if not self._hub.arm(waiter):
                    waiter.wait(version, deadline)
        finally:
            self._hub.leave(waiter)

    def _newest(self, stream: str) -> Id:
        row = self._read(lambda connection: connection.execute(self._sql.stream, {"stream": stream}).first())
        return (0, 0) if row is None else (unsigned(row[1]), unsigned(row[2]))

    def _after(self, positions: dict[str, Id], count: int | None) -> list[Message]:
        found: list[Message] = []
        for stream, position in positions.items():
            if position < MAX_ID:
                low = next_id(position)
                found += self._range(self._sql.range, stream, low, MAX_ID, count, forward=True)
        return found

    # -- keeping house -----------------------------------------------------------------------------

    def xlen(self, stream: str) -> int:
        self._check(stream)
        row = self._read(lambda connection: connection.execute(self._sql.stream, {"stream": stream}).first())
        return 0 if row is None else row[3]

    def xtrim(
        self, stream: str, max_len: int | None = None, min_id: str | None = None, *, plain: bool = False
    ) -> int:
        self._check(stream)
        check_limits(max_len, min_id, required=True)
        return self._adder.trim(stream, Limits(max_len, min_id, plain))

    def xdel(self, stream: str, ids: str | Sequence[str]) -> int:
        self._check(stream)
        wanted = _packed(ids)
        return sum(
            self._write(partial(self._delete, stream, batch), durable=True) for batch in chunks(wanted)
        )

    def _delete(self, stream: str, ids: Sequence[bytes], connection: Connection) -> int:
        place = self._adder.lock(connection, stream)
        return 0 if place is None else self._drop_entries(connection, place.id, ids)

    def delete_stream(self, stream: str) -> bool:
        self._check(stream)

        def work(connection: Connection) -> list[str] | None:
            place = self._adder.lock(connection, stream)
            if place is None:
                return None
            groups = connection.execute(self._sql.groups, {"sid": place.id}).all()
            for group_id, name, _ in groups:
                # Who is just reading in the group finishes first.
                connection.execute(self._sql.lock_group, {"stream": stream, "group": name})
                self._drop_group(connection, group_id)
            connection.execute(self._sql.drop_all_entries, {"sid": place.id})
            connection.execute(self._sql.drop_stream, {"sid": place.id})
            self._adder.notify(connection, stream)
            return [name for _, name, _ in groups]

        groups = self._write(work, durable=True)
        if groups is None:
            return False
        for group in groups:
            self._forget_cursor(stream, group)
        self._hub.turn_away(stream, None)
        return True

    def group_info(self, stream: str) -> list[GroupInfo]:
        self._check(stream)
        found = self._database.read(
            lambda connection: self._describe(connection, stream), snapshot=True, retry_for=self._retry_for
        )
        return sorted(found, key=lambda group: group.name)

    def _describe(self, connection: Connection, stream: str) -> list[GroupInfo]:
        row = connection.execute(self._sql.stream, {"stream": stream}).first()
        if row is None:
            raise StreamNotFound(stream)
        stream_id, ms, seq, length, _, now = row
        newest = (unsigned(ms), unsigned(seq))
        found = []
        for group_id, name, last in connection.execute(self._sql.groups, {"sid": stream_id}).all():
            members = connection.execute(self._sql.consumers, {"gid": group_id}).all()
            consumers = [
                ConsumerInfo(member, pending, max(now - seen_at, 0), seen_at / 1000)
                for member, seen_at, pending in members
            ]
            lag = 0
            if length and unpack_id(last) < newest:
                given = {"sid": stream_id, "low": last}
                lag = connection.execute(self._sql.count_after, given).scalar_one()
            pending = sum(consumer.pending for consumer in consumers)
            consumers.sort(key=lambda consumer: consumer.name)
            found.append(GroupInfo(name, id_text(last), pending, lag, consumers))
        return found

    # -- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wake the readers that wait with BrokerClosed, and give the database back."""
        if not self._closed:
            self._closed = True
            self._hub.broker_closed(self)
            self._database.close()

    def _open(self) -> None:
        if self._closed:
            raise BrokerClosed

    def _check(self, *names: str) -> None:
        """Refuse bad names (of a stream, a group, a consumer, in this order) and any call after close()."""
        for kind, name in zip(("stream", "group", "consumer"), names, strict=False):
            check_name(kind, name)
        self._open()

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(work, retry_for=self._retry_for)

    def _run(self, work: Callable[[Connection], T]) -> T:
        return self._database.run(work, repeat=True, retry_for=self._retry_for)

    def _write(self, work: Callable[[Connection], T], *, durable: bool = False) -> T:
        return self._database.write(work, repeat=True, durable=durable, retry_for=self._retry_for)


class _SharedStatements:
    """The statements, which all brokers on a database share: building them takes longer than running one."""

    def __init__(self, database: Database) -> None:
        self.statements = Statements(database.tables, database.backend)

    def close(self) -> None:
        """Nothing to give back."""

    def after_fork(self) -> None:
        """Nothing that a child process could disturb."""


def _rows(query: Select[Any], given: dict[str, Any], connection: Connection) -> Sequence[Any]:
    return connection.execute(query, given).all()


def _packed(ids: str | Sequence[str]) -> list[bytes]:
    return [pack_id(parse_id(entry_id)) for entry_id in id_list(ids)]


def _deadline(block_ms: int | None) -> float | None:
    return None if block_ms is None else monotonic() + block_ms / 1000


def _check_settings(settings: Mapping[str, Any]) -> None:
    length = settings["max_stream_length"]
    if settings["max_payload"] < 1:
        raise ConfigurationError(f"max_payload must be at least 1 byte, not {settings['max_payload']!r}")
    if length is not None and length < 1:
        raise ConfigurationError(f"max_stream_length must be at least 1 or None, not {length!r}")
    if not settings["key_ttl"] > 0:
        raise ConfigurationError(f"key_ttl must be more than 0 seconds, not {settings['key_ttl']!r}")
    if not settings["retry_for"] >= 0:
        raise ConfigurationError(f"retry_for must be 0 seconds or more, not {settings['retry_for']!r}")
