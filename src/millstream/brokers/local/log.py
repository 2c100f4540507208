"""The entries of one stream, in the order of their ids.

Two parallel lists, ids and bodies, so that a read is two slices whatever its length; the sorted keys to
search by are not stored for each entry. Ids that are made within one millisecond follow each other without
a gap, so a *run* of them is described by its first key and its first slot, and the rest is arithmetic.
That saves a third of the memory and of the time to add. What makes it right:

* Slots are counted from the beginning of the stream: `base` is the slot of the lists' first element.
* A deleted entry leaves a hole (body None) in its slot, so that a run stays without gaps.
* Everything before `head` is gone; the lists are cut when that is more than half of them. When holes
  outnumber entries, everything is written anew, with new slots: that begins a new `epoch`. Each deletion
  pays a constant share of that work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from millstream.errors import IdNotGreater
from millstream.message import MAX_ID, Id, Typed, format_id, next_id, parse_id

Body = bytes | Typed

_MAX_SEQ = MAX_ID[1]
_CROWDED = _MAX_SEQ - (1 << 48)
_SLACK = 1024  # below this many dead slots tidying up is not worth its own cost


class EntryLog:
    """Sorted entries with O(1) append and removal at the front, O(log n) search and deletion."""

    __slots__ = (
        "_first_keys",
        "_first_slots",
        "base",
        "bodies",
        "epoch",
        "head",
        "holes",
        "ids",
        "last_ms",
        "last_seq",
        "live",
        "prefix",
        "run_ends",
    )

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.bodies: list[Body | None] = []
        self.live = 0
        self.head = 0  # the index of the oldest entry
        self.holes = 0  # deleted slots behind head
        self.base = 0
        self.epoch = 0
        # The newest id ever, which outlives its entry.
        self.last_ms = 0
        self.last_seq = 0
        self.prefix = "0-"  # its first half, spelled once a millisecond
        self.run_ends = 0  # the clock, in nanoseconds, from which on the newest run cannot go on
        self._first_keys: list[Id] = []  # of each run
        self._first_slots: list[int] = []

    @property
    def last(self) -> Id:
        """The newest id ever."""
        return (self.last_ms, self.last_seq)

    # -- adding and removing -----------------------------------------------------------------------

    def append(self, body: Body, now_ns: int) -> str:
        """Add an entry under an id made from the clock, and return the id."""
        if now_ns >= self.run_ends:
            return self.append_as(self.new_key("", "*", now_ns // 1_000_000), body)
        # Still the same millisecond, or the clock stepped back: ids must grow all the same.
        self.last_seq = seq = self.last_seq + 1
        entry_id = f"{self.prefix}{seq}"
        self.ids.append(entry_id)
        self.bodies.append(body)
        self.live += 1
        return entry_id

    def append_as(self, key: Id, body: Body) -> str:
        """Add an entry under ``key``, which must be greater than ``last``; a run begins."""
        self.last_ms, self.last_seq = key
        self.prefix = f"{key[0]}-"
        # So near to the last possible id every entry has to ask whether there is a next one.
        self.run_ends = (key[0] + 1) * 1_000_000 if key[1] < _CROWDED else 0
        self._first_keys.append(key)
        self._first_slots.append(self.base + len(self.ids))
        entry_id = format_id(key)
        self.ids.append(entry_id)
        self.bodies.append(body)
        self.live += 1
        return entry_id

    def new_key(self, stream: str, wanted: str, now_ms: int) -> Id:
        """The id that ``wanted`` asks for. Raises InvalidId or IdNotGreater."""
        last = self.last
        if wanted == "*":
            if now_ms > last[0]:
                return (now_ms, 0)
            if last < MAX_ID:
                return next_id(last)
        elif isinstance(wanted, str) and wanted.endswith("-*"):
            ms = parse_id(wanted[:-2])[0]
            if ms > last[0]:
                return (ms, 0)
            if ms == last[0] and last[1] < _MAX_SEQ:
                return (ms, last[1] + 1)
        else:
            key = parse_id(wanted)
            if key > last:
                return key
        raise IdNotGreater(stream, wanted, format_id(last))

    def delete(self, key: Id) -> bool:
        """Remove one entry; whether it existed."""
        index = self._find(key)
        if index is None:
            return False
        self.bodies[index] = None
        self.live -= 1
        self.holes += 1
        if index == self.head:
            self._skip_holes()
        if self.holes > self.live + _SLACK:
            self._rebuild()
        return True

    def drop_first(self) -> None:
        """Remove the oldest entry; there must be one."""
        self.bodies[self.head] = None
        self.live -= 1
        self.holes += 1
        self._skip_holes()

    # -- searching and reading ---------------------------------------------------------------------

    def at(self, key: Id) -> int:
        """The index of the first slot at or above ``key``."""
        run = bisect_right(self._first_keys, key) - 1
        if run < 0:
            return self.head
        ms, seq = self._first_keys[run]
        begin = self._first_slots[run] - self.base
        end = self._end_of(run)
        return max(end if key[0] > ms else min(begin + key[1] - seq, end), self.head)

    def after(self, key: Id) -> int:
        """The index of the first slot above ``key``."""
        return self.at(next_id(key)) if key < MAX_ID else len(self.ids)

    def get(self, key: Id) -> Body | None:
        """The body of one entry; None where there is none."""
        index = self._find(key)
        return None if index is None else self.bodies[index]

    def take(self, index: int, count: int) -> tuple[list[str], list[Body], int]:
        """Ids and bodies of up to ``count`` entries from ``index`` on, and the index behind them."""
        if not self.holes:
            ids = self.ids[index : index + count]
            return ids, self.bodies[index : index + count], index + len(ids)  # type: ignore[return-value] # without holes no body is None
        found: list[int] = []
        bodies = self.bodies
        end = len(bodies)
        while index < end and len(found) < count:
            if bodies[index] is not None:
                found.append(index)
            index += 1
        return [self.ids[slot] for slot in found], [bodies[slot] for slot in found], index  # type: ignore[misc] # none of them is a hole

    def count_from(self, index: int) -> int:
        """How many entries there are from ``index`` on."""
        if not self.holes:
            return len(self.ids) - index
        return sum(body is not None for body in self.bodies[index:])

    def between(self, low: Id, high: Id) -> Iterator[tuple[str, Body]]:
        """Entries with low <= id <= high, oldest first."""
        for index in range(self.at(low), self.after(high)):
            body = self.bodies[index]
            if body is not None:
                yield self.ids[index], body

    def between_reversed(self, low: Id, high: Id) -> Iterator[tuple[str, Body]]:
        """The same entries, newest first."""
        for index in range(self.after(high) - 1, self.at(low) - 1, -1):
            body = self.bodies[index]
            if body is not None:
                yield self.ids[index], body

    def first_key(self) -> Id:
        """The oldest entry's id; there must be one."""
        return self._key_at(self.head)

    # -- runs --------------------------------------------------------------------------------------

    def _end_of(self, run: int) -> int:
        """The index behind the last slot of a run."""
        if run + 1 < len(self._first_slots):
            return self._first_slots[run + 1] - self.base
        return len(self.ids)

    def _find(self, key: Id) -> int | None:
        """The index of the entry under ``key``."""
        run = bisect_right(self._first_keys, key) - 1
        if run < 0:
            return None
        ms, seq = self._first_keys[run]
        index = self._first_slots[run] - self.base + key[1] - seq
        if ms != key[0] or not self.head <= index < self._end_of(run) or self.bodies[index] is None:
            return None
        return index

    def _key_at(self, index: int) -> Id:
        slot = self.base + index
        run = bisect_right(self._first_slots, slot) - 1
        ms, seq = self._first_keys[run]
        return (ms, seq + slot - self._first_slots[run])

    def _skip_holes(self) -> None:
        head, bodies, end = self.head, self.bodies, len(self.bodies)
        while head < end and bodies[head] is None:
            head += 1
        self.holes -= head - self.head
        self.head = head
        if head > _SLACK and head * 2 > end:
            self._cut()

    def _cut(self) -> None:
        """Give back the memory before head. The newest slot stays, because its run may go on."""
        cut = min(self.head, len(self.ids) - 1)
        del self.ids[:cut], self.bodies[:cut]
        self.base += cut
        self.head -= cut
        runs = bisect_right(self._first_slots, self.base) - 1
        del self._first_keys[:runs], self._first_slots[:runs]

    def _rebuild(self) -> None:
        """Write the entries anew without holes. The newest slot stays, because its run may go on."""
        newest = len(self.ids) - 1
        kept = [i for i in range(self.head, newest) if self.bodies[i] is not None] + [newest]
        keys = [self._key_at(index) for index in kept]
        self.ids = [self.ids[index] for index in kept]
        self.bodies = [self.bodies[index] for index in kept]
        self._first_keys, self._first_slots = [], []
        previous = None
        for slot, key in enumerate(keys):
            if previous is None or key != (previous[0], previous[1] + 1):
                self._first_keys.append(key)
                self._first_slots.append(slot)
            previous = key
        self.base = self.head = 0
        self.holes = len(kept) - self.live
        self.epoch += 1
