"""A streaming query into Redis, crashed at random and started again from its checkpoint: every row once.

The crashes: a task that fails, a connection that is cut at a random step of staging or publishing and does
not come back, a Redis that is killed and restarted on its append-only file, and a driver that is killed with
SIGKILL at a random moment, its process group with it. The short form has a few of them; with
MILLSTREAM_FAULTS=long there are twenty. The control is the writer that one would write oneself, a plain XADD
in foreachBatch: the same check must find its duplicates.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.spark.sink import redis as sink_redis
from tests.conftest import LONG
from tests.servers import RedisServer, TcpProxy
from tests.spark.conftest import ROOT, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

FILES, ROWS = 3, 400  # new files before each crash, each a batch; rows of a file
KINDS = ("task", "cut", "restart", "kill")
STREAM = "orders"

# A driver of its own, to be killed. Its tasks are tried three times.
DRIVER = """
import sys
from millstream.spark import session
from tests.spark.test_sink_faults import rows_of, start
folder, url = sys.argv[1:]
conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
spark = session("local[2,3]", conf=conf)
print("up", flush=True)
start(rows_of(spark, folder), folder, url).awaitTermination()
print("done", flush=True)
"""


def rows_of(spark: SparkSession, folder: str) -> DataFrame:
    """The rows of all files, one file in a batch. A bomb in the folder fails one task, once."""
    bomb = f"{folder}/bomb"

    def watch(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            try:
                Path(bomb).unlink()
            except FileNotFoundError:
                continue
            raise RuntimeError("the bomb went off")

    source = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    return source.repartition(2).mapInArrow(watch, "n LONG")


def start(df: DataFrame, folder: str, url: str) -> StreamingQuery:
    writer = df.writeStream.format("millstream").option("url", url).option("stream", STREAM)
    return writer.option("checkpointLocation", f"{folder}/check").trigger(availableNow=True).start()


class Cutter(TcpProxy):
    """Executes a chosen call, swallows its answer, and lets nobody connect from then on."""

    def __init__(self, port: int, matching: bytes, skip: int) -> None:
        super().__init__(port)
        self._wanted, self._skip = matching, skip
        self._doomed: set[Any] = set()

    def _pass_request(self, link: Any, chunk: bytes) -> bytes | None:
        if self._wanted in chunk:
            self._skip -= 1
            if self._skip < 0:
                self._doomed.add(link)
        return super()._pass_request(link, chunk)

    def _pass_reply(self, link: Any, chunk: bytes) -> tuple[bytes, bool]:
        if link not in self._doomed:
            return super()._pass_reply(link, chunk)
        if not self.faults["dropped_replies"]:
            self.faults["dropped_replies"] = 1
            self.refuse()
        return b"", True


class Campaign:
    """One query over one folder, from crash to crash."""

    def __init__(self, spark: SparkSession, folder: Path, server: RedisServer, seed: int) -> None:
        self.spark, self.folder, self.server = spark, folder, server
        self.random = random.Random(seed)
        self.crashes: Counter[str] = Counter()
        self.rows = 0
        (folder / "in").mkdir()

    def add_files(self) -> None:
        """More work, so that every crash finds some."""
        for _ in range(FILES):
            lines = "".join(f'{{"n": {self.rows + row}}}\n' for row in range(ROWS))
            whole = self.folder / f"{self.rows:06d}.json"
            whole.write_text(lines)
            whole.rename(self.folder / "in" / whole.name)
            self.rows += ROWS

    def crash(self, kind: str) -> None:
        """Run the query until a crash of that kind has ended it, or it is done before."""
        self.add_files()
        if getattr(self, f"_{kind}")():
            self.crashes[kind] += 1

    def finish(self) -> None:
        query = start(rows_of(self.spark, str(self.folder)), str(self.folder), self.server.url)
        assert query.awaitTermination(200)

    def counts(self) -> Counter[int]:
        with self.server.client() as client:
            found = client.xrange(STREAM)
        return Counter(int(fields[b"data"][5:-1]) for _, fields in found)

    def _run(self, url: str) -> bool:
        """Whether the query failed."""
        query = start(rows_of(self.spark, str(self.folder)), str(self.folder), url)
        try:
            return not query.awaitTermination(200)
        except Exception:  # noqa: BLE001 - however Spark puts it
            return True

    def _task(self) -> bool:
        bomb = self.folder / "bomb"
        bomb.touch()
        failed = self._run(self.server.url)
        gone_off = not bomb.exists()
        bomb.unlink(missing_ok=True)
        return failed and gone_off

    def _cut(self) -> bool:
        script = self.random.choice(["STAGE", "HOLD", "BEGIN", "PUBLISH", "PUBLISH", "FINISH"])
        digest = getattr(sink_redis, script).digest.encode()
        with Cutter(self.server.port, digest, self.random.randrange(3)) as proxy:
            failed = self._run(f"redis://127.0.0.1:{proxy.port}/0?retry_for=0")
            return failed and proxy.faults["dropped_replies"] == 1

    def _restart(self) -> bool:
        """The server is killed in the middle, and comes back: within the sink's patience, or after it."""
        patience = self.random.choice(["0", "30"])
        query = start(
            rows_of(self.spark, str(self.folder)), str(self.folder), f"{self.server.url}?retry_for={patience}"
        )
        self._wait_for_growth(query)
        self.server.kill()
        self.server.start()
        with contextlib.suppress(Exception):  # it fails, or it survived
            query.awaitTermination(200)
        if query.isActive:
            query.stop()
        return True

    def _kill(self) -> bool:
        """A driver in a process of its own is killed at a random moment after its first batch.

        In that batch a task fails and is tried again: what the first attempt staged must not count.
        """
        (self.folder / "bomb").touch()
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(self.folder), self.server.url],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert driver.stdout is not None
        try:
            assert driver.stdout.readline() == "up\n"
            before = sum(self.counts().values())
            deadline = time.monotonic() + 200
            while sum(self.counts().values()) == before and driver.poll() is None:
                assert time.monotonic() < deadline, "the driver writes nothing"
                time.sleep(0.02)
            time.sleep(self.random.uniform(0, 0.5))
            running = driver.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            driver.stdout.close()
            exploded = not (self.folder / "bomb").exists()
            (self.folder / "bomb").unlink(missing_ok=True)
        return running and exploded

    def _wait_for_growth(self, query: StreamingQuery) -> None:
        with self.server.client() as client:
            before = client.xlen(STREAM)
            deadline = time.monotonic() + 60
            while client.xlen(STREAM) == before and query.isActive and time.monotonic() < deadline:
                time.sleep(0.005)
        time.sleep(self.random.uniform(0, 0.3))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    require_spark()
    with RedisServer("redis7", args=("--appendonly", "yes")) as made:
        yield made


