"""Folding events into state, inside Spark's tasks: the same code for a batch and for a stream.

Events of a key are folded in the order of their ids, and each at most once: an event at or below the last
id that the key has seen is passed over. So it does not matter whether events arrive again, from a replayed
batch or from an archive that overlaps with the stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millstream.message import Id, parse_id

Fold = Callable[[Any, "Event"], Any]
INPUT = "stream string, key string, id string, type string, headers string, data string"
STATE = "state string, events long, last_id string"
OUTPUT = "stream string, key string, state string, events long, last_id string, folded long, passed long"
MARK = "millstream-fold-failed "  # before the JSON by which the driver learns what happened
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder(order="deterministic").encode  # the same state is the same text


class Event(msgspec.Struct, frozen=True):
    """What a fold is given: an entry of the stream."""

    stream: str
    id: str
    type: str  # "" where the entry has none
    data: Any  # a mapping of JSON values
    headers: dict[str, str]

    @property
    def timestamp(self) -> datetime:
        """When it was added, by its id, in UTC."""
        return _EPOCH + timedelta(milliseconds=parse_id(self.id)[0])


class Folder(StatefulProcessor):
    """Keeps the state of each (stream, key) and folds what comes. Events without a key are only counted."""

    def __init__(self, fold: Fold, initial: str | None) -> None:
        self._fold, self._initial = fold, initial

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = handle.getValueState("state", STATE)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """The state that the table has, where the checkpoint is new."""
        self._kept.update((initialState.state, initialState.events, initialState.last_id))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        stream, name = key
        if name is None:
            yield Row(**_output(stream, None, None, 0, None, 0, sum(1 for _ in rows)))
            return
        kept = self._kept.get() if self._kept.exists() else None
        text, events, last_id = kept or (self._initial, 0, None)
        last: Id | None = parse_id(last_id) if last_id else None
        state = None if text is None else json.loads(text)
        folded = passed = 0
        # Spark gives the rows of a key in any order.
        for place, row in sorted(((parse_id(row.id), row) for row in rows), key=lambda item: item[0]):
            if last is not None and place <= last:
                passed += 1
                continue
            state = _step(self._fold, state, row, name)
            last, last_id = place, row.id
            folded += 1
        if folded:
            text = _as_text(state, stream, name, last_id)
            self._kept.update((text, events + folded, last_id))
        yield Row(**_output(stream, name, text, events + folded, last_id, folded, passed))

    def close(self) -> None: ...


class FoldFailed(Exception):
    """Carries what happened from a task to the driver, as text: Spark brings nothing else across."""

    def __init__(self, stream: str, key: str, event_id: str, cause: str) -> None:
        what = {"stream": stream, "key": key, "event_id": event_id, "cause": cause}
        super().__init__(MARK + json.dumps(what))


def _step(fold: Fold, state: Any, row: Row, key: str) -> Any:
    try:
        event = Event(
            row.stream, row.id, row.type or "", json.loads(row.data), json.loads(row.headers or "{}")
        )
        return fold(state, event)
    except Exception as error:  # the user's own code may raise anything
        raise FoldFailed(row.stream, key, row.id, f"{type(error).__name__}: {error}"[:2000]) from error


def _as_text(state: Any, stream: str, key: str, last_id: str | None) -> str | None:
    if state is None:
        return None  # the entity has ended
    try:
        return _encode(state).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        why = f"the state is no JSON value: {error}"
        raise FoldFailed(stream, key, last_id or "", why) from error


def _output(
    stream: str,
    key: str | None,
    state: str | None,
    events: int,
    last_id: str | None,
    folded: int,
    passed: int,
) -> dict[str, Any]:
    return {
        "stream": stream,
        "key": key,
        "state": state,
        "events": events,
        "last_id": last_id,
        "folded": folded,
        "passed": passed,
    }
