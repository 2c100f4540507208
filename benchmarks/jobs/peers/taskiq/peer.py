"""Taskiq on Redis Streams."""

from __future__ import annotations

import asyncio

import meter
from command import KIND, URL, become
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisStreamBroker

PACKAGE = "taskiq"
SETTINGS = {
    "": "streams broker, reads of 200, 200 tasks at once, prefetch 200, 4 threads for sync handlers, "
    "uvloop, orjson, no argument parsing, no results"
}
KINDS = ("sync", "async")
BULK = "none of its own; 100 pushes at once by asyncio.gather"
SPAWNS = {""}

broker = RedisStreamBroker(URL, consumer_id="0", xread_count=200).with_serializer(ORJSONSerializer())

if KIND == "async":

    @broker.task(task_name="noop")
    async def noop(number: int, text: str) -> None:
        meter.ran(number)

else:

    @broker.task(task_name="noop")
    def noop(number: int, text: str) -> None:
        meter.ran(number)


async def start() -> None:
    await broker.startup()


async def stop() -> None:
    await broker.shutdown()


async def push(number: int) -> None:
    await noop.kiq(number, meter.TEXT)


async def push_many(numbers: range) -> None:
    for begin in range(0, len(numbers), 100):
        await asyncio.gather(*(noop.kiq(number, meter.TEXT) for number in numbers[begin : begin + 100]))


def run_loop(work: object) -> object:
    import uvloop

    return uvloop.run(work)


def work(variant: str, processes: int) -> None:
    sizes = ("--max-async-tasks", "200", "--max-prefetch", "200", "--max-threadpool-threads", "4")
    rest = ("--no-parse", "--no-propagate-errors", "--log-level", "ERROR")
    become("taskiq", "worker", "peer:broker", "--workers", str(processes), *sizes, *rest)
