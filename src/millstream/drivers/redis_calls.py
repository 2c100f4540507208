"""What the steps on Redis share: the scripts, a queue's keys, and calls that are answered once."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from itertools import count

from millstream.brokers.redis import RedisStreamBroker
from millstream.brokers.redis.calls import Caller
from millstream.brokers.redis.link import ClusterLink
from millstream.brokers.redis.scripts import Script
from millstream.drivers.keys import QueueKeys

_FOLDER = files(__package__) / "lua"
GROUP, RELEASED = "workers", "~released"
# How long a repeated call gets its old answer: far longer than anybody repeats one.
ANSWER_TTL_MS = 3_600_000
# A read gives up earlier than a write: who waits for jobs asks again anyway, and wants to know.
READ_RETRY_FOR = 5.0

# A server looks at the timeouts of blocked clients ten times a second, so it may wake one that much too late.
LATE_WAKE = 0.105
NEAR_POLL = 0.01


def script(name: str) -> Script:
    return Script(name, _FOLDER)


class Slot:
    """One caller in the eyes of the server: it makes one call at a time and numbers them."""

    __slots__ = ("id", "number")

    def __init__(self, slot_id: str) -> None:
        self.id, self.number = slot_id, 0


class Numbers:
    """Gives each call a number under which the server answers it once, however often it is repeated.

    A call that found no server keeps its number: the same call made again later, with the same jobs, is still
    the same to the server, and adds nothing if the first one had arrived after all.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._name, self._made = secrets.token_hex(6), count()
        self._free: deque[Slot] = deque()
        self._unanswered: dict[Hashable, Slot] = {}

    @contextmanager
    def one(self, what: Hashable = None) -> Iterator[Slot]:
        """A slot whose number is this call's. ``what`` tells the same call made again."""
        slot = self.take(what)
        try:
            yield slot
        except BaseException:
            self.keep(slot, what)
            raise
        self._free.append(slot)

    def take(self, what: Hashable = None) -> Slot:
        """As `one`, for a caller that says itself how the call ended: by `give_back` or `keep`."""
        if os.getpid() != self._process:
            self._begin()  # a forked child must not use its parent's numbers
        slot = self._unanswered.pop(what, None) if self._unanswered else None
        if slot is None:
            try:
                slot = self._free.pop()
            except IndexError:
                slot = Slot(f"{self._name}-{next(self._made)}")
            slot.number += 1
        return slot

    def give_back(self, slot: Slot) -> None:
        """The call was answered."""
        self._free.append(slot)

    def keep(self, slot: Slot, what: Hashable) -> None:
        """The call failed, and may have arrived all the same: its number waits until it is made again.

        A slot of nobody who could make it again is dropped: a late arrival must find its own number.
        """
        if what is None:
            return
        if len(self._unanswered) > 1000:
            self._unanswered.clear()
        self._unanswered[what] = slot


class Connection:
    """A broker's link, as the steps use it."""

    def __init__(self, broker: RedisStreamBroker, prefix: str, retry_for: float) -> None:
        link = broker._caller.link
        self.prefix = prefix
        self.writes = Caller(link, retry_for)
        self.reads = Caller(link, min(retry_for, READ_RETRY_FOR))
        self.numbers = Numbers()
        self.cluster = isinstance(link, ClusterLink)
        self.socket_timeout = broker._socket_timeout or 5.0
        self.max_payload = broker._max_payload
        self._keys: dict[str, QueueKeys] = {}

    def keys(self, queue: str) -> QueueKeys:
        found = self._keys.get(queue)
        if found is None:
            if len(self._keys) > 10_000:
                self._keys.clear()
            found = self._keys[queue] = QueueKeys(self.prefix, queue)
        return found

    def stop(self) -> None:
        self.writes.stop()
        self.reads.stop()
