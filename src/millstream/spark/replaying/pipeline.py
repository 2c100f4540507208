"""`replay`: jobs of the archive, chosen by SQL, pushed again under new ids; nothing twice."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.errors import InvalidInput
from millstream.queue import connect
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.reading import read_archive
from millstream.spark.archiving.table import source_name
from millstream.spark.replaying.ledger import Ledger, Terms
from millstream.spark.replaying.pushing import IN_DOUBT, REMEMBER, Pace, ReplayPusher, check_driver
from millstream.spark.replaying.selection import CHOSEN, PROBLEM, Changes, Transform, choose, records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Report = Callable[[str, int, int | None], None]
SAMPLE = 5  # jobs that a dry run shows
SHOWN = 50  # different types, queues and errors that are counted by name


class ReplaySummary(msgspec.Struct, kw_only=True):
    """What a replay would push, or pushed."""

    name: str
    dry_run: bool
    chosen: int = 0  # jobs that fit
    unusable: dict[str, int] = {}  # of them: those that cannot be pushed, by reason
    by_type: dict[str, int] = {}
    by_queue: dict[str, int] = {}
    by_state: dict[str, int] = {}
    by_error: dict[str, int] = {}
    sample: list[dict[str, Any]] = []
    pushed: int = 0  # by this run
    pushed_before: int = 0  # by earlier runs of this replay
    left: int = 0  # where it was stopped
    seconds: float = 0.0


def replay(
    spark: SparkSession,
    table: str | os.PathLike[str],
    url: str | None = None,
    where: str = "",
    *,
    name: str,
    dry_run: bool = True,
    rate: float | None = None,
    limit: int | None = None,
    queue: str | None = None,
    priority: str | None = None,
    max_attempts: int | None = None,
    transform: Transform | None = None,
    in_doubt: str = "refuse",
    remember: float = REMEMBER,
    connection: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
    on_progress: Report | None = None,
    after: Callable[[str, int], None] | None = None,
) -> ReplaySummary:
    """Push jobs of the archive at ``table`` again: those that ``where``, SQL over their records, chooses.

    Unless ``dry_run`` is off, nothing is pushed: the summary says what would be, with a sample. Each job gets
    a new id, made of the replay's ``name`` and the old id, and is linked to the old one by ``replay_of``. The
    first run freezes the selection under ``name``; every later run goes on with it, and pushes nothing twice,
    however long ago the first one was, and wherever it was killed.

    ``url`` is where the jobs go (with the options of `connect` in ``connection``), ``rate`` jobs per second
    at the most, ``limit`` the oldest so many. ``queue``, ``priority``, ``max_attempts`` and ``transform`` (a
    function of the job's fields) change the jobs. ``remember`` is for how many seconds the queue guards a
    push against its repetition, ``in_doubt`` what to do with jobs that were on their way when an earlier run
    died, longer ago than that: "refuse", "push" or "skip". ``after`` is for tests of crashes.

    Raises InvalidInput for SQL that does not fit, or a name that stands for another selection,
    ConfigurationError where there is no archive, and what the broker raises.
    """
    began = time.monotonic()
    stop, report = stop or threading.Event(), on_progress or (lambda what, done, total: None)
    location, changes = Location(os.fspath(table)), Changes(queue, priority, max_attempts, transform)
    ledger = Ledger(location, name)
    _check(limit, rate, in_doubt, remember)
    if url is None and not dry_run:
        raise InvalidInput("url is missing: say where the jobs are to be pushed")
    target = "" if url is None else source_name(url)
    terms = Terms(
        where=where,
        target=target,
        queue=queue or "",
        priority=priority or "",
        max_attempts=max_attempts or 0,
        limit=limit or 0,
        transformed=transform is not None,
    )
    summary = ReplaySummary(name=name, dry_run=dry_run)
    begun = ledger.exists()
    if begun and not dry_run:
        ledger.check(terms)
    else:
        records = records_of(read_archive(spark, location.uri))
        if not dry_run:
            with connect(url, **dict(connection or {})) as reached:
                check_driver(reached.driver)  # before anything is written down
        jobs = choose(spark, records, where, name, changes, limit).persist()
        try:
            report("choosing", 0, None)
            _count(jobs, summary)
            if not dry_run:
                report("writing the ledger", 0, None)
                usable = jobs.where(f"{PROBLEM} IS NULL").drop(PROBLEM).orderBy("at", "job_id")
                ledger.freeze(usable, to_arrow_schema(CHOSEN), terms)
        finally:
            jobs.unpersist()
    if after is not None and not dry_run:
        after("frozen", 0)
    if dry_run:
        summary.pushed_before = ledger.progress().pushed if begun else 0
    else:
        with connect(url, **dict(connection or {})) as opened:
            pusher = ReplayPusher(
                opened,
                ledger,
                rate=rate,
                remember=remember,
                stop=stop,
                report=report,
                after=after or (lambda step, place: None),
            )
            _push(pusher, ledger, summary, in_doubt)
    summary.seconds = round(time.monotonic() - began, 3)
    return summary


def _push(pusher: ReplayPusher, ledger: Ledger, summary: ReplaySummary, in_doubt: str) -> None:
    before = ledger.progress()
    summary.pushed = pusher.push_rest(in_doubt)
    after = ledger.progress()
    summary.pushed_before = after.pushed - summary.pushed
    summary.left = after.total - after.pushed
    if not summary.chosen:  # a later run: the ledger knows what was chosen
        summary.chosen = before.total


def _count(jobs: DataFrame, summary: ReplaySummary) -> None:
    """Say what was chosen: by type, queue, state and error, and what of it cannot be pushed."""
    unusable: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {
        "type": Counter(),
        "queue": Counter(),
        "state": Counter(),
        "error_type": Counter(),
    }
    for row in jobs.groupBy(*counts, PROBLEM).count().collect():
        summary.chosen += row["count"]
        if row[PROBLEM] is not None:
            unusable[row[PROBLEM]] += row["count"]
            continue
        for column, counter in counts.items():
            if row[column]:
                counter[row[column]] += row["count"]
    summary.unusable = dict(unusable.most_common(SHOWN))
    summary.by_type = dict(counts["type"].most_common(SHOWN))
    summary.by_queue = dict(counts["queue"].most_common(SHOWN))
    summary.by_state = dict(counts["state"].most_common(SHOWN))
    summary.by_error = dict(counts["error_type"].most_common(SHOWN))
    if not summary.dry_run:
        return
    first = jobs.where(f"{PROBLEM} IS NULL").drop(PROBLEM).orderBy("at", "job_id").limit(SAMPLE)
    summary.sample = [row.asDict(recursive=True) for row in first.collect()]


def _check(limit: int | None, rate: float | None, in_doubt: str, remember: float) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit must be a whole number of jobs, 1 or more, not {limit!r}")
    Pace(rate, threading.Event())  # checks the rate
    if in_doubt not in IN_DOUBT:
        raise InvalidInput(f"in_doubt must be one of {', '.join(IN_DOUBT)}, not {in_doubt!r}")
    if not remember > 0:
        raise InvalidInput(f"remember must be a number of seconds above 0, not {remember!r}")
