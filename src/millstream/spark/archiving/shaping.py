"""Batches of job records on their way into the archive: nothing that was in an entry is lost."""

from __future__ import annotations

from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.spark.archiving.writing import CORRUPT, TIME

TEXT = "data"  # the entry as it is, asked for beside the typed columns
NEEDED = ("job_id", "type", "state", "at")  # without these it is no record


class RecordShape(msgspec.Struct, frozen=True):
    """Keeps the text of what is no record, and gives each entry its time.

    An entry that is JSON, but of something else, fits the typed columns with nothing but nulls: its text goes
    to the column for what fits no record, as does one that is no JSON at all. ``time_from`` is a column of
    seconds since the epoch that says when an entry was, where its id does not.
    """

    time_from: str | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        text = batch.column(TEXT)
        strange = reduce(pc.or_, (pc.is_null(batch.column(name)) for name in NEEDED))
        lost = pc.and_(strange, pc.is_null(batch.column(CORRUPT)))
        found = self._set(batch, CORRUPT, pc.if_else(lost, text, batch.column(CORRUPT)))
        if self.time_from is not None:
            micros = pc.multiply(batch.column(self.time_from), 1e6).cast(pa.int64(), safe=False)
            found = self._set(found, TIME, micros.cast(pa.timestamp("us", tz="UTC")))
        return found.drop_columns([TEXT])

    @staticmethod
    def _set(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
        at = batch.schema.get_field_index(name)
        return batch.set_column(at, batch.schema.field(at), column)
