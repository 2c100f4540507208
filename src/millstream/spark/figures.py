"""The figures of a group of records: counts, rates, percentiles; as columns of Spark and as values.

One list of aggregates serves every grouping, so that a window, a type and the total mean the same by the
same name. Percentiles are approximate: Spark's ``percentile_approx`` with an accuracy of `ACCURACY`, whose
rank is off by at most one in that many, in memory that does not grow with the data. Up to that many values
they are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ACCURACY = 10_000
_SHARES = (0.5, 0.95, 0.99)
_COUNTED = ("enqueued", "completed", "failed", "retried", "snoozed", "released", "cancelled", "expired")
_ENDED = ("completed", "failed", "retried")  # the attempt ran to an end of its own


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds: the median, and what 95 and 99 of a hundred stay below."""

    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True):
    """What is known of a group of records."""

    enqueued: int = 0
    completed: int = 0
    failed: int = 0  # jobs that failed for good
    retried: int = 0  # attempts that failed and were followed by another
    snoozed: int = 0
    released: int = 0
    cancelled: int = 0
    expired: int = 0
    recovered: int = 0  # jobs that were completed by a later attempt than the first
    finished: int = 0  # jobs: completed + failed
    attempts: int = 0  # completed + failed + retried
    failure_rate: float | None = None  # failed / finished
    retry_rate: float | None = None  # retried / attempts
    run_seconds: float = 0.0  # of all attempts
    wasted_seconds: float = 0.0  # of the attempts that failed: what retries and failures cost
    wasted_share: float | None = None  # of run_seconds
    wait: Percentiles | None = None  # from due (or enqueued) to the start of the first attempt
    run: Percentiles | None = None  # of an attempt


def with_times(records: DataFrame) -> DataFrame:
    """``records`` with ``wait`` and ``run`` in seconds where the record tells them.

    The wait is that of first attempts: those of later ones would mostly measure the backoff. Clocks of two
    machines may differ, so a wait below zero counts as zero.
    """
    ended = F.col("state").isin(*_ENDED)
    due = F.greatest(F.col("enqueued_at"), F.coalesce(F.col("due_at"), F.col("enqueued_at")))
    known = ended & (F.col("attempt") <= 1) & F.col("started_at").isNotNull() & (F.col("enqueued_at") > 0)
    run = F.coalesce(F.col("seconds"), F.greatest(F.col("at") - F.col("started_at"), F.lit(0.0)))
    return records.withColumn(
        "wait", F.when(known, F.greatest(F.col("started_at") - due, F.lit(0.0)))
    ).withColumn("run", F.when(ended, run))


def aggregates() -> list[Column]:
    """The columns of `Figures`, to be given to ``agg``."""
    state, run = F.col("state"), F.col("run")
    wasted = F.when(state.isin("failed", "retried"), run)
    counts = [F.count_if(state == name).alias(name) for name in _COUNTED]
    return [
        *counts,
        F.count_if((state == "completed") & (F.col("attempt") > 1)).alias("recovered"),
        F.coalesce(F.sum(run), F.lit(0.0)).alias("run_seconds"),
        F.coalesce(F.sum(wasted), F.lit(0.0)).alias("wasted_seconds"),
        F.percentile_approx("wait", list(_SHARES), ACCURACY).alias("wait"),
        F.percentile_approx("run", list(_SHARES), ACCURACY).alias("run"),
    ]


def flat(frame: DataFrame, keys: list[str]) -> DataFrame:
    """Aggregated rows as a table: rates beside the counts, a column for each percentile."""
    finished, attempts = (
        F.col("completed") + F.col("failed"),
        F.col("completed") + F.col("failed") + F.col("retried"),
    )
    names = [f"p{round(share * 100)}" for share in _SHARES]
    columns = [F.col(name) for name in (*keys, *_COUNTED, "recovered")]
    columns += [
        finished.alias("finished"),
        attempts.alias("attempts"),
        F.try_divide(F.col("failed"), finished).alias("failure_rate"),
        F.try_divide(F.col("retried"), attempts).alias("retry_rate"),
        F.col("run_seconds"),
        F.col("wasted_seconds"),
    ]
    for what in ("wait", "run"):
        columns += [F.get(what, index).alias(f"{what}_{name}") for index, name in enumerate(names)]
    return frame.select(*columns)


def figures_of(row: Any) -> Figures:
    """The values of an aggregated row."""
    counts = {name: int(row[name]) for name in (*_COUNTED, "recovered")}
    finished = counts["completed"] + counts["failed"]
    attempts = finished + counts["retried"]
    run, wasted = float(row["run_seconds"]), float(row["wasted_seconds"])
    return Figures(
        **counts,
        finished=finished,
        attempts=attempts,
        failure_rate=_share(counts["failed"], finished),
        retry_rate=_share(counts["retried"], attempts),
        run_seconds=run,
        wasted_seconds=wasted,
        wasted_share=_share(wasted, run),
        wait=Percentiles(*row["wait"]) if row["wait"] else None,
        run=Percentiles(*row["run"]) if row["run"] else None,
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
