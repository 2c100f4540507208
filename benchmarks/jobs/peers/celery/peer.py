"""Celery on Redis, with three of its pools."""

from __future__ import annotations

import os

import meter
from celery import Celery
from command import URL, become

PACKAGE = "celery"
COMMON = (
    "results ignored, no events, gossip, mingle, heartbeat or remote control, rate limits off, "
    "prefetch multiplier 16, acks early (its default; late would cost more)"
)
POOLS = {"threads": "8 threads", "prefork": "a child process each", "solo": "in the main thread"}
SETTINGS = {pool: f"{words}; {COMMON}" for pool, words in POOLS.items()}
KINDS = ("sync",)
BULK = ""
SPAWNS = {"prefork"}

app = Celery("peer", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_publish_retry=False,
    task_send_sent_event=False,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=16,
)


@app.task(name="noop")
def noop(number: int, text: str) -> None:
    meter.ran(number)


_open: list = []


def start() -> None:
    """One producer for all pushes: taking one from the pool each time is slower."""
    connection = app.connection_for_write()
    _open[:] = [connection, app.amqp.Producer(connection)]


def stop() -> None:
    _open[0].release()


def push(number: int) -> None:
    noop.apply_async((number, meter.TEXT), producer=_open[1])


def push_many(numbers: range) -> None:
    for number in numbers:
        push(number)


def work(variant: str, processes: int) -> None:
    size = {"threads": 8, "prefork": processes, "solo": 1}[variant]
    pool = ("--pool", variant, "--concurrency", str(size), "--hostname", f"bench-{os.getpid()}@%h")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR")
    become("celery", "--app", "peer:app", "worker", *pool, *quiet)
