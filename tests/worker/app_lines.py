"""What the jobs of `app` wrote, as lines."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One thing that a job did."""

    what: str
    job: str
    attempt: int
    delivery: int
    pid: int
    at: float


def read_lines(path: Path) -> list[Line]:
    """What was written so far."""
    lines = []
    for text in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if not text.endswith("\n"):
            break  # being written
        what, job, attempt, delivery, pid, at = text.split()
        lines.append(Line(what, job, int(attempt), int(delivery), int(pid), float(at)))
    return lines