@pytest.mark.timeout(3600 if LONG else 600)
def test_a_query_that_crashes_anywhere_writes_every_row_once(
    spark: SparkSession, server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 30)
    campaign = Campaign(spark, tmp_path, server, seed)
    wanted = 20 if LONG else 3
    kinds = KINDS if LONG else KINDS[:3]  # a driver to be killed needs a Java of its own
    for kind in islice(cycle(kinds), 3 * wanted):
        if campaign.crashes.total() < wanted:
            campaign.crash(kind)
    campaign.finish()
    found = campaign.counts()
    missing = [n for n in range(campaign.rows) if n not in found]
    twice = [n for n, times in found.items() if times > 1]
    with capsys.disabled():
        fired = ", ".join(f"{count} x {kind}" for kind, count in sorted(campaign.crashes.items()))
        told = f"{len(missing)} missing, {len(twice)} twice of {campaign.rows:,} rows (seed {seed})"
        print(f"\n  sink: {campaign.crashes.total()} crashes ({fired}): {told}")  # noqa: T201 - its figures
    assert campaign.crashes.total() >= wanted, campaign.crashes
    assert all(campaign.crashes[kind] for kind in kinds), campaign.crashes
    assert (missing, twice) == ([], [])


def test_the_writer_that_one_would_write_oneself_is_found_out(
    spark: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    campaign = Campaign(spark, tmp_path, server, 7)
    campaign.add_files()
    url = server.url

    def send(rows: Iterator[Any]) -> None:
        import redis

        with redis.Redis.from_url(url) as client:
            for row in rows:
                client.xadd(STREAM, {"data": f'{{"n":{row.n}}}'})
            if (tmp_path / "bomb").exists():
                (tmp_path / "bomb").unlink()
                raise RuntimeError("the bomb went off")

    def naive() -> None:
        source = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).json(f"{tmp_path}/in")
        writer = source.writeStream.foreachBatch(lambda df, _: df.foreachPartition(send))
        writer.option("checkpointLocation", f"{tmp_path}/naive").trigger(
            availableNow=True
        ).start().awaitTermination()

    (tmp_path / "bomb").touch()
    with pytest.raises(Exception, match="bomb"):
        naive()
    naive()
    found = campaign.counts()
    assert len(found) == campaign.rows
    assert sum(found.values()) > campaign.rows, "the check must see what a plain XADD does twice"
