"""One command out, one answer back: over a connection pool, or over the nodes of a cluster.

The exchange is done here rather than by the client library's `execute_command`, for two reasons. The library
cannot tell a command that never left from one whose reply was lost, and everything about
repeating calls hangs on that. And its own repetitions (ten by default, XADD included) add entries twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, cast

import hiredis
from redis import Redis
from redis.cluster import ClusterNode
from redis.connection import ConnectionPool
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.brokers.redis.connections import POSIX, Stack
from millstream.brokers.redis.failures import NotSent, ReplyLost

Argument = str | bytes | int
MAX_REDIRECTIONS = 8
_new_node: Any = ClusterNode
_pack: Any = hiredis.pack_command  # its stub allows one argument only


class Link(Protocol):
    """How commands reach the server that has a key."""

    address: str

    def exchange(
        self, key: str, args: tuple[Argument, ...], timeout: float | None = None, sure: bool = True
    ) -> Any:
        """The server's answer. Raises NotSent, ReplyLost, or the client library's error for an answer.

        ``timeout`` is how long the answer may take where that is not the usual socket timeout. ``sure``
        asks for a look whether the server is still there before the command is sent: who repeats a command
        whose reply was lost can do without.
        """

    def ahead(self, key: str, commands: Iterable[tuple[Argument, ...]]) -> Iterator[Any]:
        """The answers to commands on ``key``, of which the next is made and sent before the last is answered.

        An error that the server answers is yielded. Raises NotSent or ReplyLost where the connection fails:
        what has not been answered by then may have been executed.
        """

    def slot(self, key: str) -> int:
        """Keys with the same number can be in one command."""

    def close(self) -> None: ...


def converse(
    pool: ConnectionPool | Stack,
    args: tuple[Argument, ...],
    timeout: float | None = None,
    asking: bool = False,
    sure: bool = True,
) -> Any:
    """Send one command over a connection of ``pool`` and return the answer."""
    try:
        # The pool looks whether the server has closed the connection meanwhile, and connects anew.
        connection: Any = pool.get_connection(sure) if isinstance(pool, Stack) else pool.get_connection()
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        if getattr(error, "status_code", None):
            raise  # an answer to the greeting, such as a wrong password
        raise NotSent from error
    settled = False
    try:
        try:
            if asking:
                connection.send_command("ASKING", check_health=False)
                connection.read_response(disconnect_on_error=True)
            # Packed here: the library would look at each argument of a long command once more.
            connection.send_packed_command((_pack(args),), check_health=False)
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise NotSent from error
        try:
            if timeout is None:
                reply = connection.read_response(True, disconnect_on_error=True)
            else:
                reply = connection.read_response(True, timeout=timeout, disconnect_on_error=True)
            settled = True
            return reply
        except ResponseError:
            settled = True
            raise
        except (RedisConnectionError, RedisTimeoutError) as error:
            if error.status_code:
                raise  # the server did answer: some of its answers are connection errors to the library
            if isinstance(error.__context__, ReadOnlyError):
                # A Sentinel connection found its master demoted. The command was refused.
                raise NotSent from error
            raise ReplyLost from error
    finally:
        if not settled:
            # Whatever ended this, a Ctrl-C included: an answer that is still on its way must not become the
            # answer to the next command.
            connection.disconnect()
        pool.release(connection)


def converse_ahead(pool: ConnectionPool | Stack, commands: Iterable[tuple[Argument, ...]]) -> Iterator[Any]:
    """Send commands over one connection, each before the answer to the one before is read."""
    try:
        connection: Any = pool.get_connection()
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        if getattr(error, "status_code", None):
            raise
        raise NotSent from error
    waiting = 0
    try:
        for args in commands:
            connection.send_packed_command((_pack(args),), check_health=False)
            waiting += 1
            if waiting > 1:
                answer = _answer(connection)
                waiting -= 1
                yield answer
        while waiting:
            answer = _answer(connection)
            waiting -= 1
            yield answer
    except (RedisConnectionError, RedisTimeoutError) as error:
        waiting = waiting or 1
        raise ReplyLost from error
    finally:
        if waiting:
            connection.disconnect()  # as above: no answer of ours may become that of another command
        pool.release(connection)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response(True, disconnect_on_error=True)
    except ResponseError as error:
        return error


class PoolLink:
    """A standalone server, or the master that a Sentinel names."""

    def __init__(self, pool: ConnectionPool, address: str, owned: bool = True) -> None:
        self.address = address
        self._pool, self._owned = pool, owned
        # Other kinds of pools watch what is given back to them, and somebody else's is to be left alone.
        plain = owned and type(pool) is ConnectionPool and POSIX
        self._source = Stack(pool) if plain else pool

    def exchange(
        self, key: str, args: tuple[Argument, ...], timeout: float | None = None, sure: bool = True
    ) -> Any:
        return converse(self._source, args, timeout, sure=sure)

    def ahead(self, key: str, commands: Iterable[tuple[Argument, ...]]) -> Iterator[Any]:
        return converse_ahead(self._source, commands)

    def slot(self, key: str) -> int:
        return 0

    def close(self) -> None:
        if self._owned:
            # Readers that wait on a connection of this pool wake with an error.
            self._pool.disconnect(inuse_connections=True)


class ClusterLink:
    """A Redis Cluster. The library keeps the map of slots; the exchange is ours."""

    def __init__(self, cluster: Any, address: str, owned: bool = True) -> None:
        self.address = address
        self._cluster, self._owned = cluster, owned  # Any: the library types little of it
        self._nodes = cluster.nodes_manager

    def exchange(
        self, key: str, args: tuple[Argument, ...], timeout: float | None = None, sure: bool = True
    ) -> Any:
        slot = self.slot(key)
        asked: Any = None
        for _ in range(MAX_REDIRECTIONS):
            node = asked or self._nodes.get_node_from_slot(slot)
            asking, asked = asked is not None, None
            try:
                return converse(self._pool_of(node), args, timeout, asking)
            except MovedError as moved:
                self._nodes.move_slot(moved)
            except AskError as ask:
                asked = self._nodes.get_node(host=ask.host, port=ask.port) or _new_node(ask.host, ask.port)
            except TryAgainError:
                time.sleep(0.02)  # the slot is being moved, and one of the keys has not arrived yet
            except (NotSent, ReplyLost, ClusterDownError):
                self._refresh(node)
                raise
        raise NotSent from RedisConnectionError(f"slot {slot} was redirected {MAX_REDIRECTIONS} times")

    def ahead(self, key: str, commands: Iterable[tuple[Argument, ...]]) -> Iterator[Any]:
        return (self.exchange(key, args) for args in commands)  # any of them may be redirected

    def slot(self, key: str) -> int:
        return cast(int, self._cluster.keyslot(key))

    def close(self) -> None:
        if self._owned:
            for node in list(self._nodes.nodes_cache.values()):
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect(inuse_connections=True)

    def _pool_of(self, node: Any) -> ConnectionPool:
        client: Redis = self._cluster.get_redis_connection(node)
        return client.connection_pool

    def _refresh(self, failed: Any) -> None:
        """Learn which node has what now. A cluster that cannot tell keeps its old map."""
        try:
            self._nodes.initialize(last_failed_node_name=failed.name)
        except (RedisClusterException, RedisConnectionError, RedisTimeoutError):
            return
