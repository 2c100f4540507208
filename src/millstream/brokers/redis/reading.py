"""Reading as a group: waiting, groups that vanish, and replies that never arrive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from millstream.brokers.redis import scripts, wire
from millstream.brokers.redis.calls import Caller
from millstream.brokers.redis.failures import NoGroup, NoKey
from millstream.errors import BrokerError, GroupNotFound, OutcomeUnknown, StreamNotFound
from millstream.message import Message

log = logging.getLogger("millstream.brokers.redis")

# One command blocks this long at the most, so that a connection that died silently is noticed. Redis serves
# waiting clients in the order of their commands, so a shorter slice would blur that order for nothing.
LONGEST_BLOCK_MS = 10_000
MAX_PLACES = 10_000  # consumers remembered; forgetting one costs it a round trip

Place = tuple[str, str, str]


class Memory:
    """What a broker object knows of groups and consumers beyond what the server knows.

    * Groups that it created or read from. When one vanishes (FLUSHALL, a restart without persistence)
      it was not meant to, and is made anew; a group that this object deleted itself is forgotten first.
    * The last id that each consumer got, and whether a reply to it was lost since: what the server delivered
      after that id was in the lost reply.
    """

    def __init__(self) -> None:
        self.last: dict[Place, str] = {}
        self.lost: set[Place] = set()
        self._groups: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self.deletions = 0

    def learn(self, stream: str, group: str, deletions: int | None = None) -> None:
        """Remember a group, unless something was deleted since ``deletions`` was looked at."""
        if (stream, group) in self._groups:
            return
        with self._lock:
            if deletions is None or deletions == self.deletions:
                self._groups.add((stream, group))

    def knows(self, stream: str, group: str) -> bool:
        return (stream, group) in self._groups

    def forget(self, stream: str, group: str | None = None, consumer: str | None = None) -> None:
        """Forget a stream, one of its groups, or one of a group's consumers."""
        if consumer is None:
            with self._lock:
                self.deletions += 1
                self._groups = {
                    (s, g) for s, g in self._groups if s != stream or (group is not None and g != group)
                }
        self.forget_consumers(stream, group, consumer)

    def forget_consumers(self, stream: str, group: str | None = None, consumer: str | None = None) -> None:
        """Forget what consumers got, but not their group."""
        for place in list(self.last):
            if place[0] == stream and group in (None, place[1]) and consumer in (None, place[2]):
                self.last.pop(place, None)
                self.lost.discard(place)

    def remember_last(self, place: Place, entry_id: str) -> None:
        last = self.last
        if place not in last and len(last) >= MAX_PLACES:
            with self._lock:
                for oldest in list(last)[: MAX_PLACES // 10]:
                    last.pop(oldest, None)
                    self.lost.discard(oldest)
        last[place] = entry_id


class GroupReader:
    """XREADGROUP with everything that makes it dependable."""

    def __init__(self, caller: Caller, memory: Memory, socket_timeout: float | None) -> None:
        self._caller, self._memory = caller, memory
        self._socket_timeout = 5.0 if socket_timeout is None else socket_timeout

    def read_new(
        self, group: str, consumer: str, stream: str, count: int, block_ms: int | None
    ) -> list[Message]:
        """Entries that the group was not given yet."""
        began = time.monotonic()
        place = (stream, group, consumer)
        if place in self._memory.lost:
            found = self._find_lost(place, count)
            if found:
                return found
        while True:
            slice_ms = remaining_ms(began, block_ms, LONGEST_BLOCK_MS)
            try:
                reply = self.surviving(stream, group, self._read, place, count, slice_ms)
            except OutcomeUnknown:
                # The server may have delivered entries in the reply that never came. They are pending for
                # this consumer, and nobody would ever deliver them to it again.
                self._memory.lost.add(place)
                found = self._find_lost(place, count)
                if found:
                    return found
                reply = None
                slice_ms = 1  # not the end of the wait: read once more, even if it was not to wait at all
            if reply:
                entries = wire.by_stream(reply)[0][1]
                self._memory.remember_last(place, entries[-1][0].decode())
                return wire.messages(stream, entries, 1)
            if slice_ms == 0 or (block_ms and remaining_ms(began, block_ms, LONGEST_BLOCK_MS) == 0):
                return []

    def read_history(self, group: str, consumer: str, stream: str, count: int, after: str) -> list[Message]:
        """The consumer's own pending entries after an id."""
        entries = self.surviving(
            stream, group, self._caller.script, scripts.HISTORY, (stream,), group, consumer, after, count
        )
        return wire.counted_messages(stream, entries)

    def _read(self, place: Place, count: int, block_ms: int) -> Any:
        stream, group, consumer = place
        memory = self._memory
        deletions = memory.deletions
        if place not in memory.last:
            position: bytes = self._caller.script(scripts.JOIN, (stream,), group, consumer)
            memory.remember_last(place, position.decode())
        if block_ms:
            reply = self._caller.call(
                stream,
                *("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "BLOCK", block_ms),
                *("STREAMS", stream, ">"),
                repeat=False,
                timeout=block_ms / 1000 + self._socket_timeout,
            )
        else:
            reply = self._caller.call(
                stream,
                *("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", stream, ">"),
                repeat=False,
            )
        memory.learn(stream, group, deletions)
        return reply

    def _find_lost(self, place: Place, count: int) -> list[Message]:
        """What the server delivered to this consumer in a reply that was lost; nothing if it did not."""
        stream, group, consumer = place

        def find() -> Any:
            last = self._memory.last.get(place)
            if last is None:  # the group was lost too, and was made anew
                return []
            return self._caller.script(scripts.RECOVER, (stream,), group, consumer, last, count)

        entries = self.surviving(stream, group, find)
        if len(entries) < count:
            self._memory.lost.discard(place)
        if entries:
            self._memory.remember_last(place, entries[-1][0].decode())
            log.info(
                "%s: %d entries of a lost reply delivered to %s after all", stream, len(entries), consumer
            )
        return wire.counted_messages(stream, entries)

    def surviving(self, stream: str, group: str, step: Callable[..., Any], *args: Any) -> Any:
        """What ``step(*args)`` returns; a group that vanished is made anew first.

        Raises StreamNotFound or GroupNotFound for a group that this broker never knew, or deleted.
        """
        for _ in range(3):
            try:
                return step(*args)
            except (NoGroup, NoKey) as error:
                self.restore(stream, group, error)
        return step(*args)

    def restore(self, stream: str, group: str, error: BrokerError) -> None:
        """Make a group anew that this broker knew; otherwise raise what is missing."""
        if not self._memory.knows(stream, group):
            raise self.missing(stream, group) from error.__cause__
        log.warning(
            "group %r of stream %r is gone from the server (flushed, deleted, or restarted without "
            "persistence); made it anew at the beginning of the stream",
            group,
            stream,
        )
        # At 0 and not at $: what was added since the loss was delivered to nobody.
        self._memory.forget_consumers(stream, group)
        create_group(self._caller, stream, group, "0")

    def missing(self, stream: str, group: str) -> BrokerError:
        """Which of the two does not exist; asked only once something is known to be missing."""
        if last_generated_id(self._caller, stream) is None:
            return StreamNotFound(stream)
        return GroupNotFound(stream, group)


def last_generated_id(caller: Caller, stream: str) -> str | None:
    """The newest id that the stream ever had; None where there is no stream."""
    try:
        reply = caller.call(stream, "XINFO", "STREAM", stream)
    except NoKey:
        return None
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    found: bytes = fields[b"last-generated-id"]
    return found.decode()


def create_group(caller: Caller, stream: str, group: str, start_id: str) -> None:
    """XGROUP CREATE … MKSTREAM, for which an existing group is no error."""
    try:
        caller.call(stream, "XGROUP", "CREATE", stream, group, start_id, "MKSTREAM")
    except BrokerError as error:
        if "BUSYGROUP" not in str(error):
            raise


def remaining_ms(began: float, block_ms: int | None, longest: int) -> int:
    """How long one command may block: 0 where there is nothing left to wait."""
    if block_ms is None:
        return longest
    left = block_ms - int((time.monotonic() - began) * 1000)
    return max(0, min(left, longest))
