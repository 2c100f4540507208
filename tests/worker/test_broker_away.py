"""A broker that restarts, or cannot be reached for a while: workers go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.servers import RedisServer, TcpProxy
from tests.worker.conftest import Bench, until
from tests.worker.jobs import Note, Waiting, gate, ran


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that the test may break, with data that survive a restart."""
    with RedisServer("redis7", args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server


@pytest.fixture
def on_own(own: RedisServer) -> Iterator[Bench]:
    bench = Bench(own.url)
    yield bench
    bench.close()


def test_a_worker_goes_on_after_the_broker_was_restarted(on_own: Bench, own: RedisServer) -> None:
    worker = on_own.start()
    on_own.push(Note(text="before"))
    ran.wait_for("note")
    own.restart()
    on_own.push(Note(text="after"))
    ran.wait_for("note", 2)
    on_own.push(Note(text="delayed").delay(0.2))
    ran.wait_for("note", 3)
    until(lambda: worker.counters.completed == 3, "all to be completed")


def test_an_outcome_of_while_the_broker_was_away_is_told_later(on_own: Bench, own: RedisServer) -> None:
    on_own.push(Waiting())
    worker = on_own.start()
    ran.wait_for("started")
    own.kill()
    gate.set()
    ran.wait_for("ended")
    time.sleep(0.2)
    own.start()
    until(lambda: worker.counters.completed == 1, "the ack to be accepted", 20)
    assert len(ran.of("started")) == 1
    assert on_own.queue.size(on_own.name) == 0


def test_connections_that_are_reset_lose_and_repeat_nothing(own: RedisServer) -> None:
    with TcpProxy(own.port) as proxy:
        bench = Bench(f"redis://127.0.0.1:{proxy.port}/0")
        worker = bench.start(lease=2.0)
        for round_ in range(10):
            bench.push_many([Note(text=f"{round_}-{number}") for number in range(50)])
            proxy.reset_all()
        ran.wait(lambda record: len(set(record.of("note"))) == 500, "every job", 20)
        until(lambda: bench.queue.size(bench.name) == 0, "an empty queue", 20)
        assert proxy.faults["resets"] >= 10
        assert len(ran.of("note")) == 500
        assert worker.running
        bench.close()
