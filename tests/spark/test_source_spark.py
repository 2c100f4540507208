"""The source under a real Spark: found by its name, restarted from a checkpoint, and in flat memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks.spark.processes import MemoryWatch, own_memory
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from millstream import open_broker
from tests.servers import RedisServer


@pytest.fixture
def name() -> str:
    return f"spark:{uuid4().hex[:8]}"


def fill(url: str, stream: str, low: int, high: int) -> None:
    with open_broker(url) as broker:
        for begin in range(low, high, 10_000):
            broker.xadd_many(stream, [{"n": n, "x": n / 2} for n in range(begin, min(begin + 10_000, high))])


def text_of(error: BaseException) -> str:
    return str(error)


def test_the_format_is_found_and_its_columns_can_be_used(spark: SparkSession, name: str) -> None:
    password = "s3cr3t-w0rd"
    with RedisServer("redis7", password=password) as server:
        fill(server.url, f"{name}:a", 0, 25_000)
        with open_broker(server.url) as broker:
            broker.xadd(f"{name}:b", {"n": 5}, type="ordered", headers={"tenant": "t"})

        def reader() -> DataFrameReader:
            made = spark.read.format("millstream").option("url", server.url)
            return made.option("minPartitions", 3)

        frame = reader().option("stream", f"{name}:*").load()
        assert frame.count() == 25_001
        row = frame.where("type = 'ordered' AND headers['tenant'] = 't'").head()
        assert row is not None
        assert (row.stream, row.data) == (f"{name}:b", '{"n":5}')
        assert abs(row.timestamp.timestamp() - int(row.id.split("-")[0]) / 1000) < 0.001
        typed = reader().schema("n long, x double, _corrupt string").load(f"{name}:a")
        summed = typed.agg(F.sum("n"), F.sum("x"), F.count("_corrupt")).head()
        assert tuple(summed or ()) == (312487500, 156243750.0, 0)
        assert typed.rdd.getNumPartitions() >= 3
        plan: Any = frame._jdf.queryExecution()  # type: ignore[operator]
        assert password not in plan.toString()
        with pytest.raises(PySparkException) as failed:
            reader().option("startingOffsets", "newest").load(f"{name}:a").count()
        assert "startingOffsets cannot be 'newest'; use earliest" in text_of(failed.value)
        assert password not in text_of(failed.value)


def run(frame: DataFrame, folder: Path, fail_at: int | None = None) -> Any:
    """A streaming query until everything is read; each batch goes to a folder of its own."""

    def save(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/out/batch={number}")
        if number == fail_at:
            raise RuntimeError("a crash after the batch was written, before Spark knew")

    query = (
        frame.writeStream.foreachBatch(save)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)
    return query


def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, redis7: RedisServer, name: str, tmp_path: Path
) -> None:
    def stream(schema: str = "n long, _id string", **options: Any) -> DataFrame:
        reader = spark.readStream.format("millstream").option("url", redis7.url).option("stream", name)
        return reader.options(**options).schema(schema).load()

    fill(redis7.url, name, 0, 2500)
    with pytest.raises(PySparkException, match="a crash after the batch"):
        run(stream(maxRowsPerTrigger=1000), tmp_path, fail_at=1)
    fill(redis7.url, name, 2500, 3000)
    query = run(stream(maxRowsPerTrigger=1000), tmp_path)
    rows = spark.read.parquet(f"{tmp_path}/out")
    assert (rows.count(), rows.select("_id").distinct().count()) == (3000, 3000), "none twice, none missing"
    assert rows.agg(F.sum("n")).head()[0] == sum(range(3000))  # type: ignore[index]
    per_batch = {row["batch"]: row["count"] for row in rows.groupBy("batch").count().collect()}
    assert max(per_batch.values()) <= 1000
    (last,) = query.recentProgress[-1]["sources"]
    assert json.loads(last["latestOffset"])[name]["lag"] == 0
    # Another schema on the same checkpoint, and then a trim of what nobody has read.
    fill(redis7.url, name, 3000, 3100)
    with redis7.client() as client:
        client.xtrim(name, maxlen=40, approximate=False)
    with pytest.raises(PySparkException, match="60 entries after it were trimmed"):
        run(stream("n long, x double, _id string"), tmp_path)
    run(stream("n long, x double, _id string", failOnDataLoss="false"), tmp_path)
    rows = spark.read.option("mergeSchema", "true").parquet(f"{tmp_path}/out")
    assert rows.count() == 3040
    assert rows.where("x IS NOT NULL").count() == 40


def test_a_long_stream_needs_no_more_memory_than_a_short_one(
    spark: SparkSession, redis7: RedisServer, name: str, tmp_path: Path
) -> None:
    fill(redis7.url, name, 0, 80_000)
    reader = spark.readStream.format("millstream").option("url", redis7.url).option("stream", name)
    frame = reader.option("maxRowsPerTrigger", 10_000).schema("n long, x double").load()
    # Python's processes alone: how large the JVM lets its heap grow is Spark's own matter.
    with MemoryWatch(lambda: own_memory("python"), every=0.1) as watch:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(100)
    assert query.exception() is None
    batches = [progress["numInputRows"] for progress in query.recentProgress]
    assert (sum(batches), max(batches)) == (80_000, 10_000)
    lives: dict[int, list[int]] = {}
    for _, sizes in watch.samples:
        for pid, size in sizes.items():
            lives.setdefault(pid, []).append(size)
    # In the last third of its life a process needs what it needed before, give or take 2 MB. One that kept
    # the rows of three batches got 13 to 20 MB.
    grown = {pid: sizes[-1] - sizes[len(sizes) * 2 // 3] for pid, sizes in lives.items() if len(sizes) > 10}
    assert grown
    assert max(grown.values()) < 8e6, lives
    with redis7.client() as client:
        client.delete(name)


def test_the_archive_and_the_history_as_tables(spark: SparkSession, tmp_path: Path) -> None:
    from millstream.history import Record
    from tests.spark.test_source_sql import insert

    url = f"sqlite:///{tmp_path}/archive.db"
    with open_broker(url) as broker:
        broker.xadd("millstream:history", {"job_id": "s", "type": "mail", "state": "failed", "at": 5.0})
    insert(url, *(Record(job_id=f"j{n}", type="mail", state="completed", at=float(n)) for n in range(50)))
    reader = spark.read.format("millstream").option("url", url)
    archived = reader.option("archive", "true").load()
    row = archived.where("job_id = 'j7'").select("queue", "attempt", "tags", "headers", "due_at").head()
    assert tuple(row or ()) == ("default", 1, [], {}, None)
    assert archived.count() == 50
    streamed = spark.read.format("millstream").option("url", url).option("history", "true").load()
    assert archived.unionByName(streamed).groupBy("state").count().count() == 2
