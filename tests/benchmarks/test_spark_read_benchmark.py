"""The parts of the Spark benchmark that decide whether its figures mean anything."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from benchmarks.spark import processes, read

from tests.servers import RedisServer


@pytest.mark.parametrize("number", [0, 7, 9_999, 123_456, 9_999_999])
def test_every_entry_has_128_bytes_of_json(number: int) -> None:
    text = read.text(number)
    assert len(text) == 128
    assert json.loads(text)["order_id"] == number


def test_what_is_filled_in_is_what_is_counted() -> None:
    with RedisServer("redis7") as server, server.client() as client:
        assert read.fill(server.port, 6000) == sum(range(6000))
        assert client.xlen(read.STREAM) == 6000
        assert read.bare(server.port) == 6000


def test_the_time_of_a_process_that_has_ended_still_counts() -> None:
    before = processes.cpu_seconds()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert processes.cpu_seconds() - before >= 0.28


def test_a_ratio_that_is_missed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        name: {"seconds": [1.0], "cpu": [cpu]}
        for name, cpu in (("sum, millstream", 2.0), ("sum, parquet", 3.0), ("sum, rows", 4.0))
    }
    ratios = {verdict["over"]: verdict["ratio"] for verdict in read.judge(found)}
    assert ratios == {"sum, parquet": 0.667, "sum, rows": 0.5}
    said = capsys.readouterr().out
    assert "× sum, parquet (wanted ≤ 1.0): ok" in said
    assert "× sum, rows (wanted ≤ 0.35): MISSED" in said
