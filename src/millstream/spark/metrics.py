"""Metrics of jobs from their history: throughput, waits, run times, failures, retry cost, flaky handlers,
capacity.

The records are read once and kept for four passes: what there is and what is unusable, the figures in all
groupings at once, how many workers were busy when, and the errors. What comes to the driver is bounded,
however long the history: one row per value of a dimension, and a timeline of at most `_STEPS` steps. The
table of all windows is written by Spark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from millstream.errors import InvalidInput
from millstream.spark.busy import Busy, BusySeconds, busy_seconds, peak
from millstream.spark.figures import Figures, aggregates, figures_of, flat, with_times
from millstream.spark.flaky import Flaky, flaky_types
from millstream.spark.forecast import Forecast, forecast
from millstream.spark.records import REASON, read_records
from millstream.spark.spans import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIMENSIONS = ("type", "queue", "priority", "tenant")
Progress = Callable[..., None]  # what is being done, how much of it is, of how much
_STEPS = 240  # of the timeline: as many as a plot can show
_VALUES = 1000  # of a dimension that come to the driver: the busiest ones


class Step(msgspec.Struct, frozen=True):
    """One step of the timeline: when it begins, and its figures.

    A record counts in the step of its time, with all that its attempt took; ``busy`` and ``wasted`` are the
    attempts' time where it passed.
    """

    start: float
    figures: Figures
    busy: float = 0.0  # workers that ran an attempt, the mean over the step
    wasted: float = 0.0  # of them: those whose attempt failed


class ErrorCount(msgspec.Struct, frozen=True):
    """How often attempts of a type ended with an error."""

    type: str
    error_type: str
    count: int


class MetricsResult(msgspec.Struct, frozen=True):
    """What the history says. ``by`` has the figures per value of each dimension, the busiest value first."""

    source: str
    records: int  # that could be used
    unusable: dict[str, int]  # that could not, by the reason
    first: float | None  # the time of the first record, in seconds since the epoch
    last: float | None
    window_seconds: float  # of the table
    step_seconds: float  # of the timeline: a multiple of the window
    total: Figures
    by: dict[str, dict[str, Figures]]
    timeline: list[Step]
    errors: list[ErrorCount]
    flaky: list[Flaky]
    forecast: Forecast | None
    queues: dict[str, Forecast]  # the forecast per queue
    out: str | None = None  # where the table is
    report: str | None = None  # where the report is

    @property
    def span(self) -> float:
        """Seconds between the first and the last record."""
        return self.last - self.first if self.first is not None and self.last is not None else 0.0


def metrics(
    spark: SparkSession,
    source: str | DataFrame,
    *,
    archive: bool = False,
    prefix: str | None = None,
    window: str | float = "1 minute",
    by: Sequence[str] = DIMENSIONS,
    since: float | datetime | None = None,
    until: float | datetime | None = None,
    workers: float | None = None,
    target: float = 0.8,
    horizon: str | float | None = None,
    min_sample: int = 20,
    out: str | None = None,
    report: str | None = None,
    on_progress: Progress | None = None,
) -> MetricsResult:
    """Measure the history of jobs at ``source``.

    ``source`` is a broker's URL (its history stream; with ``archive`` the SQL archive), the path of a Delta
    or Parquet table, or a DataFrame of records. ``window`` is the width of the rows of the table, ``by``
    its groups. ``workers`` is how many jobs can run at once, for the forecast. ``out`` is where the table
    goes: Parquet where the path ends in ``.parquet``, else Delta; it replaces what was there. ``report`` is
    an HTML file.

    An empty history gives a result that says so. Raises InvalidInput for an argument that makes no sense.
    """
    width, groups = seconds_of(window, "window"), _dimensions(by)
    ahead = None if horizon is None else seconds_of(horizon, "horizon")
    _check_forecast(workers, target)
    say = on_progress or _silent
    say("reading the history")
    records = _between(read_records(spark, source, archive=archive, prefix=prefix), since, until)
    records = with_times(records).persist()
    try:
        unusable, count, first, last = _bounds(records)
        good = records.where(F.col(REASON).isNull())
        begin, end = first or 0.0, last or 0.0
        step = _step(width, end - begin)
        say("measuring")
        measured = _measure(good, step, begin, end) if count else Measured()
        total, groupings = measured.total, measured.by
        result = MetricsResult(
            source="a DataFrame" if not isinstance(source, str) else _shown(source),
            records=count,
            unusable=unusable,
            first=first,
            last=last,
            window_seconds=width,
            step_seconds=step,
            total=total,
            by={name: groupings.get(name, {}) for name in groups},
            timeline=measured.whole.timeline,
            errors=_errors(good) if total.failed + total.retried else [],
            flaky=flaky_types(groupings.get("type", {}), min_sample=min_sample),
            forecast=_forecast(measured.whole, total, step, end - begin, workers, target, ahead),
            queues={
                name: found
                for name, figures in groupings.get("queue", {}).items()
                if (
                    found := _forecast(
                        measured.queues.get(name, Course()), figures, step, end - begin, None, target, ahead
                    )
                )
            },
            out=out,
            report=report,
        )
        if out is not None:
            say("writing the table")
            _write_table(windows(good, width, groups), out)
    finally:
        records.unpersist()
    if report is not None:
        from millstream.spark.report import write_report  # noqa: PLC0415 - matplotlib takes its time

        say("drawing the report")
        write_report(result, report)
    return result


def windows(records: DataFrame, width: float, by: Sequence[str] = DIMENSIONS) -> DataFrame:
    """The table: a row of figures per window of ``width`` seconds and group.

    A job counts where its record is.
    """
    start = (F.floor(F.col("at") / width) * width).cast("timestamp")
    grouped = records.withColumn("window_start", start).groupBy("window_start", *by).agg(*aggregates())
    grouped = grouped.withColumn(
        "window_end", (F.col("window_start").cast("double") + width).cast("timestamp")
    )
    return flat(grouped, ["window_start", "window_end", *by])


# -- arguments -------------------------------------------------------------------------------------


def _dimensions(by: Sequence[str]) -> tuple[str, ...]:
    if isinstance(by, str):
        by = (by,)
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown:
        raise InvalidInput(
            f"cannot group by {', '.join(map(repr, unknown))}; choose from {', '.join(DIMENSIONS)}"
        )
    return tuple(dict.fromkeys(by))


def _check_forecast(workers: float | None, target: float) -> None:
    """The forecast's own check, before an hour of reading and not after it."""
    forecast((), step_seconds=1, span_seconds=0, run_seconds=0, finished=0, backlog=0, peak_busy=0,
             workers=workers, target=target)  # fmt: skip


