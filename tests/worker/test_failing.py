"""What becomes of jobs that fail, decide for themselves, or cannot be built."""

from __future__ import annotations

import asyncio

import pytest

from millstream.drivers.base import PushItem
from millstream.envelope import Envelope, new_job_id
from millstream.job import Job
from tests.worker.conftest import Bench, until
from tests.worker.jobs import (
    AsyncWithSyncFailed,
    Cancelling,
    Controlled,
    Exiting,
    Failing,
    FailingAsync,
    Note,
    SyncWithAsyncFailed,
    ran,
)


def test_a_failing_job_is_tried_again_after_a_growing_delay(bench: Bench) -> None:
    bench.push(Failing(succeed_at=3))
    worker = bench.start()
    ran.wait_for("attempt", 3)
    bench.settled()
    assert ran.of("attempt") == [1, 2, 3]
    first, second, third = ran.times[:3]
    assert second - first >= 0.05
    assert third - second >= 0.1
    assert not ran.of("failed")
    until(lambda: worker.counters.retried == 2 and worker.counters.completed == 1, "the counters")


@pytest.mark.parametrize(("kind", "attempts"), [(Failing, 3), (FailingAsync, 2)])
def test_after_the_last_attempt_failed_is_called_and_the_job_is_kept(
    bench: Bench, kind: type[Job], attempts: int
) -> None:
    bench.push(kind())
    bench.start()
    ran.wait_for("failed")
    bench.settled()
    assert ran.of("attempt") == list(range(1, attempts + 1))
    assert ran.of("failed") == [f"attempt {attempts}"]
    (letter,) = bench.driver.dead(bench.name)
    assert letter.attempts == attempts
    assert letter.reason == "failed"
    assert f"attempt {attempts}" in letter.error
    assert "raise ValueError" in letter.traceback


def test_failed_may_be_async_where_handle_is_not(bench: Bench) -> None:
    bench.push(SyncWithAsyncFailed())
    bench.start()
    ran.wait_for("failed")
    assert ran.of("failed") == ["millstream-loop"]


def test_many_async_failed_may_use_the_threads_of_the_loop(memory: Bench) -> None:
    class Fails(Job, max_attempts=1):
        async def handle(self) -> None:
            await asyncio.sleep(0.05)
            raise ValueError

        async def failed(self, error: Exception) -> None:
            await asyncio.to_thread(ran.add, "failed")

    memory.push_many([Fails() for _ in range(64)])
    memory.start(concurrency=64)
    ran.wait_for("failed", 64)
    memory.settled()


def test_a_failed_that_cancels_itself_changes_nothing(memory: Bench) -> None:
    class Fails(Job, max_attempts=1):
        async def handle(self) -> None:
            raise ValueError

        async def failed(self, error: Exception) -> None:
            raise asyncio.CancelledError

    memory.push_many([Fails() for _ in range(3)])
    memory.start(concurrency=1)
    until(lambda: len(memory.driver.dead(memory.name)) == 3, "three dead letters")


def test_an_error_in_failed_changes_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.push(AsyncWithSyncFailed())
    bench.start()
    ran.wait_for("failed")
    until(lambda: len(bench.driver.dead(bench.name)) == 1, "a dead letter")
    assert "failed() of AsyncWithSyncFailed raised" in caplog.text


def test_sys_exit_in_a_handler_ends_the_job_alone(bench: Bench) -> None:
    bench.push(Exiting())
    bench.push(Note(text="after"))
    bench.start(concurrency=1)
    ran.wait_for("failed")
    ran.wait_for("note")
    assert "SystemExit" in str(ran.of("failed")[0])


def test_an_async_handler_that_cancels_itself_ends_the_job_alone(memory: Bench) -> None:
    memory.push_many([Cancelling() for _ in range(5)])
    memory.start(concurrency=1)
    ran.wait_for("failed", 5)
    memory.settled()
    assert len(memory.driver.dead(memory.name)) == 5


@pytest.mark.parametrize("what", ["retry", "snooze"])
def test_a_handler_may_ask_for_another_time(bench: Bench, what: str) -> None:
    bench.push(Controlled(what=what))
    bench.start()
    ran.wait_for("attempt", 2)
    bench.settled()
    assert ran.times[1] - ran.times[0] >= 0.1
    assert ran.of("attempt") == [(what, 1), (what, 2 if what == "retry" else 1)]


