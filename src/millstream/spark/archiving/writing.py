"""What a task does: Arrow batches into Parquet files of the archive, one folder per day.

A task only writes files that nobody knows yet; the driver's commit makes those of the successful attempts
part of the table. A failed, repeated or speculative attempt leaves files behind that no reader ever sees, and
a vacuum removes them.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.spark.archiving.location import Location

DAY = "day"
TIME = "timestamp"  # the column that gives an entry its day
NO_DAY = "__HIVE_DEFAULT_PARTITION__"  # the folder of entries whose id holds no date that a calendar has
LAST_DAY = date.max.toordinal() - date(1970, 1, 1).toordinal()  # ids given by hand may lie beyond it
OPEN_FILES = 8  # per task; ids come in the order of time, so that more than two days are rare
BUFFERED = 32 << 20  # bytes gathered before a row group is written: readers skip by row group
CORRUPT = "_corrupt"  # the column of the source for what fits no record
LONGEST = 64  # characters of a text that is worth a statistic
UNMEASURED = frozenset({"data", "payload", "traceback", "error", CORRUPT})  # long texts: nobody skips by them


class WrittenFile(msgspec.Struct, frozen=True):
    """A Parquet file that waits for its commit. ``day`` is ISO text, empty for entries without one."""

    path: str  # relative to the table
    size: int
    day: str
    rows: int
    malformed: int  # of them: those with a text in the column for what fits no record
    stats: str  # JSON, as the Delta log wants it


WRITTEN_SCHEMA = "path string, size long, day string, rows long, malformed long, stats string"
_WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("day", pa.string()),
        ("rows", pa.int64()),
        ("malformed", pa.int64()),
        ("stats", pa.string()),
    ]
)


def written_batch(file: WrittenFile) -> pa.RecordBatch:
    """The description of a file on its way from a task to the driver, in the columns of WRITTEN_SCHEMA."""
    return pa.RecordBatch.from_pylist([msgspec.to_builtins(file)], schema=_WRITTEN)


class DayWriter:
    """Writes the batches of one task: a file for each day, a new one whenever it has ``file_bytes``."""

    def __init__(self, location: Location, schema: pa.Schema, *, label: str, file_bytes: int) -> None:
        self._location, self._schema, self._label = location, schema, label
        self._file_bytes = file_bytes
        self._open: dict[date | None, _File] = {}  # the one written to last comes last

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Consume ``batches``; each file as it is finished. On an error what is open is given up."""
        try:
            for batch in batches:
                table = conform(pa.Table.from_batches([batch]), self._schema)
                for day, part in by_day(table):
                    yield from self._append(day, part)
            for day in list(self._open):
                yield self._open.pop(day).finish()
        finally:
            for file in self._open.values():
                file.give_up()

    def _append(self, day: date | None, part: pa.Table) -> Iterator[WrittenFile]:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                oldest = next(iter(self._open))
                yield self._open.pop(oldest).finish()
            text = "" if day is None else day.isoformat()
            name = f"{DAY}={text or NO_DAY}/part-{self._label}"
            file = _File(self._location, self._schema, name, text)
        self._open[day] = file
        file.append(part)
        if file.bytes_written >= self._file_bytes:
            yield self._open.pop(day).finish()


class FileWriter:
    """Writes all batches of one task into one file, outside of any day; none for a task without rows."""

    def __init__(self, location: Location, schema: pa.Schema) -> None:
        self._location, self._schema = location, schema

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        """Consume ``batches``; the file."""
        file: _File | None = None
        try:
            for batch in batches:
                if batch.num_rows:
                    file = file or _File(self._location, self._schema, f"part-{task_label()}")
                    file.append(conform(pa.Table.from_batches([batch]), self._schema))
            if file is not None:
                done, file = file.finish(), None
                yield done
        finally:
            if file is not None:
                file.give_up()


