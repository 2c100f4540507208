"""RQ with the worker class that does not fork."""

from __future__ import annotations

import logging

import meter
from command import KIND, URL
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

PACKAGE = "rq"
SETTINGS = {"": "SimpleWorker (no fork per job), JSON, results not kept, no job timeout, quiet log"}
KINDS = ("sync", "async")
BULK = "enqueue_many of 1000"
SPAWNS: set[str] = set()

connection = Redis.from_url(URL)
queue = Queue(connection=connection, serializer=JSONSerializer)
OPTIONS = {"result_ttl": 0, "timeout": -1}


def noop(number: int, text: str) -> None:
    meter.ran(number)


async def noop_async(number: int, text: str) -> None:
    meter.ran(number)


TASK = "peer.noop_async" if KIND == "async" else "peer.noop"


def push(number: int) -> None:
    queue.enqueue_call(TASK, (number, meter.TEXT), **OPTIONS)


def push_many(numbers: range) -> None:
    queue.enqueue_many([Queue.prepare_data(TASK, (number, meter.TEXT), **OPTIONS) for number in numbers])


def work(variant: str, processes: int) -> None:
    logging.getLogger("rq.worker").setLevel(logging.ERROR)
    SimpleWorker([queue], connection=connection, serializer=JSONSerializer).work(logging_level="ERROR")
