"""The sink against a redis-py pipeline of XADDs: the same rows, the same server, in one run.

    python benchmarks/spark/write.py               a million rows, about a minute
    python benchmarks/spark/write.py --rows 50000  shows that it runs; its figures mean little

The pipeline is given its JSON texts ready made, in a list, and sends a thousand at a time without a
transaction: it pays for nothing but XADD, and adds entries twice when it is repeated. The sink starts from a
DataFrame, makes the JSON, and publishes exactly once. `foreachPartition` is the writer that one would write
oneself: the same pipeline on as many tasks; it gets a tenth of the rows, because it is slow. Contenders take
turns, and the median counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import redis
from pyspark.sql import DataFrame, SparkSession
from tests.servers import RedisServer

WANTED = 1.5  # times the pipeline
SINK, PIPELINE = "sink (exactly once)", "redis-py pipeline of XADDs"
STREAM = "orders"


@dataclass(frozen=True)
class Row:
    """One contender: rows per second over the whole time, the median of the rounds."""

    what: str
    rows: int
    seconds: float
    per_second: float
    ratio: float  # over the pipeline


def frame(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Rows whose JSON takes about 128 bytes."""
    return spark.range(0, rows, numPartitions=partitions).selectExpr(
        "id AS order_id",
        "concat('customer-', id % 9973) AS customer",
        "cast(id % 500 AS double) / 4 AS amount",
        "'EUR' AS currency",
        "id % 7 = 0 AS express",
        "timestamp_micros(1767225600000000 + id * 1000) AS placed_at",
    )


def text(number: int) -> str:
    """The same row, as the sink writes it."""
    seconds, millis = divmod(number, 1000)
    hours, seconds = divmod(seconds, 3600)
    day, minutes, seconds = 1 + hours // 24, seconds // 60, seconds % 60
    moment = f"2026-01-{day:02d}T{hours % 24:02d}:{minutes:02d}:{seconds:02d}.{millis:03d}000Z"
    row = {"order_id": number, "customer": f"customer-{number % 9973}", "amount": number % 500 / 4}
    row |= {"currency": "EUR", "express": number % 7 == 0, "placed_at": moment}
    return json.dumps(row, separators=(",", ":"))


def by_sink(data: DataFrame, url: str, stream: str) -> None:
    data.write.format("millstream").option("url", url).option("stream", stream).mode("append").save()


def by_pipeline(texts: list[str], url: str, stream: str) -> None:
    with redis.Redis.from_url(url) as client:
        for start in range(0, len(texts), 1000):
            pipe = client.pipeline(transaction=False)
            for one in texts[start : start + 1000]:
                pipe.xadd(stream, {"data": one})
            pipe.execute()


def by_foreach(data: DataFrame, url: str, stream: str) -> None:
    def send(rows: Iterator[Any]) -> None:
        with redis.Redis.from_url(url) as client:
            pipe = client.pipeline(transaction=False)
            for number, row in enumerate(rows, 1):
                pipe.xadd(stream, {"data": json.dumps(row.asDict(), default=str, separators=(",", ":"))})
                if number % 1000 == 0:
                    pipe.execute()
            pipe.execute()

    data.foreachPartition(send)


def run(spark: SparkSession, rows: int = 1_000_000, rounds: int = 3, partitions: int = 4) -> list[Row]:
    """Measure; the sink's row comes first. Raises AssertionError where a contender added other rows."""
    texts = [text(number) for number in range(rows)]
    data, few = frame(spark, rows, partitions), frame(spark, rows // 10, partitions)
    contenders: list[tuple[str, int, Callable[[str, str], None]]] = [
        (SINK, rows, lambda url, stream: by_sink(data, url, stream)),
        (PIPELINE, rows, lambda url, stream: by_pipeline(texts, url, stream)),
        ("foreachPartition with that pipeline", rows // 10, lambda url, stream: by_foreach(few, url, stream)),
    ]
    times: dict[str, list[float]] = {what: [] for what, _, _ in contenders}
    with RedisServer("redis7") as server, server.client() as client:
        by_sink(frame(spark, 20_000, partitions), server.url, "warm")
        for _ in range(rounds):
            for what, wanted, contender in contenders:
                began = time.perf_counter()
                contender(server.url, STREAM)
                times[what].append(time.perf_counter() - began)
                found = client.xlen(STREAM)
                assert found == wanted, f"{what}: {found:,} of {wanted:,} rows"
                if what == SINK:
                    check(client)
                client.flushall()
    rates = {what: wanted / statistics.median(times[what]) for what, wanted, _ in contenders}
    return [
        Row(
            what,
            wanted,
            round(wanted / rates[what], 2),
            round(rates[what]),
            round(rates[what] / rates[PIPELINE], 2),
        )
        for what, wanted, _ in contenders
    ]


def check(client: redis.Redis) -> None:
    """That the sink's entries are those of the pipeline."""
    for _, fields in client.xrange(STREAM, count=100):
        written = json.loads(fields[b"data"])
        assert written == json.loads(text(written["order_id"])), written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    from millstream.spark import session

    conf = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    spark = session(options.master, app_name="millstream-bench", conf=conf)
    try:
        found = run(spark, options.rows, options.rounds)
    finally:
        spark.stop()
    for row in found:
        figures = (
            f"{row.rows:>10,} rows {row.seconds:8.2f} s {row.per_second:>10,} rows/s  {row.ratio:5.2f} x"
        )
        print(f"{row.what:38} {figures}")
    print(f"wanted: the sink at least {WANTED} x the pipeline: {'yes' if found[0].ratio >= WANTED else 'NO'}")
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    (out / "bench-spark-write.json").write_text(json.dumps([asdict(row) for row in found], indent=2))


if __name__ == "__main__":
    main()
