"""A server that lost its jobs gets them back from the archive: each of them, once, as it was."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from millstream import Job, Queue
from millstream.archive import SqlArchive
from tests.archive.conftest import OpenArchive, OpenQueue
from tests.archive.jobs import Note
from tests.servers import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis of the test's own, as it will be flushed."""
    with RedisServer("redis7") as started:
        yield started


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Note.ran.clear()


def flush_all(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()
        assert client.dbsize() == 0  # the fault has happened


def run(queue: Queue, *queues: str) -> None:
    with queue.worker(list(queues) or ["notes"], poll=0.05):
        assert queue.drain(list(queues) or ["notes"], timeout=60)
    assert queue.flush()


def test_ten_thousand_pending_jobs_survive_the_loss_of_the_server(
    server: RedisServer, open_archive: OpenArchive, open_queue: OpenQueue, file_url: str
) -> None:
    archive = open_archive(file_url)
    queue = open_queue(server.url, archive=archive)
    done = queue.push_many([Note(number=-1 - number) for number in range(500)])
    run(queue)
    assert len(Note.ran) == len(done)
    Note.ran.clear()
    for number in range(100):
        queue.push(Note(number=number))
    queue.push_many([Note(number=number) for number in range(100, 10_000)])
    assert queue.flush(60)
    assert queue.size("notes") == 10_000

    flush_all(server)
    assert queue.size("notes") == 0
    with queue.worker(["notes"], poll=0.05):  # the control: without the archive nothing is left to run
        assert queue.drain(["notes"], timeout=10)
    assert Note.ran == []

    planned = archive.restore(queue, dry_run=True)
    assert (planned.pending, planned.pushed, planned.by_queue) == (10_000, 10_000, {"notes": 10_000})
    assert queue.size("notes") == 0
    assert archive.restore(queue).pushed == 10_000
    assert archive.restore(queue).pushed == 10_000  # a second time: those that exist are left alone
    assert queue.size("notes") == 10_000
    run(queue)
    assert Counter(Note.ran) == Counter(range(10_000))
    assert list(archive.pending()) == []
    assert archive.restore(queue).pending == 0
    assert archive.counts() == {"completed": 10_500}


def test_a_restored_job_is_as_it_was(
    server: RedisServer, open_archive: OpenArchive, open_queue: OpenQueue, database_url: str
) -> None:
    class Full(Job, queue="notes", name="archive.Full", max_attempts=7, backoff=600.0, tags=("x",)):
        number: int

        def handle(self) -> None:
            raise ValueError("try again")

    archive = open_archive(database_url)
    queue = open_queue(server.url, archive=archive)
    retried = queue.push(Full(number=1))
    with queue.worker(["notes"], poll=0.05):
        limit = time.monotonic() + 30
        while queue.sizes("notes").delayed < 1 and time.monotonic() < limit:
            time.sleep(0.01)
    high = queue.push(Full(number=2).with_priority("critical"))
    delayed = queue.push(Full(number=3).delay(500))
    assert queue.flush()
    before = {view.id: view for job_id in (retried, high, delayed) if (view := queue.find(job_id))}
    assert len(before) == 3

    flush_all(server)
    assert archive.restore(queue).pushed == 3
    for job_id, was in before.items():
        now = queue.find(job_id, "notes")
        assert now is not None
        assert now.envelope == was.envelope
        assert (now.queue, now.state, now.priority) == (was.queue, was.state, was.priority)
        assert (now.due_in or 0.0) == pytest.approx(was.due_in or 0.0, abs=60)
    found = queue.find(retried, "notes")
    assert found is not None
    assert found.envelope is not None
    assert found.envelope.attempt == 2
    assert [attempt.error for attempt in found.envelope.history] == ["ValueError: try again"]


def test_jobs_that_the_server_still_has_are_left_alone(
    server: RedisServer, open_archive: OpenArchive, open_queue: OpenQueue, file_url: str
) -> None:
    archive = open_archive(file_url)
    queue = open_queue(server.url, archive=archive)
    queue.push_many([Note(number=number) for number in range(20)])
    running = queue.pop("notes")
    assert running is not None
    assert queue.flush()
    assert archive.restore(queue).pushed == 20
    assert queue.sizes("notes").waiting == 19
    queue.complete(running)
    run(queue)
    assert sorted(Note.ran) == list(range(1, 20))


def test_unique_jobs_keep_their_keys(
    server: RedisServer, open_archive: OpenArchive, open_queue: OpenQueue, database_url: str
) -> None:
    class Daily(Job, queue="notes", name="archive.Daily", unique_for=600.0):
        day: str

        def handle(self) -> None: ...

    class Brief(Job, queue="notes", name="archive.Brief", unique_for=0.05):
        day: str

        def handle(self) -> None: ...

    archive = open_archive(database_url)
    queue = open_queue(server.url, archive=archive)
    daily, brief = queue.push(Daily(day="monday")), queue.push(Brief(day="monday"))
    assert queue.flush()
    time.sleep(0.06)
    flush_all(server)
    assert archive.restore(queue).pushed == 2
    assert queue.push(Daily(day="monday")) == daily  # its time is not over
    assert queue.push(Brief(day="monday")) != brief


def test_only_the_queues_and_types_that_are_named(
    server: RedisServer, open_archive: OpenArchive, open_queue: OpenQueue, file_url: str
) -> None:
    archive = open_archive(file_url)
    queue = open_queue(server.url, archive=archive)
    queue.push(Note())
    queue.enqueue("other.type", queue="a")
    queue.enqueue("other.type", queue="b")
    queue.enqueue("more.types", queue="b")
    assert queue.flush()
    flush_all(server)
    assert archive.restore(queue, queues="a").by_queue == {"a": 1}
    assert archive.restore(queue, queues=["a", "b"], type="other.type").by_queue == {"a": 1, "b": 1}
    assert [queue.size(name) for name in ("notes", "a", "b")] == [0, 1, 1]
    seen: list[int] = []
    assert archive.restore(queue, on_progress=seen.append).pushed == 4
    assert seen == [4]


def test_another_codec(
    server: RedisServer, open_archive: OpenArchive, open_queue: OpenQueue, database_url: str
) -> None:
    archive = open_archive(database_url)
    queue = open_queue(server.url, archive=archive, codec="msgpack", prefix="packed")
    job_id = queue.push(Note(number=5))
    assert queue.flush()
    found = archive.find(job_id)
    assert found is not None
    assert found.fields["number"] == 5
    flush_all(server)
    plain = open_queue(server.url)
    assert archive.restore(plain).unreadable == [job_id]  # said, and not pushed as something it is not
    assert plain.size("notes") == 0
    assert archive.restore(queue).pushed == 1
    run(queue)
    assert Note.ran == [5]


def test_a_pending_job_that_cannot_be_pushed_is_named(
    open_archive: OpenArchive, open_queue: OpenQueue, file_url: str
) -> None:
    archive = open_archive(file_url)
    queue = open_queue(archive=archive)
    lost, broken, kept = queue.push_many([Note(), Note(), Note(number=9)])
    assert queue.flush()
    table, database = archive._store.statements.archive, archive._store.database()
    for job_id, body in ((lost, None), (broken, '{"no": "job"}')):
        database.run(
            lambda connection, values=(body, job_id): connection.exec_driver_sql(  # type: ignore[misc]
                f"UPDATE {table} SET body = ? WHERE job_id = ?", values
            ),
            repeat=True,
        )
    fresh = open_queue()
    done = archive.restore(fresh)
    assert done.unreadable == [lost, broken]
    assert (done.pending, done.pushed) == (3, 1)
    assert fresh.find(kept) is not None


def test_the_report_is_plain_data(open_archive: OpenArchive, open_queue: OpenQueue, file_url: str) -> None:
    archive: SqlArchive = open_archive(file_url)
    assert msgspec.to_builtins(archive.restore(open_queue())) == {
        "pending": 0,
        "pushed": 0,
        "by_queue": {},
        "unreadable": [],
        "dry_run": False,
    }
