"""Groups with their exact lag.

Redis keeps a lag of its own, and it is exact only while nothing was ever removed from the stream. After an
XDEL it is unknown; after the group has read past what was deleted or trimmed before it could read it, it
counts that for ever (Redis 7.0: add 1 to 3, read 1, delete 2, read 3, add 4: the answer is 2).
"""

from __future__ import annotations

from typing import Any

from millstream.brokers.redis import scripts
from millstream.brokers.redis.calls import Caller
from millstream.message import ConsumerInfo, GroupInfo, parse_id

STEP = 10_000  # entries counted per call: a few milliseconds of the server's time


def group_info(caller: Caller, stream: str) -> list[GroupInfo]:
    """Each group of the stream, sorted by name. Raises NoKey."""
    (seconds, micros), (length, added, first, last), groups = caller.script(scripts.GROUP_INFO, (stream,))
    now = int(seconds) + int(micros) / 1e6
    found = []
    for name, raw_position, pending, native_lag, members in groups:
        position = raw_position.decode()
        consumers = [
            ConsumerInfo(member.decode(), held, idle, now - idle / 1000) for member, held, idle in members
        ]
        consumers.sort(key=lambda consumer: consumer.name)
        if not length or parse_id(last.decode()) <= parse_id(position):
            lag = 0
        elif parse_id(first.decode()) > parse_id(position):
            lag = length
        elif native_lag is not None and added == length:
            lag = native_lag
        else:
            lag = count_after(caller, stream, position, last.decode(), length)
        found.append(GroupInfo(name.decode(), position, pending, lag, consumers))
    return sorted(found, key=lambda group: group.name)


def count_after(caller: Caller, stream: str, position: str, last: str, length: int) -> int:
    """How many entries come after ``position``, up to ``last``.

    A stream cannot tell, so they are counted: from both ends in turn, because a group is mostly near one of
    them, in steps that do not hold up the server.
    """
    read = unread = 0
    read_from, unread_from = "-", "(" + position
    while True:
        counted, cursor = _count(caller, stream, unread_from, last)
        unread += counted
        if not cursor:
            return unread
        unread_from = "(" + cursor
        counted, cursor = _count(caller, stream, read_from, position)
        read += counted
        if not cursor:
            return max(length - read, 0)
        read_from = "(" + cursor


def _count(caller: Caller, stream: str, start: str, end: str) -> tuple[int, str]:
    reply: Any = caller.script(scripts.COUNT, (stream,), start, end, STEP)
    return reply[0], reply[1].decode()
