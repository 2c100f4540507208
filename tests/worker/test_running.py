"""Jobs run, sync and async, once each, apart from one another."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from millstream.drivers.base import RateLimit
from millstream.job import Job
from tests.worker.conftest import Bench, until
from tests.worker.jobs import Marking, MarkingAsync, Note, NoteAsync, Waiting, WaitingAsync, gate, ran


@pytest.mark.parametrize("kind", [Note, NoteAsync])
def test_every_job_runs_once(bench: Bench, kind: type[Job]) -> None:
    bench.push_many([kind(text=str(number)) for number in range(500)])
    worker = bench.start()
    ran.wait_for("note", 500)
    bench.settled()
    assert sorted(map(int, ran.of("note"))) == list(range(500))  # type: ignore[call-overload]
    until(lambda: worker.counters.completed == 500, "500 completed")
    assert worker.counters.stale == 0


def test_sync_and_async_jobs_share_a_queue(bench: Bench) -> None:
    mixed: list[Job] = [(Note if number % 3 else NoteAsync)(text=str(number)) for number in range(300)]
    bench.push_many(mixed)
    bench.start()
    ran.wait_for("note", 300)
    bench.settled()
    assert len(set(ran.of("note"))) == 300


def test_a_job_pushed_to_an_idle_worker_starts_at_once(bench: Bench) -> None:
    bench.start(poll=1.0)
    bench.push(Note(text="warm up"))
    ran.wait_for("note")
    time.sleep(0.05)  # let it fall idle
    began = time.monotonic()
    bench.push(Note(text="now"))
    ran.wait_for("note", 2)
    assert ran.times[-1] - began < 0.5


@pytest.mark.parametrize("kind", [Waiting, WaitingAsync])
def test_as_many_jobs_run_at_a_time_as_concurrency_says(bench: Bench, kind: type[Job]) -> None:
    bench.push_many([kind() for _ in range(10)])
    worker = bench.start(concurrency=4)
    ran.wait_for("started", 4)
    time.sleep(0.1)
    assert len(ran.of("started")) == 4
    assert worker.counters.running == 4
    # Slow jobs are not taken in advance: another worker may have room for them.
    assert bench.queue.sizes(bench.name).waiting == 6
    gate.set()
    ran.wait_for("ended", 10)


def test_a_long_job_does_not_hold_back_those_fetched_with_it(bench: Bench) -> None:
    bench.push_many([Waiting(), *[Note(text=str(number)) for number in range(50)]])
    bench.start(concurrency=2)
    ran.wait_for("note", 50)
    assert ran.of("started")
    assert not ran.of("ended")


@pytest.mark.parametrize("kind", [Marking, MarkingAsync])
def test_no_job_sees_another_ones_context_variables(memory: Bench, kind: type[Job]) -> None:
    memory.push_many([kind() for _ in range(20)])
    memory.start(concurrency=2)
    ran.wait_for("mark", 20)
    memory.settled()
    assert set(ran.of("mark")) == {"clean"}
    assert set(ran.of("own mark")) <= {"dirty"}


def test_a_coroutine_that_a_plain_handler_returns_is_run(bench: Bench) -> None:
    def noted(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            ran.add("wrapper", threading.current_thread().name)
            return function(*args)

        return wrapper

    class Decorated(Job, max_attempts=1):
        fails: bool

        @noted
        async def handle(self) -> None:
            await asyncio.sleep(0)
            ran.add("inside", threading.current_thread().name)
            if self.fails:
                raise ValueError("after all")

    bench.push_many([Decorated(fails=False), Decorated(fails=True)])
    bench.start()
    ran.wait_for("inside", 2)
    bench.settled()
    assert set(ran.of("inside")) == {"millstream-loop"}
    assert "millstream-loop" not in ran.of("wrapper")
    (letter,) = bench.driver.dead(bench.name)
    assert letter.error == "ValueError: after all"


def test_threads_start_only_as_they_are_needed(memory: Bench) -> None:
    memory.start(concurrency=64)
    for number in range(5):
        memory.push(Note(text=str(number)))
        ran.wait_for("note", number + 1)
    runners = [each for each in threading.enumerate() if each.name.startswith("millstream-runner")]
    assert len(runners) < 8


def test_a_delayed_job_runs_on_time(bench: Bench) -> None:
    bench.start()
    began = time.monotonic()
    bench.push(Note(text="later").delay(0.3))
    ran.wait_for("note")
    assert 0.29 < ran.times[-1] - began < 0.6


def test_a_rate_limit_holds_for_all_workers_together_and_blocks_no_other_queue(bench: Bench) -> None:
    other = f"{bench.name}-other"
    limits = {bench.name: RateLimit(5, per=0.5)}
    for _ in range(2):
        worker = bench.queue.worker([bench.name, other], rate_limits=limits, poll=0.05).start()
        bench._workers.append(worker)
    bench.push_many([Note(text="limited") for _ in range(15)])
    ran.wait_for("note", 5)
    bench.queue.push(Note(text="free").on_queue(other))
    ran.wait(lambda record: "free" in record.of("note"), "the job of the other queue", 0.45)
    ran.wait_for("note", 16)
    limited = [at for (_, text), at in zip(ran.events, ran.times, strict=True) if text == "limited"]
    assert limited[-1] - limited[0] > 0.9
    # Starts are what is limited, and a thread may be late to run: a tenth of the window for that.
    assert all(after - before > 0.45 for before, after in zip(limited, limited[5:], strict=False))


def test_a_rate_limit_of_a_queue_that_is_not_served_is_said_once_and_not_used(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {bench.name: RateLimit(100, per=1), "emials": RateLimit(1, per=60)}
    with caplog.at_level("WARNING", "millstream.worker"):
        bench.start(rate_limits=limits)
        bench.push_many([Note(text=str(number)) for number in range(5)])
        ran.wait_for("note", 5)
        bench.settled()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the rate limit of the queue 'emials' is not used: this worker serves {bench.name}"]


def test_two_workers_share_the_work(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    bench.push_many([Note(text=str(number)) for number in range(400)])
    ran.wait_for("note", 400)
    bench.settled()
    assert len(set(ran.of("note"))) == 400
    until(lambda: first.counters.completed + second.counters.completed == 400, "400 in all")


def test_a_worker_can_be_seen_while_it_lives(bench: Bench) -> None:
    worker = bench.start(name=f"worker-{bench.name}")
    until(lambda: worker.id in [each.id for each in bench.driver.workers()], "the worker to be listed")
    (info,) = [each for each in bench.driver.workers() if each.id == worker.id]
    assert info.queues == [bench.name]
    worker.stop()
    assert worker.id not in [each.id for each in bench.driver.workers()]


def test_a_stopped_worker_can_be_started_again(bench: Bench) -> None:
    worker = bench.start()
    worker.stop()
    bench.push(Note(text="second life"))
    worker.start()
    ran.wait_for("note")
    with pytest.raises(RuntimeError, match="running already"):
        worker.start()


def test_work_blocks_until_stop_is_called(memory: Bench) -> None:
    memory.push(Note(text="x"))
    thread = threading.Thread(target=lambda: memory.queue.work([memory.name], poll=0.05), daemon=True)
    thread.start()
    ran.wait_for("note")
    memory.queue.stop()
    thread.join(5)
    assert not thread.is_alive()
