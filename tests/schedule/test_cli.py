"""millstream schedule list, with the schedules of an application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
APP = """
from millstream import Job, connect

queue = connect()

class Nightly(Job, queue="nights", name="app.Nightly", cron="30 3 * * *", tz="Europe/Berlin"):
    def handle(self) -> None: ...

class Sync(Job, name="app.Sync"):
    shop: str
    def handle(self) -> None: ...

queue.schedule("sync", 90, Sync(shop="x"), catch_up="all")
"""


def test_the_schedules_of_an_application_are_listed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from millstream.cli import main; main()", "schedule", "list", *arguments],
            cwd=tmp_path,
            env=clean | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout

    shown = run("--app", "shop:queue")
    assert "app.Nightly" in shown
    assert "30 3 * * * (Europe/Berlin)" in shown
    assert "every 90 s" in shown
    found = {each["schedule"]: each for each in json.loads(run("--app", "shop:queue", "--json"))}
    assert set(found) == {"app.Nightly", "sync"}
    assert found["sync"]["next_at"] % 90 == 0
    assert (found["sync"]["last_at"], found["sync"]["catch_up"]) == (0, "all")
    assert found["app.Nightly"]["queue"] == "nights"
    assert "nothing is delayed" in run(), "schedules live in the code: without it there are none"
