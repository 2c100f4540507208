"""The sink: DataFrames become stream entries, or jobs, exactly once.

Rows are staged by the tasks and published by the driver's commit, behind a fence; `staging.py` tells how.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.types import StructType

from millstream.errors import ConfigurationError
from millstream.spark.sink.entries import plan_entries
from millstream.spark.sink.jobs import plan_jobs
from millstream.spark.sink.options import EntryOptions, SinkOptions, read_options
from millstream.spark.sink.writer import BatchWriter, Plan, StreamWriter

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``. Raises ConfigurationError for options or columns that do not fit."""
    if overwrite:
        raise ConfigurationError(
            'mode("overwrite") would delete what others read; use mode("append"). To begin anew, delete the '
            "stream or clear the queue first"
        )
    found = read_options(options)
    if found.write_id is not None:
        return BatchWriter(_plan(schema, found), found.write_id)
    # Nobody can repeat this write later, so nobody asks for its fence later.
    found = replace(found, fence_ttl=min(found.fence_ttl, found.stage_ttl))
    return BatchWriter(_plan(schema, found), f"write-{secrets.token_hex(16)}")


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream``. Raises as `batch_writer` does."""
    if overwrite:
        raise ConfigurationError(
            'outputMode("complete") replaces the whole result at every batch, and a stream only grows; '
            'use outputMode("append"), with a watermark where rows are aggregated, or write each batch with '
            "foreachBatch"
        )
    return StreamWriter(_plan(schema, read_options(options)))


def _plan(schema: StructType, options: SinkOptions) -> Plan:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"the DataFrame has two columns called {twice[0]!r}; rename or drop one")
    return plan_entries(schema, options) if isinstance(options, EntryOptions) else plan_jobs(schema, options)
