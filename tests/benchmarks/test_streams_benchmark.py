"""The benchmark runs and prints its ratios. Its figures are nobody's business here: machines are noisy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import FLAVOURS, find_redis, requirement_missing

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/streams.py", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(autouse=True)
def _needs_a_redis() -> None:
    if not any(find_redis(flavour)[0] for flavour in FLAVOURS):
        requirement_missing("any Redis or Valkey server")


def test_the_quick_form_prints_ratios_and_writes_them(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    sections = [f"--only={name}" for name in ("fakeredis", "redis", "scale")]
    done = run("--quick", *sections, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ratio" in done.stdout
    report = json.loads(out.read_text())
    assert {row["section"] for row in report["rows"]} == {"fakeredis", "redis", "scale"}
    assert len(report["rows"]) == 3 + 3 + 10
    assert all(row["ratio"] > 0 for row in report["rows"])


def test_a_short_soak_delivers_everything_once(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run("--only=soak", "--soak", "2", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())["soak"]
    assert result["added"] == result["delivered"] > 0
    assert (result["duplicates"], result["lost"], result["pending"], result["lag"]) == (0, 0, 0, 0)
