"""The source against what one would use otherwise: the same entries, one Spark, in one run.

    python benchmarks/spark/read.py                    a million entries, some minutes
    python benchmarks/spark/read.py --rows 10000000    and ten million
    python benchmarks/spark/read.py --quick            shows that it runs; its figures mean little

Every entry has 128 bytes of JSON. Contenders take turns within a round, after one round that does not count
(a JVM is slow at first), and the median counts; read the ratios, not the figures. CPU seconds are those of
all processes: the driver, the JVM, Python's daemons and workers; not the server's, which has the same work
from each.

- `sum`: three fields of the JSON as typed columns, summed. `parquet` has the same texts in a file, and
from_json.
  `rows` is the source that one would write oneself: redis-py, json.loads, a tuple for each entry.
- `count`: all default columns, counted; `rows` gives the same columns as tuples.
- `bare`: redis-py with hiredis, XRANGE over everything, nothing else; without Spark, in this process.
- `stream`: Trigger.AvailableNow over everything with maxRowsPerTrigger, and the memory of all processes
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import redis
from benchmarks.spark.processes import MemoryWatch, cpu_seconds, memory
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.servers import RedisServer

from millstream.spark import session

STREAM = "bench:events"
SCHEMA = "order_id long, customer string, amount double"
WANTED = {  # the most that CPU may be, as a share of another contender's
    ("sum, millstream", "sum, parquet"): 1.0,
    ("sum, millstream", "sum, rows"): 0.35,
    ("count, millstream", "count, rows"): 0.45,
}
Values = dict[str, dict[str, list[float]]]


def text(number: int) -> bytes:
    """128 bytes of JSON."""
    body = f'{{"order_id":{number},"customer":"customer-{number % 9973}","amount":{number % 500 / 4},"note":"'
    return (body + "x" * (126 - len(body)) + '"}').encode()


def fill(port: int, rows: int) -> int:
    """Add the entries, as raw commands; returns the sum of all order ids."""
    head = f"*5\r\n$4\r\nXADD\r\n${len(STREAM)}\r\n{STREAM}\r\n$1\r\n*\r\n$4\r\ndata\r\n$128\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        replies = connection.makefile("rb")
        for begin in range(0, rows, 5000):
            numbers = range(begin, min(begin + 5000, rows))
            connection.sendall(b"".join(head + text(number) + b"\r\n" for number in numbers))
            for _ in range(2 * len(numbers)):
                replies.readline()
    return rows * (rows - 1) // 2


def tuple_source(typed: bool) -> type:
    """A plain data source in tuples; made here, so that Spark sends its code to the workers."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, options: dict[str, str]) -> None:
            self.port, self.stream = int(options["port"]), options["stream"]
            self.parts = int(options["parts"])

        def partitions(self) -> list[Any]:
            import redis

            with redis.Redis(port=self.port) as client:
                first = int(client.xrange(self.stream, count=1)[0][0].split(b"-")[0])
                last = int(client.xrevrange(self.stream, count=1)[0][0].split(b"-")[0])
            step = (last - first) // self.parts + 1
            return [InputPartition((first + n * step, first + (n + 1) * step - 1)) for n in range(self.parts)]

        def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
            import datetime
            import json

            import redis

            low, high = (str(each) for each in partition.value)
            with redis.Redis(port=self.port) as client:
                while True:
                    entries = client.xrange(self.stream, low, high, count=10_000)
                    for entry_id, fields in entries:
                        data = fields[b"data"]
                        if typed:
                            record = json.loads(data)
                            yield record["order_id"], record["customer"], record["amount"]
                        else:
                            key = entry_id.decode()
                            moment = datetime.datetime.fromtimestamp(
                                int(key.partition("-")[0]) / 1000, datetime.UTC
                            )
                            yield self.stream, key, moment, data.decode(), None, {}
                    if len(entries) < 10_000:
                        return
                    low = "(" + entries[-1][0].decode()

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rows_typed" if typed else "rows_plain"

        def schema(self) -> str:
            if typed:
                return "order_id long, customer string, amount double"
            return (
                "stream string, id string, timestamp timestamp, data string, type string, "
                "headers map<string,string>"
            )

        def reader(self, schema: Any) -> Reader:
            return Reader(dict(self.options))

    return Source


