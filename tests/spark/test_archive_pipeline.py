"""archive() on real Spark: exactly once across crashes and runs side by side, trimming, and the command."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from millstream import connect, open_broker
from millstream.archive import SqlArchive
from millstream.brokers.base import StreamBroker
from millstream.errors import ConfigurationError, InvalidInput
from millstream.history import Record
from millstream.spark.archiving import archive, read_archive
from millstream.spark.archiving.batches import Archiver
from millstream.spark.archiving.location import Location
from millstream.spark.archiving.positions import Positions
from millstream.spark.archiving.sources import source_of
from millstream.spark.archiving.table import ArchiveTable
from millstream.spark.urls import absolute_url
from tests.servers import RedisServer
from tests.spark.archives import plain
from tests.spark.conftest import Run, run_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Crash(Exception):
    """The driver dies here."""


class Place:
    """A broker, stream names of the test's own, and a table."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.table = url, folder / "archive"
        self.prefix = f"t{uuid.uuid4().hex[:10]}"
        self.broker: StreamBroker = open_broker(url)

    def stream(self, name: str = "a") -> str:
        return f"{self.prefix}:{name}"

    def add(self, count: int, name: str = "a", first: int = 0) -> list[str]:
        return self.broker.xadd_many(self.stream(name), [{"n": first + number} for number in range(count)])

    def ids(self) -> list[str]:
        """What the table holds, read by deltalake alone: Spark is not asked twice."""
        found = ArchiveTable(Location(str(self.table))).open().to_pyarrow_table(columns=["stream", "id"])
        return [f"{row['stream']} {row['id']}" for row in found.to_pylist()]

    def holds(self, expected: dict[str, list[str]]) -> bool:
        """Whether the table has exactly these entries, each once."""
        return sorted(self.ids()) == sorted(
            f"{self.stream(name)} {entry}" for name, ids in expected.items() for entry in ids
        )


@pytest.fixture
def place(valkey: RedisServer, tmp_path: Path) -> Iterator[Place]:
    made = Place(f"redis://127.0.0.1:{valkey.port}/0", tmp_path)
    yield made
    made.broker.close()


def crash_at(step: str, number: int) -> Any:
    def after(now: str, batch: int) -> None:
        if (now, batch) == (step, number):
            raise Crash

    return after


def test_a_second_run_adds_only_what_is_new_and_a_third_nothing(spark: SparkSession, place: Place) -> None:
    ids = {"a": place.add(2500), "b": place.add(10, "b")}
    heard: list[tuple[str, int, int | None]] = []
    first = archive(
        spark,
        place.url,
        f"{place.prefix}:*",
        place.table,
        max_rows_per_batch=1000,
        on_progress=lambda *step: heard.append(step),
    )
    assert (first.rows, first.batches, first.malformed) == (2510, 3, 0)
    assert first.ends == {place.stream("a"): ids["a"][-1], place.stream("b"): ids["b"][-1]}
    assert heard[0] == ("archiving", 0, 2510)
    assert heard[-1] == ("archiving", 2510, 2510)
    assert place.holds(ids)
    ids["b"] += place.add(5, "b", 10)
    ids["c"] = place.add(3, "c")
    second = archive(spark, place.url, f"{place.prefix}:*", place.table)
    assert (second.rows, second.batches) == (8, 1)
    third = archive(spark, place.url, [place.stream("a"), place.stream("b")], place.table)
    assert (third.rows, third.batches, third.files) == (0, 0, 0)
    assert place.holds(ids)
    frame = read_archive(spark, place.table)
    assert frame.columns == ["stream", "id", "timestamp", "data", "type", "headers", "day"]
    row = frame.where(f"stream = '{place.stream('c')}'").orderBy("id").first()
    assert row is not None
    assert (json.loads(row["data"]), row["id"]) == ({"n": 0}, ids["c"][0])
    assert row["timestamp"].timestamp() == int(ids["c"][0].split("-")[0]) / 1000