def _between(records: DataFrame, since: float | datetime | None, until: float | datetime | None) -> DataFrame:
    """The records of a time; those without one stay, to be counted as unusable."""
    if since is not None:
        records = records.where(F.col(REASON).isNotNull() | (F.col("at") >= _epoch(since)))
    if until is not None:
        records = records.where(F.col(REASON).isNotNull() | (F.col("at") < _epoch(until)))
    return records


def _epoch(moment: float | datetime) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else float(moment)


def _shown(source: str) -> str:
    """The source without a password."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", source)


def _silent(*_: Any) -> None:
    return None


# -- the passes ------------------------------------------------------------------------------------


def _bounds(records: DataFrame) -> tuple[dict[str, int], int, float | None, float | None]:
    """Unusable records by reason; the number of the others, and their first and last time."""
    unusable: dict[str, int] = {}
    count, first, last = 0, None, None
    for row in (
        records.groupBy(REASON)
        .agg(F.count("*").alias("n"), F.min("at").alias("a"), F.max("at").alias("z"))
        .collect()
    ):
        if row[REASON] is None:
            count, first, last = row["n"], row["a"], row["z"]
        else:
            unusable[row[REASON]] = row["n"]
    return dict(sorted(unusable.items())), count, first, last


def _step(width: float, span: float) -> float:
    """The step of the timeline: the window, or as many windows as it takes to stay below `_STEPS`."""
    return width * max(1, math.ceil(span / width / (_STEPS - 1)))


class Course(msgspec.Struct, frozen=True):
    """How it went, step by step, and the most workers that were busy."""

    timeline: list[Step] = []
    peak_busy: float = 0.0


class Measured(msgspec.Struct, frozen=True):
    """What the passes over the records found."""

    total: Figures = Figures()
    by: dict[str, dict[str, Figures]] = {}  # per value of each dimension
    whole: Course = Course()
    queues: dict[str, Course] = {}


def _measure(good: DataFrame, step: float, first: float, last: float) -> Measured:
    """All groupings are counted in one pass; a second one spreads the attempts over the time they took."""
    stepped = good.withColumn("step", F.floor(F.col("at") / step))
    columns = ["step", *DIMENSIONS]
    sets = [[], ["step"], ["step", "queue"], *([name] for name in DIMENSIONS)]
    # Normalised records have no nulls in these columns: a null says that the row is not grouped by it.
    rows = stepped.groupingSets(
        [[F.col(name) for name in each] for each in sets], *(F.col(name) for name in columns)
    ).agg(*aggregates())
    total = Figures()
    found: dict[str, dict[str, Figures]] = {name: {} for name in DIMENSIONS}
    steps: dict[str | None, dict[int, Figures]] = {}
    for row in rows.collect():
        figures = figures_of(row)
        if row["step"] is not None:
            steps.setdefault(row["queue"], {})[row["step"]] = figures
            continue
        grouped = [name for name in DIMENSIONS if row[name] is not None]
        if not grouped:
            total = figures
        else:
            found[grouped[0]][row[grouped[0]]] = figures
    every = steps.get(None, {})
    bounds = range(min(every), max(every) + 1)
    busy = busy_seconds(good, step, bounds[0], bounds[-1], first)

    def course(queue: str | None, known: dict[int, Figures]) -> Course:
        spent = busy.get(queue, {})
        return Course(_timeline(known, spent, bounds, step), peak(spent, step, first, last))

    return Measured(
        total,
        {name: _busiest(values) for name, values in found.items()},
        course(None, every),
        {name: course(name, known) for name, known in steps.items() if name is not None},
    )


def _busiest(values: dict[str, Figures]) -> dict[str, Figures]:
    ordered = sorted(values.items(), key=lambda item: (-item[1].attempts, -item[1].enqueued, item[0]))
    return dict(ordered[:_VALUES])


def _timeline(known: dict[int, Figures], busy: Busy, numbers: Iterable[int], step: float) -> list[Step]:
    """Every step, also those in which nothing happened: a gap is a fact, too."""
    nothing, idle = Figures(), BusySeconds(0.0, 0.0, 0.0)
    made = []
    for number in numbers:
        spent = busy.get(number, idle)
        made.append(Step(number * step, known.get(number, nothing), spent.run / step, spent.wasted / step))
    return made


def _errors(good: DataFrame, limit: int = 20) -> list[ErrorCount]:
    failing = good.where(F.col("state").isin("failed", "retried"))
    counted = failing.groupBy("type", "error_type").count()
    rows = counted.orderBy(F.desc("count"), "type", "error_type").limit(limit).collect()
    return [ErrorCount(row["type"], row["error_type"] or "(not recorded)", row["count"]) for row in rows]


def _forecast(
    course: Course,
    figures: Figures,
    step: float,
    span: float,
    workers: float | None,
    target: float,
    horizon: float | None,
) -> Forecast | None:
    arrivals = [each.figures.enqueued for each in course.timeline]
    ended = figures.finished + figures.cancelled + figures.expired
    note = ""
    if not figures.enqueued:  # an archive may leave them out
        arrivals = [each.figures.finished for each in course.timeline]
        note = "the history has no records of arrivals, so finished jobs stand in for them"
    return forecast(
        arrivals,
        step_seconds=step,
        span_seconds=span,
        run_seconds=figures.run_seconds,
        finished=figures.finished,
        backlog=max(0, figures.enqueued - ended) if figures.enqueued else 0,
        peak_busy=course.peak_busy,
        workers=workers,
        target=target,
        horizon_seconds=horizon,
        note=note,
    )


def _write_table(frame: DataFrame, out: str) -> None:
    if out.rstrip("/").endswith(".parquet"):
        frame.coalesce(1).write.mode("overwrite").parquet(out)
        return
    from millstream.spark.archiving.table import replace_rows  # noqa: PLC0415 - needs deltalake, an extra

    local = out.removeprefix("file://")
    if "://" not in local:
        Path(local).mkdir(parents=True, exist_ok=True)
    replace_rows(out, frame.toArrow())
