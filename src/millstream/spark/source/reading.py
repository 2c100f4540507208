"""What both readers share: which streams, where a user's position lies in them, and reading a slice."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from millstream.message import MAX_ID, MIN_ID, next_id
from millstream.spark.source.columns import Columns
from millstream.spark.source.log import Log, State, open_log
from millstream.spark.source.loss import LossGuard
from millstream.spark.source.offsets import EARLIEST, LATEST, Offset, Position, before
from millstream.spark.source.options import SourceOptions
from millstream.spark.source.ranges import Range, Slice


def streams_of(log: Log, options: SourceOptions) -> list[str]:
    """The streams to read: those named, or those that fit the pattern now."""
    return list(options.streams) if options.pattern is None else log.find(options.pattern)


def start_of(stream: str, position: Position, state: State | None, guard: LossGuard) -> Offset:
    """The offset that a user's starting position means now. Raises EntriesLost."""
    if state is None:
        # It comes to be with its first entry, and will be read from there, or from where the user said.
        at = before(position.low) if not isinstance(position, str) else MIN_ID
        return Offset(at, 0 if at == MIN_ID else None, ahead=at > MIN_ID)
    if position == LATEST or (state.first is None and position == EARLIEST):
        return Offset(state.last, state.added)
    if isinstance(position, str) or position.low <= MIN_ID:
        first = state.first
        return (
            Offset(state.last, state.added)
            if first is None
            else Offset(before(first), state.added_before_first)
        )
    wanted = before(position.low)
    if position.added is not None:  # it comes from an offset, which can be checked
        return Offset(wanted, position.added)
    guard.check_start(stream, position.low, state)
    if wanted > state.last:
        return Offset(wanted, ahead=True)
    if state.first is None:
        return Offset(state.last, state.added)
    if wanted < state.first:
        return Offset(before(state.first), state.added_before_first)
    return Offset(wanted, state.added if wanted == state.last else None)


def range_of(stream: str, offset: Offset, end: Position, state: State | None) -> Range | None:
    """What lies between an offset and an ending position; None where nothing does."""
    if state is None or state.first is None:
        return None
    high = min(state.last, MAX_ID if isinstance(end, str) else end.high)
    low = max(offset.low, state.first)
    if low > high:
        return None
    whole = low == state.first and high == state.last
    return Range(stream, low, high, float(state.length) if whole else 0.0, state.length or inf)


def read_slice(
    schema: StructType, options: SourceOptions, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The entries of one partition as Arrow batches. Runs in a task.

    Raises EntriesLost where the front of the stream has passed what is being read.
    """
    if not isinstance(partition, Slice):  # Spark's own, where there was nothing to plan
        return
    columns = Columns(schema, options)
    guard = LossGuard(options.fail_on_data_loss)
    with _no_collector(), open_log(options) as log:
        for each in partition.ranges:
            low, found = each.low, False
            for page in log.pages(each.stream, each.low, each.high):
                guard.check_page(log, each.stream, low)
                yield columns.batch(each.stream, page)
                found = True
                if page.last < MAX_ID:
                    low = next_id(page.last)
            if not found:
                guard.check_page(log, each.stream, low)
    columns.report()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without Python's garbage collector, which would go through every row of a page again and again.

    Nothing that is made here is part of a cycle, so everything is freed when its last user is done.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
