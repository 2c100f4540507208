"""When each job started, written by the handler into memory that all processes of a measurement share.

Every contender's handler calls `ran(number)` and does nothing else. That is one clock read and one store of
eight bytes into a mapped file: about 0.2 µs, no system call beside the clock, no lock, no Redis command; so
it costs every contender the same, and too little to matter to any. CLOCK_MONOTONIC is one clock for all
processes of a machine.

The first call in each process waits until the benchmark opens the gate, which it does when every process has
arrived. A worker's start-up is thereby left out, and two processes begin together.

Standard library only: this file is imported in each contender's own environment.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

FIRST = 1_000_000  # the number of the first job: all numbers are equally long
BYTES = 60  # {"number":1000000,"text":"..."} as JSON
TEXT = "x" * (BYTES - len('{"number":1000000,"text":""}'))

GATE = 0  # the slot that holds the time at which the gate was opened
ARRIVED = 8  # from here on, the process ids that wait or waited at the gate
PLACES = 1000
HEADER = 1024  # slots before the first job's
WAITING = 1  # in a job's slot: its handler stands at the gate

now = time.monotonic_ns


class Sheet:
    """The mapped file: a header, a slot for the start of each job, and one for the moment of its push."""

    def __init__(self, path: str | Path, capacity: int) -> None:
        size = 8 * (HEADER + 2 * capacity)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(handle, size)
            self._map = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        whole = memoryview(self._map).cast("Q")
        self.header = whole[:HEADER]
        self.started = whole[HEADER : HEADER + capacity]
        self.pushed = whole[HEADER + capacity :]

    def processes(self) -> list[int]:
        """The processes in which a handler was called."""
        return [pid for pid in self.header[ARRIVED : ARRIVED + PLACES] if pid]


_sheet: Sheet | None = None


def sheet() -> Sheet:
    """This process's view of the file that the benchmark named."""
    global _sheet  # noqa: PLW0603 - one sheet a process
    if _sheet is None:
        _sheet = Sheet(os.environ["BENCH_SHEET"], int(os.environ["BENCH_CAPACITY"]))
    return _sheet


def _first(number: int) -> None:
    global ran  # noqa: PLW0603 - a counter a process
    ours, pid = sheet(), os.getpid()
    ours.started[number - FIRST] = WAITING
    ours.header[ARRIVED + pid % PLACES] = pid
    while not ours.header[GATE]:
        time.sleep(0.0005)
    started, clock, first = ours.started, now, FIRST

    def record(number: int) -> None:
        started[number - first] = clock()

    ran = record
    record(number)


ran = _first  # call it as `meter.ran(number)`: the name changes its meaning once the gate is open
