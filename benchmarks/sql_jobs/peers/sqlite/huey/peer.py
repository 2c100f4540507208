"""Huey on SQLite, with and without the syncing of what is written."""

from __future__ import annotations

import os
from typing import Any

import meter
from command import URL, become
from huey import SqliteHuey

PACKAGE = "huey"
COMMON = "results not kept, no periodic tasks, no health check, quiet log"
SETTINGS = {
    "": f"fsync=True (so is its default): WAL, every transaction is synced; 1 thread; {COMMON}",
    "8 threads": f"the same with 8 threads; {COMMON}",
    "not synced": f"fsync=False: WAL, nothing is synced (synchronous=off); 1 thread; {COMMON}",
}
KINDS = ("sync",)
BULK = ""
SPAWNS: set[str] = set()
VARIANT = os.environ.get("BENCH_VARIANT", "")

huey: Any = SqliteHuey(
    "bench", filename=URL.removeprefix("sqlite:///"), fsync=VARIANT != "not synced", results=False
)


@huey.task(name="noop")
def noop(number: int, text: str) -> None:
    meter.ran(number)


def push(number: int) -> None:
    noop(number, meter.TEXT)


def push_many(numbers: range) -> None:
    for number in numbers:
        noop(number, meter.TEXT)


def work(variant: str, processes: int) -> None:
    threads = "8" if variant == "8 threads" else "1"
    size = ("--workers", threads, "--worker-type", "thread", "--delay", "0.01", "--max-delay", "0.01")
    become("huey_consumer", "peer.huey", *size, "--no-periodic", "--disable-health-check", "--quiet")
