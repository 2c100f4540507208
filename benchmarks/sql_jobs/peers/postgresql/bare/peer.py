"""The limit: psycopg and nothing around it. No job types, retries, leases, threads or signals.

The loop locks 200 rows with SKIP LOCKED, decodes and runs each, deletes them, and commits.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import meter
import msgspec
import psycopg
from command import URL

PACKAGE = "psycopg"
SETTINGS = {"": "SELECT … FOR UPDATE SKIP LOCKED LIMIT 200, decoded by msgspec, DELETE of the 200, COMMIT"}
KINDS = ("sync",)
BULK = "COPY of 1000 rows"
SPAWNS: set[str] = set()
COUNT = 200
EMPTY_LOOKS = 5000  # of 10 ms each: a worker whose benchmark is gone ends by itself
encode = msgspec.json.encode
_of_thread = threading.local()


class Payload(msgspec.Struct):
    """What is decoded."""

    number: int
    text: str


def connection() -> Any:
    found = getattr(_of_thread, "connection", None)
    if found is None:
        found = _of_thread.connection = psycopg.connect(URL, autocommit=True)
        if found.execute("SELECT to_regclass('bare')").fetchone()[0] is None:
            found.execute("CREATE TABLE bare (id BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)")
    return found


def start() -> None:
    connection()


def _body(number: int) -> bytes:
    return encode({"number": number, "text": meter.TEXT})


def push(number: int) -> None:
    connection().execute("INSERT INTO bare (body) VALUES (%b)", (_body(number),))


def push_many(numbers: range) -> None:
    with connection().cursor() as cursor, cursor.copy("COPY bare (body) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["bytea"])
        for number in numbers:
            copy.write_row((_body(number),))


def work(variant: str, processes: int) -> None:
    mine, decode, idle = connection(), msgspec.json.Decoder(Payload).decode, 0
    take = "SELECT id, body FROM bare ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
    while idle < EMPTY_LOOKS:
        with mine.transaction():
            rows = mine.execute(take, (COUNT,), binary=True).fetchall()
            for _, body in rows:
                meter.ran(decode(body).number)
            if rows:
                mine.execute("DELETE FROM bare WHERE id = ANY(%s)", ([row[0] for row in rows],))
        idle = 0 if rows else idle + 1
        if not rows:
            time.sleep(0.01)
