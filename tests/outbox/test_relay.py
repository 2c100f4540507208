"""The relay: each job once, whoever is killed, paused or away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from millstream import Queue, connect
from millstream.drivers.base import Capabilities, PushItem
from millstream.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigurationError,
    InvalidInput,
    SchemaNotReady,
    UnknownScheme,
)
from millstream.outbox import Outbox, OutboxKeeper, Relay
from millstream.sql import Database, parse_url
from tests.contract.streams.helpers import until
from tests.outbox.conftest import DATABASES, Note, Source, texts
from tests.outbox.doomed import POINTS

ROOT = Path(__file__).parents[2]
HERE = "same database"
PAIRS = [("sqlite", "redis7"), ("postgres", HERE), ("mariadb", "redis7")]
if os.environ.get("MILLSTREAM_FAULTS") == "long":
    PAIRS = [(source, target) for source in DATABASES for target in ("redis7", HERE)]
ON_SQLITE = pytest.mark.parametrize("source", ["sqlite"], indirect=True)  # where the database does not matter


def push(source: Source, *names: str, queue: str = "notes") -> None:
    with Session(source.engine) as session:
        Outbox(session, tables=source.tables).push_many([Note(text=name).on_queue(queue) for name in names])
        session.commit()


# -- killed ----------------------------------------------------------------------------------------


@pytest.fixture
def target(request: pytest.FixtureRequest, source: Source) -> Iterator[tuple[str, str, Queue]]:
    """A queue on a server: URL, prefix and queue object."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    if request.param == HERE:
        url = source.url
        Database.open(parse_url(url), create=True).close()
    else:
        url = request.getfixturevalue(request.param).url
    with connect(url, prefix=prefix) as queue:
        yield url, prefix, queue


def doomed(point: str, kind: str, source: Source, target: tuple[str, str, Queue]) -> None:
    """Run a relay in a process that is killed; prove that it was."""
    url, prefix, _ = target
    command = [
        sys.executable,
        "-m",
        "tests.outbox.doomed",
        point,
        kind,
        source.url,
        source.tables,
        url,
        prefix,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def rest(source: Source, queue: Queue) -> None:
    """What a second relay does after the first was killed, until nothing waits."""
    with OutboxKeeper(source.url, tables=source.tables) as keeper:
        relay = Relay(source.url, queue, tables=source.tables, lease=0.2)
        until(lambda: relay.run_once() >= 0 and keeper.status().waiting == 0, "the rest to be moved")
        relay.close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("source", "target"), PAIRS, indirect=True)
