"""Huey on Redis."""

from __future__ import annotations

import meter
from command import URL, become
from huey import RedisHuey

PACKAGE = "huey"
COMMON = "blocking pop, results not kept, no periodic tasks, no health check, quiet log"
SETTINGS = {"8 threads": f"8 threads; {COMMON}", "2 threads": f"2 threads, better for short jobs; {COMMON}"}
KINDS = ("sync",)
BULK = ""
SPAWNS: set[str] = set()

huey = RedisHuey("bench", url=URL, results=False, blocking=True)


@huey.task(name="noop")
def noop(number: int, text: str) -> None:
    meter.ran(number)


def push(number: int) -> None:
    noop(number, meter.TEXT)


def push_many(numbers: range) -> None:
    for number in numbers:
        noop(number, meter.TEXT)


def work(variant: str, processes: int) -> None:
    threads = variant.removesuffix(" threads")
    size = ("--workers", threads, "--worker-type", "thread", "--delay", "0.01", "--max-delay", "0.01")
    become("huey_consumer", "peer.huey", *size, "--no-periodic", "--disable-health-check", "--quiet")
