"""The shortest sequence that still fails, by leaving out ever smaller pieces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[list[T]], bool], budget: float = 20.0) -> list[T]:
    """A subsequence of ``items`` that fails and from which no single item can be left out.

    Returns what it has when ``budget`` seconds are over.
    """
    deadline = time.monotonic() + budget
    current = list(items)
    size = max(len(current) // 2, 1)
    while time.monotonic() < deadline:
        at, shorter = 0, False
        while at < len(current) and time.monotonic() < deadline:
            candidate = current[:at] + current[at + size :]
            if fails(candidate):
                current, shorter = candidate, True
            else:
                at += size
        if size > 1:
            size //= 2
        elif not shorter:
            break
    return current
