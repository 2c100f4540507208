"""How much of what is new goes into the next batch, when rows or bytes of a batch are limited.

Each stream that has something new gets an equal share, and what one does not use goes to the others. A batch
has at least one entry, however large that is: otherwise a query would stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.message import MIN_ID, Id, next_id
from millstream.spark.source.log import Log, State
from millstream.spark.source.offsets import Offset, Offsets

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Budget:
    """What a batch may have; None: any number."""

    rows: int | None = None
    size: int | None = None


@dataclass
class _Progress:
    """How far a stream has come."""

    low: Id
    high: Id
    last: Id | None = None
    rows: int = 0
    done: bool = False


def admit(log: Log, new: Mapping[str, tuple[Offset, State]], budget: Budget) -> Offsets:
    """The offset to which each stream is read in the next batch. Streams that get nothing are left out."""
    if budget.rows is None and budget.size is None:
        return {stream: Offset(state.last, state.added) for stream, (_, state) in new.items()}
    reached = {stream: _Progress(_low(offset, state), state.last) for stream, (offset, state) in new.items()}
    rows = UNLIMITED if budget.rows is None else budget.rows
    size = budget.size
    taken = False
    while rows > 0 and (size is None or size > 0 or not taken):
        waiting = [(stream, each) for stream, each in reached.items() if not each.done]
        if not waiting:
            break
        moved = False
        for place, (stream, each) in enumerate(waiting):
            share = -(-rows // (len(waiting) - place)) if budget.rows is not None else UNLIMITED
            room = None if size is None else size // (len(waiting) - place)
            if room == 0 and taken:
                continue
            if share <= 0:
                break
            stride = log.stride(stream, each.low, each.high, share, room, first=not taken)
            rows -= stride.rows
            size = None if size is None else max(0, size - stride.size)
            if stride.last is not None:
                taken = moved = True
                each.last, each.rows = stride.last, each.rows + stride.rows
                each.low = next_id(stride.last)
            each.done = stride.ended
        if not moved:
            break
    return {
        stream: _end(*new[stream], each)
        for stream, each in reached.items()
        if each.last is not None or each.done
    }


def _low(offset: Offset, state: State) -> Id:
    return MIN_ID if offset.is_past(state.last, state.added) else offset.low


def _end(offset: Offset, state: State, reached: _Progress) -> Offset:
    if reached.done or reached.last is None or reached.last == state.last:
        return Offset(state.last, state.added)
    begin = _low(offset, state)
    moved = state.first is not None and state.first > begin  # what lay before was read already, or is lost
    counted = state.added_before_first if moved else offset.added
    exact = counted is not None and state.deleted < begin  # no hole that a count of rows would miss
    return Offset(reached.last, counted + reached.rows if exact and counted is not None else None)
