"""The program whose loaded classes go into the class archive: what a pipeline does in its first seconds.

Run by `cds.create` in a process of its own: ``python -m millstream.spark.training "<JVM options>"``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

WRITING_TAKES = 120.0  # seconds that the JVM has to write the archive after its last query


def train(options: str) -> None:
    """Start Spark with ``options``, run the usual kinds of query, and wait until its JVM has ended."""
    from pyspark import SparkContext  # noqa: PLC0415 - this module can be imported without the extra

    from millstream.spark.session import session  # noqa: PLC0415

    conf = {"spark.driver.extraJavaOptions": options, "spark.millstream.cds": "false"}
    spark = session("local[2]", app_name="millstream-training", conf=conf)
    gateway: Any = SparkContext._gateway
    rows = spark.range(200).selectExpr("id", "id % 7 AS k", "to_json(struct(id)) AS text")
    rows.createOrReplaceTempView("training")
    spark.sql("SELECT k, count(*), percentile_approx(id, 0.9), max(text) FROM training GROUP BY k").collect()
    rows.selectExpr("from_json(text, 'id INT').id AS id").toPandas()
    rows.repartition(2).mapInArrow(_same, rows.schema).count()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # what tells the JVM to end
    gateway.proc.wait(WRITING_TAKES)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    train(sys.argv[1])
