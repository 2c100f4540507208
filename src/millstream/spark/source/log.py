"""What the source asks of a broker: to find streams, to say what state they are in, and to read pages of
them.

`RedisLog`, `SqlLog` and `ArchiveLog` are the three kinds. None of them writes, and none uses a consumer
group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from millstream.message import MIN_ID, Id
from millstream.spark.source.options import SourceOptions
from millstream.spark.source.pages import Page


@dataclass(frozen=True)
class State:
    """A stream at one moment."""

    first: Id | None  # its oldest entry; None where it has none
    last: Id  # the newest id it ever had
    length: int
    added: int | None = None  # entries ever added; None where the broker does not count them
    deleted: Id = MIN_ID  # the newest entry that was taken out from within, not by trimming

    @property
    def added_before_first(self) -> int | None:
        """How many entries were added before the oldest one; None where that cannot be known.

        What is gone is gone from the front, unless single entries were deleted behind it.
        """
        if self.added is None or (self.first is not None and self.deleted >= self.first):
            return None
        return self.added - self.length


@dataclass(frozen=True)
class Stride:
    """How far a step through a stream came."""

    last: Id | None  # the last entry of it; None where there was none
    rows: int
    size: int  # bytes of data
    ended: bool  # there is nothing more in the range


@dataclass(frozen=True)
class Probe:
    """A question to a stream: the first entry of a range, or the last."""

    low: Id
    high: Id
    newest: bool = False


class Log(ABC):
    """The streams of one broker, for reading."""

    @abstractmethod
    def find(self, pattern: str) -> list[str]:
        """The streams whose names fit a pattern with ``*``, ``?`` and ``[…]``."""

    @abstractmethod
    def state(self, stream: str) -> State | None:
        """How a stream is now; None where there is none."""

    @abstractmethod
    def pages(self, stream: str, low: Id, high: Id) -> Iterator[Page]:
        """The entries of a range, both ends included, in order and in pages of bounded size.

        A page is valid until the next one is asked for.
        """

    @abstractmethod
    def stride(self, stream: str, low: Id, high: Id, rows: int, size: int | None, *, first: bool) -> Stride:
        """How far ``rows`` entries and ``size`` bytes reach from ``low``; ``first``: one, however large."""

    @abstractmethod
    def probe(self, stream: str, probes: Sequence[Probe]) -> list[Id | None]:
        """The ids that ``probes`` ask for, in as few round trips as the broker allows."""

    def settled(self, stream: str, after: Id, last: Id) -> Id:
        """Up to where nothing new can appear any more: ``last``, unless ids may come out of order."""
        return last

    def count(self, stream: str, low: Id, high: Id) -> int | None:
        """How many entries a range has; None where counting would cost too much."""
        return None

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_log(options: SourceOptions) -> Log:
    """The log that the options name. Raises what connecting raises; never with a password in the text."""
    if options.kind == "redis":
        from millstream.spark.source.redis import RedisLog  # noqa: PLC0415 - an extra

        return RedisLog(options.url)
    if options.kind == "sql":
        from millstream.spark.source.sql import SqlLog  # noqa: PLC0415 - only where it is used

        return SqlLog(options.url)
    from millstream.spark.source.archive import ArchiveLog  # noqa: PLC0415 - as above

    return ArchiveLog(options.url)
