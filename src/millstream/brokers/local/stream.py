"""One stream of the local broker: its log, its groups and who waits for it."""

from __future__ import annotations

from collections import deque
from itertools import repeat

from millstream.brokers.local.log import EntryLog
from millstream.brokers.local.pending import Consumer, Delivery, PendingList
from millstream.brokers.local.waiting import Waiter
from millstream.brokers.payload import check_name
from millstream.errors import GroupNotFound
from millstream.message import MAX_ID, Id, Message, format_id, next_id, parse_id


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
        return parse_id(self.last_id)

    def consumer(self, name: str, now: float) -> Consumer:
        """The member of that name, seen now; it joins if it is new."""
        member = self.consumers.get(name)
        if member is None:
            member = self.consumers[check_name("consumer", name)] = Consumer(name, now)
        member.seen = now
        return member

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
