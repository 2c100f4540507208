"""Archives for tests: tables made as a run makes them, without a broker and without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from millstream.history import Record
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.table import ArchiveTable
from millstream.spark.archiving.writing import DayWriter, WrittenFile

SOURCE = "redis://127.0.0.1:1/0"
HEADERS = pa.map_(pa.string(), pa.string())
EVENTS = pa.schema(
    [
        ("stream", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("data", pa.string()),
        ("type", pa.string()),
        ("headers", HEADERS),
    ]
)
KINDS: dict[str, Any] = {
    "at": pa.float64(),
    "enqueued_at": pa.float64(),
    "due_at": pa.float64(),
    "started_at": pa.float64(),
    "seconds": pa.float64(),
    "attempt": pa.int32(),
    "max_attempts": pa.int32(),
    "version": pa.int32(),
    "tags": pa.list_(pa.string()),
    "headers": HEADERS,
}
HISTORY = pa.schema(
    [
        ("stream", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        *((name, KINDS.get(name, pa.string())) for name in Record.__struct_fields__),
        ("_corrupt", pa.string()),
    ]
)


def events(count: int, day: str = "2026-03-01", stream: str = "events", first: int = 0) -> pa.RecordBatch:
    """Entries of one day, a millisecond apart."""
    begin = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)
    rows = [
        {
            "stream": stream,
            "id": f"{begin + number}-0",
            "timestamp": datetime.fromtimestamp((begin + number) / 1000, UTC),
            "data": json.dumps({"n": number}),
            "headers": [],
        }
        for number in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EVENTS)


def write(
    path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema = EVENTS, **options: Any
) -> list[WrittenFile]:
    """What one task of a batch writes."""
    writer = DayWriter(Location(str(path)), schema, label="test", **{"file_bytes": 1 << 30, **options})
    return list(writer.write(batches))


def history_table(path: Path, records: Sequence[Record], *, batch: int = 1) -> ArchiveTable:
    """An archive of job records."""
    table = ArchiveTable(Location(str(path)))
    table.prepare(HISTORY, SOURCE)
    rows = []
    for number, record in enumerate(records):
        fields = {name: getattr(record, name) for name in Record.__struct_fields__}
        moment = datetime.fromtimestamp(record.at, UTC)
        place = {
            "stream": "millstream:history",
            "id": f"{int(record.at * 1000)}-{number}",
            "timestamp": moment,
        }
        rows.append({**place, **fields, "headers": list(record.headers.items())})
    files = write(path, pa.Table.from_pylist(rows, schema=HISTORY).to_batches(), HISTORY)
    assert table.commit(batch, files, {}) is not None
    return table


def plain(record: Record) -> dict[str, Any]:
    """A record as the data of an entry."""
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