def contenders(
    spark: SparkSession, server: RedisServer, rows: int, total: int, folder: str, parts: int
) -> dict[str, Callable[[], None]]:
    """What is measured; each checks its result."""

    def summed(frame: Any) -> None:
        row = frame.agg(F.sum("order_id"), F.sum("amount"), F.max("customer")).head()
        assert row is not None
        assert row[0] == total, (row[0], total)

    def counted(frame: Any) -> None:
        # Looks at a column: a bare count() of Parquet would read the number from the file's footer.
        row = frame.agg(F.count("id"), F.count(F.lit(1))).head()
        assert row is not None
        assert row[1] == rows, (row[1], rows)

    def millstream() -> Any:
        reader = spark.read.format("millstream").option("url", server.url).option("stream", STREAM)
        return reader.option("minPartitions", parts)

    def tuples(name: str) -> Any:
        options = {"port": server.port, "stream": STREAM, "parts": parts}
        return spark.read.format(name).options(**options).load()

    for typed in (True, False):
        spark.dataSource.register(tuple_source(typed))
    path = f"{folder}/events.parquet"
    if not Path(path).exists():
        millstream().schema("data string").load().write.parquet(path)
    parsed = spark.read.parquet(path).select(F.from_json("data", SCHEMA).alias("r")).select("r.*")
    return {
        "sum, millstream": lambda: summed(millstream().schema(SCHEMA).load()),
        "sum, parquet": lambda: summed(parsed),
        "sum, rows": lambda: summed(tuples("rows_typed")),
        "count, millstream": lambda: counted(millstream().load()),
        "count, rows": lambda: counted(tuples("rows_plain")),
    }


def bare(port: int) -> int:
    """Everything once over XRANGE, by hiredis alone."""
    seen, low = 0, "-"
    with redis.Redis(port=port) as client:
        while True:
            entries = client.execute_command("XRANGE", STREAM, low, "+", "COUNT", 10_000)
            seen += len(entries)
            if len(entries) < 10_000:
                return seen
            low = b"(" + entries[-1][0]


def measure(what: Callable[[], Any]) -> tuple[float, float]:
    began, cpu = time.monotonic(), cpu_seconds()
    what()
    return time.monotonic() - began, cpu_seconds() - cpu


