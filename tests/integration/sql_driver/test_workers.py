"""A whole program on each database: push, work, retry, bury, delay."""

from __future__ import annotations

import threading

from millstream import Job, connect
from tests.contract.drivers.helpers import until

DONE: list[str] = []
lock = threading.Lock()


class SqlDouble(Job, queue="sums", name="test.sql.double", max_attempts=2):
    number: int

    def handle(self) -> None:
        if self.number == 13:
            raise ValueError("unlucky")
        with lock:
            DONE.append(f"{self.number}")


def test_a_worker_runs_what_is_pushed(url: str, space: str) -> None:
    DONE.clear()
    with connect(url, prefix=space, create=True) as queue:
        queue.push_many([SqlDouble(number=n) for n in range(12)])
        queue.push(SqlDouble(number=12).delay(0.2))
        queue.push(SqlDouble(number=13).backoff(0.05))
        with queue.worker(["sums"], concurrency=4):
            until(lambda: len(DONE) == 13, "the jobs to run")
            until(lambda: len(queue.dead("sums").list()) == 1, "the unlucky one to be buried")
        assert sorted(map(int, DONE)) == list(range(13))
        (letter,) = queue.dead("sums").list()
        assert letter.attempts == 2
        assert "unlucky" in letter.error
        assert queue.size("sums") == 0
