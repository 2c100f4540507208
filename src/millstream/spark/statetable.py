"""The Delta table of a projection: one row per stream and key, changed in steps that count once.

The table is the truth, and Spark's checkpoint only says how far the stream was read and keeps the same
states at hand: a lost checkpoint is made anew from the table. A rebuild replaces all rows in one commit,
and raises the table's *generation*; each generation has a checkpoint of its own, so that nothing old flows
into new rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from millstream.errors import ConfigurationError, TableConflict
from millstream.spark.archiving.location import parse_location
from millstream.spark.archiving.reading import read_files
from millstream.spark.archiving.table import TRIES, once, open_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "millstream-projection"  # of the table; its description says of what it is the state
GENERATION = "millstream.projection"  # the application whose transaction is the generation
COLUMNS = pa.schema(
    [
        ("stream", pa.string()),
        ("key", pa.string()),
        ("state", pa.string()),  # JSON; null: the entity has ended
        ("events", pa.int64()),  # folded into it
        ("last_id", pa.string()),
        ("position", pa.string()),  # last_id in a form that sorts
        ("updated_at", pa.timestamp("us", tz="UTC")),  # the time of the last event
    ]
)


class StateTable:
    """The table at ``path``. ``typed`` are the columns that are taken out of the state."""

    def __init__(self, path: str, what: str, typed: pa.Schema | None = None) -> None:
        self.uri, self._what = parse_location(path), what
        self.schema = pa.schema([*COLUMNS, *(typed or [])])

    def open(self) -> DeltaTable:
        """The table, made where it is missing. Raises ConfigurationError where it is another one."""
        if not DeltaTable.is_deltatable(self.uri):
            try:
                DeltaTable.create(
                    self.uri, self.schema, mode="error", name=NAME,
                    description=self._what,
                    commit_properties=once(Transaction(GENERATION, 0)),
                )  # fmt: skip
            except DeltaError:
                if not DeltaTable.is_deltatable(self.uri):  # else a second run made it at the same moment
                    raise
        table = open_delta(self.uri)
        known = table.metadata().description
        if table.metadata().name != NAME:
            raise ConfigurationError(f"the Delta table at {self.uri} is no projection; choose another folder")
        if known != self._what:
            raise ConfigurationError(
                f"the table at {self.uri} is the projection of {known}, and this is of {self._what}; "
                "use another table"
            )
        return table

    def check_columns(self) -> None:
        """Raise ConfigurationError where the table has other columns than asked for now."""
        there = {field.name for field in self.open().schema().fields}
        if there != set(self.schema.names):
            raise ConfigurationError(
                f"the table at {self.uri} has the columns {', '.join(sorted(there))}, and now it would be "
                f"{', '.join(sorted(self.schema.names))}; rebuild it with rebuild=True (--rebuild)"
            )

    def generation(self) -> int:
        """How often the table was rebuilt."""
        return self.open().transaction_version(GENERATION) or 0

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows as they are now."""
        return read_files(spark, self.open())

    def positions(self) -> dict[str, str]:
        """The last position of each stream that is in the table. Everything up to there is in it."""
        engine = QueryBuilder().register("states", self.open())
        found = pa.table(
            engine.execute("SELECT stream, max(position) AS position FROM states GROUP BY stream")
        )
        return {row["stream"]: row["position"] for row in found.to_pylist() if row["position"]}

    def merge(self, rows: pa.Table, query: str, batch: int) -> bool:
        """Put the rows of a batch into the table; False where that batch of that query is in it already.

        A row never goes back: one that is older than what the table has is passed over. A change by somebody
        else in the meantime is looked at first, and then it is tried again; TableConflict when that has no
        end.
        """
        for _ in range(TRIES):
            table = self.open()
            done = table.transaction_version(query)
            if done is not None and done >= batch:
                return False
            try:
                self._merge(table, rows, Transaction(query, batch))
            except CommitFailedError:
                continue  # it may have been this very batch
            return True
        raise TableConflict(f"{self.uri} changed during each of {TRIES} tries to add to it; run it again")

    def _merge(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        if not rows.num_rows:
            return
        (
            table.merge(
                rows.cast(self.schema),
                "t.stream = s.stream AND t.key = s.key",
                source_alias="s",
                target_alias="t",
                commit_properties=once(transaction),
            )
            .when_matched_update_all("s.position >= t.position")
            .when_not_matched_insert_all()
            .execute()
        )

    def replace(self, rows: pa.Table) -> int:
        """Put ``rows`` in place of all that was there, in one commit; the new generation.

        Of two rebuilds at the same time one comes after the other.
        """
        for _ in range(TRIES):
            table = self.open()
            generation = (table.transaction_version(GENERATION) or 0) + 1
            try:
                write_deltalake(
                    table,
                    rows.cast(self.schema),
                    mode="overwrite",
                    schema_mode="overwrite",
                    name=NAME,
                    description=self._what,
                    commit_properties=once(Transaction(GENERATION, generation)),
                )
            except CommitFailedError:
                continue
            return generation
        raise TableConflict(f"{self.uri} changed during each of {TRIES} tries to replace it; run it again")

    def version(self) -> int:
        """Of the Delta table, after the last change."""
        return self.open().version()


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a column of Spark."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415

    return to_arrow_type(kind, timezone="UTC")
