"""A standalone cluster of two workers: the same results as local[2], also when an executor is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream import open_broker
from tests.servers import RedisServer
from tests.servers.process import wait_until
from tests.spark.cluster import ROOT, Cluster
from tests.spark.conftest import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(600), pytest.mark.long("six Javas on two cores")]


@dataclass(frozen=True)
class Ran:
    """What the driver on the cluster found, and what was done to it."""

    url: str
    source: str
    result: dict[str, Any]
    killed: int  # the pid of the executor
    attempts: dict[int, int]  # how often each partition of the interrupted job ran as far as its wait

    def values(self, name: str) -> Counter[tuple[str, int]]:
        """The entries of a stream that the driver wrote."""
        with open_broker(self.url) as broker:
            entries = broker.xrange(self.result[name])
        return Counter((entry.data["k"], entry.data["v"]) for entry in entries)


@pytest.fixture(scope="module")
def ran(redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One driver on one cluster for all tests here: it reads, writes, and loses an executor meanwhile."""
    require_spark()
    folder = tmp_path_factory.mktemp("cluster")
    source = f"cluster-{uuid.uuid4().hex}"
    with open_broker(redis7.url) as broker:
        broker.xadd_many(source, [{"k": f"k{number % 7}", "v": number} for number in range(5000)])
    with Cluster().running() as cluster, (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.spark.cluster_driver",
                cluster.master.url,
                redis7.url,
                source,
                folder,
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            killed = _lose_an_executor(cluster, driver, folder)
            assert driver.wait(150) == 0, (folder / "driver.log").read_text()[-4000:]
        finally:
            driver.kill()
            driver.wait()
    attempts = Counter(int(mark.name.split("-")[1]) for mark in folder.glob("task-*"))
    result = json.loads((folder / "result.json").read_text())
    return Ran(redis7.url, source, result, killed, dict(attempts))


def _lose_an_executor(cluster: Cluster, driver: subprocess.Popen[bytes], folder: Path) -> int:
    """Kill -9 the executor of the second worker while a task of it has read its rows and not yet ended."""

    def alive_and(done: bool) -> bool:
        assert driver.poll() is None, (folder / "driver.log").read_text()[-4000:]
        return done

    wait_until(lambda: alive_and((folder / "ready").exists()), "the first two jobs", timeout=300)
    (victim,) = cluster.workers[1].executors()
    # Two cores, so two tasks wait; when both do, one of them is the victim's.
    wait_until(lambda: alive_and(len(list(folder.glob("task-*"))) >= 2), "two tasks that wait", timeout=120)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in cluster.workers[1].executors(), "the end of the executor")
    (folder / "go").touch()
    return victim


def test_a_read_gives_the_same_as_on_local(ran: Ran, spark: SparkSession) -> None:
    from tests.spark.cluster_driver import read_back

    on_local = read_back(spark, ran.url, ran.source)
    assert ran.result["read"] == on_local
    assert on_local[-1] == [5000]


def test_a_write_gives_the_same_as_on_local(ran: Ran, spark: SparkSession) -> None:
    from tests.spark.cluster_driver import numbers, write

    stream = f"local-{uuid.uuid4().hex}"
    write(numbers(spark), ran.url, stream)
    with open_broker(ran.url) as broker:
        on_local = Counter((entry.data["k"], entry.data["v"]) for entry in broker.xrange(stream))
    assert ran.values("written") == on_local
    assert on_local.total() == len(on_local) == 4000


def test_the_loss_of_an_executor_loses_and_doubles_nothing(ran: Ran) -> None:
    assert max(ran.attempts.values()) > 1, "no task ran again: the fault did not fire"
    assert ran.values("survived") == ran.values("written")


def test_the_control_has_duplicates(ran: Ran) -> None:
    """What a task adds by itself stays when its executor is lost: the reason for the sink's staging."""
    naive = ran.values("naive")
    assert set(naive) == set(ran.values("written"))
    assert naive.total() > 4000
