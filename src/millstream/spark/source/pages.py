"""Entries of a stream, some thousand at a time, as Arrow columns that are built when somebody asks for them.

A page is valid until the next one is asked for: it may look into a buffer that is filled again then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.message import Id, format_id

LATEST_MS = 253_402_300_799_999  # the end of the year 9999, and of what Spark and Python call a time
TIMES = pa.timestamp("us", "UTC")


class Page(ABC):
    """Some entries of one stream, one after the other."""

    rows: int
    last: Id

    @abstractmethod
    def ids(self) -> Any:
        """The ids, as strings."""

    @abstractmethod
    def times(self) -> Any:
        """When the entries were added; null where that is no time that Spark could hold."""

    @abstractmethod
    def data(self) -> Any:
        """The texts of the entries, as valid strings."""

    @abstractmethod
    def lines(self) -> pa.Buffer | None:
        """The same with a line for each entry, for a reader of JSON lines.

        None where one is not UTF-8, or does not begin with ``{`` and end with ``}``. Otherwise no object can
        reach from one text into the next, so that as many objects as entries means one for each.
        """

    @abstractmethod
    def types(self) -> Any | None:
        """The types, as strings; None where no entry has one."""

    @abstractmethod
    def headers(self) -> Any | None:
        """The headers, as JSON texts; None where no entry has any."""


class Row(NamedTuple):
    """One entry, for pages that are made row by row."""

    key: Id
    data: str
    type: str | None = None
    headers: str | None = None
    ms: int | None = None  # where its time is not in its id


class RowsPage(Page):
    """A page of single rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.rows, self.last = len(rows), rows[-1].key

    def ids(self) -> Any:
        return pa.array([format_id(row.key) for row in self._rows], pa.string())

    def times(self) -> Any:
        return times_of([row.key[0] if row.ms is None else row.ms for row in self._rows])

    def data(self) -> Any:
        return pa.array([row.data for row in self._rows], pa.string())

    def lines(self) -> pa.Buffer | None:
        texts = [row.data for row in self._rows]
        if not all(text.startswith("{") and text.endswith("}") for text in texts):
            return None
        return pa.py_buffer("\n".join(texts).encode())

    def types(self) -> Any | None:
        return _optional([row.type for row in self._rows])

    def headers(self) -> Any | None:
        return _optional([row.headers for row in self._rows])


def _optional(texts: list[str | None]) -> Any | None:
    return pa.array(texts, pa.string()) if any(text is not None for text in texts) else None


def times_of(milliseconds: Sequence[int]) -> Any:
    """Timestamps from milliseconds since the epoch."""
    return pa.array([ms * 1000 if 0 <= ms <= LATEST_MS else None for ms in milliseconds], TIMES)
