"""What Spark sees as ``format("millstream")``: it only says which part reads and which writes."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class MillstreamDataSource(DataSource):
    """Streams of any broker, and the history of jobs, as DataFrames; DataFrames as entries or as jobs."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType | str:
        from millstream.spark.source import default_schema  # noqa: PLC0415 - a writer does not need it

        return default_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from millstream.spark.source import batch_reader  # noqa: PLC0415 - a writer does not need it

        return batch_reader(schema, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from millstream.spark.source import stream_reader  # noqa: PLC0415 - a writer does not need it

        return stream_reader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millstream.spark.sink import batch_writer  # noqa: PLC0415 - a reader does not need it

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from millstream.spark.sink import stream_writer  # noqa: PLC0415 - a reader does not need it

        return stream_writer(schema, self.options, overwrite)
