"""One batch: planned, written by tasks, committed by the driver.

The order is what makes it exactly once, whatever dies in between:

    plan      the range of the batch is written down       (crash: the next run finishes this very range)
    write     tasks write Parquet files nobody knows       (crash: orphans; the range is written again)
    commit    the files and the batch's number, atomically (crash: the next run sees the number and goes on)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa

from millstream.errors import ConfigurationError
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.positions import Batch, Positions, merged
from millstream.spark.archiving.shaping import RecordShape
from millstream.spark.archiving.sources import ArchiveSource
from millstream.spark.archiving.table import ArchiveTable, source_name
from millstream.spark.archiving.writing import (
    WRITTEN_SCHEMA,
    DayWriter,
    WrittenFile,
    task_label,
    written_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

Step = Callable[[str, int], None]  # for tests: called after "planned", "written" and "committed"


class Committed(msgspec.Struct, frozen=True):
    """A batch that is in the table. ``version`` is None where another run had committed it already."""

    number: int
    version: int | None
    files: list[WrittenFile]
    ends: dict[str, Any]  # of the streams that it read


class Archiver:
    """Makes the batches of one archive, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        source: ArchiveSource,
        location: Location,
        *,
        max_rows: int,
        file_bytes: int,
        same_source: bool = False,
        after: Step | None = None,
    ) -> None:
        self._spark, self._source, self._location = spark, source, location
        self.table, self.positions = ArchiveTable(location), Positions(location)
        self._max_rows, self._file_bytes, self._same_source = max_rows, file_bytes, same_source
        self._after: Step = after or (lambda step, number: None)
        self._planner = source.reader()
        self._schemas: dict[str, pa.Schema] = {}
        self.schema_of(source)

    def close(self) -> None:
        """Give back the planner's connection."""
        self._planner.stop()

    def schema_of(self, source: ArchiveSource) -> pa.Schema:
        """The columns of the files of ``source``; the table has them from here on."""
        key = repr(sorted(source.what.items()))
        if key not in self._schemas:
            name = source_name(source.url)
            self._schemas[key] = self.table.prepare(source.arrow_schema, name, same_source=self._same_source)
        return self._schemas[key]

    def limit_to_now(self) -> None:
        """Let what is added from here on to later runs: else a busy stream would keep this one for ever."""
        cast("SupportsTriggerAvailableNow", self._planner).prepareForTriggerAvailableNow()

    def streams(self) -> list[str]:
        """The streams that the source has at this moment."""
        return list(self._planner.initialOffset())

    def backlog(self) -> int | None:
        """How many entries wait to be archived, where the broker counts what was added."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 - slow to import

        start = self._source.start(self._planner, self._ends(self.table.committed()))
        end = self._planner.latestOffset(start, ReadAllAvailable())
        counts = [(offset.get("added"), start.get(stream, {}).get("added")) for stream, offset in end.items()]
        if any(now is None or then is None for now, then in counts):
            return None
        return sum(int(now) - int(then) for now, then in counts)

    def next_batch(self) -> Committed | None:
        """Archive the next entries, ``max_rows`` at the most; None where there are none."""
        done = self.table.committed()
        batch = self.positions.get(done + 1) or self._plan(done)
        if batch is None:
            return None
        self._after("planned", batch.number)
        files = self._write(batch)
        self._after("written", batch.number)
        version = self.table.commit(
            batch.number, files, {"batch": batch.number, "read": batch.planned["end"]}
        )
        self._after("committed", batch.number)
        self.positions.tidy(batch.number)
        return Committed(batch.number, version, files, batch.planned["end"])

    def _plan(self, done: int) -> Batch | None:
        from pyspark.sql.streaming.datasource import ReadMaxRows  # noqa: PLC0415 - slow to import

        ends = self._ends(done)
        start = self._source.start(self._planner, ends)
        end = self._planner.latestOffset(start, ReadMaxRows(self._max_rows))
        if end == start:
            return None
        planned = {"what": dict(self._source.what), "start": start, "end": end}
        return self.positions.plan(Batch(done + 1, merged(ends, end), planned))

    def _ends(self, done: int) -> dict[str, Any]:
        """Up to where each stream is archived. Raises ConfigurationError where that was deleted."""
        last = self.positions.get(done)
        if last is None and done:  # without it every entry that the source still has would come twice
            raise ConfigurationError(
                f"{self._location.uri} has {done} batches, and their positions are gone from its folder "
                "_millstream; put that back from a copy, or archive into another table"
            )
        return {} if last is None else last.ends

    def _write(self, batch: Batch) -> list[WrittenFile]:
        # A batch that an earlier run left behind may be of other streams than ours: it is what was planned.
        source = ArchiveSource(self._source.url, batch.planned["what"], self._source.fail_on_data_loss)
        schema = self.schema_of(source)
        planner = source.reader()
        try:
            partitions = list(planner.partitions(batch.planned["start"], batch.planned["end"]))
        finally:
            planner.stop()
        if not partitions:
            return []
        task = WriteTask(
            source.reader(),
            partitions,
            self._location,
            schema,
            batch.number,
            self._file_bytes,
            source.shaping,
        )
        count = len(partitions)
        rows = self._spark.range(0, count, 1, count).mapInArrow(task, WRITTEN_SCHEMA).collect()
        return [WrittenFile(**row.asDict()) for row in rows]


class WriteTask:
    """What runs in a task: one partition of the source into files, their descriptions back to the driver.

    The data go from the broker to the files in Python and Arrow; Spark itself only sees the descriptions.
    """

    def __init__(
        self,
        reader: DataSourceStreamReader,
        partitions: list[InputPartition],
        location: Location,
        schema: pa.Schema,
        batch: int,
        file_bytes: int,
        shaping: RecordShape | None,
    ) -> None:
        self._shaping = shaping
        self._reader, self._partitions, self._location = reader, partitions, location
        self._schema, self._batch, self._file_bytes = schema, batch, file_bytes

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbered in numbers:
            for number in numbered.column(0).to_pylist():
                writer = DayWriter(
                    self._location,
                    self._schema,
                    label=f"{self._batch:06d}-{task_label()}",
                    file_bytes=self._file_bytes,
                )
                batches = self._reader.read(self._partitions[number])
                if self._shaping is not None:
                    batches = map(self._shaping, batches)
                for file in writer.write(batches):
                    yield written_batch(file)
