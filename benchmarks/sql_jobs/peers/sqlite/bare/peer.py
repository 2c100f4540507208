"""The limit: sqlite3 and nothing around it. No job types, retries, leases, threads or signals.

The loop takes 200 rows in one transaction, decodes and runs each, deletes them, and commits.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time

import meter
import msgspec
from command import URL

PACKAGE = "msgspec"  # sqlite3 is Python's own
LOOP = "SELECT … LIMIT 200, decoded by msgspec, DELETE of the 200, COMMIT"
SETTINGS = {
    "": f"synchronous=full: WAL, every transaction is synced; {LOOP}",
    "not synced": f"synchronous=normal: WAL, synced by checkpoints only; {LOOP}",
}
KINDS = ("sync",)
BULK = "one transaction of 1000 INSERTs"
SPAWNS: set[str] = set()
COUNT = 200
EMPTY_LOOKS = 5000  # of 10 ms each: a worker whose benchmark is gone ends by itself
SYNCHRONOUS = "normal" if os.environ.get("BENCH_VARIANT") == "not synced" else "full"
encode = msgspec.json.encode
_of_thread = threading.local()


class Payload(msgspec.Struct):
    """What is decoded."""

    number: int
    text: str


def connection() -> sqlite3.Connection:
    found: sqlite3.Connection | None = getattr(_of_thread, "connection", None)
    if found is None:
        path = URL.removeprefix("sqlite:///")
        found = _of_thread.connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        found.execute("PRAGMA journal_mode = wal")
        found.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        found.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    return found


def _body(number: int) -> bytes:
    return encode({"number": number, "text": meter.TEXT})


def push(number: int) -> None:
    connection().execute("INSERT INTO bare (body) VALUES (?)", (_body(number),))


def push_many(numbers: range) -> None:
    mine = connection()
    mine.execute("BEGIN IMMEDIATE")
    mine.executemany("INSERT INTO bare (body) VALUES (?)", [(_body(number),) for number in numbers])
    mine.execute("COMMIT")


def work(variant: str, processes: int) -> None:
    mine, decode, idle = connection(), msgspec.json.Decoder(Payload).decode, 0
    delete = f"DELETE FROM bare WHERE id IN ({', '.join('?' * COUNT)})"
    while idle < EMPTY_LOOKS:
        mine.execute("BEGIN IMMEDIATE")
        rows = mine.execute("SELECT id, body FROM bare ORDER BY id LIMIT ?", (COUNT,)).fetchall()
        for _, body in rows:
            meter.ran(decode(body).number)
        ids = [row[0] for row in rows]
        mine.execute(delete, ids + [None] * (COUNT - len(ids)))
        mine.execute("COMMIT")
        idle = 0 if rows else idle + 1
        if not rows:
            time.sleep(0.01)
