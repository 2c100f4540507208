"""What PostgreSQL does in one round trip: adding, and delivering to a group.

A data-modifying WITH is one statement and one snapshot. Where it waits for a lock, the locked row is read
again in its newest version; the entries are read as they were when the statement began. That loses nothing,
because entries become visible in the order of their ids: an older snapshot only ends earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from millstream.brokers.sql.rows import columns_of
from millstream.message import Typed
from millstream.sql.clock import POSTGRES_NOW

# Above this a counter is left to the path that can count to 2^64.
_HIGH = 1 << 62


class PostgresStatements:
    """The statements for one prefix."""

    def __init__(self, prefix: str) -> None:
        p = prefix
        # The clock stands in a sub-select of its own so that both columns see the same moment. It may be a
        # little old when the row was locked by somebody else; then the newest id is ahead of it, and the
        # counter grows.
        grow = f"""
            WITH s AS (
                UPDATE {p}streams SET
                    last_seq = CASE WHEN clock.ms > last_ms THEN :count - 1 ELSE last_seq + :count END,
                    last_ms = GREATEST(clock.ms, last_ms),
                    length = length + :count
                FROM (SELECT {POSTGRES_NOW} AS ms OFFSET 0) AS clock
                WHERE name = :stream AND last_ms >= 0 AND last_seq BETWEEN 0 AND {_HIGH}
                RETURNING id, last_ms, last_seq, length, watched_until > clock.ms AS watched
            )"""
        result = """
            SELECT last_ms, last_seq, length,
                CASE WHEN watched THEN CAST(pg_notify(:channel, :payload) AS TEXT) END
            FROM s"""
        entry_id = "int8send(s.last_ms) || int8send(s.last_seq - :count + b.place)"
        self._add_plain = text(f"""{grow}, e AS (
                INSERT INTO {p}entries (stream_id, id, data)
                SELECT s.id, {entry_id}, b.data
                FROM s, unnest(string_to_array(:data, chr(10))) WITH ORDINALITY AS b (data, place)
            ) {result}""")
        self._add_typed = text(f"""{grow}, e AS (
                INSERT INTO {p}entries (stream_id, id, data, type, headers)
                SELECT s.id, int8send(s.last_ms) || int8send(s.last_seq), :data, :type, :headers
                FROM s
            ) {result}""")
        # The sub-selects are constants to the planner, so that it walks the index from the group's place on.
        self.deliver = text(f"""
            WITH clock AS MATERIALIZED (SELECT {POSTGRES_NOW} AS ms),
            g AS MATERIALIZED (
                SELECT g.id, g.stream_id, g.last_id
                FROM {p}groups g
                WHERE g.stream_id = (SELECT id FROM {p}streams WHERE name = :stream) AND g.name = :group
                FOR UPDATE
            ),
            c AS (
                UPDATE {p}consumers SET seen_at = (SELECT ms FROM clock)
                WHERE group_id = (SELECT id FROM g) AND name = :consumer
                RETURNING id
            ),
            e AS MATERIALIZED (
                SELECT id, data, type, headers
                FROM {p}entries
                WHERE stream_id = (SELECT stream_id FROM g) AND id > (SELECT last_id FROM g)
                    AND (SELECT id FROM c) IS NOT NULL
                ORDER BY stream_id, id
                LIMIT :limit
            ),
            p AS (
                INSERT INTO {p}pending (group_id, id, consumer_id, delivered_at, deliveries)
                SELECT g.id, e.id, c.id, clock.ms, 1 FROM e, g, c, clock
            ),
            u AS (
                UPDATE {p}groups SET last_id = (SELECT id FROM e ORDER BY id DESC LIMIT 1)
                WHERE id = (SELECT id FROM g) AND (SELECT id FROM e LIMIT 1) IS NOT NULL
            )
            SELECT e.id, e.data, e.type, e.headers, g.id, c.id, clock.ms
            FROM g LEFT JOIN c ON TRUE LEFT JOIN e ON TRUE, clock
            ORDER BY e.id
            """)

    def add(
        self, connection: Connection, stream: str, bodies: Sequence[bytes | Typed], channel: str, payload: str
    ) -> tuple[int, int, int] | None:
        """Add and return the last id's two numbers and the length.

        None, and nothing happened, where the stream does not exist or its newest id is out of the ordinary.
        """
        given: dict[str, Any] = {
            "stream": stream,
            "count": len(bodies),
            "channel": channel,
            "payload": payload,
        }
        if len(bodies) == 1 and isinstance(bodies[0], Typed):
            data, type_, headers = columns_of(bodies[0])
            typed = {**given, "data": data, "type": type_, "headers": headers}
            row = connection.execute(self._add_typed, typed).first()
        else:
            # One text with a line for each: there is no line break in JSON as we write it.
            lines = b"\n".join(body for body in bodies if isinstance(body, bytes)).decode()
            row = connection.execute(self._add_plain, {**given, "data": lines}).first()
        return None if row is None else (row[0], row[1], row[2])
