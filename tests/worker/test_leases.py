"""Leases: kept while a worker lives, noticed when lost, taken over when it died."""

from __future__ import annotations

import time

import pytest

from millstream.drivers.base import Reservation, Settlement
from tests.worker.conftest import Bench, until
from tests.worker.jobs import Note, Waiting, gate, ran


def test_a_job_longer_than_its_lease_runs_once(bench: Bench) -> None:
    bench.push(Waiting())
    worker = bench.start(lease=0.3)
    other = bench.start(lease=0.3)
    ran.wait_for("started")
    time.sleep(1.0)  # three leases
    gate.set()
    ran.wait_for("ended")
    bench.settled()
    assert len(ran.of("started")) == 1
    assert worker.counters.stale + other.counters.stale == 0


def test_a_dead_workers_job_starts_again_within_lease_and_two_seconds(bench: Bench) -> None:
    bench.push(Note(text="orphan"))
    assert bench.driver.reserve([bench.name], "worker that died", 1)
    began = time.monotonic()
    worker = bench.start(lease=0.5)
    ran.wait_for("note")
    assert 0.45 < ran.times[0] - began < 2.5
    until(lambda: worker.counters.completed == 1, "it to be completed")
    assert worker.counters.recovered == 1


def test_the_outcome_of_a_job_that_somebody_took_over_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.push(Waiting())
    worker = bench.worker(lease=0.2)
    worker._parts["reclaimer"]._target = lambda: None
    monkeypatch.setattr(worker._heartbeat, "_renew", lambda: None)  # a worker that cannot renew its leases
    worker.start()
    ran.wait_for("started")
    taken: list[Reservation] = []
    until(lambda: taken.extend(bench.driver.recover([bench.name], "the other", 0.2)) or taken, "a takeover")
    gate.set()
    until(lambda: worker.counters.stale == 1, "the refusal")
    assert "was not this worker's any more" in caplog.text
    assert bench.driver.settle([Settlement(taken[0], "complete")]) == [True]


def test_a_buffered_job_whose_lease_was_lost_is_not_started(memory: Bench) -> None:
    memory.push_many([Note(text=str(number)) for number in range(100)])
    worker = memory.start(concurrency=1)
    ran.wait_for("note", 100)
    until(lambda: not worker._holdings.held, "the outcomes to be reported")
    memory.push_many([Waiting(), Note(text="lost")])
    ran.wait_for("started")
    until(lambda: worker.counters.buffered == 1, "the second job to be fetched")
    (waiting,) = [
        each for each in worker._holdings.held if each is not worker._intake.for_threads[0].reservation
    ]
    lost = worker._intake.for_threads[0].reservation
    assert memory.driver.settle([Settlement(lost, "release")]) == [True]
    (other,) = memory.driver.reserve([memory.name], "the other", 1)
    worker._heartbeat.beat()
    gate.set()
    until(lambda: worker.counters.completed == 101, "the first job to be completed")
    until(lambda: not worker._holdings.held, "nothing to be held")
    assert "lost" not in ran.of("note")
    assert waiting is not lost
    assert memory.driver.settle([Settlement(other, "complete")]) == [True]


def test_jobs_are_not_started_while_their_lease_is_in_doubt(memory: Bench) -> None:
    """After SIGSTOP a process goes on in the middle of its loop; it must ask before it starts a job."""
    memory.push(Note(text="x"))
    worker = memory.worker()
    asked = []
    confirm = worker._heartbeat.confirm
    worker._heartbeat.confirm = lambda: (asked.append(1), confirm())  # type: ignore[assignment,func-returns-value]
    worker._parts["heartbeat"]._target = lambda: None
    worker._holdings.safe_until = 0.0
    worker.start()
    ran.wait_for("note")
    assert asked


def test_a_worker_does_not_take_over_what_it_is_running_itself(bench: Bench) -> None:
    """Its own leases look ended too, after it was held up; it renews them before it looks at others'."""
    bench.push(Waiting())
    worker = bench.worker(lease=0.4)
    worker._parts["heartbeat"]._target = lambda: None  # only what the reclaimer asks for is renewed
    worker.start()
    ran.wait_for("started")
    time.sleep(1.5)
    gate.set()
    until(lambda: worker.counters.completed == 1, "it to be completed")
    assert len(ran.of("started")) == 1
    assert worker.counters.stale == 0
