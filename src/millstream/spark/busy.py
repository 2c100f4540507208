"""How many workers were busy when: the time of each attempt, spread over the steps in which it passed.

A record is written when its attempt ends. Counted there with all its time, an attempt of an hour would look
like sixty busy workers in its last minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# By the number of a step: seconds of all attempts in it, and of those that failed.
Busy = dict[int, tuple[float, float]]


def busy_seconds(records: DataFrame, step: float, first: int, last: int) -> dict[str | None, Busy]:
    """The seconds that attempts took in the steps ``first`` to ``last``, by queue; under None, of all.

    ``records`` have ``at``, when an attempt ended, and ``run``, how long it took. What passed before the
    first step is left out: it belongs to a time that was not asked for. An attempt makes one row per step,
    and what comes to the driver is one row per step and queue.
    """
    begin, end = F.col("at") - F.col("run"), F.col("at")
    number = F.col("step")
    within = F.least(end, (number + 1) * step) - F.greatest(begin, number * step)
    steps = F.sequence(F.greatest(F.floor(begin / step), F.lit(first)), F.floor(end / step))
    spread = (
        records.where((F.col("run") > 0) & (F.floor(end / step) >= first) & (F.floor(end / step) <= last))
        .select("queue", "state", "at", "run", F.explode(steps).alias("step"))
        .withColumn("within", F.greatest(within, F.lit(0.0)))
    )
    wasted = F.when(F.col("state").isin("failed", "retried"), F.col("within"))
    rows = (
        spread.groupingSets([[number], [number, F.col("queue")]], number, F.col("queue"))
        .agg(F.sum("within").alias("run"), F.coalesce(F.sum(wasted), F.lit(0.0)).alias("wasted"))
        .collect()
    )
    found: dict[str | None, Busy] = {}
    for row in rows:  # records have no null as their queue: it says that the row is of all queues
        found.setdefault(row["queue"], {})[row["step"]] = (row["run"], row["wasted"])
    return found
