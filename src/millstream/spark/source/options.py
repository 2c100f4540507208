"""What a user may say to the source, checked before anything is opened.

The names are those of Spark's Kafka connector where it has the same thing. Nothing is silently ignored: an
option that is unknown, or has no meaning for this kind of read, is an error that says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.brokers.payload import check_name
from millstream.config import scheme_of
from millstream.errors import ConfigurationError, InvalidInput, UnknownScheme
from millstream.history import HISTORY
from millstream.options import unknown_option
from millstream.spark.source.globs import fits
from millstream.spark.source.offsets import EARLIEST, LATEST, Positions, parse_offsets, parse_timestamps
from millstream.spark.urls import absolute_url

# How an option is spelled; Spark hands them over in lower case.
NAMES = (
    "url",
    "stream",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "mode",
    "jsonFields",
    "history",
    "archive",
    "prefix",
)
_SPELLING = {name.lower(): name for name in NAMES}
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAMING_ONLY = ("maxRowsPerTrigger", "maxBytesPerTrigger")
_GLOB = frozenset("*?[")
REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
SQL = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
PERMISSIVE, FAILFAST = "PERMISSIVE", "FAILFAST"


@dataclass(frozen=True)
class SourceOptions:
    """What is read, and how."""

    url: str = field(repr=False)  # a password may be in it
    kind: str  # "redis", "sql" or "archive"
    streams: tuple[str, ...] = ()
    pattern: str | None = None  # in place of names: every stream that it fits, also those to come
    start: Positions = field(default_factory=lambda: Positions(EARLIEST))
    end: Positions = field(default_factory=lambda: Positions(LATEST))
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    mode: str | None = None  # None: permissive where the schema has a column for what is malformed
    json_fields: frozenset[str] = frozenset()  # columns that are JSON fields though an entry has such a part
    records: bool = False  # the entries are records of the history of jobs

    def wants(self, stream: str) -> bool:
        """Whether a stream is among those that are read."""
        return stream in self.streams if self.pattern is None else fits(self.pattern, stream)


def parse_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """The options, checked. ``streaming`` is None where it is not known yet. Raises ConfigurationError."""
    options = _by_name(given)
    for name in _BATCH_ONLY:
        if streaming and name in options:
            raise ConfigurationError(f"{name} is for spark.read; a streaming query has no end: leave it out")
    for name in _STREAMING_ONLY:
        if streaming is False and name in options:
            raise ConfigurationError(
                f"{name} is for spark.readStream; spark.read takes all in one go: leave it out"
            )
    url = options.get("url")
    if not url:
        raise ConfigurationError(
            'the option "url" is missing; say where the streams are: .option("url", "redis://localhost:6379/0")'
        )
    history, archive = (_boolean(options, name, default=False) for name in ("history", "archive"))
    streams, pattern = _what(options, history, archive)
    start = _positions(options, "starting", EARLIEST)
    end = _positions(options, "ending", LATEST)
    if streaming is False and LATEST in start.all():
        raise ConfigurationError(
            "startingOffsets cannot be latest for spark.read: there would be nothing to read"
        )
    if EARLIEST in end.all():
        raise ConfigurationError("endingOffsets cannot be earliest: there would be nothing to read")
    for name, positions in (("starting", start), ("ending", end)):
        unread = sorted(set(positions.by_stream) - set(streams)) if pattern is None else []
        if unread:
            raise ConfigurationError(
                f"the {name} positions name {unread[0]!r}, which is not among the streams that are read"
            )
    return SourceOptions(
        url=absolute_url(url),  # here, in the driver: a task has a folder of its own
        kind=_kind(url, archive),
        streams=streams,
        pattern=pattern,
        start=start,
        end=end,
        max_rows=_number(options, "maxRowsPerTrigger"),
        max_bytes=_number(options, "maxBytesPerTrigger"),
        min_partitions=_number(options, "minPartitions"),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        mode=_mode(options),
        json_fields=frozenset(
            part.strip() for part in options.get("jsonFields", "").split(",") if part.strip()
        ),
        records=history or archive,
    )


def _by_name(given: Mapping[str, str]) -> dict[str, str]:
    """The options under their own spelling. ``load("name")`` gives the stream as the path."""
    options: dict[str, str] = {}
    for key, value in dict(given).items():
        name = "stream" if key.lower() == "path" else _SPELLING.get(key.lower())
        if name is None:
            raise ConfigurationError(unknown_option("option of the millstream source", key, NAMES))
        if name in options:
            raise ConfigurationError(
                'the stream is given twice; use .option("stream", …) or .load("…"), not both'
            )
        options[name] = str(value)
    return options


def _what(options: Mapping[str, str], history: bool, archive: bool) -> tuple[tuple[str, ...], str | None]:
    """The names of the streams, or a pattern."""
    text = options.get("stream", "").strip()
    if history and archive:
        raise ConfigurationError('"history" is the stream and "archive" the SQL table: choose one of them')
    if "prefix" in options and not history:
        raise ConfigurationError('"prefix" says whose history is read; give it together with history=true')
    if history or archive:
        if text:
            chosen = "history" if history else "archive"
            raise ConfigurationError(f'the option "{chosen}" chooses what is read; leave out "stream"')
        return (f"{options.get('prefix', 'millstream')}:{HISTORY}" if history else "archive",), None
    if not text:
        raise ConfigurationError(
            'the option "stream" is missing; give a name, several with commas, or a pattern such as events:*'
        )
    names = _names(text)
    patterns = [name for name in names if _GLOB & set(name)] if not _is_list(text) else []
    if patterns and len(names) > 1:
        raise ConfigurationError(
            f'"stream" mixes the pattern {patterns[0]!r} with other names; give names, or one pattern alone'
        )
    if patterns:
        return (), patterns[0]
    for name in names:
        try:
            check_name("stream", name)
        except InvalidInput as error:
            raise ConfigurationError(f'the option "stream": {error}') from error
    if len(set(names)) < len(names):
        raise ConfigurationError(f'"stream" names a stream twice: {text}')
    return tuple(names), None


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def _names(text: str) -> list[str]:
    """Names with commas between, or a JSON list where a name has a comma or a star of its own."""
    if _is_list(text):
        names = json.loads(text)
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(f'"stream" must be a list of names, not {text}')
        return list(names)
    return [part.strip() for part in text.split(",")]


def _positions(options: Mapping[str, str], which: str, default: str) -> Positions:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if offsets in options and timestamp in options:
        raise ConfigurationError(
            f"{offsets} and {timestamp} both say where to {which[:-3]}; give one of them"
        )
    if timestamp in options:
        return parse_timestamps(timestamp, options[timestamp])
    return parse_offsets(offsets, options[offsets]) if offsets in options else Positions(default)


def _kind(url: str, archive: bool) -> str:
    scheme = scheme_of(url).partition("+")[0]
    if scheme in SQL:
        return "archive" if archive else "sql"
    if archive:
        raise ConfigurationError(f"the archive is a table of a SQL database, and {scheme}:// is none")
    if scheme in REDIS:
        return "redis"
    if scheme == "memory":
        raise ConfigurationError(
            "memory:// lives inside one process, and Spark reads from others; use sqlite:///file.db, which "
            "needs no server either, or redis://"
        )
    raise UnknownScheme(scheme, tuple(f"{known}://" for known in (*REDIS, *SQL)))


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.strip().isdigit() and int(text) > 0):
        raise ConfigurationError(f"{name} must be a whole number, 1 or more, not {text!r}")
    return int(text)


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, not {options[name]!r}")
    return text == "true"


def _mode(options: Mapping[str, str]) -> str | None:
    text = options.get("mode")
    if text is not None and text.upper() not in (PERMISSIVE, FAILFAST):
        # DROPMALFORMED of Spark's own sources would lose records without a word.
        raise ConfigurationError(f"mode must be {PERMISSIVE} or {FAILFAST}, not {text!r}")
    return None if text is None else text.upper()
