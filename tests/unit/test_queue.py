"""Queue, QueueManager and dead letters, in memory and on Redis."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from millstream import Bury, Job, Queue, QueueManager, Registry, Retry, Snooze, connect, job
from millstream.drivers.base import PushItem
from millstream.envelope import Envelope, JsonCodec
from millstream.errors import (
    BrokerClosed,
    BrokerUnavailable,
    ConfigurationError,
    InvalidData,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    PayloadTooLarge,
    StaleReservation,
    UnknownJobType,
    UnknownScheme,
    UnreadableEnvelope,
)
from tests.servers import RedisServer


class Send(Job, queue="emails", max_attempts=2, backoff=0, jitter=0):
    user_id: int

    def handle(self) -> None: ...

    def failed(self, error: Exception) -> None:
        gone.append((self.id or "", error))


class SendAsync(Send):
    async def failed(self, error: Exception) -> None:
        await asyncio.sleep(0)
        gone.append((self.id or "", error))


class Blob(Job):
    text: str

    def handle(self) -> None: ...


@job(queue="reports")
def report(day: str) -> str:
    return day


gone: list[tuple[str, Exception]] = []


@pytest.fixture(params=["memory", "redis"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue of its own on each kind of broker."""
    if request.param == "memory":
        opened = connect("memory://")
    else:
        server: RedisServer = request.getfixturevalue("redis7")
        opened = connect(server.url, prefix=f"test-{uuid.uuid4().hex}")
    gone.clear()
    with opened:
        yield opened


def bury(queue: Queue, pushed: Job, error: Exception | None = None) -> str:
    """Push a job and fail it for good."""
    job_id = queue.push(pushed)
    popped = queue.pop(pushed.options.queue)
    assert popped is not None
    queue.fail(popped, Bury("for the test") if error is None else error)
    return job_id


# -- pushing and taking ----------------------------------------------------------------------------


def test_push_pop_complete(queue: Queue) -> None:
    pushed = Send(7)
    job_id = queue.push(pushed)
    assert pushed.id == job_id
    assert queue.size("emails") == 1
    popped = queue.pop("emails")
    assert popped == Send(7)
    assert popped is not None
    assert (popped.id, popped.attempt, popped.delivery_count) == (job_id, 1, 1)
    assert popped.stream_id
    assert popped.envelope is not None
    assert popped.envelope.pushed_at == pytest.approx(time.time(), abs=60)
    assert queue.sizes("emails").reserved == 1
    queue.complete(popped)
    assert queue.size("emails") == 0
    assert queue.pop("emails") is None


def test_a_job_is_settled_once(queue: Queue) -> None:
    queue.push(Send(1))
    popped = queue.pop("emails")
    assert popped is not None
    queue.complete(popped)
    with pytest.raises(StaleReservation):
        queue.complete(popped)
    with pytest.raises(StaleReservation):
        queue.fail(popped, ValueError("late"))
    with pytest.raises(StaleReservation):
        queue.extend(popped)


def test_only_a_job_that_was_taken_can_be_settled(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="was not taken from a queue"):
        queue.complete(Send(1))


def test_push_many_keeps_the_order_and_returns_the_ids(queue: Queue) -> None:
    ids = queue.push_many(Send(number) for number in range(2500))
    assert len(set(ids)) == 2500
    assert queue.size("emails") == 2500
    assert [queue.pop("emails") for _ in range(3)] == [Send(0), Send(1), Send(2)]
    assert queue.push_many([]) == []


def test_push_many_of_several_queues(queue: Queue) -> None:
    ids = queue.push_many([Send(1), report("a"), Send(2)])
    assert (queue.size("emails"), queue.size("reports")) == (2, 1)
    assert [queue.find(job_id).queue for job_id in ids] == ["emails", "reports", "emails"]  # type: ignore[union-attr]


