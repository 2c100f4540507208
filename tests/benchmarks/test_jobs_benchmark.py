"""The benchmark of jobs runs and prints its ratios. Its figures do not matter here: machines are noisy."""

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
        [sys.executable, "benchmarks/jobs.py", *arguments],
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


@pytest.mark.parametrize(
    "sections",
    [("push", "drain"), pytest.param(("latency", "backlog"), marks=pytest.mark.long("the other half"))],
)
def test_the_quick_form_prints_ratios_and_writes_them(tmp_path: Path, sections: tuple[str, ...]) -> None:
    out = tmp_path / "bench.json"
    only = [f"--only={section}" for section in sections]
    done = run("--quick", "--peers", "none", *only, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ratio" in done.stdout
    report = json.loads(out.read_text())
    assert {"millstream", "bare"} <= set(report["contenders"])
    assert report["ratios"]
    assert all(row["ratio"] > 0 for row in report["ratios"])


@pytest.mark.long("the quick form has run the same parts")
def test_a_peer_without_an_environment_is_named_with_the_reason(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    # No peer is measured: the quick form never makes an environment, and takes two at most.
    done = run("--quick", "--only", "push", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    measured = {label.partition(" (")[0] for label in report["contenders"]}
    peers = {path.parent.name for path in ROOT.glob("benchmarks/jobs/peers/*/requirements.txt")}
    assert len(peers & measured) <= 2
    assert set(report["not_available"]) == peers - measured
    assert all(reason and reason in done.stdout for reason in report["not_available"].values())


def test_an_unknown_peer_is_an_error() -> None:
    done = run("--quick", "--peers", "nobody")
    assert done.returncode == 1
    assert "no adapter for nobody" in done.stderr
