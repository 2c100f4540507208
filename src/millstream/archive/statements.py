"""The archive's two tables, and the statements on them in the words of each database.

``history`` has a row for each record (`millstream.history.Record`), and ``seq``, which grows. A row never
changes. (job_id, at, state, attempt) is unique, so that a batch which is written twice adds nothing.

``archive`` has a row for each job: its newest state. Beside the fields of that record:

    pending     1 while the job is still to be done (enqueued, retried, snoozed, released)
    body        the envelope as it would be pushed again, for `restore`; NULL once the job is done
    codec       what wrote the body; a body that is no text is kept as base64
    unique_for  of the push
    revision    which of two records is the newer one; see `revision_of`

Records of one job come from several processes, late and in any order: a worker may report the end of a job
before its producer reports the push. So a row is only replaced by a record of the same or a higher revision.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.history import Record

HISTORY_COLUMNS = tuple(Record.__struct_fields__)
ARCHIVE_COLUMNS = (
    *("job_id", "type", "state", "at", "queue", "priority", "attempt", "max_attempts", "enqueued_at"),
    *("due_at", "worker", "error_type", "error", "tags", "tenant", "payload", "replay_of"),
    *("body", "codec", "unique_for", "pending", "revision"),
)
SHOWN = ARCHIVE_COLUMNS[: ARCHIVE_COLUMNS.index("body")]
PENDING_STATES = ("enqueued", "retried", "snoozed", "released")
# What a record that could not read its job does not know, and must not wipe out.
_FROM_THE_JOB = ("type", "priority", "max_attempts", "enqueued_at", "tags", "tenant", "payload", "replay_of")
MICROSECOND = 1_000_000


def revision_of(record: Record) -> int:
    """A number that is higher for the newer of two records of a job.

    It is the time, but whatever happened to a job counts as later than its push, by whichever clocks: the
    record of a worker carries the moment of the push by the producer's clock.
    """
    if record.state == "enqueued":
        return int(record.at * MICROSECOND) * 2
    return int(max(record.at, record.enqueued_at + 0.001) * MICROSECOND) * 2 + 1


class Statements:
    """Statements with the placeholders of one driver. Values never stand in their text."""

    def __init__(self, backend: str, prefix: str) -> None:
        self.backend = backend
        self.history, self.archive = f"{prefix}history", f"{prefix}archive"
        self.mark = "?" if backend == "sqlite" else "%s"
        self.add_record = self._into(
            self.history, HISTORY_COLUMNS, self._values(HISTORY_COLUMNS), self._if_new()
        )
        self.keep_job = self._into(
            self.archive, ARCHIVE_COLUMNS, self._values(ARCHIVE_COLUMNS), self._if_newer()
        )

    def add_record_from(self, select: str) -> str:
        """Records that a SELECT gives, without its first word."""
        return self._into(self.history, HISTORY_COLUMNS, f"SELECT {select}", self._if_new())

    def keep_job_from(self, select: str) -> str:
        """Jobs that a SELECT gives, without its first word."""
        return self._into(self.archive, ARCHIVE_COLUMNS, f"SELECT {select}", self._if_newer())

    @staticmethod
    def _into(table: str, columns: Sequence[str], what: str, end: str) -> str:
        return f"INSERT INTO {table} ({', '.join(columns)}) {what}{end}"

    def _values(self, columns: Sequence[str]) -> str:
        return f"VALUES ({', '.join([self.mark] * len(columns))})"

    def _if_new(self) -> str:
        if self.backend == "mysql":  # not IGNORE, which would hide other mistakes as well
            return " ON DUPLICATE KEY UPDATE job_id = job_id"
        return " ON CONFLICT (job_id, at, state, attempt) DO NOTHING"

    def _if_newer(self) -> str:
        """What ends an INSERT that replaces the row of an older record, and no newer one."""
        mysql = self.backend == "mysql"

        def new(name: str) -> str:
            return f"VALUES({name})" if mysql else f"excluded.{name}"

        def old(name: str) -> str:
            return f"{self.archive}.{name}"

        newer = f"{new('revision')} >= {old('revision')}"
        settings = []
        for name in ARCHIVE_COLUMNS[1:]:
            value = new(name)
            if name in _FROM_THE_JOB:
                value = f"CASE WHEN {new('type')} = '' THEN {old(name)} ELSE {new(name)} END"
            elif name == "unique_for":  # only the push knows it
                value = f"CASE WHEN {new('state')} = 'enqueued' THEN {new(name)} ELSE {old(name)} END"
            # MySQL sets the columns in their order, and has no condition for all: `revision` is the last one.
            settings.append(
                f"{old(name)} = CASE WHEN {newer} THEN {value} ELSE {old(name)} END"
                if mysql
                else f"{name} = {value}"
            )
        if mysql:
            return f" ON DUPLICATE KEY UPDATE {', '.join(settings)}"
        return f" ON CONFLICT (job_id) DO UPDATE SET {', '.join(settings)} WHERE {newer}"

    # -- asking --------------------------------------------------------------------------------------

    def find(self) -> str:
        return f"SELECT {', '.join(SHOWN)} FROM {self.archive} WHERE job_id = {self.mark}"

    def story(self) -> str:
        return (
            f"SELECT {', '.join(HISTORY_COLUMNS)} FROM {self.history} "
            f"WHERE job_id = {self.mark} ORDER BY at, seq LIMIT {self.mark}"
        )

    def search(self, conditions: Sequence[str]) -> str:
        """The newest first, in an order that a next page can go on with."""
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return (
            f"SELECT {', '.join(SHOWN)} FROM {self.archive}{where} "
            f"ORDER BY at DESC, job_id DESC LIMIT {self.mark}"
        )

    def pending(self, conditions: Sequence[str]) -> str:
        """The oldest first; with what is needed to push them again."""
        columns = (*SHOWN, "body", "codec", "unique_for")
        where = " AND ".join(("pending = 1", *conditions))
        return (
            f"SELECT {', '.join(columns)} FROM {self.archive} WHERE {where} "
            f"ORDER BY enqueued_at, job_id LIMIT {self.mark}"
        )

    def counts(self) -> str:
        return f"SELECT state, COUNT(*) FROM {self.archive} GROUP BY state"

    def contains(self, column: str) -> str:
        """A condition that ``column`` has a text in it, upper and lower case alike."""
        like = "ILIKE" if self.backend == "postgresql" else "LIKE"
        collation = " COLLATE utf8mb4_general_ci" if self.backend == "mysql" else ""
        return f"{column} {like} {self.mark}{collation} ESCAPE '!'"

    # -- keeping house -------------------------------------------------------------------------------

    def cancel_pending(self) -> str:
        return (
            f"UPDATE {self.archive} SET state = 'cancelled', pending = 0, body = NULL, "
            f"at = {self.mark}, revision = {self.mark} "
            f"WHERE pending = 1 AND queue = {self.mark} AND revision < {self.mark}"
        )

    def purge_history(self) -> str:
        return self._purge(self.history, "seq", "")

    def purge_archive(self) -> str:
        return self._purge(self.archive, "job_id", " AND pending = 0")

    def _purge(self, table: str, key: str, extra: str) -> str:
        """Delete a bounded number of the oldest rows."""
        condition = f"at < {self.mark}{extra} ORDER BY at LIMIT {self.mark}"
        if self.backend == "mysql":
            return f"DELETE FROM {table} WHERE {condition}"
        return f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE {condition})"


def pattern(text: str) -> str:
    """``text`` for a condition of `contains`: it means itself, whatever is in it."""
    for special in ("!", "%", "_"):
        text = text.replace(special, "!" + special)
    return f"%{text}%"
