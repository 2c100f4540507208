"""One stream of the local broker: its log, its groups and who waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Literal

from millstream.brokers.local.log import EntryLog
from millstream.brokers.local.pending import Consumer, Delivery, PendingList
from millstream.brokers.local.waiting import Waiter
from millstream.brokers.payload import check_name
from millstream.errors import GroupNotFound
from millstream.message import (
    MAX_ID,
    ClaimPage,
    ConsumerInfo,
    GroupInfo,
    Id,
    Message,
    format_id,
    next_id,
    split_id,
)

_SCAN_FACTOR = 10  # how many pending entries a claim may look at for each that it may return


class Group:
    """A consumer group: how far it has read, what it has not acknowledged, who its members are."""

    __slots__ = ("consumers", "epoch", "last_id", "name", "next_slot", "pending", "waiters")

    def __init__(self, name: str, last: Id) -> None:
        self.name = name
        self.last_id = format_id(last)
        self.epoch, self.next_slot = -1, 0  # where to go on reading, valid in that epoch of the log
        self.pending = PendingList()
        self.consumers: dict[str, Consumer] = {}
        self.waiters: deque[Waiter] = deque()

    @property
    def last(self) -> Id:
        """The last id that was delivered."""
        return split_id(self.last_id)

    def consumer(self, name: str, now: float) -> Consumer:
        """The member of that name, seen now; it joins if it is new."""
        member = self.consumers.get(name)
        if member is None:
            member = self.consumers[check_name("consumer", name)] = Consumer(name, now)
        member.seen = now
        return member

    def pending_of(self, member: Consumer, start: Id | None = None) -> Iterator[tuple[str, Delivery]]:
        """The pending entries of one consumer, in order."""
        left = member.pending
        for entry_id, delivery in self.pending.scan(start) if left else ():
            if delivery.consumer is member:
                yield entry_id, delivery
                left -= 1
                if not left:
                    return

    def needed_from(self) -> Id:
        """The lowest id that the group was not given yet or has not acknowledged."""
        first = self.pending.first()
        if first is not None:
            return first
        last = self.last
        return next_id(last) if last < MAX_ID else MAX_ID


class Stream:
    """A log with its groups. Every method is called under the broker's lock."""

    __slots__ = ("groups", "log", "name", "trimmable", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.log = EntryLog()
        self.groups: dict[str, Group] = {}
        self.waiting = 0  # readers that wait in any group, so that adding asks one question
        # Below this id nothing is needed by a group. It only ever grows, unless a group is created.
        self.trimmable: Id | None = None

    def group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            raise GroupNotFound(self.name, check_name("group", name))
        return group

    def deliver(self, group: Group, consumer: Consumer, count: int, now: float) -> list[Message]:
        """Hand up to ``count`` new entries to ``consumer``."""
        log = self.log
        index = group.next_slot - log.base if group.epoch == log.epoch else log.after(group.last)
        ids, bodies, behind = log.take(index if index > log.head else log.head, count)
        if not ids and log.last < group.last:
            return []  # the group begins at an id that is still to come, so its slot is not known yet
        group.epoch = log.epoch
        group.next_slot = log.base + behind
        if not ids:
            return []
        group.last_id = ids[-1]
        group.pending.add(ids, Delivery(consumer, now, 1))
        return list(map(Message, ids, repeat(self.name), bodies))

    def read_again(self, group: Group, member: Consumer, after: Id, count: int, now: float) -> list[Message]:
        """Hand up to ``count`` of a consumer's own pending entries to it once more."""
        messages: list[Message] = []
        for entry_id, delivery in group.pending_of(member, after):
            key = split_id(entry_id)
            body = self.log.get(key) if key > after else None
            if body is not None:
                times = delivery.count + 1
                group.pending.replace(entry_id, Delivery(member, now, times))
                messages.append(Message(entry_id, self.name, body, times))
                if len(messages) == count:
                    break
        return messages

    def claim_page(
        self, group: Group, member: Consumer, min_idle_ms: int, start: Id, count: int, now: float
    ) -> ClaimPage:
        """One bounded step through the pending list, from ``start`` on."""
        messages: list[Message] = []
        deleted: list[str] = []
        limit = _SCAN_FACTOR * count
        for position, (entry_id, before) in enumerate(list(islice(group.pending.scan(start), limit + 1))):
            if position == limit or len(messages) + len(deleted) == count:
                return ClaimPage(entry_id, messages, deleted)
            message = self.claim(group, member, entry_id, before, min_idle_ms, now)
            if message is None:
                deleted.append(entry_id)
            elif message:
                messages.append(message)
        return ClaimPage("0-0", messages, deleted)

    def claim(
        self, group: Group, member: Consumer, entry_id: str, before: Delivery, min_idle_ms: int, now: float
    ) -> Message | Literal[False] | None:
        """The claimed message; False where it is not idle enough; None where the entry is gone."""
        body = self.log.get(split_id(entry_id))
        if body is None:
            group.pending.settle((entry_id,))
            return None
        if (now - before.time) * 1000 < min_idle_ms:
            return False
        group.pending.replace(entry_id, Delivery(member, now, before.count + 1))
        return Message(entry_id, self.name, body, before.count + 1)

    def describe(self, group: Group, now: float, wall: float) -> GroupInfo:
        """A group as group_info shows it; ``now`` is monotonic, ``wall`` the clock on the wall."""
        consumers = [
            ConsumerInfo(name, member.pending, int((now - member.seen) * 1000), wall - (now - member.seen))
            for name, member in sorted(group.consumers.items())
        ]
        lag = self.log.count_from(self.log.after(group.last))
        return GroupInfo(group.name, group.last_id, group.pending.count, lag, consumers)

    def enqueue(self, group: Group, waiter: Waiter) -> None:
        """Let a reader wait in a group, behind those who wait already."""

        def leave() -> None:
            if waiter in group.waiters:
                group.waiters.remove(waiter)
                self.waiting -= 1

        waiter.leave = leave
        group.waiters.append(waiter)
        self.waiting += 1

    def turn_away(self, group: Group, error: Exception) -> None:
        """Wake everybody who waits in a group that is gone."""
        while group.waiters:
            self.waiting -= 1
            group.waiters.popleft().wake(error)

    def after(self, key: Id, count: int | None) -> list[Message]:
        """Entries above ``key``, for a reader outside of every group."""
        log = self.log
        if key >= log.last:
            return []
        ids, bodies, _ = log.take(log.after(key), log.live if count is None else count)
        return list(map(Message, ids, repeat(self.name), bodies, repeat(0)))

    def serve_groups(self, now: float) -> None:
        """Deliver what was just added to the readers that wait, in the order in which they began to wait."""
        for group in self.groups.values():
            while group.waiters:
                waiter = group.waiters[0]
                messages = self.deliver(group, group.consumer(waiter.consumer, now), waiter.count or 1, now)
                if not messages:
                    break
                group.waiters.popleft()
                self.waiting -= 1
                waiter.wake(messages)

    def trim_to_length(self, length: int, *, plain: bool) -> int:
        """Drop the oldest entries down to ``length``, by the rule of xtrim; how many went."""
        log = self.log
        dropped = 0
        while log.live > length and (plain or self._head_is_free()):
            log.drop_first()
            dropped += 1
        return dropped

    def trim_below(self, key: Id, *, plain: bool) -> int:
        """Drop entries below ``key``, by the rule of xtrim; how many went."""
        log = self.log
        dropped = 0
        while log.live and log.first_key() < key and (plain or self._head_is_free()):
            log.drop_first()
            dropped += 1
        return dropped

    def _head_is_free(self) -> bool:
        """Whether no group needs the oldest entry any more."""
        if not self.groups:
            return True
        head = self.log.first_key()
        if self.trimmable is None or head >= self.trimmable:
            self.trimmable = min(group.needed_from() for group in self.groups.values())
        return head < self.trimmable


class Readers:
    """Blocked xread calls, by the streams that they wait for, which need not exist yet."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[str, list[Waiter]] = {}

    def join(self, waiter: Waiter) -> None:
        """Let a reader wait for any of its streams."""

        def leave() -> None:
            for stream in waiter.positions:
                waiters = self.waiting.get(stream, [])
                if waiter in waiters:
                    waiters.remove(waiter)
                    if not waiters:
                        del self.waiting[stream]

        waiter.leave = leave
        for stream in waiter.positions:
            self.waiting.setdefault(stream, []).append(waiter)

    def serve(self, stream: Stream) -> None:
        """Give what was just added to everybody who waits for it."""
        for waiter in self.waiting.get(stream.name, [])[:]:
            messages = stream.after(waiter.positions[stream.name], waiter.count)
            if messages:
                waiter.leave()
                waiter.wake(messages)

    def turn_away(self, error: Exception) -> None:
        for waiter in {waiter for waiters in self.waiting.values() for waiter in waiters}:
            waiter.leave()
            waiter.wake(error)
