"""LocalStreamBroker: the contract in memory, for one process and all of its threads.

One lock guards everything. Under CPython a lock for each stream would buy nothing, and one lock makes it
plain that every method is one atomic step. What a call costs depends on what it hands out, not on how
much is stored: see `log.py` and `pending.py`.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from time import monotonic, time, time_ns
from typing import Any, NoReturn, Unpack

from millstream.brokers.arguments import check_block, check_count, check_idle, check_limits, id_list
from millstream.brokers.base import AddOptions, StreamBroker
from millstream.brokers.local.log import Body
from millstream.brokers.local.stream import Group, Readers, Stream
from millstream.brokers.local.waiting import Waiter
from millstream.brokers.payload import (
    DEFAULT_MAX_PAYLOAD,
    PLAIN,
    check_name,
    encode,
    encode_body,
    encode_data,
)
from millstream.errors import BrokerClosed, GroupNotFound, PayloadTooLarge, StreamNotFound
from millstream.message import (
    ClaimPage,
    GroupInfo,
    Message,
    PendingMessage,
    parse_id,
    parse_range,
)

# Enough to look back at what just happened; a process that only adds stays small.
DEFAULT_MAX_STREAM_LENGTH = 10_000
_DAY = 86_400.0


class LocalStreamBroker(StreamBroker):
    """Streams in this process's memory.

    ``max_stream_length`` trims each stream as it grows, by the safe rule of xtrim: what a group still needs
    stays. None keeps everything. ``key_ttl`` is how long, in seconds, the key of an idempotent addition is
    remembered. ``max_payload`` is the greatest size of an entry's JSON text in bytes.
    """

    def __init__(
        self,
        *,
        max_stream_length: int | None = DEFAULT_MAX_STREAM_LENGTH,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        key_ttl: float = _DAY,
    ) -> None:
        super().__init__()
        check_limits(max_stream_length, None)
        self._max_length = sys.maxsize if max_stream_length is None else max_stream_length
        self._max_payload = max_payload
        self._key_ttl = key_ttl
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release  # bound once, for xadd
        self._streams: dict[str, Stream] = {}
        self._readers = Readers()
        self._once: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()  # id and expiry by key

    # -- adding ------------------------------------------------------------------------------------

    def xadd(self, stream: str, data: Mapping[str, Any], **options: Unpack[AddOptions]) -> str:
        # The busiest path, written for speed: options are gathered, because filling in seven defaults takes
        # longer than storing the entry, and the short ways of encode_data() and EntryLog.append() stand here
        # in full. Whatever is out of the ordinary takes the long way.
        if options or type(data) is not dict:
            return self._xadd_with_options(stream, data, **options)
        for key, value in data.items():
            if type(key) is not str or type(value) not in PLAIN:
                return self._xadd_with_options(stream, data)
        try:
            body = encode(data)
        except UnicodeEncodeError:
            return self._xadd_with_options(stream, data)  # says what is wrong
        if len(body) > self._max_payload:
            raise PayloadTooLarge(len(body), self._max_payload)
        self._acquire()
        try:
            place = self._streams.get(stream) or self._new_stream(stream)
            log = place.log
            now = time_ns()
            if now < log.run_ends:  # EntryLog.append(), written out
                log.last_seq = seq = log.last_seq + 1
                entry_id = f"{log.prefix}{seq}"
                log.ids.append(entry_id)
                log.bodies.append(body)
                log.live += 1
            else:
                entry_id = log.append(body, now)
            if place.waiting or self._readers.waiting:
                self._hand_over(place)
            if log.live > self._max_length:
                place.trim_to_length(self._max_length, plain=False)
            return entry_id
        finally:
            self._release()

    def _xadd_with_options(
        self,
        stream: str,
        data: Mapping[str, Any],
        *,
        id: str = "*",  # noqa: A002 - as in the contract
        maxlen: int | None = None,
        minid: str | None = None,
        plain: bool = False,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - as in the contract
        headers: Mapping[str, str] | None = None,
    ) -> str:
        body = encode_body(data, self._max_payload, type, headers)
        check_limits(maxlen, minid)
        with self._lock:
            if key is not None and (known := self._known_id(stream, key)):
                return known
            place = self._streams.get(stream) or Stream(check_name("stream", stream))
            entry_id = place.log.append_as(place.log.new_key(stream, id, time_ns() // 1_000_000), body)
            self._streams[stream] = place  # only now: a refused id leaves no stream behind
            if key is not None:
                self._once[stream, key] = (entry_id, monotonic() + self._key_ttl)
            if place.waiting or self._readers.waiting:
                self._hand_over(place)
            if maxlen is not None:
                place.trim_to_length(maxlen, plain=plain)
            elif minid is not None:
                place.trim_below(parse_id(minid), plain=plain)
            place.trim_to_length(self._max_length, plain=False)
        return entry_id

    def xadd_many(self, stream: str, items: Iterable[Mapping[str, Any]]) -> list[str]:
        bodies = [encode_data(data, self._max_payload) for data in items]
        if not bodies:
            check_name("stream", stream)
            return []
        with self._lock:
            place = self._streams.get(stream) or self._new_stream(stream)
            now_ns = time_ns()
            ids = [place.log.append(body, now_ns) for body in bodies]
            if place.waiting or self._readers.waiting:
                self._hand_over(place)
            place.trim_to_length(self._max_length, plain=False)
        return ids

    def _known_id(self, stream: str, key: str) -> str | None:
        """The id that was added under ``key``, as long as it is remembered."""
        check_name("stream", stream)
        check_name("key", key)
        now = monotonic()
        # All keys live equally long, so the oldest are the first to go.
        while self._once and next(iter(self._once.values()))[1] <= now:
            self._once.popitem(last=False)
        known = self._once.get((stream, key))
        return known[0] if known else None

    # -- groups ------------------------------------------------------------------------------------

    def create_group(self, stream: str, group: str, start_id: str = "$") -> None:
        check_name("group", group)
        start = None if start_id == "$" else parse_id(start_id)
        with self._lock:
            place = self._streams.get(stream) or self._new_stream(stream)
            if group not in place.groups:
                place.groups[group] = Group(group, place.log.last if start is None else start)
                place.trimmable = None  # the new group may need what no other did

    def delete_group(self, stream: str, group: str) -> bool:
        check_name("group", group)
        with self._lock:
            place = self._streams.get(stream)
            gone = place.groups.pop(group, None) if place else None
            if place is None or gone is None:
                self._nothing(stream)
                return False
            place.turn_away(gone, GroupNotFound(stream, group))
            place.trimmable = None
        self._forget_cursor(stream, group)
        return True

    def delete_consumer(self, stream: str, group: str, consumer: str, *, only_idle: bool = False) -> int:
        check_name("consumer", consumer)
        with self._lock:
            queue = self._stream(stream).group(group)
            member = queue.consumers.get(consumer)
            if member is None:
                return 0
            pending = member.pending
            if not (pending and only_idle):
                queue.pending.settle([entry_id for entry_id, _ in queue.pending_of(member)])
                del queue.consumers[consumer]
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
        if type(count) is not int or count < 1:
            check_count(count)
        if block_ms:
            check_block(block_ms)
        with self._lock:
            now = monotonic()
            try:
                place = self._streams[stream]
                queue = place.groups[group]
                member = queue.consumers[consumer]
                member.seen = now
            except (KeyError, TypeError):
                place = self._stream(stream)
                queue = place.group(group)
                member = queue.consumer(consumer, now)
            if start != ">":
                return place.read_again(queue, member, parse_id(start), count, now)
            messages = place.deliver(queue, member, count, now)
            if messages or block_ms == 0:
                return messages
            waiter = Waiter(consumer, count)
            place.enqueue(queue, waiter)
        return self._wait(waiter, block_ms)

    def xack(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        with self._lock:
            place = self._streams.get(stream)
            queue = place.groups.get(group) if place else None
            if queue is None:
                check_name("stream", stream)
                check_name("group", group)
                id_list(ids)
                return 0
            if type(ids) is list and ids and type(ids[0]) is str and queue.pending.settle_batch(ids):
                return len(ids)
            return queue.pending.settle(id_list(ids))

    def xackdel(self, stream: str, group: str, ids: str | Sequence[str]) -> int:
        wanted = id_list(ids)
        deleted = 0
        with self._lock:
            place = self._streams.get(stream)
            queue = place.groups.get(group) if place else None
            if place is None or queue is None:
                check_name("stream", stream)
                check_name("group", group)
                return 0
            others = [other for other in place.groups.values() if other is not queue]
            for entry_id in wanted:
                if queue.pending.settle((entry_id,)):
                    key = parse_id(entry_id)
                    needed = any(key > other.last or other.pending.get(entry_id) for other in others)
                    if not needed:
                        deleted += place.log.delete(key)
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
        low, high = parse_range(start, end)
        check_idle(min_idle_ms)
        check_count(count)
        if consumer is not None:
            check_name("consumer", consumer)
        found: list[PendingMessage] = []
        with self._lock:
            pending = self._stream(stream).group(group).pending
            now = monotonic()
            for entry_id, delivery in pending.scan(low):
                if parse_id(entry_id) > high:
                    break
                idle = int((now - delivery.time) * 1000)
                if consumer in (None, delivery.consumer.name) and idle >= min_idle_ms:
                    found.append(PendingMessage(entry_id, delivery.consumer.name, idle, delivery.count))
                    if len(found) == count:
                        break
        return found

    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: str | Sequence[str]
    ) -> list[Message]:
        check_idle(min_idle_ms)
        wanted = id_list(ids)
        messages: list[Message] = []
        if not wanted:
            self._nothing(stream)
            return messages
        with self._lock:
            place = self._stream(stream)
            queue = place.group(group)
            now = monotonic()
            member = queue.consumer(consumer, now)
            for entry_id in wanted:
                before = queue.pending.get(entry_id)
                if before is not None:
                    message = place.claim(queue, member, entry_id, before, min_idle_ms, now)
                    if message:
                        messages.append(message)
        return messages

    def xautoclaim_page(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, start: str = "0-0", count: int = 100
    ) -> ClaimPage:
        check_idle(min_idle_ms)
        check_count(count)
        begin = parse_id(start)
        with self._lock:
            place = self._stream(stream)
            queue = place.group(group)
            now = monotonic()
            member = queue.consumer(consumer, now)
            return place.claim_page(queue, member, min_idle_ms, begin, count, now)

    # -- reading without a group -------------------------------------------------------------------

    def xrange(
        self, stream: str, start: str = "-", end: str = "+", count: int | None = None
    ) -> list[Message]:
        check_count(count)
        low, high = parse_range(start, end)
        with self._lock:
            place = self._streams.get(stream)
            found = islice(place.log.between(low, high), count) if place else self._nothing(stream)
            return [Message(entry_id, stream, body, 0) for entry_id, body in found]

    def xrevrange(
        self, stream: str, end: str = "+", start: str = "-", count: int | None = None
    ) -> list[Message]:
        check_count(count)
        low, high = parse_range(start, end)
        with self._lock:
            place = self._streams.get(stream)
            found = islice(place.log.between_reversed(low, high), count) if place else self._nothing(stream)
            return [Message(entry_id, stream, body, 0) for entry_id, body in found]

    def xread(
        self, streams: Mapping[str, str], count: int | None = None, block_ms: int | None = 0
    ) -> list[Message]:
        check_count(count)
        check_block(block_ms)
        waiter = Waiter("", count)
        messages: list[Message] = []
        with self._lock:
            for stream, after in streams.items():
                place = self._streams.get(stream) or Stream(check_name("stream", stream))
                waiter.positions[stream] = place.log.last if after == "$" else parse_id(after)
                messages += place.after(waiter.positions[stream], count)
            if messages or block_ms == 0 or not streams:
                return messages
            self._readers.join(waiter)
        return self._wait(waiter, block_ms)

    # -- keeping house -----------------------------------------------------------------------------

    def xlen(self, stream: str) -> int:
        with self._lock:
            place = self._streams.get(stream)
            return place.log.live if place else len(self._nothing(stream))

    def xtrim(
        self, stream: str, max_len: int | None = None, min_id: str | None = None, *, plain: bool = False
    ) -> int:
        check_limits(max_len, min_id, required=True)
        with self._lock:
            place = self._streams.get(stream)
            if place is None:
                return len(self._nothing(stream))
            if max_len is not None:
                return place.trim_to_length(max_len, plain=plain)
            return place.trim_below(parse_id(min_id or ""), plain=plain)

    def xdel(self, stream: str, ids: str | Sequence[str]) -> int:
        keys = [parse_id(entry_id) for entry_id in id_list(ids)]
        with self._lock:
            place = self._streams.get(stream)
            return sum(map(place.log.delete, keys)) if place else len(self._nothing(stream))

    def delete_stream(self, stream: str) -> bool:
        with self._lock:
            place = self._streams.pop(check_name("stream", stream), None)
            if place is None:
                return False
            for group in place.groups.values():
                place.turn_away(group, StreamNotFound(stream))
                self._forget_cursor(stream, group.name)
        return True

    def group_info(self, stream: str) -> list[GroupInfo]:
        with self._lock:
            place = self._stream(stream)
            now, wall = monotonic(), time()
            return [place.describe(group, now, wall) for _, group in sorted(place.groups.items())]

    def close(self) -> None:
        """Forget everything; readers that wait get BrokerClosed, and so does any later call."""
        with self._lock:
            streams, self._streams = self._streams, _Closed()
            for place in streams.values():
                for group in place.groups.values():
                    place.turn_away(group, BrokerClosed())
            self._readers.turn_away(BrokerClosed())

    def _keep_stream(self, name: str) -> None:
        """Let the stream ``name`` be, however long its name. For drivers, whose names hold those of users."""
        with self._lock:
            if self._streams.get(name) is None:
                self._streams[name] = Stream(name)

    # -- helpers, all under the lock ---------------------------------------------------------------

    def _stream(self, name: str) -> Stream:
        place = self._streams.get(name)
        if place is None:
            raise StreamNotFound(check_name("stream", name))
        return place

    def _new_stream(self, name: str) -> Stream:
        place = self._streams[check_name("stream", name)] = Stream(name)
        return place

    @staticmethod
    def _nothing(stream: str) -> list[tuple[str, Body]]:
        """What an unknown stream holds; its name is checked as that of a known one was."""
        check_name("stream", stream)
        return []

    def _hand_over(self, place: Stream) -> None:
        """Give what was just added to those who wait for it."""
        if place.waiting:
            place.serve_groups(monotonic())
        if self._readers.waiting:
            self._readers.serve(place)

    def _wait(self, waiter: Waiter, block_ms: int | None) -> list[Message]:
        try:
            waiter.wait(block_ms)
        finally:
            with self._lock:
                waiter.leave()
        return waiter.result()


class _Closed(dict[str, Stream]):
    """What takes the place of the streams after close(), so that no call has to ask."""

    def get(self, *_: object) -> NoReturn:
        raise BrokerClosed

    __getitem__ = pop = get
