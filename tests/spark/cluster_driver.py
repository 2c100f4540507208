"""What the cluster's tests run, as a driver of its own: ``python -m tests.spark.cluster_driver MASTER …``.

The same functions run in the test's process on local[2], to compare.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.spark.cluster import wait_for_file

ROWS, PARTITIONS = 4000, 4


def read_back(spark: SparkSession, url: str, stream: str) -> list[list[Any]]:
    """The stream, aggregated: its keys, the entries and the sum of the values of each, and all ids."""
    entries = spark.read.format("millstream").option("url", url).option("stream", stream)
    found = entries.option("minPartitions", str(PARTITIONS)).load()
    parsed = found.selectExpr("id", "from_json(data, 'k STRING, v BIGINT') AS d")
    grouped = parsed.groupBy("d.k").agg({"*": "count", "id": "count", "d.v": "sum"})
    ids = parsed.selectExpr("count(DISTINCT id) AS n").collect()[0].n
    return [*sorted(list(row) for row in grouped.collect()), [ids]]


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("concat('k', id % 5) AS k", "id AS v")


def write(frame: DataFrame, url: str, stream: str) -> None:
    frame.write.format("millstream").mode("append").option("url", url).option("stream", stream).save()


def with_a_wait(url: str, naive: str, folder: str) -> Any:
    """A step within each task that says that it runs, and waits for the test before it goes on.

    It also does what a careless pipeline does: it adds its rows to the stream ``naive`` from within the
    task. That is the control, which has to show duplicates when a task is lost and runs again.
    """

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        from millstream import open_broker

        context = TaskContext.get()
        assert context is not None
        mark = Path(folder) / f"task-{context.partitionId()}-{context.taskAttemptId()}"
        with open_broker(url) as broker:
            for batch in batches:
                broker.xadd_many(naive, batch.to_pylist())
                yield batch
        mark.write_text(str(os.getppid()))
        wait_for_file(Path(folder) / "go", timeout=150.0)

    return step


def main(master: str, url: str, stream: str, folder: str) -> None:
    from millstream.spark import session

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    spark = session(master, app_name="millstream-cluster-test", conf=conf)
    result: dict[str, Any] = {"read": read_back(spark, url, stream)}
    names = {name: f"{name}-{uuid.uuid4().hex}" for name in ("written", "survived", "naive")}
    write(numbers(spark), url, names["written"])
    (Path(folder) / "ready").touch()
    frame = numbers(spark)
    waiting = frame.mapInArrow(with_a_wait(url, names["naive"], folder), frame.schema)
    write(waiting, url, names["survived"])
    result |= names
    (Path(folder) / "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
