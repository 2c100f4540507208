"""Streams of Redis and Valkey: standalone, behind Sentinel, or a Cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

import pyarrow.compute as pc

from millstream.brokers.redis.calls import Caller
from millstream.brokers.redis.connect import open_link, parse_url
from millstream.brokers.redis.failures import FAILURES, NoKey, translate
from millstream.brokers.redis.link import ClusterLink, converse
from millstream.brokers.redis.scripts import Script
from millstream.errors import AccessDenied
from millstream.message import MIN_ID, Id, format_id, next_id, split_id
from millstream.spark.source.channel import Channel, parse
from millstream.spark.source.foreign import row_of
from millstream.spark.source.log import Log, Probe, State, Stride
from millstream.spark.source.pages import Page, RowsPage
from millstream.spark.source.resp import RespPage, split

STRIDE = Script("stride_1", files(__package__) / "lua")
MOST_ROWS = 10_000  # of one XRANGE: measured best
MOST_BYTES = 8 << 20  # that one reply should have, so that large entries do not fill the memory
FIRST_ROWS = 1000  # before it is known how large the entries are
PROBES = 100  # questions in one round trip; each is answered with an entry, whatever its size
STRIDE_ROWS = 10_000  # that the script looks at in one call, while the server does nothing else


class RedisLog(Log):
    """Reads over connections of its own. The server is asked at once, so that a wrong address shows here."""

    def __init__(self, url: str) -> None:
        target = parse_url(url)
        self._link = open_link(target)
        self._caller = Caller(self._link, target.broker.get("retry_for", 5.0))
        try:
            self._link.exchange("", ("PING",))
        except FAILURES as error:
            self._link.close()
            raise translate(error, self._link.address, None) from (error.__cause__ or error)

    def close(self) -> None:
        self._caller.close()

    def find(self, pattern: str) -> list[str]:
        found: set[bytes] = set()
        for scan in self._scans():
            cursor: Any = 0
            while True:
                cursor, keys = scan("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "stream")
                found.update(keys)
                if not int(cursor):
                    break
        return sorted(name.decode("utf-8", "surrogateescape") for name in found)

    def _scans(self) -> Iterator[Any]:
        """What sends a SCAN to each server that has keys."""
        link = self._link
        if not isinstance(link, ClusterLink):
            yield lambda *args: self._caller.call("", *args)
            return
        for node in link._cluster.get_primaries():
            pool = link._pool_of(node)
            yield lambda *args, pool=pool: converse(pool, args)

    def state(self, stream: str) -> State | None:
        try:
            reply = self._caller.call(stream, "XINFO", "STREAM", stream)
        except NoKey:
            return None
        fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        first = fields[b"first-entry"]
        return State(
            first=split_id(first[0].decode()) if first else None,
            last=_id(fields[b"last-generated-id"]),
            length=fields[b"length"],
            added=fields.get(b"entries-added"),
            deleted=_id(fields.get(b"max-deleted-entry-id", b"0-0")),
        )

    def pages(self, stream: str, low: Id, high: Id) -> Iterator[Page]:
        """Raw replies, split by numpy; by hiredis where they have another shape or the connection fails."""
        channel: Channel | None = None
        want, end = FIRST_ROWS, format_id(high)
        try:
            while low <= high:
                command = ("XRANGE", stream, format_id(low), end, "COUNT", want)
                page: Page | None = None
                size = 0
                try:
                    channel = channel or Channel(self._link, stream)
                    if not channel.waiting:
                        channel.send(*command)
                    buffer, size = channel.receive()
                    page = _page(buffer, size)
                except (*FAILURES, OSError, _Refused):
                    # Asked once more, over the broker's own way of calling, which knows what to do about a
                    # lost connection, a moved slot or a server that is loading; and says what is wrong in
                    # our words.
                    if channel is not None:
                        channel.close()
                        channel = None
                    entries = self._caller.call(stream, *command)
                    page = RowsPage([row_of(entry) for entry in entries]) if entries else None
                if page is None:
                    return
                more = page.rows == want and page.last < high
                if more:
                    low = next_id(page.last)
                    if size:
                        want = max(1, min(MOST_ROWS, 10 * want, MOST_BYTES * page.rows // size))
                    if channel is not None:  # the server works on the next page while we work on this one
                        with suppress(*FAILURES, OSError):  # it will be noticed when the reply is awaited
                            channel.send("XRANGE", stream, format_id(low), end, "COUNT", want)
                yield page
                if not more:
                    return
        finally:
            if channel is not None:
                channel.close()

    def stride(self, stream: str, low: Id, high: Id, rows: int, size: int | None, *, first: bool) -> Stride:
        """Counted on the server; a user who may not run scripts has the entries sent and counts here."""
        last: Id | None = None
        taken = nbytes = 0
        while taken < rows:
            step = min(STRIDE_ROWS, rows - taken)
            left = -1 if size is None else max(size - nbytes, 0)
            bounds = (format_id(low), format_id(high), step, left, int(first and not taken))
            try:
                found, heavy, text, ended = self._caller.script(STRIDE, (stream,), *bounds)
            except AccessDenied:
                return self._stride_here(stream, low, high, rows, size, first=first)
            taken, nbytes = taken + found, nbytes + heavy
            if found:
                last = split_id(text.decode())
            if ended or last == high:
                return Stride(last, taken, nbytes, True)
            if found < step:  # the next entry would be one too many
                break
            assert last is not None
            low = next_id(last)
        return Stride(last, taken, nbytes, False)

    def _stride_here(
        self, stream: str, low: Id, high: Id, rows: int, size: int | None, *, first: bool
    ) -> Stride:
        last: Id | None = None
        taken = nbytes = 0
        for page in self.pages(stream, low, high):
            weights = pc.binary_length(page.data()).to_pylist()
            for entry_id, weight in zip(page.ids().to_pylist(), weights, strict=True):
                heavy = size is not None and nbytes + weight > size and (taken or not first)
                if taken == rows or heavy:
                    return Stride(last, taken, nbytes, False)
                last, taken, nbytes = split_id(entry_id), taken + 1, nbytes + weight
        return Stride(last, taken, nbytes, True)

    def probe(self, stream: str, probes: Sequence[Probe]) -> list[Id | None]:
        commands = [
            ("XREVRANGE", stream, format_id(probe.high), format_id(probe.low), "COUNT", 1)
            if probe.newest
            else ("XRANGE", stream, format_id(probe.low), format_id(probe.high), "COUNT", 1)
            for probe in probes
        ]
        found = []
        for begin in range(0, len(commands), PROBES):
            found += self._ask_all(stream, commands[begin : begin + PROBES])
        return [split_id(entries[0][0].decode()) if entries else None for entries in found]

    def _ask_all(self, stream: str, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """The replies to several commands, in one round trip where all goes well."""
        channel: Channel | None = None
        try:
            channel = Channel(self._link, stream)
            replies = channel.pipeline(commands)
            if not any(isinstance(reply, Exception) for reply in replies):
                return replies
        except (*FAILURES, OSError):
            pass  # one by one then, with all patience
        finally:
            if channel is not None:
                channel.close()
        return [self._caller.call(stream, *command) for command in commands]


class _Refused(Exception):
    """The server answered with an error."""


def _page(buffer: Any, size: int) -> Page | None:
    """The page in a raw reply; None where it has no entries. Raises _Refused."""
    found = split(buffer, size)
    if found is not None:
        return RespPage(found) if found.rows else None
    entries = parse(buffer, size)
    if isinstance(entries, Exception) or entries is False:
        raise _Refused
    return RowsPage([row_of(entry) for entry in entries]) if entries else None


def _id(raw: bytes) -> Id:
    return split_id(raw.decode()) if raw else MIN_ID
