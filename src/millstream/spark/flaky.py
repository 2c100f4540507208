"""Which handlers are flaky: they fail, are tried again, and then work.

A handler that always fails is broken, not flaky, and one failure among three jobs says little. The score is
the lower end of the 95 % confidence interval (Wilson's) of the share of finished jobs that succeeded only
on a later attempt: it is near the share where there are many jobs, and near zero where there are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import msgspec

_Z = 1.96  # 95 %


class Counts(Protocol):
    """What is needed of a type's figures."""

    @property
    def finished(self) -> int: ...
    @property
    def recovered(self) -> int: ...


class Flaky(msgspec.Struct, frozen=True):
    """One type of job that is flaky, and how surely."""

    type: str
    score: float  # the lower bound of the share
    share: float  # recovered / finished
    recovered: int  # jobs that succeeded after at least one attempt that failed
    finished: int


def flaky_types(types: Mapping[str, Counts], *, min_sample: int = 20) -> list[Flaky]:
    """The flaky ones, the worst first; types with fewer than ``min_sample`` finished jobs are left out."""
    found = [
        Flaky(
            name,
            wilson_lower(counts.recovered, counts.finished),
            counts.recovered / counts.finished,
            counts.recovered,
            counts.finished,
        )
        for name, counts in types.items()
        if counts.recovered > 0 and counts.finished >= max(1, min_sample)
    ]
    return sorted(found, key=lambda each: (-each.score, each.type))


def wilson_lower(successes: int, trials: int, z: float = _Z) -> float:
    """The lower end of Wilson's interval for a share of ``successes`` in ``trials``."""
    if trials <= 0:
        return 0.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    margin = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (centre - margin) / (1 + z * z / trials))
