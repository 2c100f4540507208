"""Envelopes that were pushed, as one JSON document that the database itself takes apart.

Row by row, the thread that writes would hold the interpreter's lock for longer than the push itself took,
and slow down the threads that push. So a thousand envelopes go to the database as they are, in one call that
waits without the lock. Only envelopes that JsonCodec wrote can go this way.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.archive.statements import ARCHIVE_COLUMNS, HISTORY_COLUMNS, MICROSECOND, Statements


class _Field(NamedTuple):
    """A field of an envelope: its kind, and what it means where it is left out."""

    kind: str  # label, integer, double, or json for what is kept as JSON text
    default: str = "NULL"


_FIELDS = {
    "id": _Field("label"),
    "type": _Field("label"),
    "pushed_at": _Field("double"),
    "queue": _Field("label", "'default'"),
    "priority": _Field("label", "'default'"),
    "attempt": _Field("integer", "1"),
    "max_attempts": _Field("integer", "3"),
    "due_at": _Field("double"),
    "tags": _Field("json", "'[]'"),
    "headers": _Field("json", "'{}'"),
    "payload": _Field("json", "'{}'"),
    "version": _Field("integer", "1"),
    "replay_of": _Field("label"),
}
# Which field a column is filled with; the others are below, or empty.
_COLUMNS = {name: name for name in _FIELDS if name not in ("id", "pushed_at")} | {
    "job_id": "id",
    "at": "pushed_at",
    "enqueued_at": "pushed_at",
}
_CONSTANT = {
    "state": "'enqueued'",
    "started_at": "NULL",
    "seconds": "NULL",
    "codec": "'json'",
    "unique_for": "0.0",
    "pending": "1",
}
_TYPES = {
    "postgresql": {"label": "text", "integer": "integer", "double": "double precision", "json": "json"},
    "mysql": {
        "label": "VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "integer": "INTEGER",
        "double": "DOUBLE",
        "json": "JSON",
    },
}
_TENANT = {
    "sqlite": "e.tenant",
    "postgresql": "e.headers ->> 'tenant'",
    "mysql": "e.tenant",
}
_BODY = {"sqlite": "e.body", "postgresql": "CAST(a.value AS text)", "mysql": "e.body"}

# SQLite looks for each field from the beginning of the text: once into a table in memory, then into the two.
_UNPACKED = "temp.millstream_pushed"
_UNPACK = (
    (f"CREATE TEMP TABLE IF NOT EXISTS millstream_pushed ({', '.join(_FIELDS)}, tenant, body)", False),
    (
        f"INSERT INTO {_UNPACKED} SELECT "
        + ", ".join(f"json_extract(value, '$.{name}')" for name in _FIELDS)
        + ", json_extract(value, '$.headers.tenant'), value FROM json_each(?)",
        True,
    ),
)


class Documents:
    """The statements for a document, to be executed in one transaction."""

    def __init__(self, statements: Statements) -> None:
        self.backend = backend = statements.backend
        source = _source(backend)
        history, archive = statements.add_record_from, statements.keep_job_from
        # Each with whether it takes the document.
        direct = backend != "sqlite"
        self.statements: tuple[tuple[str, bool], ...] = (
            (history(f"{', '.join(_value(backend, name) for name in HISTORY_COLUMNS)} {source}"), direct),
            (archive(f"{', '.join(_value(backend, name) for name in ARCHIVE_COLUMNS)} {source}"), direct),
        )
        if not direct:
            self.statements = (*_UNPACK, *self.statements, (f"DELETE FROM {_UNPACKED}", False))

    def made_of(self, bodies: list[bytes], *, mariadb: bool) -> str | None:
        """The document; None where the database would not take it, or not give it back as it was."""
        if self.backend == "mysql" and not mariadb:
            return None  # MySQL reads JSON into a form of its own, which knows no number beyond 64 bits
        document = b"[" + b",".join(bodies) + b"]"
        if self.backend == "postgresql" and b"\\u0000" in document:
            return None
        return document.decode()


def _source(backend: str) -> str:
    if backend == "sqlite":
        return f"FROM {_UNPACKED} e WHERE true"  # the WHERE tells ON CONFLICT from a join's ON
    types = _TYPES[backend]
    if backend == "postgresql":
        fields = ", ".join(f"{name} {types[field.kind]}" for name, field in _FIELDS.items())
        return (
            "FROM json_array_elements(CAST(%s AS json)) a(value), "
            f"LATERAL json_to_record(a.value) e({fields}) WHERE true"
        )
    fields = ", ".join(f"{name} {types[field.kind]} PATH '$.{name}'" for name, field in _FIELDS.items())
    more = f"tenant {types['label']} PATH '$.headers.tenant', body {types['json']} PATH '$'"
    return f"FROM JSON_TABLE(%s, '$[*]' COLUMNS ({fields}, {more})) e"


def _value(backend: str, column: str) -> str:
    """What a column of either table is filled with."""
    if column in _CONSTANT:
        return _CONSTANT[column]
    if column == "body":
        return _BODY[backend]
    if column == "tenant":
        return f"COALESCE({_TENANT[backend]}, '')"
    if column == "revision":
        number = f"{_field(backend, 'pushed_at')} * {MICROSECOND}"
        if backend == "sqlite":
            return f"CAST({number} AS INTEGER) * 2"
        return f"CAST(FLOOR({number}) AS {'BIGINT' if backend == 'postgresql' else 'SIGNED'}) * 2"
    if column not in _COLUMNS:
        return "''"
    name = _COLUMNS[column]
    found, default = _field(backend, name), _FIELDS[name].default
    return found if default == "NULL" else f"COALESCE({found}, {default})"


def _field(backend: str, name: str) -> str:
    if backend == "postgresql" and _FIELDS[name].kind == "json":
        return f"CAST(e.{name} AS text)"
    return f"e.{name}"
