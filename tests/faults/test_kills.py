"""Workers killed with SIGKILL at random while jobs run: none is lost, none runs again without a reason."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.conftest import EVERYWHERE, Database, sized
from tests.worker.app_lines import Line
from tests.worker.conftest import until
from tests.worker.fleet import Fleet

LEASE = 2.0  # seconds; a busy machine may stall a process for one, and such a loss is no kill's
SECONDS = 0.05  # a job's length


@dataclass
class Campaign:
    """What was pushed, what was killed, what was seen."""

    pushed: set[str]
    kills: dict[int, float] = field(default_factory=dict)  # pid → when
    lines: list[Line] = field(default_factory=list)

    @property
    def lost(self) -> set[str]:
        return self.pushed - {line.job for line in self.lines if line.what == "done"}

    def runs(self) -> dict[str, list[Line]]:
        runs: dict[str, list[Line]] = defaultdict(list)
        for line in sorted(self.lines, key=lambda each: each.at):
            if line.what == "start":
                runs[line.job].append(line)
        return runs

    def second_runs(self) -> list[tuple[Line, Line]]:
        """Every run after a job's first one, with the run before it."""
        return [pair for runs in self.runs().values() for pair in itertools.pairwise(runs)]

    def unexplained(self) -> list[tuple[Line, Line]]:
        """Second runs whose predecessor was not killed before them.

        When a kill is noted its process still lives for a moment, and may begin one more job.
        """
        return [
            (before, after)
            for before, after in self.second_runs()
            if self.kills.get(before.pid, math.inf) > after.at
        ]

    def delays(self) -> list[tuple[float, int]]:
        """For each second run: seconds since its worker was killed, and the kills of others in that time.

        A worker that took a job over and was killed before it started it leaves no line, only a kill.
        """
        found = []
        for before, after in self.second_runs():
            if (killed := self.kills.get(before.pid)) is not None:
                others = sum(1 for at in self.kills.values() if killed < at < after.at)
                found.append((after.at - killed, others))
        return found


def run_campaign(fleet: Fleet, jobs: int, kills: int, *, seconds: float, patience: float) -> Campaign:
    """Push jobs and kill random processes until enough were killed; then wait until nothing is left.

    On a slow machine the jobs may be done before so many were killed: then more are pushed.
    """
    from tests.worker.app import Work, WorkAsync

    def more(count: int) -> list[str]:
        return fleet.push_many(
            [(Work if number % 2 else WorkAsync)(seconds=seconds) for number in range(count)]
        )

    fleet.start()
    until(lambda: len(fleet.pids()) == fleet.options.workers, "the processes")
    campaign = Campaign(set(more(jobs)))
    assert len(campaign.pushed) == jobs
    fleet.wait_for("start")
    dice = random.Random(11)
    interval = jobs * seconds / (fleet.options.workers * fleet.options.worker.concurrency) / kills / 2
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        # Somebody is left who can take over: how long that takes is what is measured.
        if len(campaign.kills) < kills and len(pids := busy(fleet)) > 1:
            pid = dice.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                campaign.kills[pid] = time.monotonic()
                os.kill(pid, signal.SIGKILL)
        left = fleet.queue.size(fleet.name)
        if left == 0 and len(campaign.kills) >= kills:
            break
        if left < 300 and len(campaign.kills) < kills:
            campaign.pushed.update(more(300))
        time.sleep(dice.uniform(0.5, 1.5) * min(1.0, interval))
    campaign.lines = fleet.lines()
    return campaign


def busy(fleet: Fleet) -> list[int]:
    """Processes that have taken up work: killing one that is still importing proves nothing."""
    alive, now = set(fleet.pids()), time.monotonic()
    with open(fleet.record, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 50_000))
        recent = [line.split() for line in file.read().splitlines()[1:-1]]
    return sorted(alive & {int(line[4]) for line in recent if now - float(line[5]) < 0.5})


