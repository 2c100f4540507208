"""Taking jobs on Redis: by priority in one script, and waiting for them in one blocking read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count as count_up
from itertools import repeat
from typing import Any

import msgspec

from millstream.brokers.redis import wire
from millstream.brokers.redis.failures import NoGroup, NoKey
from millstream.brokers.redis.link import Argument
from millstream.drivers.base import RateLimit, Reservation, Settlement
from millstream.drivers.redis_calls import GROUP, LATE_WAKE, NEAR_POLL, Connection, script
from millstream.envelope import PRIORITIES, peek_id
from millstream.errors import OutcomeUnknown

log = logging.getLogger("millstream.drivers.stream")

RESERVE, CHARGE, JOIN, SIZE = (script(name) for name in ("reserve_n", "charge_1", "join_14", "size_14"))
RECOVER = script("recover_14")
# One command blocks this long at the most: a connection that died silently is noticed, and a job that grew
# old is seen, even if nothing else happens.
LONGEST_BLOCK = 2.0
# How often a driver looks for jobs that have waited too long, in seconds and as a share of max_wait.
LOOK_EVERY, LOOK_SHARE = 0.02, 0.05
GOES_FIRST = 0.8  # of max_wait, so that the job has started when all of it is over
LOOK_AT = 1000  # pending entries of a stream that one call of recover looks at
SHORTEST_POLL, LONGEST_POLL = 0.005, 0.05

Part = tuple[str, int, Sequence[Any], Sequence[int]]  # queue, level, entries, delivery counts
Settle = Callable[[str, Sequence[Settlement]], list[bool]]


class Owner:
    """What this object handed out to an owner and was not told the end of, by stream."""

    __slots__ = ("calls", "hands", "lock", "lost")

    def __init__(self) -> None:
        self.hands: dict[str, set[str]] = {}
        self.calls = 0  # reads that are under way
        self.lost: set[str] = set()  # queues of reads whose reply was lost
        self.lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.lock:
            self.calls += 1
        try:
            yield
        finally:
            with self.lock:
                self.calls -= 1

    def hand(self, stream: str) -> set[str]:
        return self.hands.setdefault(stream, set())


class Reserver:
    """`reserve`, and the memory of what was reserved."""

    def __init__(self, connection: Connection, settle: Settle) -> None:
        self._connection, self._settle = connection, settle
        self._caller = connection.reads
        self._owners: dict[str, Owner] = {}
        self._turns = count_up()
        self._looked: dict[tuple[float, tuple[str, ...]], float] = {}
        self._joined: set[str] = set()
        self._cursors: dict[str, list[str]] = {}  # where recover goes on, by queue

    # -- what was handed out -----------------------------------------------------------------------

    def owner(self, name: str) -> Owner:
        return self._owners.get(name) or self._owners.setdefault(name, Owner())

    def handed_back(self, name: str, stream: str, entries: Iterable[str]) -> None:
        """The end of these jobs is known."""
        owner = self._owners.get(name)
        if owner is not None:
            owner.hand(stream).difference_update(entries)

    # -- reserving ---------------------------------------------------------------------------------

    def reserve(
        self,
        queues: Sequence[str],
        name: str,
        count: int,
        wait: float,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> list[Reservation]:
        owner = self.owner(name)
        deadline = time.monotonic() + wait
        poll = SHORTEST_POLL
        rung: list[str] = []
        self._join([queue for queue in queues if queue not in self._joined])
        with owner.reading():
            while True:
                try:
                    if owner.lost:
                        self._find_lost(owner, name)
                    found, waits = self._take(queues, name, count, max_wait, limits)
                    if found:
                        if rung and len(found) >= count:
                            self._ring(rung)
                        return found
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return []
                    if self._connection.cluster and len(queues) > 1:
                        # One command cannot wait for keys on several nodes, so there the wait is a poll.
                        self._caller.pause(min(poll, left))
                        poll = min(poll * 1.5, LONGEST_POLL)
                        continue
                    start = min((wait for wait in waits.values() if wait > 0), default=left)
                    if start < LATE_WAKE:
                        # The next start of a limit is so near that the server would wake us too late.
                        self._caller.pause(min(start, left, NEAR_POLL))
                        continue
                    found, rung = self._wait(waits, name, count, left, limits)
                    if found:
                        return found
                except OutcomeUnknown:
                    # The server may have given jobs away in the reply that never came. They are the owner's,
                    # and nobody else would get them before the lease ends.
                    owner.lost.update(queues)
                except (NoGroup, NoKey):
                    self._join(queues)

    def _take(
        self,
        queues: Sequence[str],
        name: str,
        count: int,
        max_wait: float | None,
        limits: Mapping[str, RateLimit],
    ) -> tuple[list[Reservation], dict[str, float]]:
        """What there is now, and for each queue how long it gives nothing: seconds, or -1 while paused."""
        turn = next(self._turns) % len(queues)
        ordered = [*queues[turn:], *queues[:turn]]
        oldest = self._oldest(queues, max_wait)
        if not (self._connection.cluster and len(queues) > 1):
            return self._take_some(ordered, name, count, oldest, limits)
        found: list[Reservation] = []
        waits = dict.fromkeys(queues, 0.0)
        if oldest != "":
            for queue in ordered:
                if len(found) < count:
                    more, wait = self._take_some([queue], name, count - len(found), oldest, limits, (1, 0))
                    found += more
                    waits |= wait
        # Each queue has a server of its own here, so the levels that have something are asked for first.
        sizes = {queue: self._caller.script(SIZE, self._connection.keys(queue).all) for queue in ordered}
        for level in range(4):
            for position, queue in enumerate(ordered):
                left = count - len(found)
                if left and sizes[queue][level]:
                    sharers = sum(bool(sizes[other][level]) for other in ordered[position:])
                    share = -(-left // sharers)
                    span = (level + 1, level + 1)
                    more, wait = self._take_some([queue], name, share, "", limits, span)
                    found += more
                    waits |= wait
        return found, waits

    def _take_some(
        self,
        queues: Sequence[str],
        name: str,
        count: int,
        oldest: int | str,
        limits: Mapping[str, RateLimit],
        levels: tuple[int, int] = (1, 4),
    ) -> tuple[list[Reservation], dict[str, float]]:
        keys: list[str] = []
        args: list[Argument] = [name, count, oldest, *levels]
        for queue in queues:
            keys += self._connection.keys(queue).reserving
            limit = limits.get(queue)
            args += (limit.limit, round(limit.per * 1e6)) if limit else (0, 0)
        parts, waits, missing = self._caller.script(RESERVE, tuple(keys), *args, repeat=False)
        if missing:
            self._join(queues)
            if not parts:
                parts, waits, _ = self._caller.script(RESERVE, tuple(keys), *args, repeat=False)
        found = self._reservations(
            name, ((queues[queue - 1], level - 1, *rest) for queue, level, *rest in parts)
        )
        return found, {
            queue: wait / 1e6 if wait > 0 else wait for queue, wait in zip(queues, waits, strict=True)
        }

    def _oldest(self, queues: Sequence[str], max_wait: float | None) -> int | str:
        """The age from which on a job goes first; empty where nobody has to look now."""
        if max_wait is None:
            return ""
        now, which = time.monotonic(), (max_wait, tuple(queues))
        if now - self._looked.get(which, -1e9) < min(LOOK_EVERY, max_wait * LOOK_SHARE):
            return ""
        if len(self._looked) > 1000:
            self._looked.clear()
        self._looked[which] = now
        return int(max_wait * GOES_FIRST * 1000)

    def _reservations(self, name: str, parts: Iterable[Any]) -> list[Reservation]:
        """What was taken; ``parts`` are queue, level, what `_flat.lua` makes of entries, delivery counts."""
        owner = self.owner(name)
        found: list[Reservation] = []
        for queue, level, jobs, named, counts in parts:
            priority = PRIORITIES[level]
            entries = [entry_id.decode() for entry_id in jobs[::2]]
            owner.hand(self._connection.keys(queue).streams[level]).update(entries)
            made = [
                Reservation(job_id(body, entry_id), queue, priority, entry_id, body, name, times)
                for entry_id, body, times in zip(entries, jobs[1::2], counts or repeat(1), strict=False)
            ]
            for position, name_of_job in zip(named[::2], named[1::2], strict=True):
                made[position - 1] = msgspec.structs.replace(made[position - 1], id=name_of_job.decode())
            found += made
        return found

    def recover(self, queue: str, name: str, lease_ms: int, count: int) -> list[Reservation]:
        cursors = self._cursors.get(queue) or ["", "", "", ""]
        owner = self.owner(name)
        with owner.reading():
            try:
                parts, after = self._caller.script(
                    RECOVER,
                    self._connection.keys(queue).all,
                    *(name, lease_ms, count, LOOK_AT),
                    *cursors,
                    repeat=False,
                )
            except OutcomeUnknown:
                owner.lost.add(queue)  # the next reserve makes them waiting again
                return []
            self._cursors[queue] = [cursor.decode() for cursor in after]
            return self._reservations(name, ((queue, level - 1, *rest) for level, *rest in parts))

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(
        self, waits: dict[str, float], name: str, count: int, left: float, limits: Mapping[str, RateLimit]
    ) -> tuple[list[Reservation], list[str]]:
        """Block until there is something; what it was, and the queues whose bell rang.

        Only streams that may be read now are waited for; a bell says that a pause has ended, or that
        a job was released, which adds nothing to a stream.
        """
        readable = [queue for queue, wait in waits.items() if wait == 0]
        block = min([left, LONGEST_BLOCK, *(wait - LATE_WAKE for wait in waits.values() if wait > 0)])
        places = {
            stream: (level, queue)
            for level in range(4)
            for queue in readable
            for stream in [self._connection.keys(queue).streams[level]]
        }
        bells = {self._connection.keys(queue).bell: queue for queue in waits}
        streams = (*places, *bells)
        # COUNT is per stream. More than was asked for is handed back, so ask for a share of it.
        most = 1 if any(queue in limits for queue in readable) else max(1, count // max(1, len(places)))
        block_ms = max(1, int(block * 1000 + 0.999))
        reply = self._caller.call(
            streams[0],
            *("XREADGROUP", "GROUP", GROUP, name, "COUNT", most, "BLOCK", block_ms),
            *("STREAMS", *streams, *(">" for _ in streams)),
            repeat=False,
            timeout=block_ms / 1000 + self._connection.socket_timeout,
        )
        if not reply:
            return [], []
        got = {key.decode(): entries for key, entries in wire.by_stream(reply)}
        rung = [bell for bell in bells if bell in got]
        found = self._reservations(
            name,
            (
                (queue, level, *_flat(got[stream]), ())
                for stream, (level, queue) in places.items()
                if stream in got
            ),
        )
        for bell in rung:
            self._caller.call(bell, "XACK", bell, GROUP, *(entry_id for entry_id, _ in got[bell]))
        return self._allowed(found, count, limits), [bells[bell] for bell in rung]

    def _allowed(
        self, found: list[Reservation], count: int, limits: Mapping[str, RateLimit]
    ) -> list[Reservation]:
        """As many as were asked for and as the limits allow; the rest is handed back."""
        kept, back = found[:count], found[count:]
        for queue, limit in limits.items():
            started = [one for one in kept if one.queue == queue]
            if started:
                starts = self._connection.keys(queue).starts
                free = self._caller.script(
                    CHARGE, (starts,), limit.limit, round(limit.per * 1e6), len(started), repeat=False
                )
                back += started[free:]
        if back:
            self._hand_back(back)
            unwanted = {id(one) for one in back}
            kept = [one for one in kept if id(one) not in unwanted]
        return kept

    def _hand_back(self, reservations: Sequence[Reservation]) -> None:
        by_queue: dict[str, list[Settlement]] = {}
        for one in reservations:
            by_queue.setdefault(one.queue, []).append(Settlement(one, "release"))
        for queue, settlements in by_queue.items():
            self._settle(queue, settlements)

    def _ring(self, queues: Iterable[str]) -> None:
        """Wake the next one: there may be more than this one could take."""
        for queue in queues:
            bell = self._connection.keys(queue).bell
            self._caller.call(bell, "XADD", bell, "MAXLEN", 1, "*", "ring", 1)

    # -- what the server forgot, and what it told nobody -----------------------------------------

    def _join(self, queues: Sequence[str]) -> None:
        """Let the groups exist, at the beginning: what was added since a loss was given to nobody."""
        for queue in queues:
            made = self._connection.writes.script(JOIN, self._connection.keys(queue).all)
            if made and queue in self._joined:
                log.warning(
                    "the groups of queue %r are gone from the server (flushed, deleted, or restarted without "
                    "persistence); made them anew at the beginning of the streams",
                    queue,
                )
            self._joined.add(queue)

    def _find_lost(self, owner: Owner, name: str) -> None:
        """Hand back what the server gave to this owner in a reply that never arrived.

        Only while no other read of this owner is under way, because its jobs would look lost too; then
        they are recovered when their lease ends.
        """
        with owner.lock:
            if owner.calls == 1:
                self._hand_back_lost(owner, name)

    def _hand_back_lost(self, owner: Owner, name: str) -> None:
        for queue in list(owner.lost):
            lost = []
            streams = self._connection.keys(queue).streams
            for level, stream in enumerate(streams):
                try:
                    rows = self._caller.call(stream, "XPENDING", stream, GROUP, "-", "+", 10_000, name)
                except (NoGroup, NoKey):
                    continue
                hand = owner.hand(stream)
                for entry_id, _, _, times in rows:
                    if entry_id.decode() not in hand:
                        lost.append(
                            Reservation("", queue, PRIORITIES[level], entry_id.decode(), b"", name, times)
                        )
            for at in range(0, len(lost), 1000):
                self._hand_back(lost[at : at + 1000])
            owner.lost.discard(queue)
            if lost:
                log.info("queue %r: %d jobs of a lost reply are waiting again", queue, len(lost))


def job_id(body: bytes, entry_id: str) -> str:
    try:
        return peek_id(body) or f"unreadable-{entry_id}"
    except ValueError:
        return f"unreadable-{entry_id}"


def tells_id(body: bytes, name: str) -> bool:
    """Whether the job's id can be read from its body. An encrypted one, for example, does not tell it."""
    return body.startswith(b'{"id":"%b"' % name.encode()) or job_id(body, "") == name


def _flat(entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> tuple[list[bytes], list[Any]]:
    """What `_flat.lua` makes of entries."""
    found: list[bytes] = []
    named: list[Any] = []
    for position, (entry_id, fields) in enumerate(entries, 1):
        if fields[0] == b"job" and len(fields) == 2:
            found += (entry_id, fields[1])
        elif fields[0] == b"job" and len(fields) == 4 and fields[2] == b"id":
            found += (entry_id, fields[1])
            named += (position, fields[3])
        else:
            texts = [field.decode("utf-8", "backslashreplace") for field in fields]
            found += (entry_id, msgspec.json.encode(dict(zip(texts[::2], texts[1::2], strict=False))))
    return found, named
