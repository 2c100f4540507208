"""Five schedulers race and are killed at random: every delayed job is promoted exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable

import pytest

from millstream.drivers.base import PushItem
from millstream.drivers.stream import open_stream_driver
from millstream.envelope import Envelope, JsonCodec, new_job_id
from tests.faults.conftest import sized
from tests.servers import RedisServer

SCHEDULER = """
import sys
from millstream.drivers.stream import open_stream_driver
from millstream.worker.scheduler import Scheduler
Scheduler(open_stream_driver(sys.argv[1]), [sys.argv[2]]).run()
"""

# What many programs do: read what is due, add it, remove it. Each step is right, all together are not.
NAIVE = """
import sys, time, redis
client, name = redis.from_url(sys.argv[1], decode_responses=True), sys.argv[2]
while True:
    for job in client.zrangebyscore(name + ":delayed", 0, time.time(), start=0, num=50):
        client.zrem(name + ":delayed", job)
        client.rpush(name + ":ready", job)
    time.sleep(0.002)
"""


class Schedulers:
    """Five processes; a killed one is replaced."""

    def __init__(self, script: str, url: str, name: str, count: int = 5) -> None:
        self._command = [sys.executable, "-c", script, url, name]
        self.killed = 0
        self._processes = [subprocess.Popen(self._command) for _ in range(count)]

    def kill_one(self, dice: random.Random) -> None:
        place = dice.randrange(len(self._processes))
        self._processes[place].kill()
        self._processes[place].wait()
        self._processes[place] = subprocess.Popen(self._command)
        self.killed += 1

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def race(schedulers: Schedulers, kills: int, left: Callable[[], int], patience: float) -> None:
    dice, deadline = random.Random(3), time.monotonic() + patience
    while time.monotonic() < deadline and (left() or schedulers.killed < kills):
        time.sleep(dice.uniform(0.1, 0.4))
        if schedulers.killed < kills:
            schedulers.kill_one(dice)


def _item(queue: str, delay: float) -> PushItem:
    envelope = Envelope(id=new_job_id(), type="delayed")
    return PushItem(envelope.id, queue, "default", JsonCodec().encode(envelope), delay=delay)


@pytest.mark.timeout(sized(120, 600))
def test_every_delayed_job_is_promoted_exactly_once(redis7: RedisServer, figures: list[str]) -> None:
    name, jobs, kills = f"delayed-{uuid.uuid4().hex[:8]}", sized(3000, 50_000), sized(8, 60)
    span = sized(4, 30)
    driver = open_stream_driver(redis7.url)
    dice = random.Random(7)
    schedulers = Schedulers(SCHEDULER, redis7.url, name)
    try:
        items = [_item(name, 1.0 + dice.random() * span) for _ in range(jobs)]
        assert len(driver.push(items)) == jobs
        race(schedulers, kills, lambda: driver.size(name).delayed, span + 60.0)
    finally:
        schedulers.end()
    seen: Counter[str] = Counter()
    while found := driver.reserve([name], "counter", 1000):
        seen.update(each.id for each in found)
    driver.close()
    twice = [job for job, count in seen.items() if count > 1]
    missing = {item.id for item in items} - set(seen)
    figures.append(
        f"scheduler race: 5 schedulers, {schedulers.killed} kills, {jobs} delayed jobs, "
        f"{len(missing)} missing, {len(twice)} promoted twice"
    )
    assert schedulers.killed >= kills
    assert missing == set()
    assert twice == []


def test_the_check_reports_schedulers_that_do_not_promote_atomically(
    redis7: RedisServer, figures: list[str]
) -> None:
    """The control: the same race between five naive schedulers."""
    name, jobs = f"naive-{uuid.uuid4().hex[:8]}", 2000
    with redis7.client(decode_responses=True) as client:
        now = time.time()
        client.zadd(f"{name}:delayed", {str(number): now + 1 + number / 1000 for number in range(jobs)})
        schedulers = Schedulers(NAIVE, redis7.url, name)
        try:
            race(schedulers, 3, lambda: int(client.zcard(f"{name}:delayed")), 30.0)
        finally:
            schedulers.end()
        promoted = Counter(client.lrange(f"{name}:ready", 0, -1))
    wrong = sum(count - 1 for count in promoted.values()) + jobs - len(promoted)
    figures.append(f"control, read then remove then add: {wrong} of {jobs} promoted twice or never")
    assert wrong > 0
