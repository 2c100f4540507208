"""Procrastinate."""

from __future__ import annotations

from typing import Any

import meter
import procrastinate
import psycopg
import uvloop
from command import KIND, URL

PACKAGE = "procrastinate"
COMMON = "finished jobs deleted, no notifications, uvloop, psycopg's compiled form"
SETTINGS = {
    "concurrency 1": f"1 job at once; {COMMON}",
    "concurrency 10": f"10 jobs at once, 10 connections; {COMMON}",
}
KINDS = ("sync", "async")
BULK = "batch_defer of 1000"
SPAWNS: set[str] = set()
run_loop = uvloop.run

pushing = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=URL))
TASK = "noop_async" if KIND == "async" else "noop"


@pushing.task(name=TASK)
def pushed(number: int, text: str) -> None:
    """What is pushed, by name; the worker knows what to run."""


def start() -> None:
    pushing.open()
    with psycopg.connect(URL) as connection:
        fresh = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()[0] is None
    if fresh:
        pushing.schema_manager.apply_schema()


def stop() -> None:
    pushing.close()


def push(number: int) -> None:
    pushed.defer(number=number, text=meter.TEXT)


def push_many(numbers: range) -> None:
    pushed.batch_defer(*[{"number": number, "text": meter.TEXT} for number in numbers])


def work(variant: str, processes: int) -> None:
    concurrency = int(variant.removeprefix("concurrency "))
    size: dict[str, Any] = {"min_size": concurrency, "max_size": max(concurrency, 4)}
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, **size))

    @app.task(name="noop")
    def noop(number: int, text: str) -> None:
        meter.ran(number)

    @app.task(name="noop_async")
    async def noop_async(number: int, text: str) -> None:
        meter.ran(number)

    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(
                concurrency=concurrency,
                delete_jobs="always",
                listen_notify=False,
                fetch_job_polling_interval=0.05,
            )

    uvloop.run(run())
