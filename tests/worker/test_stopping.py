"""A worker that ends: what runs is finished, what waits is handed back, nothing is lost or run twice."""

from __future__ import annotations

import threading
import time

import pytest

from millstream.job import Job
from millstream.worker import Worker
from tests.worker.conftest import Bench, until
from tests.worker.jobs import Note, Waiting, WaitingAsync, gate, ran


@pytest.mark.parametrize("kind", [Waiting, WaitingAsync])
def test_stop_lets_running_jobs_finish_and_hands_back_the_others(bench: Bench, kind: type[Job]) -> None:
    bench.push_many([kind() for _ in range(6)])
    worker = bench.start(concurrency=2)
    ran.wait_for("started", 2)
    stopping = _stop(worker)
    until(lambda: worker._intake.closed, "it to stop taking jobs")
    gate.set()
    stopping.join(5)
    assert len(ran.of("ended")) == 2
    assert worker.counters.completed == 2
    sizes = bench.queue.sizes(bench.name)
    assert (sizes.waiting, sizes.reserved) == (4, 0)


@pytest.mark.parametrize("kind", [Waiting, WaitingAsync])
def test_what_does_not_finish_within_the_grace_is_interrupted_and_handed_back(
    bench: Bench, kind: type[Job]
) -> None:
    job_id = bench.push(kind())
    worker = bench.start()
    ran.wait_for("started")
    began = time.monotonic()
    worker.stop(grace=0.2)
    assert 0.2 <= time.monotonic() - began < 2.0
    assert not ran.of("ended")
    assert worker.counters.released == 1
    (again,) = bench.driver.reserve([bench.name], "somebody else", 1)
    assert again.id == job_id
    gate.set()
    time.sleep(0.05)
    assert not ran.of("ended")  # it was interrupted, not left running


def test_a_second_request_hands_back_at_once(bench: Bench) -> None:
    bench.push(Waiting())
    worker = bench.start(grace=30.0)
    ran.wait_for("started")
    stopping = _stop(worker)
    until(lambda: worker._intake.closed, "the first request to be seen")
    began = time.monotonic()
    worker.request_stop(now=True)
    stopping.join(5)
    assert time.monotonic() - began < 2.0
    assert bench.queue.sizes(bench.name).waiting == 1


def test_what_was_fetched_and_not_started_is_handed_back_at_once(bench: Bench) -> None:
    """Not at the end of the grace: other workers have room for it now."""
    bench.push_many([Note(text=str(number)) for number in range(200)])
    worker = bench.start(concurrency=1)
    ran.wait_for("note", 200)  # so that it knows its jobs to be short, and fetches many
    bench.push(Waiting())
    bench.push_many([Note(text="waits") for _ in range(20)])
    ran.wait_for("started")
    until(lambda: worker.counters.buffered > 0, "jobs to be fetched in advance")
    stopping = _stop(worker)
    until(lambda: bench.queue.sizes(bench.name).waiting == 20, "20 jobs to be waiting again")
    assert stopping.is_alive()
    gate.set()
    stopping.join(5)
    assert len(ran.of("note")) == 200


def test_a_job_is_released_as_if_it_had_not_been_delivered(bench: Bench) -> None:
    bench.push(Waiting())
    worker = bench.start()
    ran.wait_for("started")
    worker.stop(grace=0.0)
    (again,) = bench.driver.reserve([bench.name], "somebody else", 1)
    assert again.delivery_count == 1


def test_a_handler_may_ask_its_worker_to_stop(memory: Bench) -> None:
    class LastOne(Job):
        def handle(self) -> None:
            worker.request_stop()
            ran.add("done")

    worker = memory.worker()
    memory.push(LastOne())
    worker.start()
    ran.wait_for("done")
    until(lambda: not worker.running, "the worker to end")
    assert worker.counters.completed == 1


def test_max_jobs_ends_a_worker_in_good_order(bench: Bench) -> None:
    bench.push_many([Note(text=str(number)) for number in range(400)])
    worker = bench.start(max_jobs=5)
    until(lambda: not worker.running, "the worker to end")
    assert worker.exit_code == 64
    assert worker.counters.completed == 5
    assert bench.queue.size(bench.name) == 395


def test_a_closed_queue_has_no_worker_that_runs(memory: Bench) -> None:
    worker = memory.start()
    memory.queue.close()
    assert not worker.running


def test_a_handler_cannot_close_its_own_queue(memory: Bench) -> None:
    queue = memory.queue

    class Closes(Job, max_attempts=1):
        def handle(self) -> None:
            queue.close()

    memory.push(Closes())
    worker = memory.start()
    until(lambda: worker.counters.buried == 1, "the job to be buried")
    (letter,) = memory.driver.dead(memory.name)
    assert "cannot close the queue of its own worker" in letter.error
    assert worker.running


@pytest.mark.parametrize("asynchronous", [False, True])
def test_stopping_from_inside_a_handler_does_not_wait_for_it(memory: Bench, asynchronous: bool) -> None:
    queue = memory.queue

    class Ends(Job):
        def handle(self) -> None:
            queue.stop()
            ran.add("done")

    class EndsAsync(Job):
        async def handle(self) -> None:
            queue.stop()
            ran.add("done")

    worker = memory.worker(grace=60.0)
    memory.push(EndsAsync() if asynchronous else Ends())
    worker.start()
    ran.wait_for("done")
    until(lambda: not worker.running, "the worker to end")
    assert worker.counters.completed == 1


def test_a_part_that_dies_stops_the_worker_loudly(
    memory: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from millstream.worker import WorkerCrashed

    def broken(*_: object) -> int:
        raise KeyError("a bug")

    monkeypatch.setattr(memory.driver, "promote_due", broken)
    worker = memory.worker()
    with pytest.raises(WorkerCrashed, match="scheduler died"):
        worker.run()
    assert "the worker's scheduler died" in caplog.text
    monkeypatch.undo()
    memory._workers.clear()


def test_leaving_the_context_drains(bench: Bench) -> None:
    bench.push_many([Note(text=str(number)) for number in range(20)])
    with bench.worker() as worker:
        ran.wait_for("note", 20)
    assert worker.counters.completed == 20
    assert not worker.running


def _stop(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.stop, daemon=True)
    thread.start()
    return thread
