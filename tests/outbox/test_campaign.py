"""Transactions, half of them rolled back, with relays and workers killed at random: what was committed runs.

MILLSTREAM_FAULTS=long makes it 1,000 transactions on each database, to Redis and to SQL.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from millstream import connect
from millstream.outbox import Outbox, OutboxKeeper
from millstream.sql import Database, parse_url
from tests.conftest import LONG
from tests.contract.streams.helpers import until
from tests.outbox.campaign import Effect
from tests.outbox.conftest import DATABASES, Source

ROOT = Path(__file__).parents[2]
TRANSACTIONS, SPAN = (1000, 40.0) if LONG else (60, 4.0)  # how many, and over how many seconds
HERE = "same database"
PAIRS = [("postgres", "redis7")]
if LONG:
    PAIRS = [(source, target) for source in DATABASES for target in ("redis7", HERE)]
pytestmark = pytest.mark.timeout(400 if LONG else 180)


class Crew:
    """Relays and workers, each replaced by a new process when it was killed."""

    def __init__(self, roles: list[str], *arguments: str) -> None:
        self._arguments = arguments
        self._processes = [(role, self._start(role)) for role in roles]
        self.kills: Counter[str] = Counter()

    def _start(self, role: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.outbox.campaign", role, *self._arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        for _, process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def kill_one(self, chance: random.Random) -> None:
        """Kill one that has begun to work, and start another in its place."""
        place = chance.randrange(len(self._processes))
        role, process = self._processes[place]
        assert process.poll() is None, f"a {role} ended by itself"
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self.kills[role] += 1
        self._processes[place] = (role, self._start(role))

    def end(self) -> None:
        for _, process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, source: Source) -> Iterator[tuple[str, ...]]:
    """The arguments of the campaign's processes: where the outbox is and where the jobs go."""
    if request.param == HERE:
        url = source.url
        Database.open(parse_url(url), create=True).close()
    else:
        url = request.getfixturevalue(request.param).url
    source.ask("CREATE TABLE {p}effects (n INTEGER NOT NULL)")
    yield source.url, source.tables, url, f"test-{uuid.uuid4().hex[:12]}"
    source.ask("DROP TABLE {p}effects")


def transactions(source: Source, crew: Crew, chance: random.Random, count: int, span: float) -> set[int]:
    """Make transactions and kill meanwhile; the numbers of those that were committed."""
    committed = set()
    began = time.monotonic()
    next_kill = began + 0.2
    for number in range(count):
        with Session(source.engine) as session:
            session.execute(text(f"INSERT INTO {source.orders} (id) VALUES ({number})"))
            Outbox(session, tables=source.tables).push(Effect(n=number))
            if number % 2:
                session.rollback()
            else:
                session.commit()
                committed.add(number)
        time.sleep(max(0.0, began + span * (number + 1) / count - time.monotonic()))
        if time.monotonic() > next_kill:
            crew.kill_one(chance)
            next_kill = time.monotonic() + chance.uniform(0.2, 0.8)
    return committed


def finish(source: Source, place: tuple[str, ...], crew: Crew) -> Counter[int]:
    """Wait until nothing is left to do, end the crew, and count the effects."""
    try:
        with (
            OutboxKeeper(source.url, tables=source.tables) as keeper,
            connect(place[2], prefix=place[3]) as queue,
        ):
            until(lambda: keeper.status().waiting == 0, "the outbox to be empty", 90)
            assert queue.drain(["effects"], timeout=90)
            assert keeper.status().aside == queue.sizes("effects").dead == 0
    finally:
        crew.end()
    return Counter(row[0] for row in source.ask("SELECT n FROM {p}effects"))


@pytest.mark.parametrize(("source", "place"), PAIRS, indirect=True)
def test_exactly_the_committed_jobs_take_effect_and_each_once(source: Source, place: tuple[str, ...]) -> None:
    crew = Crew(["relay", "relay", "work", "work"], *place)
    try:
        crew.ready()
        committed = transactions(source, crew, random.Random(7), TRANSACTIONS, SPAN)
    except BaseException:
        crew.end()
        raise
    effects = finish(source, place, crew)
    assert set(effects) == committed == {row[0] for row in source.ask(f"SELECT id FROM {source.orders}")}
    assert set(effects.values()) == {1}
    assert len(committed) == TRANSACTIONS // 2
    assert crew.kills["relay"] >= 2, "the fault did not fire"
    assert crew.kills["work"] >= 2, "the fault did not fire"


@pytest.mark.parametrize(("source", "place"), [("sqlite", "redis7")], indirect=True)
def test_the_control_reports_loss(source: Source, place: tuple[str, ...]) -> None:
    """The same, with relays that delete before they push."""
    crew = Crew(["careless"], *place)
    try:
        crew.ready()
        committed = transactions(source, crew, random.Random(7), 100, 5.0)
    except BaseException:
        crew.end()
        raise
    workers = Crew(["work"], *place)
    try:
        effects = finish(source, place, crew)
    finally:
        workers.end()
    assert crew.kills["careless"] >= 2, "the fault did not fire"
    assert set(effects) < committed, "a relay that deletes first has lost nothing: the campaign sees nothing"
