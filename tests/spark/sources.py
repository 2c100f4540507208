"""Readers of the source without a JVM: what Spark would call, called by hand.

Nearly everything about the source happens in Python, so most tests need no Spark; `test_source_spark.py` has
those that do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import DataType, MapType, StringType, StructType

from millstream.spark.source import batch_reader, default_schema, stream_reader

HEADERS = MapType(StringType(), StringType())


def columns(**types: str | DataType) -> StructType:
    """A schema by name and type."""
    schema = StructType()
    for name, kind in types.items():
        schema = schema.add(name, kind)
    return schema


def read(url: str, stream: str | None = None, schema: StructType | None = None, **options: Any) -> list[Any]:
    """The rows of a batch read, as mappings, partition by partition in order."""
    return [row for part in read_parts(url, stream, schema, **options) for row in part]


def read_parts(
    url: str, stream: str | None = None, schema: StructType | None = None, **options: Any
) -> list[list[Any]]:
    """The same, by partition."""
    given = options_of(url, stream, options)
    reader = batch_reader(schema or default_schema(given), given)
    return [
        [row for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[union-attr]
        for part in reader.partitions()
    ]


def options_of(url: str, stream: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    given = {"url": url} | ({} if stream is None else {"stream": stream})
    return given | {name: text(value) for name, value in options.items()}


def text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


class Query:
    """A streaming query by hand: offsets go through JSON, as through a checkpoint."""

    def __init__(
        self,
        url: str,
        stream: str | None = None,
        schema: StructType | None = None,
        *,
        offset: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        given = options_of(url, stream, options)
        self.reader = stream_reader(schema or default_schema(given), given)
        self.offset: dict[str, Any] = _kept(self.reader.initialOffset() if offset is None else offset)
        self.batches: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        return _kept(self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit()))

    def step(self, limit: ReadLimit | None = None) -> list[Any]:
        """One batch; empty where there is nothing new."""
        end = self.plan(limit)
        rows = self.between(self.offset, end)
        self.batches.append((self.offset, end))
        self.offset = end
        return rows

    def all(self) -> list[Any]:
        """Everything that is there now, in one batch."""
        return self.step(ReadAllAvailable())

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        batches: list[Any] = [
            batch for part in self.reader.partitions(start, end) for batch in self.reader.read(part)
        ]
        return [row for batch in batches for row in batch.to_pylist()]

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *exc: object) -> None:
        self.reader.stop()


def _kept(offset: Any) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept
