"""An application for worker processes: its jobs write what they do to a file that every process appends to.

A line is written with one write() to a file opened with O_APPEND, so that lines of killed processes are
whole or absent. The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time

from millstream.job import Job
from millstream.queue import Queue, connect

_log = os.open(os.environ["MILLSTREAM_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
queue = connect(os.environ["MILLSTREAM_TEST_URL"])
not_a_queue = 42


def in_memory() -> Queue:
    return connect("memory://")


def write(what: str, job: Job) -> None:
    line = f"{what} {job.id} {job.attempt} {job.delivery_count} {os.getpid()} {time.monotonic()}\n"
    os.write(_log, line.encode())


class Work(Job):
    """Takes a while, and says when it began and when it was done."""

    seconds: float = 0.0

    def handle(self) -> None:
        write("start", self)
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
        write("done", self)


class WorkAsync(Job):
    seconds: float = 0.0

    async def handle(self) -> None:
        import asyncio

        write("start", self)
        await asyncio.sleep(self.seconds)
        write("done", self)


class Deaf(Job, timeout=0.2, max_attempts=1):
    """Hangs in C, where no exception can be raised."""

    def handle(self) -> None:
        write("start", self)
        time.sleep(60)


class Deadly(Job):
    """Takes its process with it."""

    def handle(self) -> None:
        write("start", self)
        os.kill(os.getpid(), 9)


class Leaking(Job):
    """Uses 30 MB for good."""

    def handle(self) -> None:
        write("start", self)
        _leak.append(b"x" * 30_000_000)


_leak: list[bytes] = []
