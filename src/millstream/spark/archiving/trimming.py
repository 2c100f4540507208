"""Trimming the source, never past what is safely archived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.config import open_broker
from millstream.errors import ConfigurationError
from millstream.message import MAX_ID, format_id, next_id, parse_id
from millstream.spark.archiving.positions import Positions
from millstream.spark.archiving.table import ArchiveTable


class Trimmer:
    """Removes entries from their streams that the archive has committed.

    What counts is read from the archive's log on the disk, never from what a run believes. Entries that a
    group was not given yet, or has not acknowledged, stay, with everything newer, unless ``unread`` says
    otherwise.
    """

    def __init__(self, url: str, table: ArchiveTable, positions: Positions, *, unread: bool = False) -> None:
        self._broker = open_broker(url)
        self._table, self._positions, self._unread = table, positions, unread

    def trim(self, streams: Iterable[str]) -> int:
        """Trim ``streams`` up to the last committed batch; how many entries went."""
        batch = self._positions.get(self._table.committed())
        if batch is None:
            return 0
        return sum(self._trim(stream, batch.ends[stream]) for stream in streams if stream in batch.ends)

    def _trim(self, stream: str, end: Mapping[str, Any]) -> int:
        after = parse_id(str(end["after"]))
        if after == MAX_ID:  # no id comes after it that could be kept
            return 0
        return self._broker.xtrim(stream, min_id=format_id(next_id(after)), plain=self._unread)

    def close(self) -> None:
        self._broker.close()


def check_trimmable(archive_table: bool) -> None:
    """Raise ConfigurationError for a source that has no trim."""
    if archive_table:
        raise ConfigurationError(
            "trim is for streams; the rows of the SQL archive are removed by its own retention"
        )