def streaming(spark: SparkSession, server: RedisServer, rows: int, per_batch: int) -> dict[str, Any]:
    """A streaming query over everything, and how much memory it has meanwhile."""
    with tempfile.TemporaryDirectory() as folder, MemoryWatch(memory) as watch:
        began, cpu = time.monotonic(), cpu_seconds()
        reader = spark.readStream.format("millstream").option("url", server.url).option("stream", STREAM)
        frame = reader.option("maxRowsPerTrigger", per_batch).schema(SCHEMA).load()
        query = (
            frame.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", folder)
            .start()
        )
        query.awaitTermination()
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        batches = [progress["numInputRows"] for progress in query.recentProgress]
        seconds, used = time.monotonic() - began, cpu_seconds() - cpu
    megabytes = [size / 1e6 for _, size in watch.samples]
    third = max(1, len(megabytes) // 3)
    return {
        "rows": rows,
        "rows per batch": per_batch,
        "largest batch": max(batches, default=0),
        "seconds": round(seconds, 1),
        "cpu seconds": round(used, 1),
        "rows per second": round(rows / seconds),
        "MB at tenths of the time": [
            round(megabytes[min(len(megabytes) - 1, n * len(megabytes) // 10)]) for n in range(11)
        ],
        "MB, middle third": round(statistics.median(megabytes[third : 2 * third] or megabytes)),
        "MB, last third": round(statistics.median(megabytes[-third:])),
    }


def rounds(
    cores: int, server: RedisServer, rows: int, total: int, folder: str, count: int, only: str | None
) -> Values:
    """CPU and elapsed seconds of every contender, on a Spark with so many cores."""
    spark = session(
        f"local[{cores}]",
        app_name="bench-read",
        conf={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    found: Values = {}
    try:
        everybody = contenders(spark, server, rows, total, folder, parts=4)
        if only:
            everybody = {name: what for name, what in everybody.items() if only in name}
        for number in range(count + 1):
            for name, what in everybody.items():
                seconds, cpu = measure(what)
                print(
                    f"round {number}: {name}: {seconds:.1f} s, {cpu:.1f} CPU s", file=sys.stderr, flush=True
                )
                if number:
                    each = found.setdefault(name, {"seconds": [], "cpu": []})
                    each["seconds"].append(seconds)
                    each["cpu"].append(cpu)
    finally:
        spark.stop()
    return found


def show(title: str, found: Values, rows: int) -> None:
    print(f"\n{title}")
    print(f"  {'':24}{'seconds':>9}{'CPU s':>9}{'rows/s':>12}{'CPU s per M':>13}")
    for name, values in found.items():
        seconds, cpu = (statistics.median(values[key]) for key in ("seconds", "cpu"))
        print(f"  {name:24}{seconds:9.2f}{cpu:9.2f}{rows / seconds:12,.0f}{cpu / rows * 1e6:13.2f}")


def judge(found: Values) -> list[dict[str, Any]]:
    """The ratios that were promised; each over the CPU seconds of one run."""
    verdicts = []
    for (ours, other), limit in WANTED.items():
        if ours in found and other in found:
            ratio = statistics.median(found[ours]["cpu"]) / statistics.median(found[other]["cpu"])
            verdicts.append({"ours": ours, "over": other, "ratio": round(ratio, 3), "wanted": limit})
            mark = "ok" if ratio <= limit else "MISSED"
            print(f"  CPU of {ours} = {ratio:.2f} × {other} (wanted ≤ {limit}): {mark}")
    return verdicts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="twenty thousand entries, to see that it runs")
    parser.add_argument("--rows", type=int, help="entries (1000000)")
    parser.add_argument("--rounds", type=int, help="how often each is measured (3)")
    parser.add_argument("--only", help="contenders whose name has this; `stream` for the streaming query")
    parser.add_argument("--cores", default="2,1", help="how many cores Spark has, by comma (2,1)")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench-spark-read.json")
    args = parser.parse_args(arguments)
    rows = args.rows or (20_000 if args.quick else 1_000_000)
    count = args.rounds or (1 if args.quick else 3)
    results: dict[str, Any] = {"rows": rows, "quick": args.quick, "load": os.getloadavg()}
    with RedisServer("redis7") as server, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        total = fill(server.port, rows)
        print(f"{rows:,} entries of 128 bytes in Redis after {time.monotonic() - began:.0f} s", flush=True)
        if args.only in (None, "bare"):
            bare(server.port)
            seconds, cpu = measure(lambda: bare(server.port))
            results["bare"] = {"seconds": seconds, "cpu": cpu}
            show("bare hiredis, one process", {"xrange": {"seconds": [seconds], "cpu": [cpu]}}, rows)
        if args.only not in ("bare", "stream"):
            for cores in map(int, args.cores.split(",")):
                found = rounds(cores, server, rows, total, folder, count, args.only)
                show(f"Spark on {cores} core{'s' if cores > 1 else ''}", found, rows)
                results[f"local[{cores}]"] = {"contenders": found, "ratios": judge(found)}
        if args.only in (None, "stream"):
            # A small heap: a JVM that may take more does so before it collects anything.
            conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
            spark = session("local[2]", app_name="bench-stream", conf=conf)
            try:
                results["stream"] = streaming(spark, server, rows, max(rows // 20, 1000))
            finally:
                spark.stop()
            print("\nstreaming")
            for name, value in results["stream"].items():
                print(f"  {name:26}{value}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
