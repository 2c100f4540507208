"""Keeping an archive in shape: many small files into few, and away with what no version needs."""

from __future__ import annotations

import os

import msgspec
from deltalake import WriterProperties
from deltalake.exceptions import CommitFailedError

from millstream.errors import InvalidInput, TableConflict
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.table import ArchiveTable

KEEP_HOURS = 168  # a week, Delta's own default: as long may a query, or an archive run, take
TARGET_BYTES = 256 << 20


class Compacted(msgspec.Struct, frozen=True):
    """What a compaction did."""

    files_before: int
    files_after: int


def compact(table: str | os.PathLike[str], *, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Rewrite the small files of each day into files of about ``target_bytes``; no row changes.

    Readers and archive runs go on meanwhile. The old files stay for readers of older versions until a vacuum.
    Raises TableConflict if another compaction won.
    """
    opened = ArchiveTable(Location(os.fspath(table))).open_archive()
    before = len(opened.file_uris())
    properties = WriterProperties(compression="ZSTD", compression_level=3)
    try:
        opened.optimize.compact(
            target_size=target_bytes,
            max_concurrent_tasks=2,
            writer_properties=properties,
        )
    except CommitFailedError as error:
        raise TableConflict(
            f"another compaction changed {opened.table_uri} at the same time; nothing was lost, run it again"
        ) from error
    return Compacted(before, len(opened.file_uris()))


def vacuum(
    table: str | os.PathLike[str],
    *,
    keep_hours: float = KEEP_HOURS,
    dry_run: bool = False,
    force: bool = False,
) -> list[str]:
    """Delete files that no version of the last ``keep_hours`` needs, and those that no commit ever knew.

    The files deleted (or that would be). Less than a week needs ``force``: it is only safe where no query and
    no archive run has been going on for longer than ``keep_hours``.
    """
    check_keep(keep_hours, force)
    opened = ArchiveTable(Location(os.fspath(table))).open_archive()
    # "full" also finds what crashed tasks left behind; folders with "_" in front are never looked at.
    return list(
        opened.vacuum(
            retention_hours=int(keep_hours), dry_run=dry_run, enforce_retention_duration=False, full=True
        )
    )


def check_keep(keep_hours: float, force: bool) -> None:
    """Raise InvalidInput for a time that would delete what somebody may be reading or writing."""
    if keep_hours < 0:
        raise InvalidInput(f"a vacuum keeps files for 0 hours or more, not {keep_hours!r}")
    if keep_hours < KEEP_HOURS and not force:
        raise InvalidInput(
            f"a vacuum that keeps {keep_hours:g} hours, less than {KEEP_HOURS}, can take files from queries "
            "and archive runs that are going on. If there are none, say force=True (--force)"
        )