def test_nothing_is_pushed_if_one_of_many_is_wrong(queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        queue.push_many([Send(1), Send("x")])  # type: ignore[arg-type]
    assert queue.size("emails") == 0


def test_one_object_pushed_twice_is_two_jobs(queue: Queue) -> None:
    again = Send(1)
    assert queue.push(again) != queue.push(again)
    assert len(set(queue.push_many([again, again]))) == 2
    assert queue.size("emails") == 4


def test_priorities(queue: Queue) -> None:
    queue.push(Send(1).with_priority("low"))
    queue.push(Send(2))
    queue.push(Send(3).with_priority("urgent"))
    queue.push(Send(4).with_priority("high"))
    assert [queue.pop("emails").user_id for _ in range(4)] == [3, 4, 2, 1]  # type: ignore[union-attr]


def test_delayed_jobs_and_promote_due(queue: Queue) -> None:
    job_id = queue.push(Send(1).delay(0.15))
    assert queue.pop("emails") is None
    view = queue.find(job_id)
    assert view is not None
    assert view.state == "delayed"
    assert view.due_in == pytest.approx(0.15, abs=0.15)
    assert [each.id for each in queue.delayed("emails")] == [job_id]
    assert queue.promote_due() == 0
    time.sleep(0.2)
    assert queue.promote_due() == 1
    assert queue.promote_due("emails") == 0
    assert queue.pop("emails") == Send(1)


def test_pop_makes_due_jobs_available_by_itself(queue: Queue) -> None:
    queue.push(Send(1).delay(timedelta(milliseconds=50)))
    queue.push(Send(2).delay(datetime.now(UTC) + timedelta(hours=1)))
    time.sleep(0.1)
    assert queue.pop("emails") == Send(1)
    assert queue.pop("emails") is None


def test_pop_takes_over_what_a_lost_owner_held(queue: Queue) -> None:
    job_id = queue.push(Send(1))
    first = queue.pop("emails")
    assert first is not None
    assert queue.pop("emails", lease=None) is None
    time.sleep(0.1)
    second = queue.pop("emails", lease=0.05)
    assert second is not None
    assert (second.id, second.delivery_count, second.attempt) == (job_id, 2, 1)
    with pytest.raises(StaleReservation):
        queue.complete(first)
    queue.complete(second)


def test_tasks_of_an_older_version_are_brought_up_to_date() -> None:
    with connect("memory://", codec="msgpack") as queue:
        queue.enqueue("greet", {"first": "A", "last": "B"})
        seen = []

        @queue.handler("greet", version=2)
        def greet(data: dict[str, Any]) -> None:
            seen.append(data)

        with pytest.raises(InvalidPayload, match=r"write @queue\.upcast\('greet', 1\)"):
            queue.pop()

        @queue.upcast("greet", from_version=1)
        def join_names(data: dict[str, Any]) -> dict[str, Any]:
            return {"name": f"{data['first']} {data['last']}"}

        queue.promote_due()
        queue.enqueue("greet", {"name": "C"})
        for _ in range(2):
            taken = queue.pop(wait=5)
            assert taken is not None
            taken.handle()
            queue.complete(taken)
        assert {data["name"] for data in seen} == {"A B", "C"}
        with pytest.raises(UnknownJobType):
            queue.upcast("nobody", 1)


def test_a_task_that_was_taken_can_be_pushed_again_under_its_key() -> None:
    with connect("memory://") as queue:

        @queue.handler("sync", unique_key=["a"])
        def sync(data: dict[str, Any]) -> None: ...

        queue.enqueue("sync", {"a": 1})
        taken = queue.pop()
        assert taken is not None
        queue.complete(taken)
        again = queue.push(taken)
        assert queue.enqueue("sync", {"a": 1, "b": 2}) == again


def test_where_nothing_was_ever_pushed_there_is_nothing_to_do() -> None:
    with connect("memory://") as queue:
        assert queue.recover() == []
        assert queue.promote_due() == 0
        assert queue.drain(timeout=1)


def test_recover_and_extend(queue: Queue) -> None:
    queue.push_many([Send(1), Send(2)])
    held = queue.pop("emails")
    queue.pop("emails")
    time.sleep(0.12)
    assert held is not None
    queue.extend(held)
    recovered = queue.recover("emails", lease=0.1)
    assert recovered == [Send(2)]
    assert queue.recover(lease=60) == []


def test_pop_waits_for_a_push(queue: Queue) -> None:
    pushing = threading.Timer(0.1, lambda: queue.push(Send(1)))
    pushing.start()
    assert queue.pop("emails", wait=10) == Send(1)
    pushing.join()


def test_a_job_pushed_again_after_a_lost_reply_is_one_job(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = queue.driver.push

    def arrives_but_answers_not(items: Sequence[PushItem]) -> list[str]:
        original(items)
        raise BrokerUnavailable("the reply was lost")

    pushed, many = Send(1), [Send(2), Send(3)]
    with monkeypatch.context() as patch:
        patch.setattr(queue.driver, "push", arrives_but_answers_not)
        with pytest.raises(BrokerUnavailable):
            queue.push(pushed)
        patch.setattr(queue.driver, "push_batches", lambda batches: map(arrives_but_answers_not, batches))
        with pytest.raises(BrokerUnavailable):
            queue.push_many(many)
    queue.push(pushed)
    queue.push_many(many)
    assert queue.size("emails") == 3


def test_a_push_of_many_that_failed_half_way_goes_on_where_it_was(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Send(number) for number in range(2500)]
    original = queue.driver.push_batches

    def fails_after_the_first(batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        pushed = original(batches)
        yield next(pushed)
        raise BrokerUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(queue.driver, "push_batches", fails_after_the_first)
        with pytest.raises(BrokerUnavailable):
            queue.push_many(jobs)
    done = 0
    while popped := queue.pop("emails"):  # what has arrived is done before the call is made again
        queue.complete(popped)
        done += 1
    assert done in (1000, 2000), "a second thousand may have been sent ahead"
    ids = queue.push_many(jobs)
    assert queue.size("emails") == 2500 - done
    assert len(set(ids)) == 2500
    assert [job.id for job in jobs] == ids
    assert len(set(queue.push_many(jobs)) | set(ids)) == 5000, "pushing them once more is a new push"


def test_a_list_is_checked_as_a_whole_and_an_iterator_as_it_goes(queue: Queue) -> None:
    jobs = [Send(number) for number in range(2500)]
    jobs[2200].user_id = "seven"  # type: ignore[assignment]
    with pytest.raises(InvalidPayload, match="user_id"):
        queue.push_many(jobs)
    assert queue.size("emails") == 0
    with pytest.raises(InvalidPayload, match="user_id"):
        queue.push_many(iter(jobs))
    assert queue.size("emails") in (1000, 2000), "the thousands before the bad one"


def test_an_iterator_is_never_held_whole(queue: Queue) -> None:
    alive: set[int] = set()
    most = 0

    class Counted(Send):
        def __del__(self) -> None:
            alive.discard(id(self))

    def endless() -> Iterator[Job]:
        nonlocal most
        for number in range(6000):
            job = Counted(number)
            alive.add(id(job))
            most = max(most, len(alive))
            yield job

    ids = queue.push_many(endless())
    assert len(set(ids)) == queue.size("emails") == 6000
    assert most <= 3000


def test_jobs_of_many_kinds_are_pushed_in_their_order(queue: Queue) -> None:
    jobs: list[Job] = [Send(number) for number in range(1500)]
    jobs[700] = Send(700).with_priority("high")
    jobs[1200] = Send(1200).delay(60)
    ids = queue.push_many(job for job in jobs)
    assert [job.id for job in jobs] == ids
    assert [queue.pop("emails").user_id for _ in range(3)] == [700, 0, 1]  # type: ignore[union-attr]
    assert queue.sizes("emails").delayed == 1


def test_the_jobs_of_a_push_that_failed_can_be_pushed_one_by_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Send(number) for number in range(1001)]
    original = queue.driver.push_batches

    def fails_after_the_first(batches: Iterable[Sequence[PushItem]]) -> Iterator[list[str]]:
        yield next(original(batches))
        raise BrokerUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(queue.driver, "push_batches", fails_after_the_first)
        with pytest.raises(BrokerUnavailable):
            queue.push_many(jobs)
    assert [queue.push(job) for job in jobs] == [job.id for job in jobs]
    assert queue.size("emails") == 1001


def test_unique_jobs(queue: Queue) -> None:
    first = queue.push(Send(1).unique_for(60))
    assert queue.push(Send(1).unique_for(60)) == first
    assert queue.push(Send(2).unique_for(60)) != first
    assert queue.push(Send(1)) != first

    class ByField(Job, unique_key=["account"]):
        account: int
        note: str = ""

    class ByFunction(Job, unique_for=60, unique_key=lambda made: str(made.account % 2)):
        account: int

    assert queue.push(ByField(1, "a")) == queue.push(ByField(1, "b")) != queue.push(ByField(2))
    assert queue.push(ByFunction(1)) == queue.push(ByFunction(3)) != queue.push(ByFunction(2))
    assert queue.push(Send(5).unique_for(60, key="k")) == queue.push(Send(6).unique_for(60, key="k"))


def test_equal_values_are_the_same_job_in_whichever_order(queue: Queue) -> None:
    class Loose(Job, unique_for=60):
        settings: dict[str, int]
        names: set[str]

    first = queue.push(Loose({"a": 1, "b": 2}, {str(n) for n in range(40)}))
    assert queue.push(Loose({"b": 2, "a": 1}, {str(n) for n in reversed(range(40))})) == first
    once = queue.enqueue("sync", {"a": 1, "b": {"x": 1, "y": 2}}, unique_for=60)
    assert queue.enqueue("sync", {"b": {"y": 2, "x": 1}, "a": 1}, unique_for=60) == once


def test_a_unique_key_names_fields_that_there_are(queue: Queue) -> None:
    for data in ({"a": 1}, {"a": 2}):
        with pytest.raises(InvalidInput, match=r"unique_key names 'typo'; the fields are: a$"):
            queue.enqueue("sync", data, unique_for=60, unique_key=["typo"])
    with pytest.raises(InvalidInput, match="unique_key names 'typo'; the fields are: user_id"):
        queue.push(Send(1).unique_for(60, key=["typo"]))
    assert queue.enqueue("sync", {"a": 1, "n": 1}, unique_for=60, unique_key=["a"]) == queue.enqueue(
        "sync", {"a": 1, "n": 2}, unique_for=60, unique_key=["a"]
    )


def test_json_does_not_make_none_of_a_nan() -> None:
    class Measured(Job):
        value: float | None = None
        anything: Any = None
        many: list[dict[str, float | None]] = []  # noqa: RUF012 - a field's default

        def handle(self) -> None: ...

    nan = float("nan")
    wrong = (Measured(nan), Measured(anything={"x": [float("inf")]}), Measured(many=[{"a": nan}]))
    with connect("memory://") as queue:
        for made in wrong:
            with pytest.raises(InvalidPayload, match="JSON has no NaN and no infinity"):
                queue.push(made)
            with pytest.raises(InvalidPayload, match="JSON has no NaN and no infinity"):
                queue.push_many([Measured(1.0), made])
        queue.push_many([Measured(1.0), Measured(None, {"x": 1}, [{"a": None}])])
    with connect("memory://", codec="msgpack") as queue:
        queue.push(Measured(nan))
        taken = queue.pop()
        assert isinstance(taken, Measured)
        assert str(taken.value) == "nan"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda queue: queue.enqueue("t", {"x": 2**70}), "too large for msgpack"),
        (lambda queue: queue.enqueue("t", {}, tags=5), "tags must be a text or a list"),
        (
            lambda queue: queue.push(
                Send(1).delay(datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))))
            ),
            "later than any moment",
        ),
    ],
)
def test_values_out_of_range_are_said(wrong: Callable[[Queue], str], message: str) -> None:
    with connect("memory://", codec="msgpack") as queue, pytest.raises(ValueError, match=message):
        wrong(queue)


