"""``spark.read.format("millstream")``: a range of each stream, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.spark.source.columns import Columns
from millstream.spark.source.log import open_log
from millstream.spark.source.loss import LossGuard
from millstream.spark.source.options import SourceOptions
from millstream.spark.source.ranges import plan
from millstream.spark.source.reading import range_of, read_slice, start_of, streams_of


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in tasks.

    What is latest is decided when the query is planned; what is added afterwards is not read. A task that is
    tried again reads the same entries again.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        Columns(schema, options)  # a schema that cannot be read shows in the driver, not in a task
        self._schema, self._options = schema, options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        guard = LossGuard(options.fail_on_data_loss)
        wanted = []
        with open_log(options) as log:
            for stream in streams_of(log, options):
                state = log.state(stream)
                offset = start_of(stream, options.start.of(stream), state, guard)
                guard.check(stream, offset, state)
                wanted.append(range_of(stream, offset, options.end.of(stream), state))
            slices = plan(log, [each for each in wanted if each is not None], options.min_partitions)
        return list(slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(self._schema, self._options, partition)
