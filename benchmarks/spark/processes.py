"""CPU seconds and memory of this process and everything below it: the JVM, Python's daemons and workers."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Self, TypeVar

T = TypeVar("T")
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SERVERS = ("redis-server", "valkey-server")  # what is asked, not what asks


def _stats() -> dict[int, list[str]]:
    """The fields of every process's stat, after its name, by pid; its name comes last."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            head, _, rest = text.rpartition(")")
            found[int(entry.name)] = [*rest.split(), head.partition("(")[2]]
    return found


def _family(stats: dict[int, list[str]], root: int) -> list[int]:
    children = defaultdict(list)
    for pid, fields in stats.items():
        children[int(fields[1])].append(pid)
    family, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in stats and not stats[pid][-1].startswith(SERVERS):
            family.append(pid)
            waiting += children[pid]
    return family


def cpu_seconds(root: int | None = None) -> float:
    """CPU time of the family so far. Who has ended counts with the parent that waited for it."""
    stats = _stats()
    ticks = sum(sum(map(int, stats[pid][11:15])) for pid in _family(stats, root or os.getpid()))
    return ticks / TICK


def memory() -> int:
    """Resident bytes of the family now."""
    stats = _stats()
    return sum(int(stats[pid][21]) * PAGE for pid in _family(stats, os.getpid()))


def own_memory(name: str) -> dict[int, int]:
    """Bytes that each process below this one whose name begins with ``name`` has for itself, by pid.

    A process that was forked shares much with its parent.
    """
    stats = _stats()
    family = _family(stats, os.getpid())[1:]
    return {pid: _own(pid) for pid in family if stats[pid][-1].startswith(name)}


def _own(pid: int) -> int:
    """Bytes of a process that no other one shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


class MemoryWatch(Generic[T]):
    """Samples the memory of the family in the background, until it is left."""

    def __init__(self, measure: Callable[[], T], every: float = 0.5) -> None:
        self._measure, self._every, self._over = measure, every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples: list[tuple[float, T]] = []  # seconds since the start, what was measured

    def _watch(self) -> None:
        began = time.monotonic()
        while True:
            self.samples.append((time.monotonic() - began, self._measure()))
            if self._over.wait(self._every):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