@pytest.mark.parametrize("step", ["planned", "written", "committed"])
def test_a_driver_that_dies_leaves_nothing_twice_and_nothing_out(
    spark: SparkSession, place: Place, step: str
) -> None:
    ids = {"a": place.add(900)}
    options: dict[str, Any] = {"max_rows_per_batch": 400, "trim": True}
    with pytest.raises(Crash):
        archive(spark, place.url, place.stream(), place.table, after=crash_at(step, 2), **options)
    held = {"planned": 400, "written": 400, "committed": 800}[step]
    assert len(place.ids()) == held
    # Trimmed is at most what was committed when it was trimmed.
    left = [message.id for message in place.broker.xrange(place.stream())]
    assert left == ids["a"][400:]
    ids["a"] += place.add(50, first=900)
    summary = archive(spark, place.url, place.stream(), place.table, **options)
    assert summary.rows == 950 - held
    assert place.holds(ids)
    assert place.broker.xlen(place.stream()) == 0


KILLED = """
import os, signal, sys
from millstream.spark.archiving import archive

class InProcess:  # in place of Spark: runs the tasks, one after the other, in the driver
    def range(self, start, end, step, parts):
        self.batch = pa.RecordBatch.from_pydict({"id": list(range(start, end, step))})
        return self
    def mapInArrow(self, task, schema):
        self.rows = [Row(**row) for found in task(iter([self.batch])) for row in found.to_pylist()]
        return self
    def collect(self):
        return self.rows

if sys.argv[4] == "spark":
    from millstream.spark import session
    spark = session("local[1]", conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"})
else:
    import pyarrow as pa
    from pyspark.sql import Row
    spark = InProcess()

def after(step, batch):
    if (step, batch) == ("written", 2):
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

archive(spark, sys.argv[1], sys.argv[2], sys.argv[3], max_rows_per_batch=400, after=after)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tasks", ["in-process", "spark"])
def test_a_driver_killed_between_the_files_and_the_commit(
    spark: SparkSession, place: Place, tasks: str
) -> None:
    """SIGKILL of a real driver. A second Java takes long to start: with one, it is for the long form."""
    if tasks == "spark" and os.environ.get("MILLSTREAM_FAULTS") != "long":
        pytest.skip("starts a second Java: set MILLSTREAM_FAULTS=long")
    ids = {"a": place.add(900)}
    done = run_python(KILLED, place.url, place.stream(), str(place.table), tasks, timeout=280)
    assert (done.returncode, done.stdout.strip()) == (-9, "killed"), done.stderr
    files = list(place.table.glob("day=*/*.parquet"))
    assert len(files) == 2  # the second one belongs to nobody
    assert len(place.ids()) == 400
    summary = archive(spark, place.url, place.stream(), place.table, max_rows_per_batch=400)
    assert summary.rows == 500
    assert place.holds(ids)


def test_the_batch_that_a_crashed_run_left_is_finished_by_a_run_of_other_streams(
    spark: SparkSession, place: Place
) -> None:
    ids = {"a": place.add(20), "b": place.add(30, "b")}
    with pytest.raises(Crash):
        archive(spark, place.url, place.stream("a"), place.table, after=crash_at("planned", 1))
    archive(spark, place.url, place.stream("b"), place.table)
    assert place.holds(ids)


def test_two_runs_side_by_side_add_each_entry_once(spark: SparkSession, place: Place) -> None:
    ids = {"a": place.add(600)}
    options = {"max_rows": 200, "file_bytes": 1 << 20}
    arguments: dict[str, Any] = dict.fromkeys(("prefix", "min_partitions"))
    source = source_of(
        place.url, place.stream(), history=False, archive_table=False, fail_on_data_loss=True, **arguments
    )
    one = Archiver(spark, source, Location(str(place.table)), **options)
    other = Archiver(spark, source, Location(str(place.table)), **options)
    # The second run gets to the same batch while the first one has written its files and not committed them.
    overtaken = Archiver(
        spark,
        source,
        Location(str(place.table)),
        **options,
        after=lambda step, number: other.next_batch() if step == "written" else None,
    )
    late = overtaken.next_batch()
    assert late is not None
    assert late.version is None  # its files belong to nobody
    while one.next_batch() is not None:
        pass
    assert place.holds(ids)
    assert (
        len(list(place.table.glob("day=*/*.parquet"))) == 4
    )  # three batches, and the files of the overtaken one


def test_an_archive_whose_positions_were_deleted_is_not_filled_twice(
    spark: SparkSession, place: Place
) -> None:
    ids = {"a": place.add(10)}
    archive(spark, place.url, place.stream(), place.table)
    shutil.rmtree(place.table / "_millstream")
    with pytest.raises(ConfigurationError, match="has 1 batches, and their positions are gone"):
        archive(spark, place.url, place.stream(), place.table)
    assert place.holds(ids)


def test_trimming_spares_what_a_group_has_not_acknowledged(spark: SparkSession, place: Place) -> None:
    ids = {"a": place.add(100)}
    place.broker.create_group(place.stream(), "readers", start_id="0")
    read = place.broker.xreadgroup("readers", "one", place.stream(), count=60)
    place.broker.xack(place.stream(), "readers", [message.id for message in read[:40]])
    summary = archive(spark, place.url, place.stream(), place.table, trim=True)
    assert (summary.rows, summary.trimmed) == (100, 40)
    assert [message.id for message in place.broker.xrange(place.stream())] == ids["a"][40:]
    # What was added meanwhile, and is not archived, stays even if everything may go.
    archiver_sees = place.add(5, first=100)
    table, positions = ArchiveTable(Location(str(place.table))), Positions(Location(str(place.table)))
    from millstream.spark.archiving.trimming import Trimmer

    trimmer = Trimmer(place.url, table, positions, unread=True)
    assert trimmer.trim([place.stream(), "unknown"]) == 60
    trimmer.close()
    assert [message.id for message in place.broker.xrange(place.stream())] == archiver_sees


def test_entries_trimmed_before_they_were_archived_are_noticed(spark: SparkSession, place: Place) -> None:
    ids = place.add(100)
    archive(spark, place.url, place.stream(), place.table)
    more = place.add(100, first=100)
    place.broker.xtrim(place.stream(), min_id=more[50], plain=True)
    with pytest.raises(Exception, match=r"(?i)lost|trimmed|gone|data loss") as failed:
        archive(spark, place.url, place.stream(), place.table)
    assert place.stream() in str(failed.value)
    assert place.holds({"a": ids})
    summary = archive(spark, place.url, place.stream(), place.table, fail_on_data_loss=False)
    assert summary.rows == 50
    assert place.holds({"a": ids + more[50:]})


def test_a_continuous_run_takes_what_comes_until_it_is_stopped(spark: SparkSession, place: Place) -> None:
    ids = {"a": place.add(10)}
    stop, seen = threading.Event(), threading.Event()

    def progress(what: str, done: int, total: int | None) -> None:
        if done >= 10:
            seen.set()
        if done >= 25:
            stop.set()

    def produce() -> None:
        assert seen.wait(60)
        ids["a"] += place.add(15, first=10)

    producer = threading.Thread(target=produce)
    producer.start()
    summary = archive(
        spark,
        place.url,
        place.stream(),
        place.table,
        continuous=True,
        interval=0.05,
        stop=stop,
        on_progress=progress,
        compact=True,
    )
    producer.join()
    assert summary.stopped
    assert summary.rows == 25
    assert place.holds(ids)


def test_job_history_is_typed_and_what_is_no_record_keeps_its_text(spark: SparkSession, place: Place) -> None:
    stream = f"{place.prefix}:history"
    records = [
        Record(
            job_id=f"job{number}",
            type="send",
            state="failed",
            at=time.time(),
            queue="mail",
            tags=["a", "b"],
            headers={"tenant": "t"},
            payload='{"to": "é"}',
        )
        for number in range(20)
    ]
    place.broker.xadd_many(stream, [plain(record) for record in records])
    place.broker.xadd(stream, {"something": "else"})
    place.broker.xadd(stream, {"job_id": "x", "type": "send", "state": "failed", "at": "yesterday"})
    summary = archive(spark, place.url, table=place.table, history=True, prefix=place.prefix)
    assert (summary.rows, summary.malformed) == (22, 2)
    found = ArchiveTable(Location(str(place.table))).open().to_pyarrow_table().to_pylist()
    good = [row for row in found if row["_corrupt"] is None]
    for record, row in zip(records, sorted(good, key=lambda row: int(row["job_id"][3:])), strict=True):
        for field in Record.__struct_fields__:
            value = dict(row[field]) if field == "headers" else row[field]
            assert value == getattr(record, field), field
    texts = [json.loads(row["_corrupt"]) for row in found if row["_corrupt"] is not None]
    assert {"something": "else"} in texts
    assert {"job_id": "x", "type": "send", "state": "failed", "at": "yesterday"} in texts


def test_the_sql_archive_of_jobs_comes_with_the_days_of_its_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/history.db"
    with connect("memory://", archive=SqlArchive(database, enqueued=True)) as queue:
        ids = [queue.enqueue("report.build", {"n": number}, tags=("x",)) for number in range(12)]
    for expected in (12, 0):
        summary = archive(spark, database, table=tmp_path / "jobs", archive_table=True, max_rows_per_batch=5)
        assert (summary.rows, summary.malformed) == (expected, 0)
    found = ArchiveTable(Location(str(tmp_path / "jobs"))).open().to_pyarrow_table().to_pylist()
    assert sorted(row["job_id"] for row in found) == sorted(ids)
    for row in found:
        moment = datetime.fromtimestamp(row["at"], UTC)
        assert row["day"] == moment.date()
        assert abs((row["timestamp"] - moment).total_seconds()) < 0.001
        assert (row["type"], row["state"], row["tags"]) == ("report.build", "enqueued", ["x"])
        assert json.loads(row["payload"])["n"] in range(12)


def test_a_sqlite_file_is_archived_as_well_and_days_are_pruned(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/events.db", tmp_path)
    day = 86_400_000
    for number in range(4):
        place.broker.xadd(place.stream(), {"n": number}, id=f"{1_770_000_000_000 + number * day}-1")
    summary = archive(spark, place.url, place.stream(), place.table)
    assert len(summary.days) == 4
    frame = read_archive(spark, place.table)
    chosen = frame.where(f"day = '{summary.days[2]}'")
    assert [json.loads(row["data"]) for row in chosen.collect()] == [{"n": 2}]
    # Pruned, and not only filtered: the files of the other days are not even needed.
    for folder in place.table.glob("day=*"):
        if folder.name != f"day={summary.days[2]}":
            shutil.rmtree(folder)
    assert chosen.where("data IS NOT NULL").count() == 1
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):  # whatever PySpark wraps it into
        frame.where("data IS NOT NULL").count()
    place.broker.close()


def test_a_relative_sqlite_file_is_the_drivers_for_the_tasks_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Spark's tasks were started in another folder
    with open_broker("sqlite:///here.db") as broker:
        broker.xadd_many("events", [{"n": number} for number in range(7)])
    assert archive(spark, "sqlite:///here.db", "events", "table").rows == 7
    assert absolute_url("sqlite:///here.db?create=true") == f"sqlite:///{tmp_path}/here.db?create=true"
    for url in ("sqlite:////var/x.db", "redis://host/0", "postgresql:///name", "sqlite://"):
        assert absolute_url(url) == url


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({}, ConfigurationError, "say what to archive, one of"),
        ({"streams": "a", "history": True}, ConfigurationError, "say what to archive, one of"),
        ({"streams": ["a", "b*"]}, ConfigurationError, "mixes the pattern 'b\\*'"),
        ({"streams": "a", "max_rows_per_batch": 0}, InvalidInput, "max_rows_per_batch must be"),
        ({"streams": "a", "interval": 0}, InvalidInput, "interval must be a number of seconds above 0"),
        ({"streams": "a", "trim_unread": True}, InvalidInput, "give trim=True as well"),
        ({"streams": "a", "vacuum": 1.0}, InvalidInput, "force=True"),
        ({"archive_table": True, "trim": True}, ConfigurationError, "trim is for streams"),
        ({"streams": "a", "url": "memory://"}, ConfigurationError, "memory://"),
        ({"streams": "a", "table": ""}, ConfigurationError, "the table's address is empty"),
    ],
)
def test_what_cannot_be_archived_is_told_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    given = {"url": f"sqlite:///{tmp_path}/x.db", "table": tmp_path / "table", **options}
    with pytest.raises(error, match=why):
        archive(None, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "table").exists()


def test_the_command_archives_trims_compacts_and_says_what_it_did(run: Run, place: Place) -> None:
    ids = {"a": place.add(300)}
    base = (
        "pipeline",
        "archive",
        "--url",
        place.url,
        "--stream",
        place.stream(),
        "--table",
        str(place.table),
    )
    done = run(*base, "--max-rows", "100", "--trim", "--compact", "--vacuum", "--json")
    summary = json.loads(done.stdout)
    assert (summary["rows"], summary["batches"], summary["trimmed"]) == (300, 3, 300)
    assert summary["compacted_files"] == 2
    assert place.holds(ids)
    again = run(*base)
    assert "archived" in again.stdout
    assert "rows" in again.stdout
    assert "say what to archive" in run(*base[:4], "--table", "t", code=2).stderr
    other = run(*base[:3], place.url[:-1] + "1", *base[4:], code=2)
    assert "--same-source" in other.stderr
    assert "Traceback" not in other.stderr