@pytest.fixture(autouse=True)
def _environment(own: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_TEST_URL", own.url)
    monkeypatch.setenv("MILLSTREAM_TEST_LOG", str(tmp_path / "unused"))


@pytest.mark.timeout(sized(120, 1800))
@pytest.mark.parametrize("own", EVERYWHERE, indirect=True)
def test_no_job_is_lost_and_every_second_run_is_explained_by_a_kill(
    own: Database, tmp_path: Path, figures: list[str]
) -> None:
    jobs = sized(2000 if own.name == "redis" else 800, 50_000)
    kills = sized(4 if own.name == "redis" else 2, 50)
    options = {"lease": LEASE, "max_deliveries": 1000, "concurrency": 16}
    fleet = Fleet(own.url, tmp_path, workers=3, **options)
    try:
        campaign = run_campaign(fleet, jobs, kills, seconds=SECONDS, patience=sized(60, 1200))
        dead = len(fleet.driver.dead(fleet.name))
        left = fleet.queue.size(fleet.name)
    finally:
        fleet.end()
    second, delays = campaign.second_runs(), campaign.delays()
    cut_short = {line.job for line in campaign.lines if line.pid in campaign.kills}
    waits = sorted(seconds for seconds, _ in delays)
    figures.append(
        f"kill -9 [{own.name}]: {len(campaign.pushed)} jobs, {len(campaign.kills)} kills, "
        f"{len(campaign.lost)} lost, "
        f"{len(second)} second runs, {len(campaign.unexplained())} of them unexplained; "
        f"started again after a kill: median {statistics.median(waits):.2f} s, "
        f"longest {waits[-1]:.2f} s (lease {LEASE} s)"
    )
    assert len(campaign.kills) >= kills
    assert cut_short, "no killed process had begun a job: the fault did not fire"
    assert second, "no job ran twice: the kills hit nobody at work"
    assert campaign.lost == set()
    assert (dead, left) == (0, 0)
    assert campaign.unexplained() == []
    too_late = [(seconds, others) for seconds, others in delays if seconds > (LEASE + 2) * (1 + others)]
    assert too_late == []


def test_the_campaign_reports_a_worker_that_acks_before_running(
    own: Database, tmp_path: Path, figures: list[str]
) -> None:
    """The control: under the same kills, what was acked too early is lost, and the check says so."""
    fleet = Fleet(
        own.url,
        tmp_path,
        target="tests.faults.careless:acks_before_running",
        workers=2,
        lease=LEASE,
        concurrency=16,
    )
    try:
        campaign = run_campaign(fleet, 800, 2, seconds=SECONDS, patience=20)
        fleet.signal(signal.SIGTERM)
        fleet.wait()
        campaign.lines = fleet.lines()
    finally:
        fleet.end()
    figures.append(f"control, acked before it ran: {len(campaign.kills)} kills, {len(campaign.lost)} lost")
    assert campaign.lost


@pytest.mark.timeout(300)
@pytest.mark.parametrize("own", EVERYWHERE, indirect=True)
def test_a_dead_workers_jobs_start_again_within_lease_and_two_seconds(
    own: Database, tmp_path: Path, figures: list[str]
) -> None:
    from tests.worker.app import Work

    waits: list[float] = []
    with Fleet(own.url, tmp_path, workers=2, lease=LEASE, concurrency=16, max_deliveries=1000) as fleet:
        until(lambda: len(fleet.pids()) == 2, "two processes")
        for _ in range(sized(1, 10)):
            fleet.push_many([Work(seconds=1.5) for _ in range(16)])
            until(lambda: fleet.queue.sizes(fleet.name).waiting == 0, "all to be taken")
            time.sleep(0.3)
            pid = fleet.lines("start")[-1].pid
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until(lambda: fleet.queue.size(fleet.name) == 0, "all to be done", 30)
            lines = fleet.lines()
            done = {line.job for line in lines if line.pid == pid and line.what == "done"}
            running = {line.job for line in lines if line.pid == pid} - done
            again = [line.at - killed for line in lines if line.job in running and line.pid != pid]
            assert running
            assert len(again) >= 2 * len(running)  # a start and an end each
            waits += [
                line.at - killed
                for line in lines
                if line.job in running and line.pid != pid and line.what == "start"
            ]
    figures.append(
        f"taken over from a killed worker [{own.name}]: {len(waits)} jobs, started again after "
        f"{min(waits):.2f} to {max(waits):.2f} s (lease {LEASE} s)"
    )
    assert max(waits) < LEASE + 2
