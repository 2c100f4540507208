"""CPU seconds and memory of this process and everything below it: the JVM, Python's daemons and workers."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Self

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


def memory(name: str = "") -> int:
    """Resident bytes of the family now. Where a name is given: of those below this process whose name begins
    so, and only what each has for itself, as a process that was forked shares much with its parent.
    """
    stats = _stats()
    family = _family(stats, os.getpid())
    if name:
        return sum(_own(pid) for pid in family[1:] if stats[pid][-1].startswith(name))
    return sum(int(stats[pid][21]) * PAGE for pid in family)


def _own(pid: int) -> int:
    """Bytes of a process that no other one shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


class MemoryWatch:
    """Samples the memory of the family in the background, until it is left."""

    def __init__(self, every: float = 0.5, name: str = "") -> None:
        self._every, self._name, self._over = every, name, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples: list[tuple[float, int]] = []  # seconds since the start, bytes

    def _watch(self) -> None:
        began = time.monotonic()
        while True:
            self.samples.append((time.monotonic() - began, memory(self._name)))
            if self._over.wait(self._every):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
