"""Metrics of a history whose figures are counted by hand beside it, from every place a history can be."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from millstream import Job, SqlArchive, connect, open_broker
from millstream.errors import InvalidInput
from millstream.history import Record
from millstream.spark import records as records_module
from millstream.spark.figures import Figures
from millstream.spark.metrics import MetricsResult, metrics
from millstream.spark.spans import seconds_of
from tests.spark.histories import as_entries, as_rows, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = pa.schema(
    [("job_id", pa.string()), ("type", pa.string()), ("state", pa.string()), ("at", pa.float64()),
     ("queue", pa.string()), ("priority", pa.string()), ("attempt", pa.int32()),
     ("enqueued_at", pa.float64()), ("due_at", pa.float64()), ("started_at", pa.float64()),
     ("seconds", pa.float64()), ("error_type", pa.string()), ("tenant", pa.string())]
)  # fmt: skip


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def check(figures: Figures, records: list[Record]) -> None:
    """``figures`` are those of ``records``, counted here in the plainest way."""
    states = Counter(record.state for record in records)
    ended = [record for record in records if record.state in ("completed", "failed", "retried")]
    assert (figures.enqueued, figures.completed, figures.failed, figures.retried) == tuple(
        states[name] for name in ("enqueued", "completed", "failed", "retried")
    )
    assert figures.recovered == sum(record.state == "completed" and record.attempt > 1 for record in records)
    assert figures.finished == states["completed"] + states["failed"]
    assert figures.attempts == len(ended)
    if not ended:
        return
    runs = [record.seconds or 0.0 for record in ended]
    wasted = sum(record.seconds or 0.0 for record in ended if record.state != "completed")
    waits = [(record.started_at or 0.0) - record.enqueued_at for record in ended if record.attempt == 1]
    assert figures.failure_rate == pytest.approx(states["failed"] / figures.finished)
    assert figures.retry_rate == pytest.approx(states["retried"] / len(ended))
    assert figures.run_seconds == pytest.approx(sum(runs))
    assert figures.wasted_seconds == pytest.approx(wasted)
    for found, values in ((figures.run, runs), (figures.wait, waits)):
        assert found is not None
        for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
            assert value == pytest.approx(percentile(values, share))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return history(1500, workers=13)


@pytest.fixture(scope="module")
def measured(
    spark: SparkSession, records: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> MetricsResult:
    """The metrics of a history stream in a SQLite file, with three entries that are no records."""
    folder = tmp_path_factory.mktemp("history")
    url = f"sqlite:///{folder}/jobs.db"
    with open_broker(url) as broker:
        broker.xadd_many("millstream:history", as_entries(records))
        broker.xadd_many(
            "millstream:history",
            [{"hello": "world"}, {**as_entries(records[:1])[0], "state": "vanished"},
             {**as_entries(records[:1])[0], "at": -5.0}],
        )  # fmt: skip
    return metrics(
        spark, url, window="5 seconds", workers=20, out=f"{folder}/windows", report=f"{folder}/report.html"
    )


def test_totals_and_groups_are_those_of_the_records(measured: MetricsResult, records: list[Record]) -> None:
    assert measured.records == len(records)
    check(measured.total, records)
    for dimension in ("type", "queue", "priority", "tenant"):
        grouped = defaultdict(list)
        for record in records:
            grouped[getattr(record, dimension)].append(record)
        assert set(measured.by[dimension]) == set(grouped)
        for value, figures in measured.by[dimension].items():
            check(figures, grouped[value])
    attempts = [figures.attempts for figures in measured.by["type"].values()]
    assert attempts == sorted(attempts, reverse=True)


def test_what_cannot_be_used_is_counted_by_its_reason(measured: MetricsResult) -> None:
    assert sorted(measured.unusable.values()) == [1, 1, 1]
    assert any("not known to this version" in why for why in measured.unusable)
    assert any("no job_id" in why for why in measured.unusable)


def test_the_timeline_has_every_step_and_every_record(measured: MetricsResult, records: list[Record]) -> None:
    starts = [step.start for step in measured.timeline]
    assert {round(b - a, 6) for a, b in pairwise(starts)} == {measured.step_seconds}
    for step in measured.timeline[::5]:
        within = [
            record for record in records if step.start <= record.at < step.start + measured.step_seconds
        ]
        check(step.figures, within)
    assert sum(step.figures.attempts for step in measured.timeline) == measured.total.attempts


def test_flaky_errors_and_capacity(measured: MetricsResult, records: list[Record]) -> None:
    assert measured.flaky[0].type == "shop.SyncStock"
    assert "shop.ChargeCard" not in [each.type for each in measured.flaky]  # it is broken, not flaky
    counted = Counter((r.type, r.error_type) for r in records if r.state in ("failed", "retried"))
    assert {(each.type, each.error_type): each.count for each in measured.errors} == counted
    found = measured.forecast
    assert found is not None
    came = [record.at for record in records if record.state == "enqueued"]
    rate = len(came) / (came[-1] - came[0])
    assert found.busy == pytest.approx(rate * measured.total.run_seconds / measured.total.finished, rel=0.15)
    assert found.utilisation == pytest.approx(found.busy / 20)
    assert set(measured.queues) == set(measured.by["queue"])


def test_the_table_has_a_row_per_window_and_group(measured: MetricsResult, records: list[Record]) -> None:
    assert measured.out is not None
    rows = DeltaTable(measured.out).to_pyarrow_table().to_pylist()
    grouped = defaultdict(list)
    for record in records:
        key = (record.at // 5 * 5, record.type, record.queue, record.priority, record.tenant)
        grouped[key].append(record)
    assert len(rows) == len(grouped)
    for row in rows[::20]:
        key = (row["window_start"].timestamp(), row["type"], row["queue"], row["priority"], row["tenant"])
        states = Counter(record.state for record in grouped[key])
        assert row["enqueued"] == states["enqueued"]
        assert row["completed"] == states["completed"]
        assert (row["window_end"] - row["window_start"]).total_seconds() == 5


def test_the_report_is_written_and_says_it(measured: MetricsResult) -> None:
    assert measured.report is not None
    text = Path(measured.report).read_text(encoding="utf-8")
    assert "3 records could not be used" in text
    assert text.count("<figure>") == 5


def test_a_table_gives_the_same_as_the_stream(
    spark: SparkSession, records: list[Record], measured: MetricsResult, tmp_path: Path
) -> None:
    write_deltalake(str(tmp_path / "delta"), pa.Table.from_pylist(as_rows(records), COLUMNS))
    typed = metrics(spark, str(tmp_path / "delta"), window="5 seconds")
    assert (typed.total, typed.by, typed.timeline) == (measured.total, measured.by, measured.timeline)
    # An archive of entries, with those of another stream between them.
    entries = [{"stream": "millstream:history", "data": json.dumps(entry)} for entry in as_entries(records)]
    entries.append({"stream": "events:orders", "data": json.dumps({"job_id": "x", "state": "completed"})})
    (tmp_path / "entries").mkdir()
    pq.write_table(pa.Table.from_pylist(entries), tmp_path / "entries" / "part.parquet")
    parsed = metrics(spark, str(tmp_path / "entries"), window="5 seconds", by=["queue"])
    assert (parsed.total, parsed.unusable) == (measured.total, {})
    assert parsed.by == {"queue": measured.by["queue"]}


class Flip(Job, queue="flips", name="metricstest.Flip", max_attempts=2, backoff=0.01, jitter=0.0):
    number: int

    def handle(self) -> None:
        if self.number % 5 == 0 and self.attempt == 1:
            raise TimeoutError("once")


def test_what_workers_did_is_read_from_the_sql_archive(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/archive.db"
    with (
        SqlArchive(url) as archive,
        connect(f"sqlite:///{tmp_path}/jobs.db", archive=archive) as queue,
        queue.worker(["flips"], concurrency=4),
    ):
        queue.push_many([Flip(number) for number in range(40)])
        assert queue.drain(["flips"], timeout=60)
        assert queue.flush()
    result = metrics(spark, url, archive=True, window=1)
    total = result.total
    assert (total.enqueued, total.completed, total.retried, total.recovered) == (40, 40, 8, 8)
    assert [(each.type, each.error_type, each.count) for each in result.errors] == [
        ("metricstest.Flip", "TimeoutError", 8)
    ]


def frame(spark: SparkSession, records: list[Record]) -> Any:
    kept = [tuple(getattr(record, name) for name in COLUMNS.names) for record in records]
    return spark.createDataFrame(kept, records_module.COLUMNS)


def test_an_empty_history_is_said(spark: SparkSession, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = metrics(spark, frame(spark, []), out=str(tmp_path / "out.parquet"), report=str(page))
    assert (result.records, result.total, result.timeline, result.forecast) == (0, Figures(), [], None)
    assert result.by == {"type": {}, "queue": {}, "priority": {}, "tenant": {}}
    assert "The history is empty" in page.read_text(encoding="utf-8")
    assert "window_start" in pq.read_schema(next((tmp_path / "out.parquet").glob("*.parquet"))).names


def test_a_single_record_gives_what_it_can(
    spark: SparkSession, records: list[Record], tmp_path: Path
) -> None:
    one = next(record for record in records if record.state == "completed")
    result = metrics(spark, frame(spark, [one]), report=str(tmp_path / "report.html"))
    assert (result.records, result.span, result.total.completed) == (1, 0.0, 1)
    assert result.forecast is None
    assert "too short for a forecast" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_attempt_keeps_a_worker_busy_from_its_beginning_to_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One of 25 s over three windows, and one of 4 s that failed within the last; all counts at its end."""
    begin = 1_780_000_000.0
    told = [
        Record(job_id="a", type="t", state="enqueued", at=begin, enqueued_at=begin, queue="q"),
        Record(job_id="a", type="t", state="completed", at=begin + 29, enqueued_at=begin, queue="q",
               attempt=1, started_at=begin + 4, seconds=25.0),
        Record(job_id="b", type="t", state="failed", at=begin + 28, enqueued_at=begin, queue="r", attempt=1,
               started_at=begin + 24),
    ]  # fmt: skip
    result = metrics(spark, frame(spark, told), window=10, report=str(tmp_path / "report.html"))
    assert [step.busy for step in result.timeline] == pytest.approx([0.6, 1.0, 1.3])
    assert [step.wasted for step in result.timeline] == pytest.approx([0, 0, 0.4])
    assert [step.figures.run_seconds for step in result.timeline] == [0, 0, 29]
    assert result.forecast is not None
    assert result.forecast.workers == pytest.approx(13 / 9)  # the most that were seen busy, until 29
    assert result.queues["q"].workers == pytest.approx(1.0)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "each bar the mean over 10 s; the most were 1.3, from 2026-05-28 20:27:00 UTC on" in text


