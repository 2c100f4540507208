"""A connection whose replies are taken as they come from the socket.

The connection is made, secured and logged in by the client library, as any other of the broker. How long a
reply is shows only when it is parsed; so each command is followed by a PING with a text that nobody can
guess, and the reply is over when that text is there. The lengths within are checked by whoever splits it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import hiredis
import numpy as np

from millstream.brokers.redis.link import Argument, ClusterLink, Link
from millstream.spark.source.resp import MARGIN

_pack: Any = hiredis.pack_command  # its stub allows one argument only
FIRST_SIZE = 1 << 20


class Channel:
    """A connection to the server that has a key, for one task alone. Any failure ends it: open another."""

    def __init__(self, link: Link, key: str) -> None:
        self._pool = _pool_of(link, key)
        self._connection: Any = self._pool.get_connection()
        self._mark = secrets.token_hex(16).encode()
        self._tail = b"$32\r\n" + self._mark + b"\r\n"
        self._buffer = np.empty(FIRST_SIZE, np.uint8)
        self.waiting = False  # for a reply

    def send(self, *args: Argument) -> None:
        """Ask for a reply. One at a time."""
        self.waiting = True
        self._connection.send_packed_command((_pack(args) + _pack(("PING", self._mark)),), check_health=False)

    def receive(self) -> tuple[Any, int]:
        """The buffer that holds the reply, and the reply's size. The next call fills the same buffer."""
        self.waiting = False
        sock, tail = self._connection._sock, self._tail
        if sock is None:  # sending failed
            raise ConnectionError("the connection was lost")
        size = 0
        while True:
            if size + MARGIN >= len(self._buffer):
                larger = np.empty(2 * len(self._buffer), np.uint8)
                larger[:size] = self._buffer[:size]
                self._buffer = larger
            count = sock.recv_into(self._buffer[size:-MARGIN])
            if not count:
                raise ConnectionError("the server closed the connection")
            size += count
            if size >= len(tail) and self._buffer[size - len(tail) : size].tobytes() == tail:
                return self._buffer, size - len(tail)

    def pipeline(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """The replies to several commands in one round trip. Errors are among them, not raised."""
        sent = b"".join(_pack(command) for command in commands)
        self._connection.send_packed_command((sent + _pack(("PING", self._mark)),), check_health=False)
        buffer, size = self.receive()
        reader = hiredis.Reader()
        reader.feed(buffer[:size].tobytes())
        return [reader.gets() for _ in commands]

    def close(self) -> None:
        """End the connection: a reply that is still on its way must not answer anything else."""
        self._connection.disconnect()
        self._pool.release(self._connection)


def parse(buffer: Any, size: int) -> Any:
    """A reply of any shape, by hiredis; an error of the server is returned, not raised."""
    reader = hiredis.Reader()
    reader.feed(buffer[:size].tobytes())
    return reader.gets()


def _pool_of(link: Link, key: str) -> Any:
    if isinstance(link, ClusterLink):
        return link._pool_of(link._nodes.get_node_from_slot(link.slot(key)))
    return link._pool  # type: ignore[attr-defined] # a PoolLink
