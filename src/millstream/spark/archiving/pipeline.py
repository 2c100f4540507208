"""`archive`: streams and job history into a Delta table, once or continuously, each entry exactly once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import InvalidInput
from millstream.spark.archiving import maintenance
from millstream.spark.archiving.batches import Archiver, Committed, Step
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.sources import source_of
from millstream.spark.archiving.trimming import Trimmer, check_trimmable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, int, int | None], None]
MAX_ROWS = 1_000_000  # of a batch: some hundred MB of files, and a crash costs a minute of work at the most
FILE_BYTES = 128 << 20  # large enough that reading is sequential, small enough that a task holds several
COMPACT_AFTER = 200  # files added by a continuous run
TRIM_EVERY = 10  # looks that found nothing new


class ArchiveSummary(msgspec.Struct, kw_only=True):
    """What a run of `archive` did."""

    table: str
    version: int = 0  # of the table, after the last commit
    batches: int = 0
    rows: int = 0
    malformed: int = 0  # entries that fit no record; their text is in the table as it is
    files: int = 0
    bytes: int = 0
    days: list[str] = []
    ends: dict[str, str] = {}  # up to which id each stream is archived
    trimmed: int = 0  # entries removed at the source
    compacted_files: int = 0  # by how many files the table became smaller
    vacuumed_files: int = 0
    seconds: float = 0.0
    stopped: bool = False  # a continuous run that was asked to stop


def archive(
    spark: SparkSession,
    url: str,
    streams: str | Sequence[str] | None = None,
    table: str | os.PathLike[str] = "",
    *,
    history: bool = False,
    archive_table: bool = False,
    prefix: str | None = None,
    continuous: bool = False,
    interval: float = 1.0,
    trim: bool = False,
    trim_unread: bool = False,
    compact: bool = False,
    vacuum: float | None = None,
    force: bool = False,
    max_rows_per_batch: int = MAX_ROWS,
    file_bytes: int = FILE_BYTES,
    min_partitions: int | None = None,
    fail_on_data_loss: bool = True,
    same_source: bool = False,
    stop: threading.Event | None = None,
    on_progress: Progress | None = None,
    after: Step | None = None,
) -> ArchiveSummary:
    """Archive what ``streams`` (or the history of jobs) hold into the Delta table at ``table``.

    Each entry is in the table exactly once, whatever task or driver dies, and however many runs there are,
    also side by side: the table itself knows how far it is. A run ends with what was there when it began;
    with ``continuous`` it looks for more every ``interval`` seconds until ``stop`` is set.

    ``streams`` is a name, names, or a pattern; ``history`` means the stream of job records (of ``prefix``),
    ``archive_table`` the SQL table of them. ``trim`` removes from the source what is committed, but not what
    a group still needs, unless ``trim_unread``. ``compact`` joins small files, ``vacuum`` deletes files that
    no version of that many hours needs (see `maintenance`). With ``fail_on_data_loss`` off, entries that were
    trimmed before they could be read are passed over. ``on_progress(what, done, total)`` is called as it goes
    on; ``after`` is for tests of crashes.

    Raises ConfigurationError for what cannot be archived there, and what the broker raises.
    """
    began = time.monotonic()
    _check("max_rows_per_batch", max_rows_per_batch, 1)
    _check("file_bytes", file_bytes, 1)
    if not interval > 0:
        raise InvalidInput(f"interval must be a number of seconds above 0, not {interval!r}")
    if trim_unread and not trim:
        raise InvalidInput("trim_unread says how to trim; give trim=True as well")
    if trim:
        check_trimmable(archive_table)
    if vacuum is not None:
        maintenance.check_keep(vacuum, force)
    source = source_of(
        url,
        streams,
        history=history,
        archive_table=archive_table,
        prefix=prefix,
        min_partitions=min_partitions,
        fail_on_data_loss=fail_on_data_loss,
    )
    location = Location(os.fspath(table))
    run = _Run(
        Archiver(
            spark,
            source,
            location,
            max_rows=max_rows_per_batch,
            file_bytes=file_bytes,
            same_source=same_source,
            after=after,
        ),
        ArchiveSummary(table=location.uri),
        on_progress or (lambda what, done, total: None),
        stop or threading.Event(),
    )
    trimmer = None
    try:
        if trim:
            trimmer = Trimmer(url, run.archiver.table, run.archiver.positions, unread=trim_unread)
        if continuous:
            run.go_on(trimmer, interval, compact)
        else:
            run.archiver.limit_to_now()
            run.once(trimmer)
    finally:
        run.archiver.close()
        if trimmer is not None:
            trimmer.close()
    if compact:
        run.compact()
    if vacuum is not None:
        run.progress("removing old files", 0, None)
        run.summary.vacuumed_files = len(maintenance.vacuum(location.uri, keep_hours=vacuum, force=force))
    run.summary.version = run.archiver.table.open_archive().version()
    run.summary.seconds = round(time.monotonic() - began, 3)
    return run.summary


class _Run:
    """A run's state: what was done so far."""

    def __init__(
        self, archiver: Archiver, summary: ArchiveSummary, progress: Progress, stop: threading.Event
    ) -> None:
        self.archiver, self.summary, self.progress, self._stop = archiver, summary, progress, stop
        self._loose = 0  # files since the last compaction
        self._total: int | None = None

    def once(self, trimmer: Trimmer | None) -> None:
        """Batches until nothing is left of what was there at the beginning."""
        self._total = self.archiver.backlog()
        self.progress("archiving", 0, self._total)
        while not self._stop.is_set():
            batch = self.archiver.next_batch()
            self._trim(trimmer)
            if batch is None:
                return
            self._count(batch)
        self.summary.stopped = True

    def go_on(self, trimmer: Trimmer | None, interval: float, compact: bool) -> None:
        """Batches until somebody says stop. A batch that is under way is finished first."""
        self.progress("archiving", 0, None)
        idle = 1
        while not self._stop.is_set():
            batch = self.archiver.next_batch()
            if batch is None:
                if idle % TRIM_EVERY == 0:
                    self._trim(trimmer)  # a group may have acknowledged more by now
                idle += 1
                self._stop.wait(interval)
                continue
            idle = 1
            self._count(batch)
            self._trim(trimmer)
            if compact and self._loose >= COMPACT_AFTER:
                self.compact()
        self.summary.stopped = True

    def _count(self, batch: Committed) -> None:
        summary = self.summary
        summary.ends = {**summary.ends, **{stream: end["after"] for stream, end in batch.ends.items()}}
        if batch.version is None:
            return  # another run archived it
        summary.batches += 1
        summary.rows += sum(file.rows for file in batch.files)
        summary.malformed += sum(file.malformed for file in batch.files)
        summary.bytes += sum(file.size for file in batch.files)
        summary.files += len(batch.files)
        summary.days = sorted({*summary.days, *(file.day for file in batch.files)})
        self._loose += len(batch.files)
        self.progress("archiving", summary.rows, self._total)

    def _trim(self, trimmer: Trimmer | None) -> None:
        if trimmer is not None:
            self.summary.trimmed += trimmer.trim(self.archiver.streams())

    def compact(self) -> None:
        self.progress("compacting", 0, None)
        done = maintenance.compact(self.summary.table)
        self.summary.compacted_files += done.files_before - done.files_after
        self._loose = 0


def _check(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, not {value!r}")
