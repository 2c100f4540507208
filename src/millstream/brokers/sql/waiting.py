"""Readers that wait, for all brokers of this process on one database.

A reader that waits holds no connection. It sleeps until somebody rings for its stream: this process after
each addition of its own, and the thread in `watching.py` for those of other processes. Then it looks again.

Readers of one group stand in a queue, and only the one at its head looks; it wakes the next one when it
leaves. So they are served in the order in which they began to wait, and a hundred of them cost the database
no more than one. Among several processes the database decides who comes first.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from time import monotonic

from millstream.brokers.sql.watching import Watch
from millstream.errors import BrokerClosed, GroupNotFound, StreamNotFound
from millstream.sql.database import Database

# How long a stream stays known after its last reader left: a consumer that reads in a loop comes back at
# once.
LINGER = 5.0


class Watched:
    """A stream that somebody waits for."""

    __slots__ = ("armed_until", "idle_since", "queues", "readers", "state", "version")

    def __init__(self) -> None:
        self.version = 0  # grows with each ring
        self.state: object = None  # what the watching thread saw last; None: it has not looked yet
        self.armed_until = 0.0  # until when other processes send notifications for it
        self.queues: dict[str, deque[Waiter]] = {}
        self.readers: set[Waiter] = set()  # outside of every group
        self.idle_since = monotonic()

    @property
    def awaited(self) -> bool:
        return bool(self.queues or self.readers)


class Waiter:
    """One blocked call."""

    __slots__ = ("_bell", "_hub", "_rung", "error", "group", "owner", "streams")

    def __init__(self, hub: Hub, owner: object, streams: tuple[str, ...], group: str | None) -> None:
        self._hub, self.owner, self.streams, self.group = hub, owner, streams, group
        self.error: Exception | None = None
        self._rung = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        """Under the hub's lock."""
        if not self._rung:
            self._rung = True
            self._bell.release()

    def wait(self, version: int | None, deadline: float | None) -> None:
        """Sleep until it is worth looking again, or until the time has passed.

        ``version`` is what `Hub.version` said before the caller looked; None if it has not looked, because
        it was not at the head of its queue.
        """
        with self._hub.lock:
            if self._hub.worth_looking(self, version):
                return
        timeout = -1.0 if deadline is None else min(max(deadline - monotonic(), 0.0), threading.TIMEOUT_MAX)
        if self._bell.acquire(timeout=timeout):
            self._rung = False


class Hub:
    """Everybody who waits, by stream. A part of its `Database`."""

    def __init__(self, database: Database) -> None:
        self.lock = threading.Lock()
        self.watched: dict[str, Watched] = {}
        self.token = os.urandom(6).hex()  # how this process knows its own notifications
        self._watch = Watch(database, self)

    # -- for readers -------------------------------------------------------------------------------

    def join(self, owner: object, stream: str, group: str) -> Waiter:
        """Stand in the queue of a group."""
        waiter = Waiter(self, owner, (stream,), group)
        with self.lock:
            place = self.watched.setdefault(stream, Watched())
            place.queues.setdefault(group, deque()).append(waiter)
        return waiter

    def join_any(self, owner: object, streams: Iterable[str]) -> Waiter:
        """Wait for any of ``streams``, outside of every group."""
        waiter = Waiter(self, owner, tuple(streams), None)
        with self.lock:
            for stream in waiter.streams:
                self.watched.setdefault(stream, Watched()).readers.add(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting, and let the next one look."""
        with self.lock:
            for stream in waiter.streams:
                place = self.watched.get(stream)
                if place is None:
                    continue
                if waiter.group is None:
                    place.readers.discard(waiter)
                elif (queue := place.queues.get(waiter.group)) is not None and waiter in queue:
                    was_head = queue[0] is waiter
                    queue.remove(waiter)
                    if not queue:
                        del place.queues[waiter.group]
                    elif was_head:
                        queue[0].ring()
                place.idle_since = monotonic()

    def at_head(self, waiter: Waiter) -> bool:
        with self.lock:
            return self._at_head(waiter)

    def _at_head(self, waiter: Waiter) -> bool:
        if waiter.group is None:
            return True
        place = self.watched.get(waiter.streams[0])
        queue = place.queues.get(waiter.group) if place else None
        return not queue or queue[0] is waiter

    def version(self, waiter: Waiter) -> int:
        """How often it was rung for the waiter's streams; to be asked before looking."""
        with self.lock:
            return self._version(waiter)

    def _version(self, waiter: Waiter) -> int:
        return sum(place.version for name in waiter.streams if (place := self.watched.get(name)))

    def worth_looking(self, waiter: Waiter, version: int | None) -> bool:
        """Under the lock: whether something happened that the waiter has not seen."""
        return waiter.error is not None or (self._at_head(waiter) and version != self._version(waiter))

    def arm(self, waiter: Waiter) -> bool:
        """See to it that other processes' additions are noticed; whether the caller must look once more."""
        return self._watch.arm(waiter.streams)

    # -- for writers -------------------------------------------------------------------------------

    def ring(self, stream: str) -> None:
        """Something was added to ``stream``, or it changed in another way."""
        if stream not in self.watched:  # without the lock: who joins later looks after joining
            return
        with self.lock:
            self._ring(stream)

    def _ring(self, stream: str) -> None:
        place = self.watched.get(stream)
        if place is not None:
            place.version += 1
            for queue in place.queues.values():
                queue[0].ring()
            for reader in place.readers:
                reader.ring()

    def ring_all(self) -> None:
        with self.lock:
            for stream in self.watched:
                self._ring(stream)

    def turn_away(self, stream: str, group: str | None) -> None:
        """Wake the readers of a deleted group, or of all groups of a deleted stream."""
        if stream not in self.watched:
            return
        with self.lock:
            place = self.watched[stream]
            for name, queue in place.queues.items():
                if group in (None, name):
                    for waiter in queue:
                        waiter.error = (
                            StreamNotFound(stream) if group is None else GroupNotFound(stream, name)
                        )
                        waiter.ring()

    def broker_closed(self, owner: object) -> None:
        """Wake the readers of a broker that was closed."""
        with self.lock:
            for place in self.watched.values():
                waiters = [waiter for queue in place.queues.values() for waiter in queue]
                for waiter in [*waiters, *place.readers]:
                    if waiter.owner is owner:
                        waiter.error = BrokerClosed()
                        waiter.ring()

    # -- for the watching thread -------------------------------------------------------------------

    def awaited(self) -> list[str]:
        """The streams to watch. Those that nobody came back for are forgotten."""
        with self.lock:
            now = monotonic()
            for name, place in list(self.watched.items()):
                if not place.awaited and now - place.idle_since > LINGER:
                    del self.watched[name]
            return list(self.watched)

    def saw(self, stream: str, state: object) -> bool:
        """Note what the database says of a stream, and ring if that is new; whether it was."""
        with self.lock:
            place = self.watched.get(stream)
            if place is None or place.state == state:
                return False
            place.state = state
            self._ring(stream)
            return True

    def close(self) -> None:
        self._watch.close()

    def after_fork(self) -> None:
        """In a child process: the threads that waited are the parent's."""
        self.lock = threading.Lock()
        self.watched = {}
        self._watch.after_fork()
