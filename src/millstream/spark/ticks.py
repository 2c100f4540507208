"""Where the marks of a time axis stand: at times that a person would choose, and no more than can be read."""

from __future__ import annotations

import bisect
import math

_DAY = 86400.0
# Spans that have a short name, from a microsecond to some years.
_ROUND = sorted(
    [
        *(float(f"{digit}e{power}") for power in range(-6, 0) for digit in (1, 2, 5)),
        *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
        *(60 * n for n in (1.0, 2.0, 5.0, 10.0, 15.0, 30.0)),
        *(3600 * n for n in (1.0, 2.0, 3.0, 6.0, 12.0)),
        *(_DAY * n for n in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)),
    ]
)


def even_ticks(low: float, high: float, *, most: int = 7, least_step: float = 0.0) -> list[float]:
    """Round times from ``low`` to ``high`` that are equally far from each other, ``most`` at the most."""
    wanted = max((high - low) / most, least_step)
    step = next((each for each in _ROUND if each >= wanted), wanted)
    return [step * n for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, *, most: int = 7) -> list[float]:
    """Round spans for a logarithmic axis, ``most`` at the most; the first is at or below ``low``."""
    first = max(0, bisect.bisect_right(_ROUND, low) - 1)
    last = min(len(_ROUND) - 1, bisect.bisect_left(_ROUND, high))
    every = max(1, math.ceil((last - first) / (most - 1)))
    return _ROUND[first : last + 1 : every]
