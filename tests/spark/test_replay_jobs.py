"""replay(): what is chosen, what is pushed, and that nothing is pushed twice, whatever dies in between."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from millstream import connect
from millstream.envelope import Envelope
from millstream.errors import ConfigurationError, InvalidInput, ReplayInDoubt, TableConflict
from millstream.history import Record
from millstream.queue import Queue
from millstream.spark.archiving import archive, read_archive
from millstream.spark.archiving.location import Location
from millstream.spark.replaying import replay
from millstream.spark.replaying.ledger import Ledger
from tests.servers import RedisServer
from tests.spark.archives import history_table, plain
from tests.spark.conftest import ROOT, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = 1_790_000_000.0
FAILED = "state = 'failed' AND error_type = 'ValueError'"


class Crash(Exception):
    """The driver dies here."""


def records(count: int, queue: str) -> list[Record]:
    """Jobs of which every tenth failed. The failed ones have two records; the second has no payload."""
    made = []
    for number in range(count):
        common: dict[str, Any] = {
            "job_id": f"old{number:07d}",
            "type": f"type{number % 3}",
            "queue": queue,
            "priority": ("default", "high", "low")[number % 3],
            "max_attempts": 1 + number % 5,
            "tags": [f"tag{number % 2}"],
            "headers": {"tenant": f"t{number % 4}", "é": "ü"},
            "version": 1 + number % 2,
        }
        payload = json.dumps({"n": number, "text": "é" * (number % 7)}, ensure_ascii=False)
        made.append(Record(state="enqueued", at=BEGIN + number, payload=payload, **common))
        if number % 10 == 0:
            error = {"error_type": "ValueError", "error": "ValueError: no"}
            made.append(Record(state="failed", at=BEGIN + number + 0.5, **error, **common))
    return made


class Stage:
    """An archive of job history, and a queue to replay to."""

    def __init__(self, url: str, folder: Path, count: int = 200) -> None:
        self.url, self.table = url, folder / "archive"
        self.queue_name = f"q{uuid.uuid4().hex[:10]}"
        self.records = records(count, self.queue_name)
        history_table(self.table, self.records)
        self.queue: Queue = connect(url)

    def replay(self, spark: Any, where: str = FAILED, **options: Any) -> Any:
        return replay(spark, self.table, self.url, where, **{"name": "again", "dry_run": False, **options})

    def take(self, count: int = 10_000) -> list[Envelope]:
        """Run all jobs that wait: they are gone afterwards, and the driver forgets their ids."""
        taken = []
        while found := self.queue.driver.reserve([self.queue_name], "test", min(count - len(taken), 1000)):
            from millstream.drivers.base import Settlement

            assert all(self.queue.driver.settle([Settlement(one, "complete") for one in found]))
            taken += [self.queue.codec.decode(one.body) for one in found]
            if len(taken) >= count:
                break
        return taken


@pytest.fixture
def stage(valkey: RedisServer, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(f"redis://127.0.0.1:{valkey.port}/0", tmp_path)
    yield made
    made.queue.close()


def test_a_dry_run_counts_and_pushes_nothing(spark: SparkSession, stage: Stage) -> None:
    summary = stage.replay(spark, dry_run=True)
    assert (summary.chosen, summary.pushed, summary.unusable) == (20, 0, {})
    assert summary.by_type == {"type0": 7, "type1": 7, "type2": 6}
    assert summary.by_queue == {stage.queue_name: 20}
    assert (summary.by_state, summary.by_error) == ({"failed": 20}, {"ValueError": 20})
    assert [job["job_id"] for job in summary.sample] == [f"old{number:07d}" for number in range(0, 50, 10)]
    assert json.loads(summary.sample[1]["payload"]) == {"n": 10, "text": "é" * 3}
    assert stage.queue.size(stage.queue_name) == 0
    assert not Ledger(Location(str(stage.table)), "again").exists()


def test_jobs_come_back_field_by_field_and_a_second_run_pushes_nothing(
    spark: SparkSession, stage: Stage
) -> None:
    summary = stage.replay(spark)
    assert (summary.chosen, summary.pushed, summary.pushed_before, summary.left) == (20, 20, 0, 0)
    # While the jobs wait, and after they have run and are forgotten.
    assert stage.replay(spark).pushed == 0
    jobs = {job.replay_of: job for job in stage.take()}
    again = stage.replay(spark)
    assert (again.pushed, again.pushed_before, stage.queue.size(stage.queue_name)) == (0, 20, 0)
    first = {record.job_id: record for record in stage.records if record.state == "enqueued"}
    assert sorted(jobs) == sorted(job for job in first if int(job[3:]) % 10 == 0)
    for old, job in jobs.items():
        assert old is not None
        record = first[old]
        assert job.id != old
        for field in ("type", "queue", "priority", "max_attempts", "tags", "headers", "version"):
            assert getattr(job, field) == getattr(record, field), field
        assert bytes(job.payload).decode() == record.payload
        assert (job.attempt, job.history, job.unique_key, job.due_at) == (1, [], None, None)
        assert job.pushed_at > time.time() - 120
    # Under another name it is another replay: new ids.
    other = stage.replay(spark, name="other", limit=5)
    assert other.pushed == 5
    assert {job.id for job in stage.take()}.isdisjoint(job.id for job in jobs.values())


def test_the_selection_is_frozen_whatever_the_archive_does_later(spark: SparkSession, stage: Stage) -> None:
    """A replay whose own jobs fail again must not choose them when it is run again."""
    assert stage.replay(spark).pushed == 20
    new = [
        Record(job_id=job.id, type=job.type, state="failed", at=BEGIN, error_type="ValueError", payload="{}")
        for job in stage.take()
    ]
    history_table(stage.table, new, batch=2)
    assert stage.replay(spark, dry_run=True).chosen == 40
    assert stage.replay(spark).pushed == 0
    with pytest.raises(InvalidInput, match=r"was begun with where=.* and this is \"state = 'failed'\""):
        stage.replay(spark, where="state = 'failed'")
    with pytest.raises(InvalidInput, match="was begun with queue='', and this is 'elsewhere'"):
        stage.replay(spark, queue="elsewhere")


@pytest.mark.parametrize("step", ["frozen", "recorded", "pushed"])
def test_a_replay_that_dies_goes_on_and_pushes_nothing_twice(
    spark: SparkSession, stage: Stage, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that were pushed run at once, so the driver has forgotten them when the next run comes."""
    monkeypatch.setattr("millstream.spark.replaying.pushing.STEP", 8)
    ran: list[Envelope] = []
    calls: list[str] = []

    def after(now: str, place: int) -> None:
        calls.append(now)
        if now == "pushed":
            ran.extend(stage.take())
        if now == step and calls.count(now) == (1 if step == "frozen" else 2):
            raise Crash

    with pytest.raises(Crash):
        stage.replay(spark, after=after)
    assert len(ran) == {"frozen": 0, "recorded": 8, "pushed": 16}[step]
    summary = stage.replay(spark)
    # Two rows of eight may be sent a second time; the queue does not take them.
    ran += stage.take()
    assert len(ran) == len({job.replay_of for job in ran}) == 20
    assert summary.left == 0