def test_no_more_workers_are_busy_than_there_are(measured: MetricsResult) -> None:
    """The history was made by 13 workers."""
    assert max(step.figures.run_seconds / measured.step_seconds for step in measured.timeline) > 13
    assert 10 < max(step.busy for step in measured.timeline) <= 13 + 1e-6
    together = sum(step.busy for step in measured.timeline) * measured.step_seconds
    assert together == pytest.approx(measured.total.run_seconds)


def test_what_ran_before_the_time_that_was_asked_for_is_cut(spark: SparkSession) -> None:
    ended = 1_780_000_005.0
    one = Record(job_id="a", type="t", state="completed", at=ended, enqueued_at=ended - 500, attempt=1,
                 started_at=ended - 400, seconds=400.0)  # fmt: skip
    result = metrics(spark, frame(spark, [one]), window=10)
    assert [step.busy for step in result.timeline] == pytest.approx([0.5])
    assert result.total.run_seconds == 400


def test_only_the_time_that_was_asked_for(spark: SparkSession, records: list[Record]) -> None:
    middle = records[len(records) // 2].at
    result = metrics(spark, frame(spark, records), since=middle, until=middle + 10)
    check(result.total, [record for record in records if middle <= record.at < middle + 10])


def test_a_long_history_has_a_timeline_that_can_be_drawn(spark: SparkSession) -> None:
    long = [
        Record(job_id=f"j{n}", type="t", state="enqueued", at=1.7e9 + n * 86400.0, enqueued_at=1.7e9)
        for n in range(365)
    ]
    result = metrics(spark, frame(spark, long), window="1 minute")
    assert len(result.timeline) <= 241
    assert result.step_seconds % 60 == 0
    assert sum(step.figures.enqueued for step in result.timeline) == 365


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"window": "soon"}, "window 'soon' is no length of time"), ({"window": 0}, "window must be above 0"),
     ({"by": ["colour"]}, "cannot group by 'colour'; choose from type"), ({"workers": -1}, "workers"),
     ({"target": 2}, "target"), ({"horizon": "-"}, "horizon"),
     ({"source": "no/such/table"}, "no Delta table"),
     ({"source": "no/such/table", "archive": True}, "means a SQL database"),
     ({"source": "sqlite:///x.db", "archive": True, "prefix": "p"}, "leave it out")],
)  # fmt: skip
def test_bad_arguments_are_refused(spark: SparkSession, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        metrics(spark, **({"source": "sqlite:///never-opened.db"} | arguments))


def test_a_table_that_is_no_history_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="this one has a, b"):
        metrics(spark, spark.createDataFrame([(1, 2)], "a int, b int"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5 minutes", 300), ("1 Hour", 3600), ("2d", 172800), (1.5, 1.5)],
)
def test_lengths_of_time(text: str | float, seconds: float) -> None:
    assert seconds_of(text, "window") == pytest.approx(seconds)
