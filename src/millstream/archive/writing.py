"""The archive's sink: notes become rows, a batch in one transaction."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from millstream.archive.statements import PENDING_STATES, revision_of
from millstream.drivers.base import PushItem
from millstream.envelope import Codec
from millstream.history import Record
from millstream.recording.notes import Cleared, Dated, Note, body_of, record_of

if TYPE_CHECKING:
    from millstream.archive.store import Store
    from millstream.sql.database import Database

LABEL = 512  # characters of a label column
KEPT_BODY = ("failed", "expired")  # beside those that are pending
RETENTION_EVERY = 60.0  # seconds between two looks at what has become too old
RETENTION_STEPS = 10  # deletions of one look, so that they never hold up what is to be written

# Which flag of the archive asks for a state.
FLAGS = {
    "enqueued": "enqueued",
    "completed": "completed",
    "cancelled": "completed",
    "retried": "failed",
    "snoozed": "failed",
    "released": "failed",
    "failed": "failed",
    "expired": "failed",
}
_text = msgspec.json.Encoder().encode


class Choice(msgspec.Struct, frozen=True):
    """What an archive keeps."""

    completed: bool = True
    failed: bool = True
    enqueued: bool = True

    def in_history(self, state: str) -> bool:
        return bool(getattr(self, FLAGS[state]))

    def in_archive(self, state: str) -> bool:
        """In audit mode each end is noted, or a job that is done would be taken for one that is pending."""
        return self.enqueued or self.in_history(state)


class ArchiveSink:
    """Writes what happens to the jobs of one queue object. Repeating a batch changes nothing."""

    name = "archive"

    def __init__(self, store: Store, choice: Choice, codec: Codec, retention: float | None) -> None:
        self._store, self._choice, self._codec, self._retention = store, choice, codec, retention
        self._looked_at = time.monotonic()

    def write(self, notes: Sequence[Note]) -> None:
        database = self._store.database()
        documents, statements = self._store.documents, self._store.statements
        document, others = self._document(notes, database)
        records, jobs, cleared = self._rows(others)

        def work(connection: Connection) -> None:
            if document is not None:
                for statement, takes_it in documents.statements:
                    connection.exec_driver_sql(statement, (document,) if takes_it else ())
            if records:
                connection.exec_driver_sql(statements.add_record, records)
            if jobs:
                connection.exec_driver_sql(statements.keep_job, jobs)
            for queue, at in cleared:
                revision = int(at * 1_000_000) * 2 + 1
                connection.exec_driver_sql(statements.cancel_pending(), (at, revision, queue, revision))

        database.write(work, repeat=True)
        self._retain(database)

    def _document(self, notes: Sequence[Note], database: Database) -> tuple[str | None, Sequence[Note]]:
        """What was just pushed, which is most of it, as one document; and the rest."""
        if self._codec.name != "json":
            return None, notes
        bodies = [note.body for note in notes if type(note) is PushItem and not note.unique_for]
        if not bodies:
            return None, notes
        others: Sequence[Note] = ()
        if len(bodies) < len(notes):
            others = [note for note in notes if type(note) is not PushItem or note.unique_for]
        mariadb = bool(getattr(database.engine.dialect, "is_mariadb", False))
        document = self._store.documents.made_of(bodies, mariadb=mariadb)
        return (None, notes) if document is None else (document, others)

    def _rows(
        self, notes: Sequence[Note]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[str, float]]]:
        records, jobs, cleared = [], [], []
        for note in notes:
            if isinstance(note, Dated) and isinstance(note.what, Cleared):
                cleared.append((note.what.queue, note.at))
                continue
            record = record_of(note, self._codec)
            if record is None:
                continue
            record = without_nul(record)
            if self._choice.in_history(record.state):
                records.append(history_row(record))
            if self._choice.in_archive(record.state):
                jobs.append(self._job(record, note))
        # In the order of ids, so that two writers that have jobs in common do not wait for each other.
        records.sort(key=_first)
        jobs.sort(key=_first)
        return records, jobs, cleared

    def _job(self, record: Record, note: Note) -> tuple[Any, ...]:
        pending = record.state in PENDING_STATES
        what = note.what if isinstance(note, Dated) else note
        # An entry that could not be read has no type, and nothing that could be pushed again.
        body = body_of(note) if record.type and (pending or record.state in KEPT_BODY) else b""
        return (
            record.job_id,
            record.type[:LABEL],
            record.state,
            record.at,
            record.queue[:LABEL],
            record.priority[:LABEL],
            record.attempt,
            record.max_attempts,
            record.enqueued_at,
            record.due_at,
            record.worker[:LABEL],
            record.error_type[:LABEL],
            record.error,
            _text(record.tags).decode(),
            record.tenant,
            record.payload,
            record.replay_of,
            pack_body(body, self._codec.name) if body else None,
            self._codec.name,
            what.unique_for if isinstance(what, PushItem) else 0.0,
            int(pending),
            revision_of(record),
        )

    def _retain(self, database: Database) -> None:
        if self._retention is None or time.monotonic() - self._looked_at < RETENTION_EVERY:
            return
        self._looked_at = time.monotonic()
        self._store.purge(time.time() - self._retention, steps=RETENTION_STEPS)

    def close(self) -> None:
        """The archive is its owner's to close."""


def history_row(record: Record) -> tuple[Any, ...]:
    """A record in the order of its columns."""
    return (
        record.job_id,
        record.type[:LABEL],
        record.state,
        record.at,
        record.queue[:LABEL],
        record.priority[:LABEL],
        record.attempt,
        record.max_attempts,
        record.enqueued_at,
        record.due_at,
        record.started_at,
        record.seconds,
        record.worker[:LABEL],
        record.error_type[:LABEL],
        record.error,
        record.traceback,
        _text(record.tags).decode(),
        record.tenant,
        _text(record.headers).decode(),
        record.payload,
        record.version,
        record.replay_of,
    )


def pack_body(body: bytes, codec: str) -> str:
    """A body as text: as it is where it is JSON, else as base64."""
    return body.decode() if codec == "json" else base64.b64encode(body).decode()


def unpack_body(text: str, codec: str) -> bytes:
    """The reverse of `pack_body`."""
    return text.encode() if codec == "json" else base64.b64decode(text)


def without_nul(record: Record) -> Record:
    """PostgreSQL has no place for this character in a text, and SQLite does not search behind it.

    In a payload it is escaped, and stays.
    """
    changes: dict[str, Any] = {
        name: value.replace("\0", "\ufffd")
        for name in ("error", "traceback", "tenant", "error_type")
        if "\0" in (value := getattr(record, name))
    }
    return msgspec.structs.replace(record, **changes) if changes else record


def _first(row: tuple[Any, ...]) -> str:
    found: str = row[0]
    return found
