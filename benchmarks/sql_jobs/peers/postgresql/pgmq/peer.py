"""pgmq, by the SQL that its Python client carries. It has no worker, so its loop is written here."""

from __future__ import annotations

import time
from typing import Any

import meter
import psycopg
from command import URL
from pgmq import PGMQueue
from pgmq.install import install_pgmq_from_sql

PACKAGE = "pgmq"
COUNT = 200
SETTINGS = {"": f"its Python client: read of {COUNT} for 30 s, delete_batch of the {COUNT}"}
KINDS = ("sync",)
BULK = "send_batch of 1000"
SPAWNS: set[str] = set()
EMPTY_LOOKS = 5000  # of 10 ms each: a worker whose benchmark is gone ends by itself
_queue: Any = None


def start() -> None:
    global _queue  # noqa: PLW0603 - opened once
    with psycopg.connect(URL) as connection:
        fresh = connection.execute("SELECT to_regnamespace('pgmq')").fetchone()[0] is None
    if fresh:
        install_pgmq_from_sql(dsn=URL)
    _queue = PGMQueue(conn_string=URL, init_extension=False)
    if fresh:
        _queue.create_queue("bench")


def stop() -> None:
    _queue.close()


def _message(number: int) -> dict[str, Any]:
    return {"number": number, "text": meter.TEXT}


def push(number: int) -> None:
    _queue.send("bench", _message(number))


def push_many(numbers: range) -> None:
    _queue.send_batch("bench", [_message(number) for number in numbers])


def work(variant: str, processes: int) -> None:
    start()
    idle = 0
    while idle < EMPTY_LOOKS:
        messages = _queue.read_batch("bench", vt=30, batch_size=COUNT)
        for message in messages:
            meter.ran(message.message["number"])
        if messages:
            _queue.delete_batch("bench", [message.msg_id for message in messages])
        idle = 0 if messages else idle + 1
        if not messages:
            time.sleep(0.01)
