"""The benchmark of jobs on SQL databases runs, and prints its ratios and plans. Its figures do not matter."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import requirement_missing
from tests.servers.postgres import find_postgres

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "sql_jobs" / "peers"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/sql_jobs.py", "--quick", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def report_of(path: Path, done: subprocess.CompletedProcess[str], database: str) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(path.read_text())["databases"][database]
    return found


def test_the_quick_form_compares_us_with_a_peer(tmp_path: Path) -> None:
    out, peers = tmp_path / "bench.json", tmp_path / "peers"
    # A stand-in with the rival's name, for which there are ratios, and without an environment of its own.
    for name in ("bare", "huey", "broken"):
        shutil.copytree(PEERS / "sqlite" / "bare", peers / "sqlite" / name)
    (peers / "sqlite" / "broken" / "peer.py").write_text("raise SystemExit('cannot be had')")
    only = [f"--only={section}" for section in ("push", "drain", "backlog")]
    size = ("--bulk", "500", "--pushes", "50", "--backlog", "500")
    done = run("--database", "sqlite", *only, *size, "--peers-folder", str(peers), "--out", str(out))
    report = report_of(out, done, "sqlite")
    assert set(report["contenders"]) == {"millstream", "bare", "huey"}
    assert "cannot be had" in report["not_available"]["broken"]
    against = {(row["what"], row["against"]) for row in report["ratios"]}
    for what in ("push one by one", "push from 8 threads", "push in bulk", "drain"):
        assert (f"millstream: {what}, per s", "huey") in against
    assert all(row["ratio"] > 0 for row in report["ratios"])
    assert report["contenders"]["millstream"]["rounds"]["backlog_500"][0] > 0
    assert "ratio" in done.stdout


@pytest.mark.long("tests of plans look at each statement")
def test_the_plan_is_shown_at_the_backlog_and_after_it(tmp_path: Path) -> None:
    if find_postgres() is None:
        requirement_missing("PostgreSQL (uv sync, or the package postgresql)")
    out = tmp_path / "bench.json"
    only = ("--database", "postgresql", "--only", "plan", "--backlog", "3000")
    done = run(*only, "--peers", "none", "--out", str(out))
    report = report_of(out, done, "postgresql")
    before, after, vacuumed = report["study"]["pictures"]
    assert before["jobs"] == 3500
    assert after["jobs"] == 1000
    assert vacuumed["table"]["n_dead_tup"] <= after["table"]["n_dead_tup"]
    for picture in (before, after, vacuumed):
        assert {plan["step"] for plan in picture["plans"]} == {"reserve", "settle"}
        text = "\n".join(plan["plan"] for plan in picture["plans"])
        assert "Index Scan using millstream_jobs_lanes" in text or "Index Only Scan" in text
        assert "millstream_jobs_pkey" in text
        assert "Seq Scan on millstream_jobs" not in text
        assert all(plan["milliseconds"] > 0 and plan["blocks"] > 0 for plan in picture["plans"])
    assert len(report["study"]["rates_by_tenth"]) == 10
    assert "jobs_lanes" in done.stdout


def test_an_unknown_peer_is_an_error() -> None:
    done = run("--peers", "nobody")
    assert done.returncode == 2
    assert "no adapter for nobody" in done.stderr
