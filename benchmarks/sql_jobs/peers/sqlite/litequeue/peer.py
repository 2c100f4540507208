"""litequeue: a queue in a SQLite file. It has no worker, so its loop is written here."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from typing import Any

import meter
from command import URL
from litequeue import LiteQueue

PACKAGE = "litequeue"
LOOP = "pop, decode, done, one by one; done messages are pruned every 1000"
SETTINGS = {
    "": f"synchronous set to full: WAL, every transaction is synced; {LOOP}",
    "not synced": f"its default, synchronous=normal: WAL, synced by checkpoints only; {LOOP}",
}
KINDS = ("sync",)
BULK = ""
SPAWNS: set[str] = set()
VARIANT = os.environ.get("BENCH_VARIANT", "")
PRUNE_EVERY = 1000  # messages: those that are done stay in the table, and popping has to step over them
EMPTY_LOOKS = 5000  # of 10 ms each: a worker whose benchmark is gone ends by itself
_of_thread = threading.local()


def queue() -> Any:
    """A connection for each thread, as SQLite wants it."""
    found = getattr(_of_thread, "queue", None)
    if found is None:
        connection = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        found = _of_thread.queue = LiteQueue(connection)
        if VARIANT != "not synced":
            connection.execute("PRAGMA synchronous = full")
    return found


def _encode(number: int) -> str:
    return f'{{"number":{number},"text":"{meter.TEXT}"}}'


def push(number: int) -> None:
    queue().put(_encode(number))


def push_many(numbers: range) -> None:
    with queue().transaction():  # filling the queue; not offered as a way of its own
        for number in numbers:
            queue().put(_encode(number))


def work(variant: str, processes: int) -> None:
    import json

    mine, idle, done = queue(), 0, 0
    while idle < EMPTY_LOOKS:
        message = mine.pop()
        if message is None:
            idle += 1
            time.sleep(0.01)
            continue
        idle, done = 0, done + 1
        meter.ran(json.loads(message.data)["number"])
        mine.done(message.message_id)
        if done % PRUNE_EVERY == 0:
            mine.prune()
