"""A relative path of a SQLite file means the driver's folder, wherever Spark's tasks run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from millstream import connect, open_broker
from millstream.errors import ConfigurationError
from millstream.spark.enqueue import enqueue
from millstream.spark.metrics import metrics
from millstream.spark.projections import project
from millstream.spark.sink.options import read_options
from millstream.spark.source import batch_reader, default_schema, stream_reader
from millstream.spark.source.options import parse_options
from millstream.spark.urls import absolute_url
from tests.spark import elsewhere
from tests.spark.histories import as_entries, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_only_a_relative_path_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_url("sqlite:///a/../b.db?create=true") == f"sqlite:///{tmp_path}/b.db?create=true"
    assert absolute_url("SQLite:///b.db") == f"SQLite:///{tmp_path}/b.db"
    for url in (
        "sqlite:////var/b.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:b.db",
        "redis:///0",
        "postgresql:///shop",
        "memory://",
    ):
        assert absolute_url(url) == url


def test_source_and_sink_take_it_in_the_folder_of_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = f"sqlite:///{tmp_path}/shop.db"
    given = {"url": "sqlite:///shop.db"}
    for streaming in (True, False, None):
        assert parse_options(given | {"stream": "s"}, streaming=streaming).url == whole
    assert parse_options(given | {"archive": "true"}).url == whole
    assert read_options(given | {"stream": "s"}).url == whole
    assert read_options(given | {"jobType": "t"}).url == whole


@pytest.mark.parametrize("kind", ["batch", "streaming"])
def test_a_reader_that_was_sent_to_another_folder_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What Spark does with it, without Spark: planned in one process and folder, read in another."""
    (tmp_path / "driver").mkdir()
    (tmp_path / "task").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    with open_broker("sqlite:///shop.db") as broker:
        broker.xadd("s", {"n": 1})
    given = {"url": "sqlite:///shop.db", "stream": "s"}
    reader: Any = (batch_reader if kind == "batch" else stream_reader)(default_schema(given), given)
    if kind == "batch":
        parts = reader.partitions()
    else:
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
        reader.stop()
        reader = stream_reader(default_schema(given), given)  # Spark sends one that it has not used
    sent = cloudpickle.dumps((reader, parts))  # type: ignore[no-untyped-call]  # PySpark has no types for it
    monkeypatch.chdir(tmp_path / "task")
    reader, parts = cloudpickle.loads(sent)
    assert [row["data"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()] == [
        '{"n":1}'
    ]
    assert list((tmp_path / "task").iterdir()) == []


def test_a_sqlite_database_in_memory_is_still_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="needs a file"):
        enqueue(spark, spark.range(1), "sqlite:///:memory:", "t", name="n")


# -- under Spark -----------------------------------------------------------------------------------


@pytest.fixture
def relative(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A file of the test by a path from the folder in which Spark was started; tasks run in another."""
    jvm: Any = spark.sparkContext._jvm
    started_in = Path(jvm.java.lang.System.getProperty("user.dir"))
    seen = spark.range(2).repartition(2).mapInArrow(_folders, "folder string").distinct().collect()
    assert [row.folder for row in seen] == [str(elsewhere.FOLDER)]
    path = os.path.relpath(tmp_path / "shop.db", started_in)
    # As a task would take it by itself, it is another file, or none.
    assert (elsewhere.FOLDER / path).resolve() != (tmp_path / "shop.db").resolve()
    yield f"sqlite:///{path}"
    assert not (elsewhere.FOLDER / path).exists()


def _folders(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()]})


def test_written_and_read_by_a_relative_url(spark: SparkSession, tmp_path: Path, relative: str) -> None:
    rows = spark.range(0, 40, 1, 4).selectExpr("id AS n")
    place = {"url": relative, "stream": "numbers"}
    rows.write.format("millstream").mode("append").options(**place).save()
    with open_broker(f"sqlite:///{tmp_path}/shop.db") as broker:
        assert sorted(entry.data["n"] for entry in broker.xrange("numbers")) == list(range(40))
    found = spark.read.format("millstream").options(**place).option("minPartitions", "3").load()
    assert found.count() == 40
    stream = spark.readStream.format("millstream").options(**place).load().selectExpr("data AS copy")
    writer = stream.writeStream.format("millstream").option("url", relative).option("stream", "copies")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    with open_broker(f"sqlite:///{tmp_path}/shop.db") as broker:
        assert broker.xlen("copies") == 40


def _count(state: Any, event: Any) -> Any:
    return (state or 0) + 1


@pytest.mark.long("three pipelines; the options of each are tested without Spark")
def test_a_pipeline_takes_it_in_the_folder_of_the_program(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is not the one in which Spark was started."""
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///shop.db"
    pushed = enqueue(spark, spark.range(5), url, "shop.Greet", name="once")
    assert (pushed.state, pushed.rows) == ("pushed", 5)
    with connect(url) as queue:
        assert queue.size("default") == 5
    with open_broker(url) as broker:
        broker.xadd_many("events", [{"k": "a"}, {"k": "a"}, {"k": "b"}])
        broker.xadd_many("millstream:history", as_entries(history(20)))
    assert project(spark, url, "events", key="k", fold=_count, table="states").events == 3
    assert metrics(spark, url).total.enqueued == 20
    assert {path.name for path in tmp_path.iterdir()} >= {"shop.db", "states"}
