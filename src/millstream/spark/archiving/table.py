"""The Delta table of an archive: made, widened, and added to in batches that count once.

A commit carries an application transaction, (APP, batch number), and the Delta log lets two commits with the
same application race: one wins, the other is refused. So a batch that is committed again, by a run that
crashed after its commit or by a second run beside it, adds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

from millstream.config import scheme_of
from millstream.errors import ConfigurationError, TableConflict
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.writing import DAY, WrittenFile

APP = "millstream-archive"
MARK = "Millstream archive of "  # begins the table's description, which says which broker it archives
TRIES = 50  # commits of others that may come between: compaction, a new column
# Features that change which rows a file holds, or under which names: reading the files alone would be wrong.
_UNREADABLE = {"deletionVectors", "columnMapping"}


def once(*transactions: Transaction) -> CommitProperties:
    """A commit that is made right after the version it was based on, or not at all.

    By itself deltalake tries again behind a commit that came between. Where that one created the table it
    does so even with a second creation, which would set everything back: seen with four threads, every second
    time.
    """
    return CommitProperties(max_commit_retries=0, app_transactions=list(transactions))


def open_delta(uri: str) -> DeltaTable:
    """The table at ``uri``. Raises TableNotFoundError, and ConfigurationError for one that is broken."""
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        raise
    except DeltaError as error:
        said = str(error).partition("\n")[0]  # a backtrace of Rust, without any names, follows
        raise ConfigurationError(f"the table at {uri} cannot be opened: {said}") from error


def replace_rows(uri: str, rows: pa.Table) -> None:
    """Put ``rows`` in place of the table at ``uri``, which is made where it is missing, in one commit.

    Of two programs that do so at the same time one comes after the other; with deltalake's own tries, the
    rows of both would be there. Raises TableConflict when that has no end.
    """
    for _ in range(TRIES):
        try:
            write_deltalake(uri, rows, mode="overwrite", schema_mode="overwrite", commit_properties=once())
        except CommitFailedError:
            continue
        return
    raise TableConflict(f"{uri} changed during each of {TRIES} tries to replace it; run it again")


class ArchiveTable:
    """One archive, at ``location``. Every method looks at the newest version of the table."""

    def __init__(self, location: Location) -> None:
        self.location = location

    # -- looking -----------------------------------------------------------------------------------

    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self.location.uri))

    def open(self) -> DeltaTable:
        """The table as it is now. Raises ConfigurationError where there is none, or none that we can read."""
        try:
            table = open_delta(self.location.uri)
        except TableNotFoundError as error:
            raise ConfigurationError(
                f"there is no Delta table at {self.location.uri}; make one with: "
                f"millstream pipeline archive --table {self.location.uri} --stream …"
            ) from error
        found = _UNREADABLE & set(table.protocol().reader_features or ())
        if found:
            raise ConfigurationError(
                f"the table at {self.location.uri} uses {', '.join(sorted(found))}, which is not supported; "
                "rewrite it without that feature"
            )
        return table

    def open_archive(self) -> DeltaTable:
        """The same, and sure to be an archive. Raises ConfigurationError for any other Delta table."""
        table = self.open()
        found = table.metadata()
        if not (found.description or "").startswith(MARK) or found.partition_columns != [DAY]:
            raise ConfigurationError(
                f"the Delta table at {self.location.uri} is no archive of Millstream; choose another folder"
            )
        return table

    def committed(self) -> int:
        """The number of the last batch that is in the table; 0 where there is none yet."""
        return self.open_archive().transaction_version(APP) or 0

    # -- changing ----------------------------------------------------------------------------------

    def prepare(self, schema: pa.Schema, source: str, *, same_source: bool = False) -> pa.Schema:
        """Let the table exist with (at least) these columns; the columns that files are to be written with.

        Raises ConfigurationError where it archives another source, unless the caller says that it is the same
        one under a new address, and where a column has another type there.
        """
        if not self.exists():
            self._create(schema, source)
        for _ in range(TRIES):
            table = self.open_archive()
            self._check_source(table, source, same_source)
            there = pa.schema(table.schema().to_arrow())
            missing = _missing(there, schema, self.location.uri)
            try:
                if missing:
                    table.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))
                    continue
            except CommitFailedError:
                continue  # somebody was faster, perhaps with the same columns
            return pa.schema([field for field in there if field.name != DAY])
        raise TableConflict(f"the columns of {self.location.uri} could not be settled within {TRIES} tries")

    def _create(self, schema: pa.Schema, source: str) -> None:
        fields = [pa.field(field.name, field.type) for field in schema]  # nullable: columns may come later
        try:
            create_table_with_add_actions(
                self.location.uri,
                Schema.from_arrow(pa.schema([*fields, pa.field(DAY, pa.date32())])),
                [],
                mode="error",
                partition_by=[DAY],
                name="millstream",
                description=MARK + source,
                commit_properties=once(Transaction(APP, 0)),
            )
        except DeltaError:
            if not self.exists():  # else a second run made it at the same moment
                raise

    def _check_source(self, table: DeltaTable, source: str, same_source: bool) -> None:
        known = table.metadata().description.removeprefix(MARK)
        if known == source:
            return
        if not same_source:
            raise ConfigurationError(
                f"the table at {self.location.uri} archives {known}, and this is {source}: entries of two "
                "brokers may have the same stream and id. Use another table; or, if it is the same broker "
                "under a new address, say so with same_source=True (--same-source)"
            )
        table.alter.set_table_description(MARK + source)

    def commit(self, batch: int, files: Sequence[WrittenFile], metadata: dict[str, Any]) -> int | None:
        """Make ``files`` part of the table as batch ``batch``; the table's version.

        None where that batch is in the table already: then nothing was added, and the files belong to nobody.
        """
        now = int(time.time() * 1000)
        actions = [
            AddAction(file.path, file.size, {DAY: file.day or None}, now, True, file.stats) for file in files
        ]
        properties = once(Transaction(APP, batch))
        properties.custom_metadata = {f"millstream.{name}": value for name, value in metadata.items()}
        for _ in range(TRIES):
            table = self.open_archive()
            if (table.transaction_version(APP) or 0) >= batch:
                return None
            try:
                table.create_write_transaction(
                    list(actions), "append", table.schema(), partition_by=[DAY], commit_properties=properties
                )
            except CommitFailedError:
                continue  # look again: it may have been this very batch
            return self.location.sync_log(table.version())
        raise TableConflict(
            f"batch {batch} could not be committed to {self.location.uri} within {TRIES} tries; run it again"
        )


def _missing(there: pa.Schema, wanted: pa.Schema, uri: str) -> list[pa.Field]:
    """The columns to add. Raises ConfigurationError for one that has another type in the table."""
    missing = []
    for field in wanted:
        at = there.get_field_index(field.name)
        if at < 0:
            missing.append(pa.field(field.name, field.type))
        elif not _same_type(there.field(at).type, field.type):
            raise ConfigurationError(
                f"column {field.name!r} is {there.field(at).type} in the table at {uri}, and the source "
                f"gives {field.type}; archive into another table"
            )
    return missing


def _same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Equal, whatever Delta and Spark call the items of a list or a map."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _same_type(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _same_type(one.key_type, other.key_type) and _same_type(one.item_type, other.item_type)
    return bool(one.equals(other))


def source_name(url: str) -> str:
    """The broker's address without credentials and options, as the table remembers it."""
    scheme = scheme_of(url)
    parts = urlsplit(url)
    family = "redis" if scheme.startswith(("redis", "valkey")) else scheme.partition("+")[0]
    if family == "sqlite":
        return f"sqlite:///{Location(parts.path[1:] or 'memory').uri.lstrip('/')}"
    host = parts.netloc.rpartition("@")[2]
    return f"{family}://{host}{parts.path.rstrip('/')}"
