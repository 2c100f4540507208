"""How far the archive is: a small Delta table inside the archive's folder, one row per batch.

The row of a batch is written *before* its data, so that a batch means the same entries whoever finishes it:
after a crash the next run takes the row as it is, and of two runs side by side one writes the row and both
obey it. Whether a batch counts is said by the archive's own log alone (`ArchiveTable.committed`). So the
archive needs no checkpoint beside it, and a copy of the folder is a complete archive that goes on where it
was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from millstream.errors import TableConflict
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.table import TRIES, once

POSITIONS = ("_millstream", "positions")  # a name with "_" in front: a vacuum of the archive leaves it alone
WRITER = "millstream-positions"
TIDY_EVERY = 100  # batches: then only the last rows are kept
_KEPT = 10
_SCHEMA = pa.schema(
    [("batch", pa.int64()), ("ends", pa.string()), ("planned", pa.string()), ("at", pa.float64())]
)


class Batch(msgspec.Struct, frozen=True):
    """One step of the archive.

    ``ends`` is the id up to which each stream is archived when the batch is committed, for every stream that
    was ever archived here. ``planned`` is what the batch reads: the source's own offsets, and its options.
    """

    number: int
    ends: dict[str, Any]
    planned: dict[str, Any]


class Positions:
    """The rows of all batches of one archive."""

    def __init__(self, location: Location) -> None:
        self._uri = location.child(*POSITIONS)

    def get(self, number: int) -> Batch | None:
        """The batch of that number, where it was ever planned."""
        if not DeltaTable.is_deltatable(self._uri):
            return None
        rows = DeltaTable(self._uri).to_pyarrow_table(filters=[("batch", "=", number)]).to_pylist()
        if not rows:
            return None
        return Batch(number, json.loads(rows[0]["ends"]), json.loads(rows[0]["planned"]))

    def plan(self, batch: Batch) -> Batch:
        """Write the row of a batch; the row that counts, which is another's where somebody was faster."""
        row = pa.table(
            {
                "batch": [batch.number],
                "ends": [json.dumps(batch.ends, sort_keys=True)],
                "planned": [json.dumps(batch.planned, sort_keys=True)],
                "at": [time.time()],
            },
            schema=_SCHEMA,
        )
        last: DeltaError | None = None
        for _ in range(TRIES):
            found = self.get(batch.number)
            if found is not None:
                return found
            properties = once(Transaction(WRITER, batch.number))
            try:
                if not DeltaTable.is_deltatable(self._uri):
                    write_deltalake(self._uri, row, mode="error", commit_properties=properties)
                    return batch
                table = DeltaTable(self._uri)
                # Somebody may have written the row since the look above: the newest transaction tells.
                # If it happens after this line, the commit is refused.
                if (table.transaction_version(WRITER) or 0) >= batch.number:
                    continue
                write_deltalake(table, row, mode="append", commit_properties=properties)
                return batch
            except DeltaError as error:  # refused because somebody was faster, or made the table just now
                last = error
        raise TableConflict(
            f"batch {batch.number} could not be planned in {self._uri}: {last}; run it again"
        ) from last

    def tidy(self, committed: int) -> None:
        """Forget the rows of old batches, now and then; harmless beside other runs."""
        if committed % TIDY_EVERY:
            return
        try:
            table = DeltaTable(self._uri)
            table.delete(f"batch < {committed - _KEPT}")
            table.optimize.compact()
            table.vacuum(retention_hours=1, enforce_retention_duration=False, dry_run=False)
        except DeltaError:
            return  # another run is at it


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The ends after a batch: those of streams that it did not read stay."""
    return {**before, **now}