def test_a_handler_may_cancel_its_job(bench: Bench) -> None:
    bench.push(Controlled(what="cancel"))
    bench.start()
    ran.wait_for("attempt")
    bench.settled()
    assert not bench.driver.dead(bench.name)
    assert not ran.of("failed")


def test_a_handler_may_bury_its_job(bench: Bench) -> None:
    bench.push(Controlled(what="bury"))
    bench.start()
    ran.wait_for("failed")
    bench.settled()
    assert [letter.reason for letter in bench.driver.dead(bench.name)] == ["hopeless"]


def test_an_unknown_type_is_handed_back_and_then_buried(
    memory: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.retry.REJECTED_DELAYS", (0.02, 0.02, 0.02))
    memory.queue.enqueue("nobody.knows", {"a": 1}, queue=memory.name)
    memory.start()
    until(lambda: len(memory.driver.dead(memory.name)) == 1, "a dead letter")
    (letter,) = memory.driver.dead(memory.name)
    assert letter.reason == "rejected"
    assert "nobody.knows" in letter.error
    assert caplog.text.count("cannot be run here") == 4


def test_a_type_that_becomes_known_in_time_is_run(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.retry.REJECTED_DELAYS", (0.2, 0.2, 0.2))
    memory.queue.enqueue("known.later", {"a": 1}, queue=memory.name)
    worker = memory.start()
    until(lambda: worker.counters.retried == 1, "it to be handed back")

    @memory.queue.handler("known.later")
    def handle(data: dict[str, int]) -> None:
        ran.add("known", data)

    ran.wait_for("known")
    assert ran.of("known") == [{"a": 1}]


def test_fields_that_do_not_fit_are_rejected_by_name(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.retry.REJECTED_DELAYS", (0.02,))
    body = memory.queue.codec.encode(
        Envelope(
            id=new_job_id(), type=Note._type.name, payload=memory.queue.codec.encode_payload({"text": 5})
        )
    )
    memory.driver.push([PushItem(new_job_id(), memory.name, "default", body)])
    memory.start()
    until(lambda: len(memory.driver.dead(memory.name)) == 1, "a dead letter")
    assert "text" in memory.driver.dead(memory.name)[0].error


def test_bytes_that_are_no_job_are_buried_and_hold_nobody_up(bench: Bench) -> None:
    bench.driver.push([PushItem(new_job_id(), bench.name, "default", b"\xff not a job")])
    bench.push(Note(text="after"))
    bench.start()
    ran.wait_for("note")
    until(lambda: len(bench.driver.dead(bench.name)) == 1, "a dead letter")
    (letter,) = bench.driver.dead(bench.name)
    assert letter.reason == "unreadable"
    assert letter.body == b"\xff not a job"


def test_a_job_that_expired_is_not_started(bench: Bench) -> None:
    bench.push(Failing().expires_in(0.01))
    bench.push(FailingAsync().expires_in(0.01))
    until(lambda: _age(bench) > 0.02, "their time to be over")
    bench.start()
    until(lambda: len(bench.driver.dead(bench.name)) == 2, "dead letters")
    assert {letter.reason for letter in bench.driver.dead(bench.name)} == {"expired"}
    assert not ran.of("attempt")
    assert ran.of("failed") == ["not started before its expires_in was over"] * 2


def _age(bench: Bench) -> float:
    return bench.queue.sizes(bench.name).oldest or 0.0


def test_a_poison_pill_is_buried(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.push(Note(text="kills its worker"))
    (taken,) = bench.driver.reserve([bench.name], "worker-1", 1)
    for number in (2, 3):
        (taken,) = _recover(bench, f"worker-{number}")
    assert taken.delivery_count == 3
    bench.start(max_deliveries=3, lease=0.2)
    until(lambda: len(bench.driver.dead(bench.name)) == 1, "a dead letter")
    assert bench.driver.dead(bench.name)[0].reason == "poison"
    assert not ran.of("note")
    assert "was lost with its worker 3 times" in caplog.text


def _recover(bench: Bench, owner: str) -> list[object]:
    found: list[object] = []
    until(lambda: found.extend(bench.driver.recover([bench.name], owner, 0.01)) or found, "the lease to end")
    return found
