"""The ledger of a replay: what it pushes, frozen, and how far it is. A Delta table in the archive's folder.

The chosen jobs are written down once, in the order in which they are pushed, with the ids that they get. From
then on the ledger alone says what the replay is: the archive may grow, be compacted or be cleaned, and a job
that the replay itself made is never chosen by a later run of it. Progress is kept in the same table's log:

    pushed       so many rows, from the first on, are pushed for sure
    pushing      so many may be: the rows between the two were on their way when this was written
    pushing_at   when that was, in milliseconds since the epoch

A driver remembers the id of a job only as long as it has the job, so the rows in between are guarded for a
time by unique keys as well (see `pushing`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

from millstream.errors import InvalidInput, TableConflict
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.table import once
from millstream.spark.archiving.writing import WRITTEN_SCHEMA, FileWriter, WrittenFile, written_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLAYS = ("_millstream", "replays")
PUSHED, PUSHING, PUSHING_AT = "pushed", "pushing", "pushing_at"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
READ_ROWS = 10_000


class Terms(msgspec.Struct, frozen=True):
    """What a replay's name stands for; a later run under that name must ask for the same."""

    where: str
    target: str
    queue: str = ""
    priority: str = ""
    max_attempts: int = 0
    limit: int = 0
    transformed: bool = False


class _Kept(msgspec.Struct, frozen=True):
    """What the ledger's description holds."""

    rows: int
    terms: Terms


class Progress(msgspec.Struct, frozen=True):
    """How far a replay is. ``pushing_at`` is in seconds since the epoch."""

    total: int
    pushed: int
    pushing: int
    pushing_at: float


class Ledger:
    """The frozen jobs of one replay, and its progress."""

    def __init__(self, archive: Location, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} cannot name a replay: use letters, digits, '.', '_' and '-', a hundred at the most"
            )
        self.name = name
        self._location = Location(archive.child(*REPLAYS, name))

    @property
    def uri(self) -> str:
        return self._location.uri

    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self.uri))

    def freeze(self, jobs: DataFrame, schema: pa.Schema, terms: Terms) -> None:
        """Write down the jobs in the order of their partitions; all of them or, after a crash, none."""
        files = [
            WrittenFile(**row.asDict())
            for row in jobs.mapInArrow(FreezeTask(self._location, schema), WRITTEN_SCHEMA).collect()
        ]
        rows = sum(file.rows for file in files)
        now = int(time.time() * 1000)
        try:
            create_table_with_add_actions(
                self.uri,
                Schema.from_arrow(schema),
                [AddAction(file.path, file.size, {}, now, True, file.stats) for file in files],
                mode="error",
                name=f"replay {self.name}",
                description=msgspec.json.encode(_Kept(rows, terms)).decode(),
                commit_properties=_progress(0, 0, 0),
            )
        except DeltaError as error:
            if not self.exists():
                raise
            raise TableConflict(
                f"another run of {self.name!r} began at the same moment; run it again"
            ) from error
        self._location.sync_log(-1)

    def check(self, terms: Terms) -> None:
        """Raise InvalidInput where the name stands for another replay."""
        kept = self._kept(DeltaTable(self.uri)).terms
        for name in Terms.__struct_fields__:
            then, now = getattr(kept, name), getattr(terms, name)
            if then != now:
                raise InvalidInput(
                    f"the replay {self.name!r} was begun with {name}={then!r}, and this is {now!r}: "
                    "a name stands for one selection: choose another name"
                )

    @staticmethod
    def _kept(table: DeltaTable) -> _Kept:
        return msgspec.json.decode(table.metadata().description, type=_Kept)

    def progress(self) -> Progress:
        """How far it is, from the log on the disk."""
        return self._progress_of(DeltaTable(self.uri))

    def _progress_of(self, table: DeltaTable) -> Progress:
        return Progress(
            total=self._kept(table).rows,
            pushed=table.transaction_version(PUSHED) or 0,
            pushing=table.transaction_version(PUSHING) or 0,
            pushing_at=(table.transaction_version(PUSHING_AT) or 0) / 1000,
        )

    def record(self, before: Progress, pushed: int, pushing: int) -> Progress:
        """Write down the progress, and return it.

        Raises TableConflict where it is not ``before`` any more: another run of this replay is under way.
        """
        table = DeltaTable(self.uri)
        under_way = f"another run of the replay {self.name!r} is under way; let it finish"
        if self._progress_of(table) != before:
            raise TableConflict(under_way)
        at = int(time.time() * 1000)
        try:
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=_progress(pushed, pushing, at)
            )
        except CommitFailedError as error:
            raise TableConflict(under_way) from error
        self._location.sync_log(table.version())
        return Progress(before.total, pushed, pushing, at / 1000)

    def rows(self, start: int) -> Iterator[list[dict[str, Any]]]:
        """The jobs from row ``start`` on, in order, in pages: a ledger of any length fits into memory."""
        skip = start
        for path in self._paths():
            with self._location.open(path) as source:
                file = pq.ParquetFile(source)
                if skip >= file.metadata.num_rows:
                    skip -= file.metadata.num_rows
                    continue
                for batch in file.iter_batches(READ_ROWS):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield batch.slice(skip).to_pylist()
                    skip = 0

    def _paths(self) -> list[str]:
        """The files in the order of their rows: their names begin with the number of their partition."""
        return sorted(pa.table(DeltaTable(self.uri).get_add_actions()).column("path").to_pylist())


def _progress(pushed: int, pushing: int, at: int) -> CommitProperties:
    """A commit of the progress, if nothing came between."""
    return once(Transaction(PUSHED, pushed), Transaction(PUSHING, pushing), Transaction(PUSHING_AT, at))


class FreezeTask:
    """Runs in tasks: writes one partition of the chosen jobs."""

    def __init__(self, location: Location, schema: pa.Schema) -> None:
        self._location, self._schema = location, schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(written_batch, FileWriter(self._location, self._schema).write(batches))
