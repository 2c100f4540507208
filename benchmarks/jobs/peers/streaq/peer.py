"""streaQ."""

from __future__ import annotations

import meter
from command import KIND, URL
from streaq import Worker

PACKAGE = "streaq"
SETTINGS = {"": "100 jobs at once, prefetch 200, silent tasks, results not kept, uvloop"}
KINDS = ("sync", "async")
BULK = "enqueue_many of 1000"
SPAWNS: set[str] = set()

worker = Worker(URL, concurrency=100, sync_concurrency=8, prefetch=200, anyio_kwargs={"use_uvloop": True})

if KIND == "async":

    @worker.task(name="noop", silent=True, ttl=0)
    async def noop(number: int, text: str) -> None:
        meter.ran(number)

else:

    @worker.task(name="noop", silent=True, ttl=0)
    def noop(number: int, text: str) -> None:
        meter.ran(number)


async def start() -> None:
    await worker.__aenter__()


async def stop() -> None:
    await worker.__aexit__(None, None, None)


async def push(number: int) -> None:
    await noop.enqueue(number, meter.TEXT)


async def push_many(numbers: range) -> None:
    await worker.enqueue_many([noop.enqueue(number, meter.TEXT) for number in numbers])


def run_loop(work: object) -> object:
    import uvloop

    return uvloop.run(work)


def work(variant: str, processes: int) -> None:
    worker.run_sync()
