"""How many workers were busy when: the time of each attempt, spread over the steps in which it passed.

A record is written when its attempt ends. Counted there with all its time, an attempt of an hour would look
like sixty busy workers in its last minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BusySeconds(NamedTuple):
    """What attempts took of one step."""

    run: float  # seconds of all attempts
    wasted: float  # of those that failed
    seen: float  # of all, since the first record: before it only those attempts show that ended later


Busy = dict[int, BusySeconds]  # by the number of the step


def busy_seconds(
    records: DataFrame, step: float, first: int, last: int, since: float
) -> dict[str | None, Busy]:
    """The seconds that attempts took in the steps ``first`` to ``last``, by queue; under None, of all.

    ``records`` have ``at``, when an attempt ended, and ``run``, how long it took; the first is of ``since``.
    What passed before the first step is left out: it belongs to a time that was not asked for. An attempt
    makes one row per step, and what comes to the driver is one row per step and queue.
    """
    begin, end = F.col("at") - F.col("run"), F.col("at")
    number = F.col("step")
    until = F.least(end, (number + 1) * step)
    within = until - F.greatest(begin, number * step)
    seen = until - F.greatest(begin, number * step, F.lit(since))
    steps = F.sequence(F.greatest(F.floor(begin / step), F.lit(first)), F.floor(end / step))
    spread = (
        records.where((F.col("run") > 0) & (F.floor(end / step) >= first) & (F.floor(end / step) <= last))
        .select("queue", "state", "at", "run", F.explode(steps).alias("step"))
        .withColumn("within", F.greatest(within, F.lit(0.0)))
        .withColumn("seen", F.greatest(seen, F.lit(0.0)))
    )
    wasted = F.when(F.col("state").isin("failed", "retried"), F.col("within"))
    rows = (
        spread.groupingSets([[number], [number, F.col("queue")]], number, F.col("queue"))
        .agg(
            F.sum("within").alias("run"),
            F.coalesce(F.sum(wasted), F.lit(0.0)).alias("wasted"),
            F.sum("seen").alias("seen"),
        )
        .collect()
    )
    found: dict[str | None, Busy] = {}
    for row in rows:  # records have no null as their queue: it says that the row is of all queues
        found.setdefault(row["queue"], {})[row["step"]] = BusySeconds(row["run"], row["wasted"], row["seen"])
    return found


def peak(busy: Busy, step: float, first: float, last: float) -> float:
    """The most workers that were busy, as the mean of a step, or of the part of it that the history covers.

    The history is that from ``first`` to ``last``. A mean over a whole step of which it covers a moment
    would say nothing.
    """
    most = 0.0
    for number, each in busy.items():
        covered = min(last, (number + 1) * step) - max(first, number * step)
        if covered > 0:
            most = max(most, each.seen / covered)
    return most
