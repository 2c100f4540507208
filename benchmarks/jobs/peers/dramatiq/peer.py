"""Dramatiq on Redis."""

from __future__ import annotations

import os

import dramatiq
import meter
from command import KIND, URL, become
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO, Retries

PACKAGE = "dramatiq"
SETTINGS = {
    "": "8 threads, prefetch 256 (with its default of 16 it has half the rate), "
    "no middleware but Retries (and AsyncIO for async handlers)"
}
KINDS = ("sync", "async")
BULK = ""
SPAWNS = {""}

broker = RedisBroker(url=URL, middleware=[Retries(), *([AsyncIO()] if KIND == "async" else [])])
dramatiq.set_broker(broker)


if KIND == "async":

    @dramatiq.actor(actor_name="noop")
    async def noop(number: int, text: str) -> None:
        meter.ran(number)

else:

    @dramatiq.actor(actor_name="noop")
    def noop(number: int, text: str) -> None:
        meter.ran(number)


def push(number: int) -> None:
    noop.send(number, meter.TEXT)


def push_many(numbers: range) -> None:
    for number in numbers:
        noop.send(number, meter.TEXT)


def work(variant: str, processes: int) -> None:
    os.environ["dramatiq_queue_prefetch"] = "256"  # noqa: SIM112 - its name
    become("dramatiq", "peer:broker", "--processes", str(processes), "--threads", "8", "--skip-logging")