def test_without_the_unique_keys_the_same_crash_would_push_twice(spark: SparkSession, stage: Stage) -> None:
    """The control: what an id alone does, once the job is gone."""

    def after(now: str, place: int) -> None:
        if now == "pushed":
            raise Crash

    with pytest.raises(Crash):
        stage.replay(spark, after=after)
    assert len(stage.take()) == 20
    _forget(stage)
    stage.replay(spark)
    assert len(stage.take()) == 20


def _forget(stage: Stage) -> None:
    """Let the queue forget every unique key, as it does when their time has passed."""
    import redis

    with redis.Redis.from_url(stage.url) as client:
        gone = [
            key
            for key in client.scan_iter(f"*{stage.queue_name}*")
            if key.endswith((b":unique", b":expiring"))
        ]
        assert len(gone) == 2
        client.delete(*gone)


def test_a_pusher_killed_in_the_middle(spark: SparkSession, stage: Stage) -> None:
    def freeze(now: str, place: int) -> None:
        raise Crash

    with pytest.raises(Crash):
        stage.replay(spark, where="state = 'enqueued'", after=freeze)
    script = """
import os, signal, sys, threading
from millstream import connect
from millstream.spark.archiving.location import Location
from millstream.spark.replaying import pushing
from millstream.spark.replaying.ledger import Ledger
pushing.STEP = 90
def after(step, place):
    if (step, place) == ("pushed", 180):
        os.kill(os.getpid(), signal.SIGKILL)
ledger = Ledger(Location(sys.argv[2]), "again")
pusher = pushing.ReplayPusher(connect(sys.argv[1]), ledger, rate=None, stop=threading.Event(),
                              report=lambda *_: None, after=after)
pusher.push_rest("refuse")
"""
    command = [sys.executable, "-c", script, stage.url, str(stage.table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    progress = Ledger(Location(str(stage.table)), "again").progress()
    assert (progress.pushed, progress.pushing, progress.total) == (90, 180, 200)
    ran = stage.take()
    assert len(ran) == 180
    stage.replay(spark, where="state = 'enqueued'")
    ran += stage.take()
    assert len(ran) == len({job.replay_of for job in ran}) == 200


def test_jobs_in_doubt_for_too_long_are_not_guessed_about(spark: SparkSession, stage: Stage) -> None:
    def after(now: str, place: int) -> None:
        if now == "recorded":
            raise Crash

    for name in ("one", "two"):
        with pytest.raises(Crash):
            stage.replay(spark, name=name, after=after, remember=0.01)
    time.sleep(0.05)
    with pytest.raises(ReplayInDoubt, match=r"rows 1 to 20 when it died .*--in-doubt skip"):
        stage.replay(spark, name="one", remember=0.01)
    assert stage.queue.size(stage.queue_name) == 0
    assert stage.replay(spark, name="one", remember=0.01, in_doubt="skip").pushed == 0
    assert stage.replay(spark, name="two", remember=0.01, in_doubt="push").pushed == 20


def test_a_second_pusher_beside_the_first_is_refused(spark: SparkSession, stage: Stage) -> None:
    def after(now: str, place: int) -> None:
        if now == "recorded":
            stage.replay(spark)  # another program, which is faster

    with pytest.raises(TableConflict, match="another run of the replay 'again' is under way"):
        stage.replay(spark, after=after)
    assert len(stage.take()) == 20


def test_the_rate_is_kept_and_a_stop_leaves_nothing_in_doubt(spark: SparkSession, stage: Stage) -> None:
    import threading

    stop = threading.Event()

    def report(what: str, done: int, total: int | None) -> None:
        if what == "pushing" and done >= 10:
            stop.set()

    times: list[float] = []
    summary = stage.replay(
        spark,
        rate=20.0,
        stop=stop,
        on_progress=lambda *step: (times.append(time.monotonic()), report(*step)),
    )
    assert (summary.pushed, summary.left) == (10, 10)
    progress = Ledger(Location(str(stage.table)), "again").progress()
    assert (progress.pushed, progress.pushing) == (10, 10)
    pushing = times[-10:]
    assert pushing[-1] - pushing[0] >= 0.3  # two at a time, ten a second: four waits of a tenth
    assert stage.replay(spark).pushed == 10
    assert len({job.replay_of for job in stage.take()}) == 20


def test_changes_are_applied_and_what_cannot_be_pushed_is_counted(spark: SparkSession, stage: Stage) -> None:
    odd = [
        Record(job_id="nopayload", type="t", state="failed", at=BEGIN, error_type="Odd"),
        Record(job_id="notjson", type="t", state="failed", at=BEGIN, error_type="Odd", payload="[1]"),
        Record(job_id="notype", type="", state="failed", at=BEGIN, error_type="Odd", payload="{}"),
        Record(job_id="broken", type="t", state="failed", at=BEGIN, error_type="Odd", payload='{"n": "x"}'),
        Record(job_id="fine", type="t", state="failed", at=BEGIN, error_type="Odd", payload='{"n": 1}'),
    ]
    history_table(stage.table, odd, batch=2)

    def transform(fields: dict[str, Any]) -> dict[str, Any]:
        return {"n": fields["n"] + 1}

    summary = stage.replay(
        spark,
        where="error_type = 'Odd'",
        transform=transform,
        queue=stage.queue_name,
        priority="critical",
        max_attempts=9,
    )
    assert (summary.chosen, summary.pushed) == (5, 1)
    reasons = sorted(summary.unusable)
    assert len(reasons) == 4
    assert reasons[:3] == [
        "its payload is not a JSON object",
        "its record has no type",
        "none of its records in the archive has a payload",
    ]
    assert reasons[3].startswith("transform failed: TypeError")
    (job,) = stage.take()
    assert (json.loads(bytes(job.payload)), job.priority, job.max_attempts) == ({"n": 2}, "critical", 9)
    assert job.replay_of == "fine"


def test_sql_can_ask_for_time_tags_and_what_became_of_a_job(spark: SparkSession, stage: Stage) -> None:
    done = [Record(job_id="old0000010", type="type1", state="completed", at=BEGIN + 99)]
    history_table(stage.table, done, batch=2)

    def chosen(where: str) -> int:
        return int(stage.replay(spark, where=where, dry_run=True).chosen)

    assert chosen("array_contains(tags, 'tag0') AND state = 'failed'") == 20
    assert chosen(f"{FAILED} AND time < timestamp_seconds({BEGIN:.0f} + 50)") == 5
    finished = "SELECT job_id FROM millstream_records WHERE state = 'completed'"
    assert chosen(f"{FAILED} AND job_id NOT IN ({finished})") == 19
    assert chosen("headers['tenant'] = 't2' AND state = 'failed' AND day IS NOT NULL") == 10
    assert "millstream_records" not in [view.name for view in spark.catalog.listTables()]


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"where": ""}, InvalidInput, "where is empty"),
        ({"where": "state ="}, InvalidInput, r"the SQL 'state =' cannot be used: .*PARSE_SYNTAX_ERROR"),
        ({"where": "stat = 1"}, InvalidInput, r"UNRESOLVED_COLUMN.*The columns are .*state"),
        ({"where": "state"}, InvalidInput, "cannot be used"),
        ({"name": "../x"}, InvalidInput, r"'\.\./x' cannot name a replay"),
        ({"rate": 0}, InvalidInput, "rate must be a number of jobs per second above 0"),
        ({"limit": 0}, InvalidInput, "limit must be a whole number"),
        ({"in_doubt": "guess"}, InvalidInput, "in_doubt must be one of refuse, push, skip"),
        ({"remember": 0}, InvalidInput, "remember must be a number of seconds above 0"),
        ({"priority": "urgent!"}, InvalidInput, "'urgent!' is not a priority"),
        ({"max_attempts": 0}, InvalidInput, "max_attempts must be 1 or more"),
        ({"url": None}, InvalidInput, "url is missing"),
        ({"table": "nowhere"}, ConfigurationError, "there is no Delta table at .*nowhere"),
    ],
)
def test_what_cannot_be_replayed_is_told_before_anything_is_pushed(
    spark: SparkSession, stage: Stage, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    given: dict[str, Any] = {"table": stage.table, "url": stage.url, "where": FAILED, "name": "x", **options}
    with pytest.raises(error, match=why):
        replay(spark, dry_run=False, **given)
    assert not (stage.table / "_millstream" / "replays").exists()


def test_a_table_of_events_has_no_jobs(spark: SparkSession, valkey: RedisServer, tmp_path: Path) -> None:
    from millstream.spark.archiving.table import ArchiveTable
    from tests.spark.archives import EVENTS, SOURCE

    table = ArchiveTable(Location(str(tmp_path / "events")))
    table.prepare(EVENTS.remove(3), SOURCE)
    with pytest.raises(InvalidInput, match="the table holds no job history"):
        replay(spark, tmp_path / "events", None, "true", name="x")


def test_the_round_trip_of_some_thousand_jobs(
    spark: SparkSession, valkey: RedisServer, tmp_path: Path
) -> None:
    """History stream, archive, SQL slice, queue: every field. benchmarks/spark_roundtrip.py has a million."""
    url, prefix = f"redis://127.0.0.1:{valkey.port}/0", f"p{uuid.uuid4().hex[:8]}"
    made = records(4000, "again")
    queue = connect(url, prefix=prefix)
    from millstream import open_broker

    with open_broker(url) as broker:
        broker.xadd_many(f"{prefix}:history", [plain(record) for record in made])
    archive(spark, url, table=tmp_path / "a", history=True, prefix=prefix, trim=True, compact=True)
    assert read_archive(spark, tmp_path / "a").count() == len(made)
    summary = replay(
        spark,
        tmp_path / "a",
        url,
        "state = 'failed' AND type = 'type1'",
        name="r",
        dry_run=False,
        connection={"prefix": prefix},
    )
    wanted = {r.job_id: r for r in made if r.state == "enqueued" and int(r.job_id[3:]) % 30 == 10}
    assert summary.pushed == len(wanted) == 133
    jobs = [queue.codec.decode(one.body) for one in queue.driver.reserve(["again"], "test", 1000)]
    assert len(jobs) == 133
    for job in jobs:
        record = wanted.pop(str(job.replay_of))
        for field in ("type", "queue", "priority", "max_attempts", "tags", "headers", "version"):
            assert getattr(job, field) == getattr(record, field), field
        assert bytes(job.payload).decode() == record.payload
    assert wanted == {}
    queue.close()


def test_the_command_shows_first_and_pushes_when_it_is_told_to(run: Run, stage: Stage) -> None:
    base = (
        "pipeline",
        "replay",
        "--table",
        str(stage.table),
        "--where",
        FAILED,
        "--name",
        "cli",
        "--url",
        stage.url,
    )
    shown = run(*base).stdout
    assert "dry run: nothing was pushed" in shown
    assert "old0000000" in shown
    assert stage.queue.size(stage.queue_name) == 0
    done = json.loads(run(*base, "--run", "--json", "--rate", "1000").stdout)
    assert (done["pushed"], done["dry_run"]) == (20, False)
    assert json.loads(run(*base, "--run", "--json").stdout)["pushed"] == 0
    assert len(stage.take()) == 20
    assert "--run needs --url" in run(*base[:-2], "--run", code=2).stderr
    wrong = run(*base[:5], "nonsense = 1", *base[6:], code=2)
    assert "The columns are" in wrong.stderr
    assert "Traceback" not in wrong.stderr
