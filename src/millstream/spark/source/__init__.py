"""The source of ``format("millstream")``: streams, and the history of jobs, as DataFrames.

One role a module, in the order of a read:

    options    what the user asked for, checked
    offsets    where a read starts and ends; what a checkpoint keeps
    log        what every kind of broker must be able to do; `redis`, `sql` and `archive` do it
    loss       whether entries were trimmed before they were read
    ranges     cuts what is to be read into partitions
    pages      entries as Arrow columns; `resp` splits raw replies of Redis, `foreign` has every other shape
    columns    which column of the DataFrame comes from where; `typed` reads JSON into typed columns
    batch, streaming    the readers that Spark calls

Reading uses no consumer group and writes nothing, so whoever else reads the stream notices nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from millstream.spark.source.columns import schema_for
from millstream.spark.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

__all__ = ["batch_reader", "default_schema", "stream_reader"]


def default_schema(options: Mapping[str, str]) -> StructType:
    """The columns where the user gives no schema. Raises ConfigurationError for bad options."""
    return schema_for(parse_options(options))


def batch_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceReader:
    """What reads a range once. Raises ConfigurationError."""
    from millstream.spark.source.batch import BatchReader  # noqa: PLC0415 - who streams does not need it

    return BatchReader(schema, parse_options(options, streaming=False))


def stream_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceStreamReader:
    """What reads on and on, batch by batch. Raises ConfigurationError."""
    from millstream.spark.source.streaming import StreamReader  # noqa: PLC0415 - as above

    return StreamReader(schema, parse_options(options, streaming=True))
