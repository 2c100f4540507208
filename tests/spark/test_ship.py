"""Executors that have the libraries and not Millstream: a session with ``ship=True`` sends it to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import open_broker
from tests.spark.cluster import Cluster
from tests.spark.conftest import require_spark

pytestmark = [pytest.mark.timeout(600), pytest.mark.long("five Javas on two cores")]

DRIVER = """
import json, os, sys
from millstream.spark import session

master, ship = sys.argv[1], sys.argv[2] == "ship"
conf = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "1",
    "spark.ui.enabled": "false",
}
spark = session(master, app_name="millstream-ship-test", conf=conf, ship=ship)

def look(batches):
    import importlib.util, os, sys
    import pyarrow as pa
    found = importlib.util.find_spec("millstream")
    for _ in batches:
        yield pa.RecordBatch.from_pydict({
            "python": [sys.executable], "folder": [os.getcwd()], "millstream": [found and found.origin],
        })

seen = spark.range(0, 4, 1, 4).mapInArrow(look, "python string, folder string, millstream string")
print(json.dumps({"seen": [row.asDict() for row in seen.collect()]}), flush=True)
place = {"url": "sqlite:///shop.db", "stream": "numbers"}  # in the driver's folder
rows = spark.range(0, 400, 1, 4).selectExpr("id AS n")
rows.write.format("millstream").mode("append").options(**place).save()
read = spark.read.format("millstream").options(**place).option("minPartitions", "4").load()
total = read.selectExpr("sum(from_json(data, 'n INT').n) AS total").collect()[0].total
stream = spark.readStream.format("millstream").options(**place).load().selectExpr("data AS copy")
writer = stream.writeStream.format("millstream").option("url", place["url"]).option("stream", "copies")
writer = writer.option("checkpointLocation", os.path.abspath("checkpoint"))
writer.trigger(availableNow=True).start().awaitTermination()
print(json.dumps({"total": total}), flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with every library that is installed here, but without Millstream. Nothing is downloaded."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    told = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_path(name)).iterdir():
            link = Path(told.stdout.strip()) / entry.name
            if "millstream" not in entry.name and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    gone = subprocess.run([python, "-c", "import pyspark, pyarrow, msgspec; import millstream"],
                          cwd=folder, capture_output=True, text=True, check=False)  # fmt: skip
    assert "No module named 'millstream'" in gone.stderr
    return python


@pytest.fixture(scope="module")
def cluster(bare: Path) -> Iterator[Cluster]:
    require_spark()
    with Cluster(python=str(bare)).running() as made:
        yield made


def drive(cluster: Cluster, bare: Path, folder: Path, how: str) -> tuple[dict[str, Any], str]:
    """Run the driver in ``folder``; what it told, and its errors.

    Spark starts Python by one path on all machines. Here that is a script that is this Python on the driver's
    and the bare one on an executor's. No PYTHONPATH: Spark would send the driver's along.
    """
    chosen = folder / "python"
    chosen.write_text(
        f'#!/bin/sh\n[ -n "$SPARK_EXECUTOR_DIRS" ] && exec {bare} "$@"\nexec {sys.executable} "$@"\n'
    )
    chosen.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(chosen))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster.master.url, how],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    told: dict[str, Any] = {"code": done.returncode}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            told |= json.loads(line)
    return told, done.stderr


def test_what_was_sent_reads_and_writes_on_the_executors(
    cluster: Cluster, bare: Path, tmp_path: Path
) -> None:
    told, errors = drive(cluster, bare, tmp_path, "ship")
    assert told["code"] == 0, errors[-4000:]
    assert {row["python"] for row in told["seen"]} == {str(bare)}
    assert all(".zip" in row["millstream"] for row in told["seen"]), told["seen"]
    # Its tasks have folders of their own, so the relative URL was the driver's for them, too.
    assert str(tmp_path) not in {row["folder"] for row in told["seen"]}
    assert told["total"] == sum(range(400))
    with open_broker(f"sqlite:///{tmp_path}/shop.db") as broker:
        assert sorted(entry.data["n"] for entry in broker.xrange("numbers")) == list(range(400))
        assert broker.xlen("copies") == 400


def test_without_sending_it_the_executors_have_none(cluster: Cluster, bare: Path, tmp_path: Path) -> None:
    """The control: these executors cannot have Millstream from anywhere else."""
    told, errors = drive(cluster, bare, tmp_path, "plain")
    assert [row["millstream"] for row in told["seen"]] == [None] * 4
    assert told["code"] != 0
    assert "No module named 'millstream'" in errors
    assert "total" not in told
