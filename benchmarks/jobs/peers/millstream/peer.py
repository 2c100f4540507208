"""Millstream, as a program uses it: `push`, `push_many` and the worker command."""

from __future__ import annotations

from typing import Any

import meter
from command import KIND, URL, become

from millstream import Job, connect

PACKAGE = "millstream"
CONCURRENCY = 16
SETTINGS = {
    "": f"the defaults, --concurrency {CONCURRENCY}: leases renewed, fenced acks, retries, dead letters"
}
KINDS = ("sync", "async")
BULK = "push_many of 1000"
SPAWNS = {""}

queue: Any = connect(URL)


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


def push_many(numbers: range) -> None:
    queue.push_many([TYPE(number=number, text=meter.TEXT) for number in numbers])


def stop() -> None:
    queue.close()


def work(variant: str, processes: int) -> None:
    size = ("--workers", str(processes), "--concurrency", str(CONCURRENCY))
    become("millstream", "worker", "peer:queue", "--queues", "default", *size)
