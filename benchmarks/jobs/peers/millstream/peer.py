"""Millstream, as a program uses it: `push`, `push_many` and the worker command; on any broker."""

from __future__ import annotations

import os
from typing import Any

import meter
from command import KIND, URL, become

from millstream import Job, connect

PACKAGE = "millstream"
CONCURRENCY = 16
COMMON = f"--concurrency {CONCURRENCY}: leases renewed, fenced acks, retries, dead letters"
SETTINGS = {"": f"the defaults, {COMMON}"}
if URL.startswith("sqlite"):
    SETTINGS = {
        "": f"WAL; each push is synced, reservations and outcomes are not; {COMMON}",
        "all synced": f"synchronous=always: WAL; every transaction is synced; {COMMON}",
        "not synced": f"synchronous=normal: WAL; synced by checkpoints only; {COMMON}",
    }
KINDS = ("sync", "async")
BULK = "push_many of 10,000, which sends a thousand at a time"
AT_ONCE = 10_000
SPAWNS = {""}

VARIANT = os.environ.get("BENCH_VARIANT", "")
OPTIONS: dict[str, Any] = {} if URL.startswith("redis") else {"create": True}
if VARIANT:
    OPTIONS["synchronous"] = {"all synced": "always", "not synced": "normal"}[VARIANT]

queue: Any = connect(URL, **OPTIONS)


class Noop(Job, name="noop"):
    """A sync handler."""

    number: int
    text: str

    def handle(self) -> None:
        meter.ran(self.number)


class NoopAsync(Job, name="noop.async"):
    """An async handler."""

    number: int
    text: str

    async def handle(self) -> None:
        meter.ran(self.number)


TYPE = NoopAsync if KIND == "async" else Noop


def push(number: int) -> None:
    queue.push(TYPE(number=number, text=meter.TEXT))


async def push_async(number: int) -> None:
    await queue.push_async(TYPE(number=number, text=meter.TEXT))


def push_many(numbers: range) -> None:
    queue.push_many(TYPE(number=number, text=meter.TEXT) for number in numbers)


def stop() -> None:
    queue.close()


def work(variant: str, processes: int) -> None:
    size = ("--workers", str(processes), "--concurrency", str(CONCURRENCY))
    become("millstream", "worker", "peer:queue", "--queues", "default", *size)
