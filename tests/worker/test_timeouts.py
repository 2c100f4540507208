"""Attempts that take too long: ended softly, or answered for and left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from millstream.errors import JobTimeout
from millstream.job import Job
from tests.worker.conftest import Bench, until
from tests.worker.jobs import Hung, Note, NoteAsync, Quick, Slow, SlowAsync, gate, ran


@pytest.mark.parametrize("kind", [Slow, SlowAsync])
def test_a_handler_is_ended_at_its_timeout_and_may_clean_up(bench: Bench, kind: type[Job]) -> None:
    bench.push(kind())
    bench.start()
    ran.wait_for("failed")
    bench.settled()
    assert [name for name, _ in ran.events] == ["started", "cleaned up", "failed"]
    assert isinstance(ran.of("failed")[0], JobTimeout)
    assert 0.09 < ran.times[1] - ran.times[0] < 1.0
    (letter,) = bench.driver.dead(bench.name)
    assert letter.reason == "timeout"
    assert "0.1 s" in letter.error


def test_a_timeout_that_comes_with_the_end_of_its_job_hits_no_other(memory: Bench) -> None:
    memory.push_many([job for _ in range(150) for job in (Quick(), Note(text="innocent"))])
    worker = memory.start(concurrency=2)
    ran.wait_for("note", 150)
    memory.settled()
    until(lambda: worker.counters.finished == 300, "all to be settled")
    letters = memory.driver.dead(memory.name, count=300)
    assert {letter.reason for letter in letters} <= {"timeout"}
    assert worker.counters.completed >= 150
    assert worker.running


def test_a_handler_that_cannot_be_interrupted_is_answered_for_and_replaced(
    memory: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    memory.push(Hung())
    memory.push(Note(text="after"))
    worker = memory.start(concurrency=1, hard_timeout_grace=0.1)
    ran.wait_for("failed")
    ran.wait_for("note")  # by the thread that took the place of the hung one
    assert isinstance(ran.of("failed")[0], JobTimeout)
    until(lambda: worker.counters.buried == 1, "the job to be buried")
    assert "hangs past its timeout" in caplog.text
    assert not ran.of("ended")
    gate.set()
    ran.wait_for("ended")
    time.sleep(0.05)
    assert worker.counters.completed == 1  # the note alone: what the hung handler did no longer counts
    assert worker.counters.stale == 0


def test_a_timeout_is_tried_again_as_any_failure(memory: Bench) -> None:
    class SlowOnce(Job, timeout=0.1, max_attempts=2, backoff=0.01):
        def handle(self) -> None:
            ran.add("attempt", self.attempt)
            while self.attempt == 1:
                time.sleep(0.005)

    memory.push(SlowOnce())
    memory.start()
    ran.wait_for("attempt", 2)
    memory.settled()
    assert not memory.driver.dead(memory.name)


def test_an_async_handler_that_blocks_the_loop_is_answered_for(memory: Bench) -> None:
    released = threading.Event()

    class Blocking(Job, timeout=0.1, max_attempts=1):
        async def handle(self) -> None:
            released.wait(20)

        async def failed(self, error: Exception) -> None:
            ran.add("failed", error)

    memory.push(Blocking())
    worker = memory.start(hard_timeout_grace=0.1)
    ran.wait_for("failed")
    until(lambda: worker.counters.buried == 1, "the job to be buried")
    memory.push(NoteAsync(text="after"))
    ran.wait_for("note")  # on the loop that took the place of the blocked one
    assert not released.is_set()
    released.set()
    memory.push_many([NoteAsync(text=str(n)) for n in range(5)])
    ran.wait_for("note", 6)
    until(lambda: worker.counters.completed == 6, "the notes to be settled")
    assert worker.counters.stale == 0


@pytest.mark.parametrize("kind", ["sync", "async", "blocking"])
def test_failed_has_the_time_of_an_attempt_too(
    memory: Bench, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    class Fails(Job, timeout=0.1, max_attempts=1):
        def handle(self) -> None:
            raise ValueError("the cause")

        def failed(self, error: Exception) -> None:
            ran.add("failed", str(error))
            while kind == "sync":
                time.sleep(0.005)
            released.wait(20)

    class FailsAsync(Job, timeout=0.1, max_attempts=1):
        async def handle(self) -> None:
            raise ValueError("the cause")

        async def failed(self, error: Exception) -> None:
            ran.add("failed", str(error))
            await asyncio.sleep(20)

    memory.push(FailsAsync() if kind == "async" else Fails())
    worker = memory.start(hard_timeout_grace=0.1)
    until(lambda: worker.counters.buried == 1, "the job to be buried")
    released.set()
    (letter,) = memory.driver.dead(memory.name)
    assert (letter.reason, letter.error) == ("failed", "ValueError: the cause")
    assert ran.of("failed") == ["the cause"]  # once
    assert "failed() of" in caplog.text or "hangs past its timeout" in caplog.text


def test_a_coroutine_of_a_plain_handler_has_its_timeout(memory: Bench) -> None:
    class Indirect(Job, timeout=0.1, max_attempts=1):
        def handle(self) -> Any:
            return asyncio.sleep(20)

        def failed(self, error: Exception) -> None:
            ran.add("failed", error)

    memory.push(Indirect())
    memory.start()
    ran.wait_for("failed")
    assert isinstance(ran.of("failed")[0], JobTimeout)
    memory.settled()
    (letter,) = memory.driver.dead(memory.name)
    assert letter.reason == "timeout"
