"""Where a read starts and ends.

A *position* is what a user says: earliest, latest, an id, or a time; one for all streams or one for each.
An *offset* is what a checkpoint keeps of each stream: the id after which the next batch starts, and how many
entries had been added to the stream up to there, where the broker counts that. It is what shows later
whether something between two batches was trimmed. The end of a batch that is the first to read a stream
keeps the oldest entry that the stream had then, too: nothing else says where that batch began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from millstream.errors import ConfigurationError, InvalidId
from millstream.message import MAX_ID, MIN_ID, Id, format_id, next_id, parse_id, previous_id

EARLIEST, LATEST = "earliest", "latest"
_SEQ = MAX_ID[1]
Offsets = dict[str, "Offset"]


@dataclass(frozen=True)
class Bound:
    """An id or a time that a user named: the first id at or after it, and the last id at or before it.

    For a time the two are apart: an end is exclusive, so that the end of one read can be the start of the
    next.
    """

    low: Id
    high: Id
    added: int | None = None  # given along with the id where it comes from a checkpoint or a progress


Position = str | Bound


@dataclass(frozen=True)
class Positions:
    """A position for every stream."""

    default: Position
    by_stream: Mapping[str, Position] = field(default_factory=dict)

    def of(self, stream: str) -> Position:
        return self.by_stream.get(stream, self.default)

    def all(self) -> Iterator[Position]:
        yield from self.by_stream.values()
        yield self.default


@dataclass(frozen=True)
class Offset:
    """Everything up to ``after`` is read. ``added`` counts what was ever added up to there; None: unknown."""

    after: Id
    added: int | None = None
    ahead: bool = False  # the stream has not come so far yet: a start that a user named
    first: Id | None = None  # the stream's oldest entry when the batch that ends here was planned

    @property
    def low(self) -> Id:
        """The first id that is not read."""
        return next_id(self.after) if self.after < MAX_ID else MAX_ID

    def is_past(self, last: Id, added: int | None) -> bool:
        """Whether a stream with these figures has never come so far: it was deleted and made anew."""
        fewer = self.added is not None and added is not None and added < self.added
        return not self.ahead and (last < self.after or fewer)


def before(key: Id) -> Id:
    """The id right before ``key``, or the lowest one."""
    return previous_id(key) if key > MIN_ID else MIN_ID


def dump(offsets: Mapping[str, Offset]) -> dict[str, Any]:
    """Offsets as Spark keeps them: JSON, in one order, because Spark compares the texts."""
    return {stream: _dump(offset) for stream, offset in sorted(offsets.items())}


def _dump(offset: Offset) -> dict[str, Any]:
    kept: dict[str, Any] = {"after": format_id(offset.after)}
    if offset.added is not None:
        kept["added"] = offset.added
    if offset.ahead:
        kept["ahead"] = True
    if offset.first is not None:
        kept["first"] = format_id(offset.first)
    return kept


def load(kept: Mapping[str, Any]) -> Offsets:
    """What `dump` made. Raises ConfigurationError for a checkpoint of another source."""
    try:
        return {stream: _load(fields) for stream, fields in kept.items()}
    except (TypeError, KeyError, AttributeError, InvalidId) as error:
        raise ConfigurationError(
            f"the checkpoint holds an offset that is not of this source: {json.dumps(kept)[:200]}; "
            "use another checkpoint location"
        ) from error


def _load(fields: Mapping[str, Any]) -> Offset:
    first = fields.get("first")
    return Offset(
        parse_id(fields["after"]),
        fields.get("added"),
        fields.get("ahead", False),
        None if first is None else parse_id(first),
    )


# -- what users write ------------------------------------------------------------------------------


def parse_offsets(name: str, text: str) -> Positions:
    """``earliest``, ``latest``, an id, or a JSON object of these by stream. Raises ConfigurationError."""
    kept = _object(name, text)
    default = EARLIEST if name.startswith("starting") else LATEST
    if kept is None:
        return Positions(_position(name, text.strip()))
    return Positions(default, {stream: _position(name, value) for stream, value in kept.items()})


def parse_timestamps(name: str, text: str) -> Positions:
    """An ISO 8601 time, milliseconds since the epoch, or a JSON object of these by stream."""
    kept = _object(name, text)
    default = EARLIEST if name.startswith("starting") else LATEST
    if kept is None:
        return Positions(_moment(name, text.strip()))
    return Positions(default, {stream: _moment(name, str(value)) for stream, value in kept.items()})


def _object(name: str, text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        kept = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{name} looks like JSON and cannot be read: {error}") from error
    assert isinstance(kept, dict)  # it began with a brace
    return kept


def _position(name: str, value: Any) -> Position:
    if isinstance(value, Mapping) and "after" in value:  # as in the query's progress
        offset = load({"": value})[""]
        return Bound(offset.low, offset.after, offset.added)
    if isinstance(value, str):
        if value.lower() in (EARLIEST, LATEST):
            return value.lower()
        exclusive = value.startswith("(")
        text = value[1:] if exclusive else value
        try:
            low, high = parse_id(text), parse_id(text, missing_seq=_SEQ)
        except InvalidId:
            pass
        else:
            return Bound(Offset(high).low, before(low)) if exclusive else Bound(low, high)
    raise ConfigurationError(
        f"{name} cannot be {value!r}; use earliest, latest, an id such as 1700000000000-0 (with a '(' before "
        'it to leave it out), or JSON by stream: {"events:orders": "1700000000000-0"}'
    )


def _moment(name: str, text: str) -> Bound:
    if text.isascii() and text.isdigit():
        ms = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise ConfigurationError(
                f"{name} cannot be {text!r}; use ISO 8601 such as 2026-01-31T08:00:00Z, "
                "or milliseconds since 1970"
            ) from error
        ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= ms <= MAX_ID[0]:
        raise ConfigurationError(f"{name} cannot be {text!r}: ids have no time before 1970, or so late")
    return Bound((ms, 0), before((ms, 0)))


def names(offsets: Iterable[Mapping[str, Offset]]) -> list[str]:
    """Every stream in any of ``offsets``, in order."""
    return sorted({stream for each in offsets for stream in each})
