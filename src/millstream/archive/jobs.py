"""Jobs and records as the archive gives them back, and the questions that find them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from millstream.archive.statements import HISTORY_COLUMNS, SHOWN, pattern
from millstream.archive.store import Store
from millstream.errors import InvalidInput
from millstream.history import STATES, Record
from millstream.options import seconds

PAGE = 1000  # jobs of one query
MOST = 10_000  # that one search may ask for


class ArchivedJob(msgspec.Struct, frozen=True):
    """A job's newest state. Times are seconds since the epoch."""

    job_id: str
    type: str
    state: str
    at: float
    queue: str
    priority: str
    attempt: int
    max_attempts: int
    enqueued_at: float
    due_at: float | None
    worker: str
    error_type: str
    error: str
    tags: list[str]
    tenant: str
    payload: str  # JSON text
    replay_of: str | None

    @property
    def fields(self) -> dict[str, Any]:
        """The job's fields as plain values."""
        found = json.loads(self.payload or "{}")
        return found if isinstance(found, dict) else {}

    @property
    def cursor(self) -> str:
        """For ``after=`` of a search that goes on behind this job."""
        return f"{self.at!r}:{self.job_id}"


class PendingJob(ArchivedJob, frozen=True):
    """A job that is still to be done, with what `restore` needs."""

    body: str | None
    codec: str
    unique_for: float


class Finder:
    """Asks the archive's tables. Every answer is bounded; what may be long comes in pages."""

    def __init__(self, store: Store) -> None:
        self._store, self._words = store, store.statements

    def find(self, job_id: str) -> ArchivedJob | None:
        rows = self._store.rows(self._words.find(), (_name("job_id", job_id),))
        return _job(rows[0]) if rows else None

    def history(self, job_id: str, limit: int) -> list[Record]:
        rows = self._store.rows(self._words.story(), (_name("job_id", job_id), _limit(limit)))
        return [_record(row) for row in rows]

    def search(self, limit: int, after: str | None, filters: Mapping[str, Any]) -> list[ArchivedJob]:
        conditions, values = self._conditions(filters)
        if after is not None:
            at, job_id = _cursor(after)
            mark = self._words.mark
            conditions.append(f"(at < {mark} OR (at = {mark} AND job_id < {mark}))")
            values += [at, at, job_id]
        rows = self._store.rows(self._words.search(conditions), (*values, _limit(limit)))
        return [_job(row) for row in rows]

    def pending(self, filters: Mapping[str, Any]) -> Iterator[PendingJob]:
        conditions, values = self._conditions(filters)
        mark, start = self._words.mark, (-1.0, "")
        behind = f"(enqueued_at > {mark} OR (enqueued_at = {mark} AND job_id > {mark}))"
        while True:
            statement = self._words.pending([*conditions, behind])
            rows = self._store.rows(statement, (*values, start[0], start[0], start[1], PAGE))
            for row in rows:
                yield PendingJob(*_shown(row), *row[len(SHOWN) :])
            if len(rows) < PAGE:
                return
            last = _job(rows[-1])
            start = (last.enqueued_at, last.job_id)

    def counts(self) -> dict[str, int]:
        return {str(state): int(count) for state, count in self._store.rows(self._words.counts(), ())}

    def _conditions(self, filters: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
        conditions: list[str] = []
        values: list[Any] = []
        mark = self._words.mark
        for name, value in filters.items():
            if value is None:
                continue
            if name in ("type", "queue"):
                conditions.append(f"{name} = {mark}")
                values.append(_name(name, value))
            elif name == "state":
                if value not in STATES:
                    raise InvalidInput(f"state must be one of {', '.join(STATES)}, not {value!r}")
                conditions.append(f"state = {mark}")
                values.append(value)
            elif name == "error":
                conditions.append(self._words.contains("error"))
                values.append(pattern(_name(name, value)))
            elif name == "tag":
                conditions.append(self._words.contains("tags"))
                values.append(pattern(msgspec.json.encode(_name(name, value)).decode()))
            else:
                conditions.append(f"at {'>=' if name == 'since' else '<'} {mark}")
                values.append(moment(name, value))
        return conditions, values


def moment(name: str, value: float | datetime) -> float:
    """A point in time as seconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"{name}: {value!r} has no time zone")
        return value.timestamp()
    return seconds(name, value)


def cutoff(older_than: float | timedelta | datetime, now: float) -> float:
    """The moment before which things are older than ``older_than``: an age, or the moment itself."""
    if isinstance(older_than, datetime):
        return moment("older_than", older_than)
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    return now - seconds("older_than", older_than)


def _job(row: Any) -> ArchivedJob:
    return ArchivedJob(*_shown(row))


def _shown(row: Any) -> list[Any]:
    values = list(row[: len(SHOWN)])
    tags = SHOWN.index("tags")
    values[tags] = json.loads(values[tags] or "[]")
    return values


def _record(row: Any) -> Record:
    values = dict(zip(HISTORY_COLUMNS, row, strict=True))
    values["tags"], values["headers"] = json.loads(values["tags"]), json.loads(values["headers"])
    return Record(**values)


def _name(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what} must be a text that is not empty, not {value!r}")
    return value.replace("\0", "\ufffd")


def _limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise InvalidInput(f"limit must be a whole number from 1 to {MOST:,}, not {limit!r}")
    return limit


def _cursor(text: str) -> tuple[float, str]:
    at, colon, job_id = text.partition(":") if isinstance(text, str) else ("", "", "")
    try:
        if colon and job_id:
            return float(at), job_id
    except ValueError:
        pass
    raise InvalidInput(f"after must be the cursor of a job that a search found, not {text!r}")
