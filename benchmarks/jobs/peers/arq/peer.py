"""arq."""

from __future__ import annotations

import asyncio
from typing import Any

import meter
import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func
from command import URL

PACKAGE = "arq"
SETTINGS = {
    "": "100 jobs at once, reads of 1000, polls every 5 ms (its default is 500), results not kept, uvloop"
}
KINDS = ("async",)
BULK = "none of its own; 100 pushes at once by asyncio.gather"
SPAWNS: set[str] = set()
run_loop = uvloop.run
_pool: Any = None


async def noop(context: Any, number: int, text: str) -> None:
    meter.ran(number)


async def start() -> None:
    global _pool  # noqa: PLW0603 - opened once, in its loop
    _pool = await create_pool(RedisSettings.from_dsn(URL))


async def stop() -> None:
    await _pool.aclose()


async def push(number: int) -> None:
    await _pool.enqueue_job("noop", number, meter.TEXT)


async def push_many(numbers: range) -> None:
    for begin in range(0, len(numbers), 100):
        await asyncio.gather(*(push(number) for number in numbers[begin : begin + 100]))


def work(variant: str, processes: int) -> None:
    asyncio.set_event_loop(uvloop.new_event_loop())
    Worker(
        functions=[func(noop, name="noop", keep_result=0)],
        redis_settings=RedisSettings.from_dsn(URL),
        max_jobs=100,
        queue_read_limit=1000,
        poll_delay=0.005,
        keep_result=0,
        log_results=False,
    ).run()
