"""What a group was given and has not acknowledged, in the order of the ids.

A read makes one batch, whatever its length, and the usual acknowledgement names a batch exactly as it was
read: both are a few steps then, with no work for each entry. Only when somebody acknowledges, claims or
reads again a part of a batch are its entries noted one by one (`loose`).

`batches` keeps the order, which is the order of delivery, since a group is only ever given higher ids.
What is settled stays in it until a scan passes by or until it is half of the list; each settled entry is
passed over a constant number of times, so the cost of a call does not grow with the length of the list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from millstream.message import Id, split_id

_SLACK = 1024  # below this many settled entries a rebuild is not worth its own cost


class Consumer(msgspec.Struct, eq=False, gc=False):
    """A member of a group. ``seen`` is the monotonic time of its last read or claim."""

    name: str
    seen: float
    pending: int = 0


class Delivery(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Entries handed to one consumer at one time, each for the ``count``-th time."""

    consumer: Consumer
    time: float
    count: int


class Batch(msgspec.Struct, eq=False, gc=False):
    """The entries of one read. ``delivery`` is None once they are noted one by one, or settled."""

    first: str  # the id that it began with
    ids: list[str]
    delivery: Delivery | None


class PendingList:
    """The pending entries of one group."""

    __slots__ = ("_batches", "_loose", "_noted", "_whole", "count")

    def __init__(self) -> None:
        self.count = 0
        self._whole: dict[str, Batch] = {}  # by their first id
        self._loose: dict[str, Delivery] = {}
        self._batches: list[Batch] = []
        self._noted = 0  # how many entries the batches list, settled ones included

    def add(self, ids: list[str], delivery: Delivery) -> None:
        """Note entries that were never delivered to this group before; all above those noted so far."""
        size = len(ids)
        first = ids[0]
        self._whole[first] = batch = Batch(first, ids, delivery)
        self._batches.append(batch)
        self._noted += size
        self.count += size
        delivery.consumer.pending += size

    def settle_batch(self, ids: Sequence[str]) -> bool:
        """Take ``ids`` off the list if they are one batch as it was read; otherwise change nothing."""
        batch = self._whole.get(ids[0])
        if batch is None or batch.ids != ids:
            return False
        del self._whole[ids[0]]
        size = len(ids)
        batch.delivery.consumer.pending -= size  # type: ignore[union-attr] # a whole batch has one
        batch.delivery = None
        batch.ids = []
        self.count -= size
        if self._noted > 2 * self.count + _SLACK:
            self._tidy()
        return True

    def settle(self, ids: Sequence[str]) -> int:
        """Take ``ids`` off the list; how many were on it."""
        settled = 0
        for entry_id in ids:
            delivery = self._loose.pop(entry_id, None)
            if delivery is None and self._loosen(entry_id):
                delivery = self._loose.pop(entry_id)
            if delivery is not None:
                delivery.consumer.pending -= 1
                settled += 1
        self.count -= settled
        if self._noted > 2 * self.count + _SLACK:
            self._tidy()
        return settled

    def get(self, entry_id: str) -> Delivery | None:
        """The latest delivery of a pending entry."""
        delivery = self._loose.get(entry_id)
        if delivery is None:
            batch = self._batch_of(entry_id)
            delivery = batch.delivery if batch else None
        return delivery

    def replace(self, entry_id: str, delivery: Delivery) -> None:
        """Note that a pending entry was handed out again."""
        self._loosen(entry_id)
        self._loose[entry_id].consumer.pending -= 1
        delivery.consumer.pending += 1
        self._loose[entry_id] = delivery

    def first(self) -> Id | None:
        """The lowest pending id."""
        for batch in self._walk(0):
            return split_id(batch.ids[0])
        return None

    def scan(self, start: Id | None) -> Iterator[tuple[str, Delivery]]:
        """The pending entries from ``start`` on, or all. What was passed may be replaced while it runs."""
        position = 0
        if start:
            position = max(bisect_right(self._batches, start, key=_start_of) - 1, 0)
        for batch in self._walk(position):
            # Only the first batch can begin below the start.
            skip = bisect_left(batch.ids, start, key=split_id) if start else 0
            start = None
            for entry_id in batch.ids[skip:]:
                yield entry_id, batch.delivery or self._loose[entry_id]

    def _walk(self, position: int) -> Iterator[Batch]:
        """The batches from ``position`` on, without what is settled, which is cut out on the way."""
        while position < len(self._batches):
            batch = self._batches[position]
            if batch.delivery is None:
                self._forget_settled(batch)
            if batch.ids:
                yield batch
                position += 1
                continue
            end = position
            while end < len(self._batches) and self._is_settled(self._batches[end]):
                end += 1
            del self._batches[position:end]

    def _is_settled(self, batch: Batch) -> bool:
        return batch.delivery is None and not any(entry_id in self._loose for entry_id in batch.ids)

    def _forget_settled(self, batch: Batch) -> None:
        """Let a loose batch list what is still pending only."""
        loose = self._loose
        if not all(entry_id in loose for entry_id in batch.ids):
            left = [entry_id for entry_id in batch.ids if entry_id in loose]
            self._noted -= len(batch.ids) - len(left)
            batch.ids = left

    def _batch_of(self, entry_id: str) -> Batch | None:
        """The whole batch that ``entry_id`` belongs to."""
        batch = self._whole.get(entry_id)
        if batch is not None:
            return batch
        key = split_id(entry_id)
        position = bisect_right(self._batches, key, key=_start_of) - 1
        if position < 0 or self._batches[position].delivery is None:
            return None
        batch = self._batches[position]
        index = bisect_left(batch.ids, key, key=split_id)
        return batch if index < len(batch.ids) and batch.ids[index] == entry_id else None

    def _loosen(self, entry_id: str) -> bool:
        """Note the entries of a whole batch one by one; whether there is such a batch with ``entry_id``."""
        batch = self._batch_of(entry_id)
        if batch is None or batch.delivery is None:
            return False
        del self._whole[batch.first]
        self._loose.update(dict.fromkeys(batch.ids, batch.delivery))
        batch.delivery = None
        return True

    def _tidy(self) -> None:
        for batch in self._batches:
            if batch.delivery is None:
                self._forget_settled(batch)
        self._batches = [batch for batch in self._batches if batch.ids]
        self._noted = self.count


def _start_of(batch: Batch) -> Id:
    return split_id(batch.first)
