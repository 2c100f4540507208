"""What an archive reads: streams by name or pattern, the history of jobs, or the SQL archive of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from millstream.errors import ConfigurationError
from millstream.spark.archiving.shaping import TEXT, RecordShape
from millstream.spark.archiving.writing import CORRUPT, TIME
from millstream.spark.source import default_schema, stream_reader
from millstream.spark.urls import absolute_url

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader


@dataclass(frozen=True)
class ArchiveSource:
    """A source of Spark's ``format("millstream")``, driven batch by batch.

    ``what`` are its options without the URL: they are kept with each batch, and must hold no password.
    """

    url: str = field(repr=False)
    what: Mapping[str, str]
    fail_on_data_loss: bool = True

    @property
    def options(self) -> dict[str, str]:
        loss = "true" if self.fail_on_data_loss else "false"
        return {"url": self.url, **self.what, "failOnDataLoss": loss}

    @cached_property
    def schema(self) -> StructType:
        """The columns that are archived. Raises ConfigurationError for options that cannot be used.

        Of streams: the parts of an entry, its data as they are. Of job records: their fields, typed, with the
        entry's place before them, and the text of what is no record after them.
        """
        found = default_schema(self.options)
        if "stream" in found.names:
            return found
        place = [StructField("stream", StringType()), StructField("id", StringType())]
        time = StructField(TIME, TimestampType())
        return StructType([*place, time, *found.fields, StructField(CORRUPT, StringType())])

    @property
    def shaping(self) -> RecordShape | None:
        """What is done to the batches of job records; None for those of other streams."""
        if "archive" in self.what:
            return RecordShape(time_from="at")  # a row's number is no time
        return RecordShape() if "history" in self.what else None

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")

    def reader(self) -> DataSourceStreamReader:
        """A new reader: one for the driver, another, unused one to be sent to the tasks."""
        schema = self.schema
        if self.shaping is not None:
            schema = StructType([*schema.fields, StructField(TEXT, StringType())])
        return stream_reader(schema, self.options)

    def start(self, reader: DataSourceStreamReader, ends: Mapping[str, Any]) -> dict[str, Any]:
        """Where the next batch starts: where the archive ends; at the beginning for what it does not know."""
        first = reader.initialOffset()
        return {stream: ends.get(stream, offset) for stream, offset in first.items()}


def source_of(
    url: str,
    streams: str | Sequence[str] | None,
    *,
    history: bool,
    archive_table: bool,
    prefix: str | None,
    min_partitions: int | None,
    fail_on_data_loss: bool,
) -> ArchiveSource:
    """The source that the arguments of `archive` mean; ConfigurationError unless they mean exactly one."""
    given = [bool(streams), history, archive_table]
    if sum(given) != 1:
        raise ConfigurationError(
            "say what to archive, one of: streams (a name, names, or a pattern such as 'events:*'), "
            "history=True (the stream of job records), archive_table=True (the SQL table of job records)"
        )
    what: dict[str, str] = {}
    if streams:
        # A JSON list: names may have commas. A single text may be a pattern.
        what["stream"] = streams if isinstance(streams, str) else _json_list(streams)
    elif history:
        what["history"] = "true"
        if prefix is not None:
            what["prefix"] = prefix
    else:
        what["archive"] = "true"
    if min_partitions is not None:
        what["minPartitions"] = str(min_partitions)
    source = ArchiveSource(absolute_url(url), what, fail_on_data_loss)
    assert source.schema is not None  # looked at here, so that a wrong option is told before anything is made
    return source


def _json_list(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]  # may be a pattern
    patterns = [name for name in names if set(name) & set("*?[")]
    if patterns:
        raise ConfigurationError(
            f"streams mixes the pattern {patterns[0]!r} with other names; give names, or one pattern alone"
        )
    return json.dumps(list(names))
