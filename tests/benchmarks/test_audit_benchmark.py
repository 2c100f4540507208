"""The benchmark of audit mode runs and prints its ratios. Its figures do not matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.servers import FLAVOURS, find_redis, requirement_missing

ROOT = Path(__file__).parents[2]


def test_the_quick_form_prints_ratios_and_writes_them(tmp_path: Path) -> None:
    if not any(find_redis(flavour)[0] for flavour in FLAVOURS):
        requirement_missing("any Redis or Valkey server")
    out = tmp_path / "audit.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/audit.py", "--quick", "--out", str(out)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert set(found) == {"one_by_one", "push_many"}
    for name, values in found.items():
        assert values["push"] > 0
        assert f"{name}: " in done.stdout
