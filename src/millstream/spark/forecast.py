"""How many workers the load needs, now and soon: Little's law and a straight line.

By Little's law the mean number of busy workers is the arrival rate times the mean time that a job occupies
one: ``busy = arrivals per second × run seconds per job``. It needs no assumption on how arrivals or run
times are distributed, only that the system is stable over the time that was looked at. Retries are part of
a job's run time. The number of workers needed is ``busy / target``: at a use near 1 waiting times grow
without bound, so the target is below it (0.8 by default). Where arrivals reach what the workers can do, the
backlog grows as long as that lasts.

The trend is a least-squares line through the arrivals per time step, and is used only where it is there
beyond doubt: its slope must be more than `_DOUBT` standard errors from zero over at least `MIN_STEPS` full
steps. It says nothing of daily or weekly waves; look at several days to plan for those.

An alarm needs evidence. That the backlog grows is said only where arrivals were seen over `MIN_RATE` steps
or more, since a burst at the start of a short history is no rate; and without the number of workers only
where jobs are left over: if all that came was done, the workers sufficed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from millstream.errors import InvalidInput

MIN_STEPS = 8  # fewer points make no trend
MIN_RATE = 3  # steps: one that is full between the first and the last, which are partly covered
_DOUBT = 3.0  # standard errors: one series in some hundred without a trend is taken for one with it
_ROUNDING = 1e-6  # a load that is all of the capacity is not more than it
_SHORT = (
    "the history is too short to say whether the backlog grows; "
    "the time to work it off is that without new arrivals"
)


class Trend(msgspec.Struct, frozen=True):
    """The line through a series of equal steps: its value at the end, and its rise per step."""

    level: float  # the fitted value at the end of the series; its mean where there is no trend
    slope: float  # per step; 0 where there is no trend
    steps: int
    certain: bool  # whether there is a trend

    def after(self, steps: float) -> float:
        """The value so many steps after the end; never below zero."""
        return max(0.0, self.level + self.slope * steps)


def trend_of(series: Sequence[float]) -> Trend:
    """The trend of a series, or its mean where it has none that is certain."""
    n = len(series)
    if n == 0:
        return Trend(0.0, 0.0, 0, False)
    mean = math.fsum(series) / n
    if n < MIN_STEPS:
        return Trend(mean, 0.0, n, False)
    middle = (n - 1) / 2
    spread = n * (n * n - 1) / 12  # the sum of (x - middle)² over 0 … n-1
    slope = math.fsum((x - middle) * y for x, y in enumerate(series)) / spread
    residual = math.fsum((y - mean - slope * (x - middle)) ** 2 for x, y in enumerate(series))
    doubt = math.sqrt(residual / (n - 2) / spread)
    if slope == 0 or abs(slope) <= _DOUBT * doubt:
        return Trend(mean, 0.0, n, False)
    return Trend(max(0.0, mean + slope * middle), slope, n, True)


class Forecast(msgspec.Struct, frozen=True):
    """The load of a queue (or of all) and the workers it needs. A worker here is a slot that runs one job."""

    arrivals_per_second: float  # now
    run_seconds_per_job: float  # all attempts of a job together
    busy: float  # workers that the load keeps busy now
    needed: int  # workers for it at the target utilisation
    workers: float  # as given, or the most that were seen busy
    workers_given: bool
    utilisation: float | None  # busy / workers; None where the workers are not known well enough
    trend_per_hour: float  # change of the arrival rate, jobs per second per hour; 0: none is certain
    horizon_seconds: float
    arrivals_at_horizon: float
    busy_at_horizon: float
    needed_at_horizon: int
    saturated_in_seconds: (
        float | None
    )  # when arrivals reach what the workers can do; 0: already; None: not soon
    backlog: int  # jobs that came and are not finished
    backlog_growth_per_second: float  # while it is saturated
    drains_in_seconds: float | None  # the time to work off the backlog; None: it is not worked off
    note: str  # what was assumed or missing


def forecast(
    arrivals: Sequence[int],
    *,
    step_seconds: float,
    span_seconds: float,
    run_seconds: float,
    finished: int,
    backlog: int,
    peak_busy: float,
    workers: float | None = None,
    target: float = 0.8,
    horizon_seconds: float | None = None,
    note: str = "",
) -> Forecast | None:
    """The forecast from arrivals per step of ``step_seconds``; None where nothing can be said.

    ``span_seconds`` is the time between the first and the last record. The first and the last step are only
    partly covered, so they are no part of the trend. Without ``workers`` the most that were seen busy at
    once (``peak_busy``, the mean of the busiest step as far as it is covered) stand in for them, which is a
    lower bound. ``horizon_seconds`` is as long as the time looked at unless given: a line is not to be
    trusted much further than it was seen.
    """
    if not 0 < target <= 1:
        raise InvalidInput(f"target must be above 0 and at most 1, not {target!r}")
    if workers is not None and not workers > 0:
        raise InvalidInput(f"workers must be above 0, not {workers!r}")
    if horizon_seconds is not None and not horizon_seconds > 0:
        raise InvalidInput(f"horizon must be above 0 seconds, not {horizon_seconds!r}")
    if span_seconds <= 0 or finished <= 0 or not sum(arrivals):
        return None
    horizon = horizon_seconds or span_seconds
    per_job = run_seconds / finished
    # A history ends when the last job is finished, which says nothing of how many would have come by then.
    while not arrivals[-1]:
        arrivals = arrivals[:-1]
    short = len(arrivals) < MIN_RATE
    seen_seconds = span_seconds if short else min(span_seconds, len(arrivals) * step_seconds)
    line = trend_of([count / step_seconds for count in arrivals[1:-1]])
    now = line.level if line.certain else sum(arrivals) / seen_seconds
    later = line.after(horizon / step_seconds) if line.certain else now
    there = workers if workers is not None else peak_busy
    capacity = there / per_job if per_job > 0 and there > 0 else None  # jobs per second that they can do
    over = capacity is not None and now > capacity * (1 + _ROUNDING)
    known = workers is not None or backlog > 0  # else all that came was done: there are more than were seen
    growth = now - capacity if over and known and not short and capacity is not None else 0.0
    if over:
        reached = 0.0 if growth else None
    else:
        reached = _saturated_in(now, line.slope / step_seconds, capacity, horizon)
    if short and backlog > 0:
        note = "; ".join(filter(None, (note, _SHORT)))
    return Forecast(
        arrivals_per_second=now,
        run_seconds_per_job=per_job,
        busy=now * per_job,
        needed=_needed(now * per_job, target),
        workers=there,
        workers_given=workers is not None,
        utilisation=now * per_job / there if there > 0 and (known or not over) else None,
        trend_per_hour=line.slope / step_seconds * 3600,
        horizon_seconds=horizon,
        arrivals_at_horizon=later,
        busy_at_horizon=later * per_job,
        needed_at_horizon=_needed(later * per_job, target),
        saturated_in_seconds=reached,
        backlog=backlog,
        backlog_growth_per_second=growth,
        drains_in_seconds=_drains_in(backlog, 0.0 if short else now, capacity),
        note=note,
    )


def _needed(busy: float, target: float) -> int:
    return max(1, math.ceil(busy / target - 1e-9)) if busy > 0 else 0


def _saturated_in(now: float, slope: float, capacity: float | None, horizon: float) -> float | None:
    """When ``now + slope * t`` reaches the capacity, if within the horizon."""
    if capacity is None or slope <= 0:
        return None
    reached = max(0.0, capacity - now) / slope
    return reached if reached <= horizon else None


def _drains_in(backlog: int, now: float, capacity: float | None) -> float | None:
    if backlog <= 0:
        return 0.0
    return backlog / (capacity - now) if capacity is not None and capacity > now else None
