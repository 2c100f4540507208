"""Connections to one server: how they wait for it, and where they are kept between two commands.

A small command takes the server a few microseconds. What a client adds to that is mostly system calls, and
half of those of the client library can be spared.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from redis.connection import AbstractConnection, Connection, ConnectionPool, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

RECENTLY = 1.0  # seconds since its last use in which a connection is taken to be alive
_DEFAULT: Any = object()  # of read_response: the socket timeout

if TYPE_CHECKING:
    _Base = AbstractConnection
else:
    _Base = object


class _WaitsInTheKernel(_Base):
    """A connection whose timeouts are those of the socket itself.

    Python asks the kernel whether a socket is ready before each call on one that has a timeout. A socket
    without it, to which the kernel was told the timeouts, needs half of the system calls.
    """

    _limit: float | None = None  # seconds for which the kernel waits for an answer now

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        if self._sock is not None:
            return
        super().connect_check_health(*args, **options)
        self._limit = self.socket_timeout
        sock: Any = self._sock
        _tell(sock, socket.SO_RCVTIMEO, self._limit)
        _tell(sock, socket.SO_SNDTIMEO, self._limit)
        sock.settimeout(None)

    def read_response(
        self, disable_decoding: bool = False, *, timeout: Any = _DEFAULT, **options: Any
    ) -> Any:
        limit = self.socket_timeout if timeout is _DEFAULT else timeout
        if limit != self._limit and self._sock is not None:
            _tell(self._sock, socket.SO_RCVTIMEO, limit)
            self._limit = limit
        try:
            return super().read_response(disable_decoding, **options)
        except RedisConnectionError as error:
            if isinstance(error.__context__, BlockingIOError):  # what the kernel says after that time
                raise RedisTimeoutError(f"no answer within {limit:g} s") from error
            raise


def _tell(sock: socket.socket, option: int, seconds: float | None) -> None:
    """Tell the kernel how long a call on the socket may wait; None is for ever."""
    whole, part = divmod(seconds or 0.0, 1.0)
    sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(whole), int(part * 1e6)))


class TcpConnection(_WaitsInTheKernel, Connection):
    """Over TCP, without TLS."""


class UnixConnection(_WaitsInTheKernel, UnixDomainSocketConnection):
    """Over a Unix domain socket."""


# Elsewhere than on POSIX systems timeouts are told to the kernel in another form: the library's way, then.
POSIX = hasattr(select, "poll")
TCP: Any = TcpConnection if POSIX else Connection
UNIX: Any = UnixConnection if POSIX else UnixDomainSocketConnection


class Stack:
    """Connections on loan from a pool, handed out again without asking it.

    The library's pool spends more time on its bookkeeping than the server on a small command. It still
    makes the connections, limits their number and ends them; what is idle waits here.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[tuple[Any, float]] = []  # with the time of its last use; pop and append are atomic
        self._process = os.getpid()

    def get_connection(self, sure: bool = True) -> Any:
        """A connection that the server has not closed; without ``sure``, had not when it was last used."""
        if self._process != os.getpid():  # a fork: its parent goes on using those
            self._idle, self._process = [], os.getpid()
        try:
            connection, used = self._idle.pop()
        except IndexError:
            return self._pool.get_connection()
        if not sure and connection._sock is not None and time.monotonic() - used < RECENTLY:
            return connection
        if _is_stale(connection):
            connection.disconnect()
            try:
                connection.connect()
            except BaseException:
                self.release(connection)
                raise
        return connection

    def release(self, connection: Any) -> None:
        self._idle.append((connection, time.monotonic()))


def _is_stale(connection: Any) -> bool:
    """Whether the server closed the connection, or said something that nobody asked for."""
    sock = connection._sock
    if sock is None:
        return True
    look = select.poll()
    look.register(sock, select.POLLIN)
    return bool(look.poll(0))
