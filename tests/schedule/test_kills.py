"""Workers with a schedule are killed, at times all of them: no tick is left out, none is pushed twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from millstream.sql import Database, parse_url
from tests.contract.streams.helpers import until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("server", ["redis7", "postgres"])
def test_ticks_survive_the_workers(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url: str = request.getfixturevalue(server).url
    if server == "postgres":
        Database.open(parse_url(url), create=True).close()
    file, prefix = tmp_path / "marks", f"test-{uuid.uuid4().hex[:12]}"
    file.touch()

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.schedule.app", url, prefix, str(file)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def lines() -> list[list[str]]:
        return [line.split() for line in file.read_text().splitlines()]

    chance = random.Random(3)
    workers = [start(), start()]
    kills = 0
    try:
        until(lambda: len(lines()) >= 2, "the first ticks", 60)
        for _ in range(3):
            place = chance.randrange(2)
            end(workers[place])
            workers[place] = start()
            kills += 1
            time.sleep(chance.uniform(0.2, 0.8))
        for worker in workers:  # a silence, in which nobody could push
            end(worker)
            kills += 1
        time.sleep(1.0)
        silent = time.time()
        workers = [start()]
        until(lambda: datetime.fromisoformat(lines()[-1][0]).timestamp() > silent + 0.5, "later ticks", 60)
        count = len(lines())
        until(lambda: len(lines()) > count + 5, "some more", 60)
    finally:
        for worker in workers:
            end(worker)
    assert kills == 5
    found = sorted({datetime.fromisoformat(tick).timestamp() for tick, _ in lines()})
    # The newest may be missing: they were running when the last worker was killed.
    settled = [tick for tick in found if tick < found[-1] - 1.5]
    assert all(0.2 < b - a < 0.3 for a, b in pairwise(settled)), "a tick was left out"
    pushed = Counter(tick for tick, delivery in lines() if delivery == "1")
    assert set(pushed.values()) == {1}, "a tick was pushed twice"