class _File:
    """One Parquet file that is being written, and its statistics."""

    def __init__(self, location: Location, schema: pa.Schema, name: str, day: str = "") -> None:
        self._location, self._day = location, day
        # The name is new for each attempt: two attempts of one task never write the same file.
        self.path = f"{name}-{uuid.uuid4().hex}.zstd.parquet"
        self._stats = _Statistics(schema)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._sink = location.create(self.path)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", write_statistics=True)

    @property
    def bytes_written(self) -> int:
        return int(self._sink.tell())

    def append(self, part: pa.Table) -> None:
        self._waiting.append(part)
        self._waiting_bytes += part.nbytes
        if self._waiting_bytes >= BUFFERED:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            group = pa.concat_tables(self._waiting)
            self._stats.add(group)
            self._writer.write_table(group, row_group_size=max(1, group.num_rows))
            self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> WrittenFile:
        """Close it, on the disk for good: the source may be trimmed on the strength of this file."""
        self._flush()
        self._writer.close()
        size = self.bytes_written
        self._location.finish(self._sink)
        return WrittenFile(
            path=self.path,
            size=size,
            day=self._day,
            rows=self._stats.rows,
            malformed=self._stats.filled(CORRUPT),
            stats=self._stats.to_json(),
        )

    def give_up(self) -> None:
        """Close what cannot be finished; the file stays unknown and a vacuum removes it."""
        for part in (self._writer, self._sink):
            try:
                part.close()
            except (OSError, pa.ArrowException):  # the error that brought us here is the one to be seen
                continue


class _Statistics:
    """Rows, nulls, least and greatest values, in the form of the Delta log: readers skip files by them."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._nulls = {field.name: 0 for field in schema if _is_flat(field.type)}
        self.low: dict[str, Any] = {}
        self.high: dict[str, Any] = {}
        self._measured = {
            field.name for field in schema if _is_ordered(field.type) and field.name not in UNMEASURED
        }

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for name in self._nulls:
            self._nulls[name] += table.column(name).null_count
        for name in sorted(self._measured):
            column = table.column(name)
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                self._drop(name)  # no order with a NaN among them
                continue
            found = pc.min_max(column)
            try:
                low, high = found["min"].as_py(), found["max"].as_py()
            except (ValueError, OverflowError):  # a time beyond the calendar
                self._drop(name)
                continue
            if low is None:
                continue
            if isinstance(low, str) and max(len(low), len(high)) > LONGEST:
                self._drop(name)
                continue
            self.low[name] = min(low, self.low.get(name, low))
            self.high[name] = max(high, self.high.get(name, high))

    def _drop(self, name: str) -> None:
        self._measured.discard(name)
        self.low.pop(name, None)
        self.high.pop(name, None)

    def filled(self, name: str) -> int:
        """How many rows have a value in a column; 0 where there is no such column."""
        return self.rows - self._nulls.get(name, self.rows)

    def to_json(self) -> str:
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: _json_value(value) for name, value in self.low.items()},
                "maxValues": {name: _json_value(value) for name, value in self.high.items()},
                "nullCount": self._nulls,
            }
        )


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` with the columns of ``schema``, in its order; a column that it lacks is null."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    return pa.table(columns, schema=schema)


def by_day(table: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
    """The rows of each UTC day. Usually there is one, and nothing is copied."""
    if not table.num_rows:
        return
    days = pc.cast(table.column(TIME), pa.date32())
    if pc.any(pc.greater(days.cast(pa.int32()), LAST_DAY)).as_py():
        days = pc.if_else(pc.greater(days.cast(pa.int32()), LAST_DAY), None, days)
    if not days.null_count:
        ends = pc.min_max(days)
        if ends["min"] == ends["max"]:
            yield ends["min"].as_py(), table
            return
    for day in sorted(days.unique().to_pylist(), key=lambda one: (one is not None, one or date.min)):
        chosen = pc.is_null(days) if day is None else pc.equal(days, pa.scalar(day, pa.date32()))
        yield day, table.filter(chosen)


def _is_flat(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
    )


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def task_label() -> str:
    """The number of the running task, for the names of its files."""
    from pyspark import TaskContext  # noqa: PLC0415 - only a task has one

    context = TaskContext.get()
    return f"{context.partitionId():05d}" if context is not None else f"{os.getpid():05d}"