def test_a_unique_key_must_be_a_text(queue: Queue) -> None:
    class Wrong(Job, unique_key=lambda made: made.x):
        x: int

    with pytest.raises(InvalidInput, match="unique_key must return a text"):
        queue.push(Wrong(1))


def test_a_job_until_it_is_gone_is_unique(queue: Queue) -> None:
    first = queue.push(Send(1).unique_for(0))
    assert queue.push(Send(1).unique_for(0)) == first
    popped = queue.pop("emails")
    assert popped is not None
    queue.complete(popped)
    assert queue.push(Send(1).unique_for(0)) != first


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_codecs(codec: str) -> None:
    with connect("memory://", codec=codec) as queue:
        queue.push(Send(1).tags("a"))
        popped = queue.pop("emails")
        assert popped == Send(1)
        assert popped is not None
        assert popped.envelope is not None
        assert popped.envelope.tags == ["a"]
        job_id = bury(queue, Send(2))
        letter = queue.dead("emails").show(job_id)
        assert letter is not None
        assert letter.payload == {"user_id": 2}


# -- wrong input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [Send, report, {"user_id": 1}, "email.send", None])
def test_only_jobs_can_be_pushed(queue: Queue, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="push takes a job"):
        queue.push(wrong)
    with pytest.raises(InvalidInput, match="push takes a job"):
        queue.push_many([wrong])


def test_a_payload_over_the_limit_is_refused_before_it_is_sent() -> None:
    with connect("memory://", max_payload=100) as queue:
        queue.push(Blob("x" * 80))
        with pytest.raises(PayloadTooLarge, match="100"):
            queue.push(Blob("x" * 200))
        with pytest.raises(PayloadTooLarge):
            queue.enqueue("t", {"text": "x" * 200})
        assert queue.size() == 1


def test_the_default_limit_is_a_mebibyte(queue: Queue) -> None:
    queue.push(Blob("x" * (1024 * 1024 - 20)))
    with pytest.raises(PayloadTooLarge):
        queue.push(Blob("x" * (1024 * 1024)))
    popped = queue.pop()
    assert popped is not None
    queue.fail(popped, ValueError("y" * 10_000))  # what is added to it on the way does not count


def test_a_giant_entry_is_not_decoded() -> None:
    with (
        connect("memory://big", prefix="limit") as wide,
        connect("memory://big", prefix="limit", max_payload=10) as narrow,
    ):
        wide.push(Blob("x" * 500_000))
        with pytest.raises(UnreadableEnvelope, match="bytes, and"):
            narrow.pop()
        (letter,) = narrow.dead().list()
        assert (letter.reason, letter.type) == ("unreadable", "")


