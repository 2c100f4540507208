"""Strict priorities under load, and the low job that is not starved."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from millstream.drivers.stream import open_stream_driver
from millstream.envelope import PRIORITIES
from millstream.job import Job
from millstream.queue import Queue
from tests.faults.conftest import sized
from tests.servers import RedisServer
from tests.worker.conftest import until

started: list[tuple[str, float]] = []
MAX_WAIT = 1.5


class Level(Job):
    level: str
    seconds: float = 0.0

    def handle(self) -> None:
        started.append((self.level, time.monotonic()))
        if self.seconds:
            time.sleep(self.seconds)


@pytest.fixture(params=["memory", "redis7"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue(request.param).url
    started.clear()
    with Queue(open_stream_driver(url)) as queue:
        yield queue


def jobs(name: str, level: str, count: int, seconds: float = 0.0) -> list[Job]:
    return [Level(level=level, seconds=seconds).on_queue(name).with_priority(level) for _ in range(count)]


def test_no_lower_job_starts_before_a_higher_one(queue: Queue, figures: list[str]) -> None:
    name, each = f"levels-{uuid.uuid4().hex[:8]}", sized(300, 5000)
    for level in reversed(PRIORITIES):
        queue.push_many(jobs(name, level, each))
    with queue.worker([name], concurrency=1, poll=0.05) as worker:
        until(lambda: worker.counters.completed == 4 * each, "all to be done", 60)
    order = [PRIORITIES.index(level) for level, _ in started]
    inversions = sum(1 for one, other in itertools.pairwise(order) if other < one)
    figures.append(f"four full levels on {queue.driver.name}: {len(order)} starts, {inversions} out of order")
    assert inversions == 0


def test_a_critical_job_waits_only_for_what_was_prefetched(queue: Queue, figures: list[str]) -> None:
    name = f"levels-{uuid.uuid4().hex[:8]}"
    queue.push_many(jobs(name, "low", 3000, seconds=0.001))
    with queue.worker([name], concurrency=2, poll=0.05) as worker:
        until(lambda: len(started) > 500, "low jobs to run")
        before = len(started)
        queue.push_many(jobs(name, "critical", 20))
        held = worker.counters.buffered + worker.counters.running
        until(lambda: sum(1 for level, _ in started if level == "critical") == 20, "the critical jobs")
        levels = [level for level, _ in started]
        first = levels.index("critical")
        most = 2 + worker.options.max_prefetch
        figures.append(f"low jobs started after a critical one was pushed: {first - before} (held {held})")
        # Those that were held when it was pushed, and one more batch that was being read.
        assert first - before <= 2 * most
        assert levels[first : first + 40].count("critical") == 20
        queue.clear(name)


@pytest.mark.parametrize("max_wait", [MAX_WAIT, None])
def test_a_low_job_is_not_starved_by_a_flood_of_critical_ones(
    redis7: RedisServer, figures: list[str], max_wait: float | None
) -> None:
    """Without max_wait it is: that is the control."""
    started.clear()
    name = f"flood-{uuid.uuid4().hex[:8]}"
    with Queue(open_stream_driver(redis7.url)) as queue:
        stop = threading.Event()
        levels: list[int] = []

        def flood() -> None:
            while not stop.wait(0.01):
                waiting = queue.sizes(name).by_priority["critical"]
                levels.append(waiting)
                queue.push_many(jobs(name, "critical", max(0, 600 - waiting), seconds=0.002))

        queue.push_many(jobs(name, "critical", 600, seconds=0.002))
        flooding = threading.Thread(target=flood)
        flooding.start()
        pushed = time.monotonic()
        queue.push_many(jobs(name, "low", 1))
        try:
            with queue.worker([name], concurrency=4, poll=0.05, max_wait=max_wait):
                end = pushed + MAX_WAIT + 0.5
                while time.monotonic() < end and not any(level == "low" for level, _ in started):
                    time.sleep(0.01)
                stop.set()
                flooding.join()
                queue.clear(name)
        finally:
            stop.set()
        waited = [at - pushed for level, at in started if level == "low"]
    assert min(levels) > 0, "the flood ebbed"
    text = f"started after {waited[0]:.2f} s" if waited else f"did not start in {MAX_WAIT + 0.5} s"
    figures.append(f"a low job under a flood of critical ones, max_wait {max_wait}: {text}")
    if max_wait is None:
        assert not waited
    else:
        assert waited
        assert waited[0] < MAX_WAIT
