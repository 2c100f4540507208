"""How the outbox lies in the user's database, and the statements, in the words of each database.

``outbox`` has a row for each job that was pushed in a transaction and has not been relayed yet:

    state 0    to be relayed       state 1    set aside: it can never be pushed; ``error`` says why
    lane       a hash of connection and queue: jobs of a lane are relayed in the order of their ids
    delay_ms   from ``created_at``, both by this database's clock
    size       of the body, so that a batch can be chosen without reading the bodies

``outbox_lanes`` has a row for each lane that was ever relayed:

    line, number   under which the target knows the last batch; see Driver.push_numbered
    batch          the ids of the rows of that batch, until they are deleted; null where there is none
    owner, until   the relay that works on the lane, and when its lease ends (a courtesy: see relay.py)
    error          what kept the last batch from being pushed; null when that is over

Rows are inserted and deleted, and not changed in between, so that the table leaves little behind to clean up.
"""

from __future__ import annotations

import hashlib

WAITING, ASIDE = 0, 1
MOST_ROWS = 1000  # of a batch: what a target takes in one step
MOST_BYTES = 4 * 1024 * 1024  # of a batch: far below what makes any server drop its client
FIRST_LANE = b""  # below every hash
# Milliseconds since the epoch, whatever time zone the caller's connection has.
NOW_MS = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)",
}


def lane_of(connection: str, queue: str) -> bytes:
    """The lane of a connection's queue."""
    return hashlib.sha256(f"{len(connection)}:{connection}{queue}".encode()).digest()


class Statements:
    """The statements for one database and one prefix of table names."""

    def __init__(self, backend: str, prefix: str) -> None:
        self._mark = "?" if backend == "sqlite" else "%s"
        self._words = {"p": prefix, "now": NOW_MS[backend]}
        skipping = "" if backend == "sqlite" else " FOR UPDATE SKIP LOCKED"
        if_new = " ON CONFLICT (lane) DO NOTHING"
        if backend == "mysql":
            if_new = " ON DUPLICATE KEY UPDATE lane = lane"
        self.outbox, self.lanes = f"{prefix}outbox", f"{prefix}outbox_lanes"

        self.insert = self.made(
            "INSERT INTO {p}outbox (lane, connection, queue, job_id, priority, body, size, delay_ms,"
            " unique_key, unique_ms, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now})"
        )
        self.next_lane = self.made(
            "SELECT lane FROM {p}outbox WHERE state = 0 AND lane > ? ORDER BY lane LIMIT 1"
        )
        self.names = self.made(
            "SELECT connection, queue FROM {p}outbox WHERE state = 0 AND lane = ? ORDER BY id LIMIT 1"
        )
        self.make_lane = self.made(
            "INSERT INTO {p}outbox_lanes (lane, connection, queue, line, number, until)"
            " VALUES (?, ?, ?, ?, 0, 0)"
        )
        self.make_lane += if_new
        self.lane = self.made(
            "SELECT line, number, batch, owner, until, {now} FROM {p}outbox_lanes WHERE lane = ?"
        )
        self.lane += skipping
        self.lease = self.made("UPDATE {p}outbox_lanes SET owner = ?, until = {now} + ? WHERE lane = ?")
        self.hand_back = self.made(
            "UPDATE {p}outbox_lanes SET owner = NULL, until = 0 WHERE lane = ? AND owner = ?"
        )
        self.open = self.made("UPDATE {p}outbox_lanes SET number = ?, batch = ? WHERE lane = ?")
        self.close = self.made(
            "UPDATE {p}outbox_lanes SET batch = NULL, error = NULL WHERE lane = ? AND number = ?"
        )
        self.fail = self.made("UPDATE {p}outbox_lanes SET error = ? WHERE lane = ? AND number = ?")
        self.sizes = self.made(
            f"SELECT id, size FROM {{p}}outbox WHERE state = 0 AND lane = ? ORDER BY id LIMIT {MOST_ROWS}"
        )
        self.rows = self.made(
            "SELECT id, connection, queue, job_id, priority, body, delay_ms, unique_key, unique_ms,"
            " created_at, state FROM {p}outbox WHERE id IN (%) ORDER BY id"
        )
        self.delete = self.made("DELETE FROM {p}outbox WHERE id IN (%)")
        self.set_aside = self.made("UPDATE {p}outbox SET state = 1, error = ? WHERE id = ?")

        self.counts = self.made(
            "SELECT lane, state, COUNT(*), MIN(created_at) FROM {p}outbox GROUP BY lane, state"
        )
        self.all_lanes = self.made(
            "SELECT lane, connection, queue, batch, owner, until - {now}, error FROM {p}outbox_lanes"
        )
        self.lane_names = self.made(
            "SELECT connection, queue FROM {p}outbox WHERE lane = ? AND state = ? ORDER BY id LIMIT 1"
        )
        self.aside = self.made(
            "SELECT id, connection, queue, job_id, created_at, size, error FROM {p}outbox"
            " WHERE state = 1 ORDER BY id LIMIT ?"
        )
        self.put_back = self.made("UPDATE {p}outbox SET state = 0, error = NULL WHERE state = 1")
        self.forget = self.made("DELETE FROM {p}outbox WHERE state = 1")
        self.now = self.made("SELECT {now}")

    def made(self, text: str) -> str:
        """A statement, written with ``?``, {p} and {now}."""
        return text.format(**self._words).replace("?", self._mark)

    def some(self, text: str, count: int) -> str:
        """The statement with a mark for each of ``count`` values in place of ``(%)``."""
        return text.replace("(%)", f"({', '.join([self._mark] * count)})")
