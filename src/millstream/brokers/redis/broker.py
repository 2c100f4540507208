"""RedisStreamBroker: the contract of `brokers/base.py` on Redis and Valkey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from redis import Redis
from redis.cluster import RedisCluster

from millstream.brokers.arguments import check_block, check_count, check_idle, check_limits, id_list
from millstream.brokers.base import StreamBroker
from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD, check_name, encode_body, encode_data
from millstream.brokers.redis import lag, scripts, wire
from millstream.brokers.redis.adding import BATCH, Adder, add_id, trim_words
from millstream.brokers.redis.calls import Caller
from millstream.brokers.redis.connect import open_link, parse_url
from millstream.brokers.redis.failures import FAILURES, BadAddId, NoGroup, NoKey, translate
from millstream.brokers.redis.following import follow
from millstream.brokers.redis.link import Argument, ClusterLink, Link, PoolLink
from millstream.brokers.redis.reading import GroupReader, Memory, create_group, last_generated_id
from millstream.errors import (
    AccessDenied,
    BrokerError,
    ConfigurationError,
    IdNotGreater,
    InvalidInput,
    StreamNotFound,
)
from millstream.message import (
    ClaimPage,
    GroupInfo,
    Message,
    PendingMessage,
    canonical_id,
    format_id,
    parse_range,
)

PAGE = 10_000  # entries per XRANGE
PENDING_PAGE = 1000


class RedisStreamBroker(StreamBroker):
    """Streams on a Redis or Valkey server, its Sentinel-watched master, or a Cluster.

    The stream's name is its key. The server is asked at once, so that a wrong address or password shows here.

    ``url`` is explained in `millstream.brokers.redis.connect`; what it says wins over the arguments.
    ``max_stream_length`` trims by the safe rule of xtrim, not at every addition but at every twentieth of
    it: streams grow that much longer in between. None, the default, never trims by itself.
    ``key_ttl`` is for how many seconds the ``key`` of an addition is remembered.
    ``retry_for`` is for how many seconds calls are repeated when the connection is lost.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        max_stream_length: int | None = None,
        key_ttl: float = 86400.0,
        retry_for: float = 5.0,
        **connection: Any,
    ) -> None:
        super().__init__()
        target = parse_url(url, connection)
        options: dict[str, Any] = {
            "max_payload": max_payload,
            "max_stream_length": max_stream_length,
            "key_ttl": key_ttl,
            "retry_for": retry_for,
        }
        self._start(open_link(target), target.connection.get("socket_timeout"), **(options | target.broker))

    @classmethod
    def from_client(
        cls,
        client: Redis | RedisCluster,
        *,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        max_stream_length: int | None = None,
        key_ttl: float = 86400.0,
        retry_for: float = 5.0,
    ) -> Self:
        """A broker on the connections of an existing client, which stays the caller's to close."""
        link: Link
        if isinstance(client, RedisCluster):
            cluster: Any = client
            kwargs = cluster.get_connection_kwargs()
            node = cluster.get_default_node()
            link = ClusterLink(cluster, f"{node.host}:{node.port}" if node else "a cluster", owned=False)
        else:
            kwargs = client.connection_pool.connection_kwargs
            address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
            link = PoolLink(client.connection_pool, address, owned=False)
        broker = cls.__new__(cls)
        StreamBroker.__init__(broker)
        broker._start(
            link,
            kwargs.get("socket_timeout"),
            max_payload=max_payload,
            max_stream_length=max_stream_length,
            key_ttl=key_ttl,
            retry_for=retry_for,
        )
        return broker

    def _start(
        self,
        link: Link,
        socket_timeout: float | None,
        *,
        max_payload: int,
        max_stream_length: int | None,
        key_ttl: float,
        retry_for: float,
    ) -> None:
        if max_payload < 1:
            raise ConfigurationError(f"max_payload must be at least 1 byte, not {max_payload!r}")
        if max_stream_length is not None and max_stream_length < 1:
            raise ConfigurationError(
                f"max_stream_length must be at least 1 or None, not {max_stream_length!r}"
            )
        if not key_ttl > 0:
            raise ConfigurationError(f"key_ttl must be more than 0 seconds, not {key_ttl!r}")
        if not retry_for >= 0:
            raise ConfigurationError(f"retry_for must be 0 seconds or more, not {retry_for!r}")
        self._max_payload, self._socket_timeout = max_payload, socket_timeout
        self._caller = Caller(link, retry_for)
        self._call, self._script = self._caller.call, self._caller.script
        self._adder = Adder(self._caller, key_ttl, max_stream_length)
        self._memory = Memory()
        self._reader = GroupReader(self._caller, self._memory, socket_timeout)
        # Whether the server has XACKDEL: asked when it first matters. False makes xackdel use Lua.
        self._native_ackdel: bool | None = None
        try:
            link.exchange("", ("PING",))  # once, not repeated: who starts a program wants to know at once
        except FAILURES as error:
            link.close()
            raise translate(error, link.address, None) from (error.__cause__ or error)

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
        check_name("stream", stream)
        body = encode_body(data, self._max_payload, type, headers)
        if id != "*":
            id = add_id(id)  # noqa: A001 - the contract's name
        fields = ("data", body) if isinstance(body, bytes) else wire.fields_of(body)
        try:
            if key is None and maxlen is None and minid is None:
                raw: bytes = self._call(stream, "XADD", stream, id, *fields, repeat=False)
                entry_id = raw.decode()
            else:
                entry_id = self._adder.add_specially(stream, id, fields, maxlen, minid, plain, key)
        except BadAddId as error:
            raise IdNotGreater(stream, id, last_generated_id(self._caller, stream)) from error.__cause__
        self._adder.grew(stream, 1)
        return entry_id

    def xadd_many(self, stream: str, items: Iterable[Mapping[str, Any]]) -> list[str]:
        check_name("stream", stream)
        limit = self._max_payload
        ids = self._adder.add_many(stream, [encode_data(item, limit) for item in items])
        self._adder.grew(stream, len(ids))
        return ids

    # -- groups ------------------------------------------------------------------------------------

    def create_group(self, stream: str, group: str, start_id: str = "$") -> None:
        check_name("stream", stream)
        check_name("group", group)
        start = "$" if start_id == "$" else canonical_id(start_id)
        deletions = self._memory.deletions
        create_group(self._caller, stream, group, start)
        self._memory.learn(stream, group, deletions)

    def delete_group(self, stream: str, group: str) -> bool:
        check_name("stream", stream)
        check_name("group", group)
        # Before, so that a reader of ours that wakes does not make it anew; after, so that one that
        # was reading meanwhile does not remember it.
        self._memory.forget(stream, group)
        self._forget_cursor(stream, group)
        try:
            return bool(self._call(stream, "XGROUP", "DESTROY", stream, group))
        except NoKey:
            return False
        finally:
            self._memory.forget(stream, group)

    def delete_consumer(self, stream: str, group: str, consumer: str, *, only_idle: bool = False) -> int:
        _check_names(stream, group, consumer)
        self._memory.forget(stream, group, consumer)
        try:
            pending: int = self._script(
                scripts.DELETE_CONSUMER, (stream,), group, consumer, "1" if only_idle else "0"
            )
        except (NoGroup, NoKey) as error:
            raise self._reader.missing(stream, group) from error.__cause__
        return pending

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
        _check_names(stream, group, consumer)
        check_count(count)
        check_block(block_ms)
        if start == ">":
            return self._reader.read_new(group, consumer, stream, count, block_ms)
        return self._reader.read_history(group, consumer, stream, count, canonical_id(start))

    def xack(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        check_name("stream", stream)
        check_name("group", group)
        wanted = id_list(ids)
        return sum(self._call(stream, "XACK", stream, group, *batch) for batch in _chunks(wanted))

    def xackdel(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        check_name("stream", stream)
        check_name("group", group)
        return sum(self._ackdel(stream, group, batch) for batch in _chunks(id_list(ids)))

    def _ackdel(self, stream: str, group: str, ids: list[str]) -> int:
        if self._native_ackdel is None:
            try:
                self._native_ackdel = bool(self._call(stream, "COMMAND", "INFO", "XACKDEL")[0])
            except AccessDenied:
                self._native_ackdel = False
        deleted: int
        if self._native_ackdel:
            try:
                deleted = self._script(scripts.ACKDEL_NATIVE, (stream,), group, *ids)
                return deleted
            except BrokerError as error:
                # A user without the right, or an older server after a failover. Nothing was done.
                if not (isinstance(error, AccessDenied) or "nknown" in str(error)):
                    raise
                self._native_ackdel = False
        deleted = self._script(scripts.ACKDEL, (stream,), group, *ids)
        return deleted

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
        check_name("stream", stream)
        check_name("group", group)
        check_idle(min_idle_ms)
        check_count(count)
        low, high = map(format_id, parse_range(start, end))
        idle: tuple[Argument, ...] = ("IDLE", min_idle_ms) if min_idle_ms else ()
        owner: tuple[Argument, ...] = () if consumer is None else (check_name("consumer", consumer),)
        found: list[PendingMessage] = []
        while True:
            want = PENDING_PAGE if count is None else min(PENDING_PAGE, count - len(found))
            try:
                reply = self._call(stream, "XPENDING", stream, group, *idle, low, high, want, *owner)
            except (NoGroup, NoKey) as error:
                raise self._reader.missing(stream, group) from error.__cause__
            found += [
                PendingMessage(entry_id.decode(), name.decode(), idle_ms, deliveries)
                for entry_id, name, idle_ms, deliveries in reply
            ]
            if len(reply) < want or len(found) == count or found[-1].id == high:
                return found
            low = "(" + found[-1].id

    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: str | Sequence[str]
    ) -> list[Message]:
        _check_names(stream, group, consumer)
        check_idle(min_idle_ms)
        found: list[Message] = []
        for batch in _chunks(id_list(ids)):
            entries = self._reader.surviving(
                stream, group, self._script, scripts.CLAIM, (stream,), group, consumer, min_idle_ms, *batch
            )
            found += wire.counted_messages(stream, entries)
        return found

    def xautoclaim_page(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, start: str = "0-0", count: int = 100
    ) -> ClaimPage:
        _check_names(stream, group, consumer)
        check_idle(min_idle_ms)
        check_count(count)
        args = (group, consumer, min_idle_ms, canonical_id(start), count)
        cursor, entries, deleted = self._reader.surviving(
            stream, group, self._script, scripts.AUTOCLAIM, (stream,), *args
        )
        messages = wire.counted_messages(stream, entries)
        return ClaimPage(cursor.decode(), messages, [entry_id.decode() for entry_id in deleted])

    # -- reading without a group -------------------------------------------------------------------

    def xrange(
        self, stream: str, start: str = "-", end: str = "+", count: int | None = None
    ) -> list[Message]:
        return self._range("XRANGE", stream, start, end, count)

    def xrevrange(
        self, stream: str, end: str = "+", start: str = "-", count: int | None = None
    ) -> list[Message]:
        return self._range("XREVRANGE", stream, start, end, count)

    def _range(self, command: str, stream: str, start: str, end: str, count: int | None) -> list[Message]:
        """A range in either direction, in steps that do not hold up the server."""
        check_name("stream", stream)
        check_count(count)
        low, high = map(format_id, parse_range(start, end))
        near, far = (low, high) if command == "XRANGE" else (high, low)
        found: list[Message] = []
        while True:
            want = PAGE if count is None else min(PAGE, count - len(found))
            entries = self._call(stream, command, stream, near, far, "COUNT", want)
            found += wire.messages(stream, entries, 0)
            if len(entries) < want or len(found) == count or found[-1].id == far:
                return found
            near = "(" + found[-1].id

    def xread(
        self, streams: Mapping[str, str], count: int | None = None, block_ms: int | None = 0
    ) -> list[Message]:
        check_count(count)
        check_block(block_ms)
        if not streams:
            raise InvalidInput("give at least one stream to read, with the id to read after: {'orders': '0'}")
        after = {
            check_name("stream", stream): "$" if entry_id == "$" else canonical_id(entry_id)
            for stream, entry_id in streams.items()
        }
        return follow(self._caller, after, count, block_ms, self._socket_timeout)

    # -- keeping house -----------------------------------------------------------------------------

    def xlen(self, stream: str) -> int:
        length: int = self._call(check_name("stream", stream), "XLEN", stream)
        return length

    def xtrim(
        self, stream: str, max_len: int | None = None, min_id: str | None = None, *, plain: bool = False
    ) -> int:
        check_name("stream", stream)
        check_limits(max_len, min_id, required=True)
        mode, limit = trim_words(max_len, min_id)
        if plain:
            removed: int = self._call(stream, "XTRIM", stream, mode, "=", limit)
            return removed
        return self._adder.trim(stream, mode, limit)

    def xdel(self, stream: str, ids: str | Sequence[str]) -> int:
        check_name("stream", stream)
        return sum(self._call(stream, "XDEL", stream, *batch) for batch in _chunks(id_list(ids)))

    def delete_stream(self, stream: str) -> bool:
        check_name("stream", stream)
        self._memory.forget(stream)
        for place in list(self._claim_cursors):
            if place[0] == stream:
                self._forget_cursor(*place)
        try:
            return bool(self._call(stream, "UNLINK", stream))
        finally:
            self._memory.forget(stream)

    def group_info(self, stream: str) -> list[GroupInfo]:
        check_name("stream", stream)
        try:
            return lag.group_info(self._caller, stream)
        except NoKey as error:
            raise StreamNotFound(stream) from error.__cause__

    # -- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        self._caller.close()


def _check_names(stream: str, group: str, consumer: str) -> None:
    check_name("stream", stream)
    check_name("group", group)
    check_name("consumer", consumer)


def _chunks(ids: list[str]) -> Iterable[list[str]]:
    return (ids[at : at + BATCH] for at in range(0, len(ids), BATCH))
