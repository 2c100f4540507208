"""SAQ on Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import meter
import uvloop
from command import KIND, URL
from saq import Queue, Worker

PACKAGE = "saq"
SETTINGS = {"": "100 jobs at once, 64 Redis operations at once, nothing kept of finished jobs, uvloop"}
KINDS = ("sync", "async")
BULK = "none of its own; 100 pushes at once by asyncio.gather"
SPAWNS: set[str] = set()
run_loop = uvloop.run
_queue: Any = None


async def noop_async(context: Any, *, number: int, text: str) -> None:
    meter.ran(number)


def noop(context: Any, *, number: int, text: str) -> None:
    meter.ran(number)


TASK = "noop_async" if KIND == "async" else "noop"


def make() -> Any:
    return Queue.from_url(URL, max_concurrent_ops=64)


async def start() -> None:
    global _queue  # noqa: PLW0603 - opened once, in its loop
    _queue = make()


async def stop() -> None:
    await _queue.disconnect()


async def push(number: int) -> None:
    await _queue.enqueue(TASK, number=number, text=meter.TEXT, ttl=-1)


async def push_many(numbers: range) -> None:
    for begin in range(0, len(numbers), 100):
        await asyncio.gather(*(push(number) for number in numbers[begin : begin + 100]))


def work(variant: str, processes: int) -> None:
    async def run() -> None:
        await Worker(make(), functions=[noop, noop_async], concurrency=100).start()

    uvloop.run(run())
