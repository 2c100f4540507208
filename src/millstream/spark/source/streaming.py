"""``spark.readStream.format("millstream")``: batch after batch, each between two offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.message import MIN_ID, format_id
from millstream.spark.source.admission import Budget, admit
from millstream.spark.source.columns import Columns
from millstream.spark.source.log import Log, State, open_log
from millstream.spark.source.loss import LossGuard
from millstream.spark.source.offsets import Offset, Offsets, dump, load
from millstream.spark.source.options import SourceOptions
from millstream.spark.source.ranges import Range, plan
from millstream.spark.source.reading import read_slice, start_of, streams_of

NEW = Offset(MIN_ID, 0)  # a stream that came to be after the query began is read from its beginning
UNKNOWN = Offset(MIN_ID)  # a stream of which nothing is known but what it has now


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object in the driver plans; copies of it in tasks read.

    A batch is what lies between two offsets, and nothing else decides what is in it: read again after a
    crash, it holds the same entries, or the read fails because some are gone.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        Columns(schema, options)
        self._schema, self._options = schema, options
        self._guard = LossGuard(options.fail_on_data_loss)
        self._log: Log | None = None
        self._target: dict[str, State] | None = None  # where Trigger.AvailableNow ends
        self._states: dict[str, State] = {}  # as last seen, for the progress
        self._ends: Offsets = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}  # a task opens its own connection

    # -- planning ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        options, log = self._options, self._opened()
        return dump(
            {
                stream: start_of(stream, options.start.of(stream), log.state(stream), self._guard)
                for stream in streams_of(log, options)
            }
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadAllAvailable() if options.max_bytes is None else ReadMaxBytes(options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        states = self._look(streams_of(self._opened(), self._options))
        self._target = {stream: self._settled(stream, NEW, state) for stream, state in states.items()}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        log, starts = self._opened(), load(start)
        # Those that have an offset and are gone are looked for, too: that is how their loss is noticed.
        known = filter(self._options.wants, starts)
        names = sorted({*known, *streams_of(log, self._options)})
        self._states = states = self._look(names)
        ends = dict(starts)  # also of what is not read any more, so that it can be taken up again
        new: dict[str, tuple[Offset, State]] = {}
        for stream in names:
            offset, state = self._start(stream, starts), states.get(stream)
            if state is None:
                self._guard.check(stream, offset, None)
                ends.setdefault(stream, NEW)
                continue
            if self._target is not None:
                target = self._target.get(stream)
                if target is None:
                    continue  # it appeared after the query began
                state = target if target.last < state.last else state
            else:
                state = self._settled(stream, offset, state)
            if state.last == offset.after or (offset.ahead and state.last < offset.after):
                continue
            new[stream] = (offset, state)
        for stream, end in admit(log, new, self._budget(limit)).items():
            offset, state = new[stream]
            counts = offset.added is not None and state.added is not None
            ends[stream] = end if offset.after > MIN_ID or counts else replace(end, first=state.first)
        self._ends = ends
        return dump(ends)

    def _start(self, stream: str, starts: Offsets) -> Offset:
        """Where the next batch starts in a stream.

        One that fits a pattern and has no offset yet came to be since the query began: all that it ever had
        is new. One that is named and has none was named just now: nobody asked for what was trimmed before.
        """
        return starts.get(stream, UNKNOWN if self._options.pattern is None else NEW)

    def _settled(self, stream: str, offset: Offset, state: State) -> State:
        last = self._opened().settled(stream, offset.after, state.last)
        return state if last == state.last else replace(state, last=last, added=None)

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadMaxRows):
            return Budget(limit.max_rows, self._options.max_bytes)
        return Budget(None, limit.max_bytes) if isinstance(limit, ReadMaxBytes) else Budget()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest ids, and how many entries no batch has yet: latestOffset in a query's progress."""
        if not self._states:
            return None
        report: dict[str, Any] = {}
        for stream, state in sorted(self._states.items()):
            report[stream] = {"after": format_id(state.last)}
            if state.added is not None:
                report[stream]["added"] = state.added
            lag = self._lag(stream, state)
            if lag is not None:
                report[stream]["lag"] = lag
        return report

    def _lag(self, stream: str, state: State) -> int | None:
        end = self._ends.get(stream, NEW)
        if state.last <= end.after:
            return 0
        if state.added is not None and end.added is not None:
            return max(0, state.added - end.added)
        return self._opened().count(stream, end.low, state.last)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        log, starts, ends = self._opened(), load(start), load(end)
        wanted = []
        for stream, upto in ends.items():
            offset = self._start(stream, starts)
            if upto.after == offset.after:
                continue
            state = log.state(stream)
            self._guard.check(stream, offset, state, upto.first)
            if state is None or state.first is None:
                continue  # lost, and that was tolerated
            anew = offset.is_past(upto.after, upto.added)  # and that was tolerated as well
            low = max(MIN_ID if anew else offset.low, state.first)
            if low <= upto.after:
                rows = 0.0
                if offset.added is not None and upto.added is not None and not anew:
                    rows = float(upto.added - offset.added)
                wanted.append(Range(stream, low, upto.after, rows, state.length or inf))
        return list(plan(log, wanted, self._options.min_partitions))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do: no entry is acknowledged, and nobody else is disturbed."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    # -- reading -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(self._schema, self._options, partition)

    def _opened(self) -> Log:
        if self._log is None:
            self._log = open_log(self._options)
        return self._log

    def _look(self, names: Sequence[str]) -> dict[str, State]:
        log = self._opened()
        return {stream: state for stream in names if (state := log.state(stream)) is not None}