def test_names_of_queues_are_checked_everywhere(queue: Queue) -> None:
    for call in (
        queue.size,
        queue.pop,
        queue.clear,
        queue.pause,
        queue.resume,
        queue.dead,
        queue.stream_keys,
    ):
        for bad in ("", "a{b", "x" * 600, "new\nline"):
            with pytest.raises(InvalidName):
                call(bad)
    with pytest.raises(InvalidName):
        queue.enqueue("t", {}, queue="{}")


def test_an_unknown_type_is_handed_back_then_buried(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.retry.REJECTED_DELAYS", (0.0, 0.0, 0.0))
    job_id = queue.enqueue("nobody.knows", {"a": 1})
    for _ in range(3):
        with pytest.raises(UnknownJobType, match=r"'nobody\.knows'"):
            queue.pop()
        assert queue.size() == 1
    with pytest.raises(UnknownJobType):
        queue.pop()
    assert queue.size() == 0
    letter = queue.dead().show(job_id)
    assert letter is not None
    assert letter.reason == "rejected"
    assert [past.outcome for past in letter.history] == ["rejected"] * 4
    assert queue.dead().retry(job_id) == 1
    for _ in range(3):  # it begins again
        with pytest.raises(UnknownJobType):
            queue.pop()
        assert queue.size() == 1


def test_an_invalid_payload_is_handed_back(queue: Queue) -> None:
    other = Queue(queue.driver, registry=Registry(), close_driver=False)  # knows no types: pushes anything
    other.enqueue("tests.unit.test_queue.Send", {"user_id": "x"}, queue="emails")
    with pytest.raises(InvalidPayload, match="user_id"):
        queue.pop("emails")
    assert queue.sizes("emails").delayed == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "asap"}, "not a priority"),
        ({"delay": -1}, "delay must be at least 0"),
        ({"priorty": "high"}, r"unknown option 'priorty' \(did you mean 'priority'\?\)"),
        (
            {"nonsense": 1},
            "allowed are backoff, connection, delay, expires_in, jitter, max_attempts, max_backoff, "
            "multiplier, priority, queue, tags, timeout, unique_for, unique_key$",
        ),
        ({"version": 2}, "version is said where the type is defined"),
        ({"max_attempts": 0}, "max_attempts"),
    ],
)
def test_wrong_options_of_enqueue(queue: Queue, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        queue.enqueue("email.send", {}, **options)


def test_the_data_of_a_task_are_json_values(queue: Queue) -> None:
    with pytest.raises(InvalidData, match=r"data\['at'\]"):
        queue.enqueue("t", {"at": datetime.now(UTC)})
    with pytest.raises(InvalidData, match="nan"):
        queue.enqueue("t", {"x": float("nan")})
    with pytest.raises(InvalidPayload, match="must be a mapping"):
        queue.enqueue("t", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match="key 1 is not a text"):
        queue.enqueue("t", {1: 2})  # type: ignore[dict-item]
    with pytest.raises(InvalidName):
        queue.enqueue("", {})


# -- tasks by name ---------------------------------------------------------------------------------


def test_a_task_by_name_and_its_handler(queue: Queue) -> None:
    seen: list[Any] = []

    @queue.handler("email.send", max_attempts=7, queue="emails")
    def send(data: dict[str, Any], context: Job) -> None:
        seen.append((data, context.id, context.attempt))

    job_id = queue.enqueue("email.send", {"to": "x"}, priority="urgent")
    popped = queue.pop("emails")
    assert popped is not None
    assert popped.envelope is not None
    assert (popped.envelope.priority, popped.envelope.max_attempts) == ("critical", 7)
    popped.handle()
    queue.complete(popped)
    assert seen == [({"to": "x"}, job_id, 1)]
    send({"to": "y"}, popped)  # the function stays what it was
    assert "email.send" in repr(popped)


def test_an_async_handler_and_a_typed_one(queue: Queue) -> None:
    class Mail(msgspec.Struct):
        to: str

    @queue.handler("a")
    async def plain(data: dict[str, Any]) -> Any:
        return data

    @queue.handler("b")
    def typed(data: Mail) -> Any:
        return data

    queue.enqueue("a", {"n": 1})
    queue.enqueue("b", {"to": "x"})
    first, second = queue.pop(), queue.pop()
    assert first is not None
    assert second is not None
    assert queue.registry.resolve("a").is_async
    assert asyncio.run(first.handle()) == {"n": 1}
    assert second.handle() == Mail("x")
    with pytest.raises(InvalidPayload, match="to"):
        queue.enqueue("b", {"to": 3})


def test_handlers_belong_to_their_queue(queue: Queue) -> None:
    @queue.handler("only.here")
    def handle(data: dict[str, Any]) -> None: ...

    assert "only.here" in queue.registry
    with connect("memory://") as other:
        assert "only.here" not in other.registry
        assert "tests.unit.test_queue.Send" in other.registry


def test_a_handler_with_a_wrong_signature_or_a_taken_name(queue: Queue) -> None:
    for wrong in (lambda: None, lambda a, b, c: None, lambda *args: None, lambda a, *, b: None):
        with pytest.raises(ConfigurationError, match="must take the data"):
            queue.handler("x")(wrong)

    with pytest.raises(ConfigurationError, match="its data cannot be 'Nowhere'"):

        @queue.handler("x")
        def lost(data: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @queue.handler("taken")
    def one(data: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="two job types are called 'taken'"):

        @queue.handler("taken")
        def two(data: dict[str, Any]) -> None: ...


def test_enqueue_checks_the_fields_of_a_known_class(queue: Queue) -> None:
    name = "tests.unit.test_queue.Send"
    queue.enqueue(name, {"user_id": 7})
    assert queue.pop("emails") == Send(7)
    with pytest.raises(InvalidPayload, match="no field 'user_idd'; the fields are: user_id"):
        queue.enqueue(name, {"user_idd": 7})
    with pytest.raises(InvalidPayload, match="user_id"):
        queue.enqueue(name, {})


def test_register_job_classes(queue: Queue) -> None:
    bare = Queue(queue.driver, registry=Registry(), close_driver=False)
    bare.register_job_classes([Send, report])  # type: ignore[list-item]
    assert bare.registry.names() == ("tests.unit.test_queue.Send", "tests.unit.test_queue.report")
    with pytest.raises(InvalidInput, match="subclasses of Job"):
        bare.register_job_classes([Job, int])  # type: ignore[list-item]


# -- failing ---------------------------------------------------------------------------------------


def test_a_failed_job_is_retried_and_then_buried(queue: Queue) -> None:
    job_id = queue.push(Send(1))
    for attempt in (1, 2):
        popped = queue.pop("emails")
        assert popped is not None
        assert (popped.id, popped.attempt) == (job_id, attempt)
        queue.fail(popped, ValueError(f"no {attempt}"))
    assert queue.sizes("emails").dead == 1
    assert [(each, str(error)) for each, error in gone] == [(job_id, "no 2")]
    letter = queue.dead("emails").show(job_id)
    assert letter is not None
    assert (letter.reason, letter.error, letter.attempts) == ("failed", "ValueError: no 2", 2)
    assert [past.error for past in letter.history] == ["ValueError: no 1", "ValueError: no 2"]
    assert letter.original_stream in queue.stream_keys("emails")
    assert letter.original_id


def test_an_async_failed_is_called_with_and_without_a_running_loop(queue: Queue) -> None:
    bury(queue, SendAsync(1))

    async def inside() -> None:
        bury(queue, SendAsync(2))

    asyncio.run(inside())
    assert len(gone) == 2


def test_failed_that_fails_is_logged(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(Job):
        def handle(self) -> None: ...

        def failed(self, error: Exception) -> None:
            raise RuntimeError("oops")

    bury(queue, Clumsy())
    assert "oops" in caplog.text
    assert queue.sizes().dead == 1


def test_retry_and_snooze_by_hand(queue: Queue) -> None:
    queue.push(Send(1))
    for error in (Snooze(0), Retry(after=0)):
        popped = queue.pop("emails")
        assert popped is not None
        assert popped.attempt == 1
        queue.fail(popped, error)
    popped = queue.pop("emails")
    assert popped is not None
    assert popped.attempt == 2


# -- keeping house ---------------------------------------------------------------------------------


def test_sizes_clear_pause_resume_cancel(queue: Queue) -> None:
    queue.initialize()
    queue.push_many([Send(1), Send(2)])
    delayed = queue.push(Send(3).delay(60))
    assert queue.queues() == ["emails"]
    sizes = queue.sizes("emails")
    assert (sizes.waiting, sizes.delayed, sizes.reserved, sizes.dead) == (2, 1, 0, 0)
    queue.pause("emails")
    assert queue.sizes("emails").paused
    assert queue.pop("emails", lease=None) is None
    queue.resume("emails")
    assert queue.pop("emails") == Send(1)
    assert queue.cancel(delayed)
    assert not queue.cancel(delayed)
    assert queue.find(delayed) is None
    assert queue.clear("emails") == 1
    assert queue.size("emails") == 1  # the one that runs


def test_drain_waits_for_delayed_jobs_too(queue: Queue) -> None:
    assert queue.drain(timeout=0)
    queue.push(Send(1).delay(0.05))
    assert not queue.drain(timeout=0.1)
    with queue.worker(["emails"]):
        assert queue.drain("emails", timeout=10)


def test_find_tells_the_state(queue: Queue) -> None:
    job_id = queue.push(Send(7))
    view = queue.find(job_id)
    assert view is not None
    assert (view.state, view.type, view.payload) == ("waiting", "tests.unit.test_queue.Send", {"user_id": 7})
    popped = queue.pop("emails")
    assert popped is not None
    view = queue.find(job_id, "emails")
    assert view is not None
    assert (view.state, view.owner) == ("reserved", queue.owner)
    queue.fail(popped, Bury())
    view = queue.find(job_id)
    assert view is not None
    assert view.state == "dead"
    assert queue.find("nope") is None


def test_stream_keys_are_in_priority_order(queue: Queue) -> None:
    levels = [key.rpartition(":")[2] for key in queue.stream_keys()]
    assert levels == ["critical", "high", "default", "low"]


# -- dead letters ----------------------------------------------------------------------------------


def test_dead_letters_can_be_listed_filtered_and_grouped(queue: Queue) -> None:
    before = time.time() - 60
    ids = [
        bury(queue, Send(1).on_queue("d").timeout(None), Bury("a")),
        bury(queue, Blob("x").on_queue("d"), Bury("b")),
    ]
    ids.append(bury(queue, Send(3).on_queue("d"), Bury("a")))
    dead = queue.dead("d")
    assert [letter.id for letter in dead.list()] == ids
    assert [letter.id for letter in dead] == ids
    assert len(dead) == 3
    assert [letter.id for letter in dead.list(count=2)] == ids[:2]
    assert [letter.id for letter in dead.list(start=ids[0])] == ids[1:]
    assert [letter.id for letter in dead.list(type="tests.unit.test_queue.Blob")] == ids[1:2]
    assert [letter.id for letter in dead.list(error="BURY: A")] == [ids[0], ids[2]]
    assert [letter.id for letter in dead.list(reason="b")] == ids[1:2]
    assert len(dead.list(since=before)) == 3
    assert dead.list(until=before) == []
    assert dead.list(since=datetime.now(UTC) + timedelta(hours=1)) == []
    groups = [(group.count, group.reason) for group in dead.groups()]
    assert groups == [(2, "a"), (1, "b")]
    with pytest.raises(InvalidInput, match="time zone"):
        dead.list(since=datetime(2026, 1, 1))
    with pytest.raises(TypeError):
        dead.list(nope=1)


def test_a_retried_dead_letter_keeps_id_and_history_and_begins_anew(queue: Queue) -> None:
    job_id = bury(queue, Send(1))
    assert queue.dead("emails").retry(job_id) == 1
    assert queue.sizes("emails").dead == 0
    popped = queue.pop("emails")
    assert popped is not None
    assert (popped.id, popped.attempt) == (job_id, 1)
    assert popped.envelope is not None
    assert len(popped.envelope.history) == 1
    assert queue.dead("emails").retry("nope") == 0


@pytest.mark.parametrize(("ours", "theirs"), [("json", "msgpack"), ("msgpack", "json")])
def test_a_dead_letter_of_the_other_codec_is_read_and_goes_back_as_it_was_written(
    queue: Queue, ours: str, theirs: str
) -> None:
    writer = Queue(queue.driver, codec=theirs, close_driver=False)
    looker = Queue(queue.driver, codec=ours, close_driver=False)
    job_id = bury(writer, Send(1).with_priority("high"))
    letter = looker.dead("emails").show(job_id)
    assert letter is not None
    assert (letter.payload, letter.codec, len(letter.history)) == ({"user_id": 1}, theirs, 1)
    view = looker.find(job_id)
    assert view is not None
    assert view.payload == {"user_id": 1}
    looker.dead("emails").edit(job_id, {"user_id": 2})
    assert looker.dead("emails").retry() == 1
    popped = writer.pop("emails")
    assert popped == Send(2)
    assert popped is not None
    assert popped.envelope is not None
    assert (popped.attempt, popped.envelope.priority) == (1, "high")
    assert popped.reservation is not None
    assert popped.reservation.priority == "high"


class Sealed(JsonCodec):
    """A codec of the user's own."""

    name = "sealed"

    def encode(self, envelope: Envelope) -> bytes:
        return b"sealed" + super().encode(envelope)

    def decode(self, body: bytes) -> Envelope:
        if not body.startswith(b"sealed"):
            raise UnreadableEnvelope("it has no seal")
        return super().decode(body[6:])


def test_a_dead_letter_that_cannot_be_read_keeps_its_priority(queue: Queue) -> None:
    sealed = Queue(queue.driver, codec=Sealed(), close_driver=False)
    job_id = bury(sealed, Send(1).with_priority("high"))
    letter = queue.dead("emails").show(job_id)
    assert letter is not None
    assert (letter.type, letter.codec) == ("", "")
    assert queue.dead("emails").retry(job_id) == 1
    popped = sealed.pop("emails")
    assert popped is not None
    assert popped.reservation is not None
    assert popped.reservation.priority == "high"


def test_a_codec_of_ones_own_reads_nothing_else(queue: Queue) -> None:
    sealed = Queue(queue.driver, codec=Sealed(), close_driver=False)
    job_id = bury(queue, Send(1))
    letter = sealed.dead("emails").show(job_id)
    assert letter is not None
    assert letter.envelope is None


def test_an_expired_job_is_buried_and_can_be_retried_by_hand(queue: Queue) -> None:
    job_id = queue.push(Send(1).expires_in(0.01))
    queue.push(Send(2))
    time.sleep(0.02)
    assert queue.pop("emails") == Send(2)
    letter = queue.dead("emails").show(job_id)
    assert letter is not None
    assert letter.reason == "expired"
    assert [each for each, _ in gone] == [job_id]
    queue.dead("emails").retry()
    popped = queue.pop("emails")
    assert popped is not None
    assert popped.envelope is not None
    assert popped.envelope.expires_at is None


def test_a_job_that_is_lost_again_and_again_is_buried_as_poison(queue: Queue) -> None:
    job_id = queue.push(Send(1))
    for count in (1, 2, 3):
        popped = queue.pop("emails", lease=0.01)
        assert popped is not None
        assert popped.delivery_count == count
        time.sleep(0.02)
    assert queue.pop("emails", lease=0.01) is None
    letter = queue.dead("emails").show(job_id)
    assert letter is not None
    assert letter.reason == "poison"


def test_recover_goes_on_past_a_job_that_cannot_be_built(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue("nobody.knows", {}, queue="emails")
    queue.push(Send(1))
    queue.driver.reserve(["emails"], "somebody-else", 2)
    time.sleep(0.02)
    assert queue.recover("emails", lease=0.01) == [Send(1)]
    assert "nobody.knows" in caplog.text


def test_pop_wakes_for_a_delayed_job(queue: Queue) -> None:
    queue.push(Send(1).delay(0.2))
    begun = time.monotonic()
    assert queue.pop("emails", wait=10) == Send(1)
    assert time.monotonic() - begun < 5


def test_retry_of_those_that_fit_and_at_a_rate(queue: Queue) -> None:
    for number in range(4):
        bury(queue, Send(number), Bury("net" if number % 2 else "data"))
    dead = queue.dead("emails")
    assert dead.retry(reason="net", rate=1) == 2
    sizes = queue.sizes("emails")
    assert (sizes.waiting, sizes.delayed, sizes.dead) == (1, 1, 2)
    with pytest.raises(InvalidInput, match="rate"):
        dead.retry(rate=0)


def test_more_dead_letters_than_a_page(queue: Queue) -> None:
    queue.push_many([Send(number) for number in range(1203)])
    while popped := queue.pop("emails", lease=None):
        queue.fail(popped, Bury("many"))
    dead = queue.dead("emails")
    assert len(dead.list()) == 1203
    assert dead.groups()[0].count == 1203
    assert dead.retry() == 1203
    assert queue.sizes("emails").waiting == 1203


def test_edit_is_checked_where_the_type_is_known(queue: Queue) -> None:
    job_id = bury(queue, Send(1))
    dead = queue.dead("emails")
    assert dead.edit(job_id, {"user_id": 2}).payload == {"user_id": 2}
    for wrong in ({"user_id": "x"}, {"nope": 1}, {}, []):
        with pytest.raises(InvalidPayload):
            dead.edit(job_id, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no dead letter"):
        dead.edit("nope", {})
    dead.retry(job_id)
    assert queue.pop("emails") == Send(2)


def test_edit_of_a_type_that_is_not_known_here(queue: Queue) -> None:
    job_id = bury(queue, Send(1))
    blind = Queue(queue.driver, registry=Registry(), close_driver=False)
    assert blind.dead("emails").edit(job_id, {"any": [1]}).payload == {"any": [1]}


def test_clear_of_some_and_of_all(queue: Queue) -> None:
    ids = [bury(queue, Send(number), Bury(str(number))) for number in range(3)]
    dead = queue.dead("emails")
    assert dead.clear(ids[0]) == 1
    assert dead.clear(reason="1") == 1
    assert dead.clear(["nope"]) == 0
    assert dead.clear() == 1
    assert len(dead) == 0


# -- asyncio ---------------------------------------------------------------------------------------


def test_many_coroutines_push_in_few_round_trips(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []
    original = queue._producer._push

    def counted(items: Sequence[PushItem]) -> list[str]:
        trips.append(len(items))
        return original(items)

    monkeypatch.setattr(queue._producer, "_push", counted)

    async def main() -> list[str]:
        return await asyncio.gather(*(queue.push_async(Send(number)) for number in range(3000)))

    ids = asyncio.run(main())
    assert len(set(ids)) == 3000
    assert queue.size("emails") == 3000
    assert len(trips) < 300  # a handful, unless the machine is busy
    assert {queue.pop("emails").user_id for _ in range(3)} <= set(range(3000))  # type: ignore[union-attr]


def test_push_async_never_blocks_the_loop(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    original = queue._producer._push

    def slow(items: Sequence[PushItem]) -> list[str]:
        assert release.wait(10)
        return original(items)

    monkeypatch.setattr(queue._producer, "_push", slow)

    async def main() -> str:
        pushing = asyncio.create_task(queue.push_async(Send(1)))
        for _ in range(50):
            await asyncio.sleep(0)  # the loop goes on while the server does not answer
        assert not pushing.done()
        release.set()
        return await pushing

    assert queue.find(asyncio.run(main())) is not None


def test_errors_reach_who_awaits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def invalid() -> None:
        await queue.push_async(Send("x"))  # type: ignore[arg-type]

    with pytest.raises(InvalidPayload):
        asyncio.run(invalid())

    def down(items: Sequence[PushItem]) -> list[str]:
        raise BrokerUnavailable("down")

    pushed = Send(1)
    with monkeypatch.context() as patch:
        patch.setattr(queue._producer, "_push", down)
        with pytest.raises(BrokerUnavailable):
            asyncio.run(queue.push_async(pushed))
    asyncio.run(queue.push_async(pushed))
    assert queue.size("emails") == 1


def test_one_bad_item_does_not_fail_those_beside_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    original = queue._producer._push

    def picky(items: Sequence[PushItem]) -> list[str]:
        if any(item.queue == "bad" for item in items):
            raise InvalidInput("not that one")
        return original(items)

    monkeypatch.setattr(queue._producer, "_push", picky)

    async def main() -> list[Any]:
        pushes = [
            queue.push_async(Send(1)),
            queue.push_async(Send(2).on_queue("bad")),
            queue.push_async(Send(3)),
        ]
        return await asyncio.gather(*pushes, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert isinstance(second, InvalidInput)
    assert {first, third} == {popped.id for popped in (queue.pop("emails"), queue.pop("emails")) if popped}


def test_several_loops_and_a_cancelled_push(queue: Queue) -> None:
    def run(number: int) -> None:
        async def main() -> None:
            await asyncio.gather(*(queue.push_async(Send(number)) for _ in range(100)))
            cancelled = asyncio.create_task(queue.push_async(Send(number)))
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled

        asyncio.run(main())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.size("emails") >= 400


def test_push_async_after_close() -> None:
    queue = connect("memory://")
    asyncio.run(queue.push_async(Send(1)))
    queue.close()
    with pytest.raises(BrokerClosed):
        asyncio.run(queue.push_async(Send(1)))
    with pytest.raises(BrokerClosed):
        queue.push(Send(1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_producer_of_its_own(redis7: RedisServer) -> None:
    prefix = f"fork-{uuid.uuid4().hex}"
    with connect(redis7.url, prefix=prefix) as queue:
        asyncio.run(queue.push_async(Send(1)))
        child = os.fork()
        if child == 0:
            try:
                with connect(redis7.url, prefix=prefix) as own:
                    queue._producer._push = (
                        own.driver.push
                    )  # a connection is not to be shared by two processes
                    asyncio.run(asyncio.wait_for(queue.push_async(Send(2)), 5))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert queue.size("emails") == 2


# -- connections -----------------------------------------------------------------------------------


def test_memory_is_private_and_a_named_memory_is_shared() -> None:
    with connect("memory://") as one, connect("memory://") as two:
        one.push(Send(1))
        assert two.size("emails") == 0
    name = f"memory://{uuid.uuid4().hex}"
    with connect(name) as one:
        one.push(Send(1))
    with connect(name) as two:  # it outlives the object that made it
        assert two.pop("emails") == Send(1)


@pytest.mark.parametrize("scheme", ["kafka", "amqp", "sqs"])
def test_a_driver_that_is_still_to_come_says_what_there_is(scheme: str) -> None:
    with pytest.raises(
        UnknownScheme, match=rf"{scheme}:// is not available yet; available are: memory://, .*redis://"
    ):
        connect(f"{scheme}://host")


def test_an_unknown_scheme_and_unknown_options() -> None:
    with pytest.raises(UnknownScheme, match="'ftp'"):
        connect("ftp://x")
    with pytest.raises(
        ConfigurationError, match=r"unknown queue option 'perfix' \(did you mean 'prefix'\?\)"
    ):
        connect("memory://", perfix="x")
    with pytest.raises(ConfigurationError, match="unknown queue option 'nope'"):
        connect("redis://localhost:1", nope=1)
    with pytest.raises(ConfigurationError, match="'pickle' is not a codec; use one of json, msgpack"):
        connect("memory://", codec="pickle")
    for wrong in (0, -5, "1M", True):
        with pytest.raises(ConfigurationError, match="max_payload"):
            connect("memory://", max_payload=wrong)


def test_a_server_that_does_not_answer() -> None:
    with pytest.raises(BrokerUnavailable):
        connect("redis://127.0.0.1:1/0")


def test_an_unknown_worker_option_names_the_allowed_ones() -> None:
    with connect("memory://") as queue:
        with pytest.raises(
            ConfigurationError, match=r"unknown worker option 'concurency' \(did you mean 'concurrency'"
        ):
            queue.worker(concurency=3)
        with pytest.raises(ConfigurationError, match=r"allowed are .*lease"):
            queue.work(threads=3)
        with pytest.raises(InvalidName):
            queue.worker("a{b}")


def test_jobs_go_over_the_connection_that_they_name() -> None:
    manager = QueueManager(
        {"one": "memory://", "two": {"url": "memory://", "codec": "msgpack"}}, default="one"
    )
    with manager:
        assert manager.names() == ["one", "two"]
        manager.push(Send(1))
        manager.push(Send(2).on_connection("two"))
        assert (manager.size("emails"), manager.size("emails", "two")) == (1, 1)
        ids = manager.push_many([Send(3), Send(4).on_connection("two"), Send(5)])
        assert len(set(ids)) == 3
        assert (manager.size("emails"), manager.size("emails", "two")) == (3, 2)
        asyncio.run(manager.push_async(Send(6).on_connection("two")))
        manager.enqueue("t", {}, connection="two")
        popped = manager.pop("emails", "two")
        assert popped == Send(2)
        assert popped is not None
        manager.complete(popped)
        popped = manager.pop("emails", "two")
        assert popped is not None
        manager.fail(popped, Bury("x"))
        assert len(manager.dead("emails", "two")) == 1
        assert len(manager.dead("emails")) == 0
        assert manager.clear("emails", "two") == 1
        assert manager.connection("two") is manager.connection("two")
        assert "one" in repr(manager)
        with pytest.raises(ConfigurationError, match="no connection 'three'; known are: one, two"):
            manager.push(Send(1).on_connection("three"))


def test_a_manager_can_do_what_a_queue_can() -> None:
    def public(cls: type) -> set[str]:
        return {name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}

    of_queue = set().union(*(public(cls) for cls in Queue.__mro__ if cls is not object))
    assert of_queue - public(QueueManager) == set()


def test_a_manager_looks_after_each_connection() -> None:
    with QueueManager({"one": "memory://", "two": "memory://"}) as manager:
        manager.initialize()
        keys = manager.stream_keys("emails", "two")
        assert keys == manager.connection("two").stream_keys("emails")
        waiting = manager.push(Send(1).on_connection("two"))
        delayed = manager.push(Send(2).on_connection("two").delay(0.05))
        assert manager.queues("two") == ["emails"]
        assert manager.queues() == []
        assert manager.find(waiting) is None
        found = manager.find(waiting, connection="two")
        assert found is not None
        assert found.state == "waiting"
        assert [view.id for view in manager.delayed("emails", "two")] == [delayed]
        assert manager.sizes("emails", "two").delayed == 1
        manager.pause("emails", "two")
        assert manager.pop("emails", "two") is None
        manager.resume("emails", "two")
        assert manager.cancel(waiting) is False
        assert manager.cancel(waiting, connection="two") is True
        time.sleep(0.06)
        assert manager.promote_due() == 0
        assert manager.promote_due("emails", "two") == 1
        popped = manager.pop("emails", "two")
        assert popped is not None
        manager.extend(popped)
        assert manager.drain(timeout=0) is True
        assert manager.drain("emails", "two", timeout=0) is False
        time.sleep(0.02)
        assert manager.recover("emails", lease=0.01) == []
        (taken,) = manager.recover("emails", "two", lease=0.01)
        manager.complete(taken)
        assert manager.drain(connection="two", timeout=0) is True
        assert manager.workers("two") == []
        assert "every.minute" not in [each.name for each in manager.schedules()]
        manager.schedule("every.minute", 60, Send(3))
        assert "every.minute" in [each.name for each in manager.schedules()]
        assert manager.flush() is True


def test_stop_ends_the_work_of_every_connection() -> None:
    with QueueManager({"one": "memory://", "two": "memory://"}) as manager:
        begun = {name: threading.Event() for name in manager.names()}

        @manager.handler("ring")
        def ring(data: dict[str, Any]) -> None:
            begun[data["name"]].set()

        threads = []
        for name in begun:
            manager.enqueue("ring", {"name": name}, connection=name)
            threads.append(threading.Thread(target=manager.work, kwargs={"connection": name}))
            threads[-1].start()
        assert all(event.wait(10) for event in begun.values())
        manager.stop()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def test_a_manager_that_was_closed_opens_nothing() -> None:
    manager = QueueManager({"one": "memory://"})
    manager.push(Send(1))
    queue = manager.connection()
    manager.close()
    manager.close()
    with pytest.raises(BrokerClosed, match="open a new one"):
        manager.push(Send(1))
    with pytest.raises(BrokerClosed):
        queue.push(Send(1))
    manager.stop()


def test_handlers_of_a_manager_serve_every_connection() -> None:
    with QueueManager({"one": "memory://", "two": "memory://"}) as manager:

        @manager.handler("t")
        def handle(data: dict[str, Any]) -> Any:
            return data

        manager.register_job_classes([Send])
        manager.enqueue("t", {"a": 1}, connection="two")
        popped = manager.pop(connection="two")
        assert popped is not None
        assert popped.handle() == {"a": 1}


def test_a_single_queue_has_only_its_own_connection() -> None:
    with connect("memory://", name="mine") as queue:
        queue.push(Send(1).on_connection("mine"))
        with pytest.raises(ConfigurationError, match="only has its own, 'mine'"):
            queue.push(Send(1).on_connection("other"))


def test_a_manager_needs_connections() -> None:
    with pytest.raises(ConfigurationError, match="at least one connection"):
        QueueManager({})
    with pytest.raises(ConfigurationError, match="default connection 'x' is not one of: a"):
        QueueManager({"a": "memory://"}, default="x")
    with pytest.raises(ConfigurationError, match="needs a url"):
        QueueManager({"a": {}})
    with pytest.raises(ConfigurationError, match="must be a URL or a table"):
        QueueManager({"a": 7})  # type: ignore[dict-item]


# -- with a worker ---------------------------------------------------------------------------------


def test_an_embedded_worker_runs_jobs_and_stops(queue: Queue) -> None:
    done = threading.Event()

    @queue.handler("ring")
    def ring(data: dict[str, Any]) -> None:
        done.set()

    with queue.worker(["default"]):
        queue.enqueue("ring")
        assert done.wait(10)


def test_work_blocks_until_stop() -> None:
    with connect("memory://") as queue:
        begun = threading.Event()

        @queue.handler("ring")
        def ring(data: dict[str, Any]) -> None:
            begun.set()

        queue.enqueue("ring")
        working = threading.Thread(target=queue.work, kwargs={"queues": ["default"], "concurrency": 1})
        working.start()
        assert begun.wait(10)
        queue.stop()
        working.join(10)
        assert not working.is_alive()