def test_a_relay_killed_at_any_point_loses_nothing_and_copies_nothing(
    source: Source, target: tuple[str, str, Queue], point: str
) -> None:
    """Workers are done with the jobs before the next relay comes: their ids are not known to the target."""
    queue = target[2]
    push(source, "a", "b", "c")
    doomed(point, "relay", source, target)
    done = texts(queue)
    assert done == ([] if point == "opened" else ["a", "b", "c"])
    push(source, "d")  # comes to stand beside the batch that was left open
    rest(source, queue)
    assert done + texts(queue) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("kind", "found"),
    [("plain", ["a", "b", "a", "b"]), ("careless", [])],
    ids=["plain copies", "careless loses"],
)
@pytest.mark.parametrize(("source", "target"), [("sqlite", "redis7")], indirect=True)
def test_the_controls_lose_or_copy(
    source: Source,
    target: tuple[str, str, Queue],
    kind: str,
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same kill with a relay that trusts in ids alone, and with one that deletes before it pushes."""
    from millstream.outbox import relay as module

    queue = target[2]
    push(source, "a", "b")
    doomed("pushed", kind, source, target)
    done = texts(queue)
    if kind == "plain":
        monkeypatch.setattr(module, "_push", lambda queue, lane, batch: queue.driver.push(batch.items))
    rest(source, queue)
    assert done + texts(queue) == found


# -- several ---------------------------------------------------------------------------------------


def test_several_relays_move_each_job_once_and_in_order(source: Source, queue: Queue) -> None:
    relays = [Relay(source.url, queue, tables=source.tables, poll=0.05) for _ in range(3)]
    for relay in relays:
        relay.start()
    for start in range(0, 300, 20):
        push(source, *map(str, range(start, start + 20)))
        push(source, *map(str, range(start, start + 20)), queue="others")
    until(lambda: queue.sizes("notes").waiting == queue.sizes("others").waiting == 300, "all of them")
    for relay in relays:
        relay.close()
    assert sum(relay.moved for relay in relays) == 600
    for name in ("notes", "others"):
        assert texts(queue, name) == [str(number) for number in range(300)]


def test_a_relay_that_was_paused_and_overtaken_changes_nothing(source: Source, queue: Queue) -> None:
    """It has opened a batch; others have pushed it, closed it, and moved on."""
    paused = Relay(source.url, queue, tables=source.tables, lease=0.01)
    other = Relay(source.url, queue, tables=source.tables, lease=0.01)
    push(source, "a", "b")
    (lane,) = paused._store.lanes()
    batch = paused._store.open_batch(lane, lambda item: None, 1000)
    assert batch is not None
    assert [item.queue for item in batch.items] == ["notes", "notes"]
    until(lambda: other.run_once() == 2, "the lease to end")
    assert texts(queue) == ["a", "b"]
    push(source, "c")
    later = other._store.open_batch(lane, lambda item: None, 1000)
    assert later is not None
    assert later.number > batch.number
    paused._push(lane, batch, queue)
    assert texts(queue) == []
    again = until(lambda: paused._store.open_batch(lane, lambda item: None, 1000), "the lease to end")
    assert (again.number, again.rows, again.reopened) == (later.number, later.rows, True), "it was disturbed"
    other._push(lane, later, queue)
    paused._push(lane, again, queue)
    assert texts(queue) == ["c"]
    paused.close()
    other.close()


def test_a_lane_that_another_relay_works_on_is_left_alone(source: Source, queue: Queue) -> None:
    first = Relay(source.url, queue, tables=source.tables, lease=60)
    second = Relay(source.url, queue, tables=source.tables, lease=60)
    push(source, "a")
    (lane,) = first._store.lanes()
    assert first._store.open_batch(lane, lambda item: None, 1000) is not None
    assert second.run_once() == 0
    with OutboxKeeper(source.url, tables=source.tables) as keeper:
        (shown,) = keeper.status().lanes
    assert (shown.waiting, shown.opened, shown.relay) == (1, 1, first.name)
    assert first.run_once() == 1
    first.close()
    second.close()


def test_a_relay_that_has_nothing_left_to_do_leaves_the_lane_to_others(source: Source, queue: Queue) -> None:
    first = Relay(source.url, queue, tables=source.tables, lease=60)
    second = Relay(source.url, queue, tables=source.tables, lease=60)
    for relay in (first, second, first):
        push(source, "a")
        assert relay.run_once() == 1
    first.close()
    second.close()


def test_a_database_put_back_to_an_older_state_loses_nothing(
    source: Source, relay: Relay, queue: Queue
) -> None:
    push(source, "a")
    assert relay.run_once() == 1
    number = source.ask("SELECT number FROM {p}outbox_lanes")[0][0]
    push(source, "b")
    assert relay.run_once() == 1
    source.ask(f"UPDATE {{p}}outbox_lanes SET number = {number}")  # as a backup had it
    push(source, "c")
    assert relay.run_once() == 1
    assert texts(queue) == ["a", "b", "c"]


# -- a target that fails ---------------------------------------------------------------------------


class Failing:
    """Stands before a queue's driver; ``fail`` decides what each numbered push raises."""

    def __init__(self, queue: Queue, fail: Callable[[Sequence[PushItem]], Exception | None]) -> None:
        self.real, self.fail, self.calls = queue.driver, fail, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def push_numbered(self, queue: str, line: str, number: int, items: Sequence[PushItem]) -> bool:
        self.calls += 1
        error = self.fail(items)
        if error is not None:
            raise error
        return self.real.push_numbered(queue, line, number, items)


@ON_SQLITE
def test_a_server_that_is_away_is_waited_for(
    source: Source, relay: Relay, queue: Queue, keeper: OutboxKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    away = [True]
    driver = Failing(queue, lambda items: BrokerUnavailable("cannot reach it") if away[0] else None)
    queue.driver = driver  # type: ignore[assignment]
    push(source, "a", "b")
    assert relay.run_once() == 0
    (lane,) = keeper.status().lanes
    assert (lane.waiting, lane.error) == (2, "BrokerUnavailable: cannot reach it")
    assert "the jobs for queue 'notes' wait" in caplog.text
    away[0] = False
    assert relay.run_once() == 2
    assert keeper.status().lanes[0].error is None
    assert driver.calls == 2
    assert texts(queue) == ["a", "b"]


@ON_SQLITE
def test_one_job_that_the_target_refuses_does_not_hold_up_the_others(
    source: Source, relay: Relay, queue: Queue, keeper: OutboxKeeper
) -> None:
    def refuse(items: Sequence[PushItem]) -> Exception | None:
        return BrokerError("too large for me") if any(b'"37"' in item.body for item in items) else None

    queue.driver = Failing(queue, refuse)  # type: ignore[assignment]
    push(source, *map(str, range(60)))
    assert relay.run_once() == 59
    assert texts(queue) == [str(number) for number in range(60) if number != 37]
    (aside,) = keeper.status().set_aside
    assert aside.error == "BrokerError: too large for me"


def test_a_refused_batch_that_had_been_pushed_is_not_taken_apart(
    source: Source, relay: Relay, queue: Queue, keeper: OutboxKeeper
) -> None:
    """The relay before was killed after its push; this one has a smaller limit, and refuses the same jobs."""
    push(source, "a", "b")
    (lane,) = relay._store.lanes()
    batch = relay._store.open_batch(lane, lambda item: None, 1000)
    assert batch is not None
    assert queue.driver.push_numbered("notes", batch.line, batch.number, batch.items)
    assert texts(queue) == ["a", "b"]
    queue.driver = Failing(queue, lambda items: InvalidInput("no") if items else None)  # type: ignore[assignment]
    assert relay.run_once() == 2
    assert keeper.status().waiting == keeper.status().aside == 0
    assert texts(queue) == []


@ON_SQLITE
def test_a_driver_without_numbers_is_pushed_to_by_id(source: Source, relay: Relay, queue: Queue) -> None:
    class Plain(Failing):
        capabilities = Capabilities(numbered_push=False)

    driver = Plain(queue, lambda items: AssertionError("it has no numbers"))
    queue.driver = driver  # type: ignore[assignment]
    push(source, "a")
    assert relay.run_once() == 1
    assert texts(queue) == ["a"]


def test_rows_deleted_by_hand_close_their_batch(source: Source, relay: Relay, queue: Queue) -> None:
    push(source, "a")
    (lane,) = relay._store.lanes()
    assert relay._store.open_batch(lane, lambda item: None, 1000) is not None
    source.ask("DELETE FROM {p}outbox")
    push(source, "b")
    assert relay.run_once() == 1
    assert texts(queue) == ["b"]


# -- running ---------------------------------------------------------------------------------------


def test_an_embedded_relay_is_woken_by_a_commit(source: Source, queue: Queue) -> None:
    """Its next look would come in a minute."""
    with Relay(source.url, queue, tables=source.tables, poll=60.0) as relay:
        until(lambda: relay._wake.is_set() is False, "the relay to look")
        time.sleep(0.5)  # so that its pauses have grown beyond what this test waits for
        for name in ("a", "b"):
            push(source, name)
            assert queue.pop("notes", wait=10) == Note(text=name)


@ON_SQLITE
def test_an_idle_relay_asks_less_and_less(source: Source, queue: Queue) -> None:
    relay = Relay(source.url, queue, tables=source.tables, poll=0.4)
    looks: list[float] = []
    real = relay._store.lanes
    relay._store.lanes = lambda: looks.append(time.monotonic()) or real()  # type: ignore[method-assign,func-returns-value]
    relay.start()
    until(lambda: len(looks) >= 8, "eight looks")
    relay.close()
    assert looks[7] - looks[6] > 3 * 0.02
    assert looks[-1] - looks[0] > 0.6


@ON_SQLITE
def test_a_database_that_is_away_is_waited_for(
    source: Source, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    relay = Relay(source.url, queue, tables=source.tables, poll=0.05)
    real, failures = relay._store.lanes, [0]

    def flaky() -> Any:
        failures[0] += 1
        if failures[0] < 3:
            raise BrokerUnavailable("the database is away")
        return real()

    relay._store.lanes = flaky  # type: ignore[method-assign]
    push(source, "a")
    with relay:
        assert queue.pop("notes", wait=10) == Note(text="a")
    assert "the database is away" in caplog.text
    assert "is back" in caplog.text


@ON_SQLITE
def test_stop_ends_a_relay_and_start_begins_again(source: Source, queue: Queue) -> None:
    relay = Relay(source.url, queue, tables=source.tables)
    relay.start()
    with pytest.raises(RuntimeError, match="running already"):
        relay.start()
    relay.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "millstream-relay"]
    push(source, "a")
    relay.start()
    assert queue.pop("notes", wait=10) == Note(text="a")
    relay.close()


# -- wrong calls -----------------------------------------------------------------------------------


def test_a_relay_says_what_is_wrong_with_its_arguments(tmp_path: Path, queue: Queue) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(InvalidInput, match="poll"):
        Relay(url, queue, poll=0)
    with pytest.raises(InvalidInput, match="lease"):
        Relay(url, queue, lease=-1)
    with pytest.raises(InvalidInput, match="target is a Queue"):
        Relay(url, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="URL or a SQLAlchemy engine"):
        Relay(7, queue)  # type: ignore[arg-type]
    with pytest.raises(UnknownScheme):
        Relay("redis://localhost", "memory://")
    with pytest.raises(ConfigurationError, match="cannot begin a table's name"):
        Relay(url, queue, tables="1x")


@pytest.mark.parametrize("source", ["postgres", "mariadb"], indirect=True)
def test_a_server_without_the_tables_is_said_so(source: Source, queue: Queue) -> None:
    with pytest.raises(SchemaNotReady, match="millstream migrate schema"):
        Relay(source.url, queue, tables="never_made_")
