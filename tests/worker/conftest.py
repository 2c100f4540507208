"""Queues for the tests of the worker: in memory and on Redis, each with a name of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.drivers.stream import open_stream_driver
from millstream.job import Job
from millstream.queue import Queue
from millstream.worker import Worker
from tests.worker import jobs


class Bench:
    """A queue, its name, and workers that are stopped after the test."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, f"test-{uuid.uuid4().hex[:12]}"
        self.queue = Queue(open_stream_driver(url))
        self.driver = self.queue.driver
        self._workers: list[Worker] = []

    def push(self, job: Job) -> str:
        return self.queue.push(job.on_queue(self.name))

    def push_many(self, many: list[Job]) -> list[str]:
        return self.queue.push_many([job.on_queue(self.name) for job in many])

    def worker(self, **options: Any) -> Worker:
        """A worker that is not started yet. It polls often, so that stopping it takes no time."""
        worker = self.queue.worker([self.name], **{"poll": 0.05, "grace": 5.0, **options})
        self._workers.append(worker)
        return worker

    def start(self, **options: Any) -> Worker:
        return self.worker(**options).start()

    def settled(self, timeout: float = 60.0) -> None:
        """Wait until nothing is left to be done."""
        until(lambda: self.queue.size(self.name) == 0, "an empty queue", timeout)

    def close(self) -> None:
        jobs.gate.set()
        for worker in self._workers:
            worker.stop(grace=1.0)
        self.queue.close()


@pytest.fixture(autouse=True)
def _fresh_record() -> Iterator[None]:
    jobs.ran.clear()
    jobs.gate.clear()
    yield
    jobs.gate.set()


@pytest.fixture(params=["memory", "redis7"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """In memory, and on Redis."""
    url = "memory://" if request.param == "memory" else request.getfixturevalue(request.param).url
    bench = Bench(url)
    yield bench
    bench.close()


@pytest.fixture
def memory() -> Iterator[Bench]:
    bench = Bench("memory://")
    yield bench
    bench.close()


def until(condition: Callable[[], object], what: str, timeout: float = 60.0) -> None:
    """Wait for a state that only the broker's own answers show."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s in vain for {what}"
        time.sleep(0.005)
