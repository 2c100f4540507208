"""Every public method of the archive, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from millstream import Job, Queue, connect
from millstream.archive import SqlArchive, open_archive
from millstream.archive.documents import Documents
from millstream.archive.statements import HISTORY_COLUMNS
from millstream.archive.writing import history_row
from millstream.errors import BrokerClosed, ConfigurationError, InvalidInput, SchemaNotReady, UnknownScheme
from millstream.history import Record
from tests.archive.conftest import OpenArchive, OpenQueue
from tests.archive.jobs import Late, Note


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Note.ran.clear()


@pytest.fixture
def queue(archive: SqlArchive, open_queue: OpenQueue) -> Queue:
    return open_queue(archive=archive)


def run(queue: Queue) -> None:
    """Run what is waiting, and wait for its records."""
    with queue.worker(["notes"], concurrency=2, poll=0.05):
        assert queue.drain(["notes"], timeout=30)
    assert queue.flush()


def states(archive: SqlArchive, job_id: str) -> list[tuple[str, int]]:
    return [(record.state, record.attempt) for record in archive.history(job_id)]


@pytest.mark.parametrize(
    ("job", "story"),
    [
        (Note(how="done"), [("enqueued", 1), ("completed", 1)]),
        (Note(how="fail once"), [("enqueued", 1), ("retried", 1), ("completed", 2)]),
        (Note(how="fail"), [("enqueued", 1), ("retried", 1), ("failed", 2)]),
        (Note(how="snooze"), [("enqueued", 1), ("snoozed", 1), ("completed", 1)]),
        (Note(how="cancel"), [("enqueued", 1), ("cancelled", 1)]),
        (Note(how="bury"), [("enqueued", 1), ("failed", 1)]),
        (Late(), [("enqueued", 1), ("expired", 1)]),
    ],
    ids=lambda value: value.how if isinstance(value, Note) else "",
)
def test_a_jobs_story_is_told_in_order(
    archive: SqlArchive, queue: Queue, job: Job, story: list[tuple[str, int]]
) -> None:
    job_id = queue.push(job)
    time.sleep(0.002)  # so that the one that expires has expired
    run(queue)
    assert states(archive, job_id) == story
    found = archive.find(job_id)
    assert found is not None
    assert (found.state, found.attempt) == story[-1]
    assert [job.job_id for job in archive.pending()] == []


def test_a_record_tells_how_an_attempt_went(archive: SqlArchive, queue: Queue) -> None:
    job_id = queue.push(Note(number=7, how="fail").with_priority("high"))
    run(queue)
    pushed, retried, failed = archive.history(job_id)
    assert (pushed.at, pushed.worker, pushed.error) == (pushed.enqueued_at, "", "")
    assert failed.type == "archive.Note"
    assert failed.queue == "notes"
    assert failed.priority == "high"
    assert failed.max_attempts == 2
    assert failed.enqueued_at == pytest.approx(pushed.at, abs=1e-5)
    assert failed.error_type == "ValueError"
    assert failed.error == "ValueError: no such NOTE: 7"
    assert "raise ValueError" in failed.traceback
    assert failed.tags == ["mail", "50%_off"]
    assert '"number":7' in failed.payload
    assert failed.worker
    assert failed.started_at is not None
    assert failed.seconds is not None
    assert failed.seconds >= 0
    assert failed.started_at == pytest.approx(failed.at - failed.seconds, abs=1e-5)
    assert retried.due_at is not None
    assert pushed.at <= retried.at <= failed.at
    found = archive.find(job_id)
    assert found is not None
    assert found.fields == {"number": 7, "how": "fail"}


def test_search_by_each_field(archive: SqlArchive, queue: Queue) -> None:
    before = time.time()
    good, bad = queue.push(Note(how="done")), queue.push(Note(number=3, how="fail"))
    other = queue.enqueue("other.type", {"a": 1}, queue="elsewhere", tags=("mail2",))
    run(queue)

    def ids(**filters: object) -> set[str]:
        return {job.job_id for job in archive.search(**filters)}  # type: ignore[arg-type]

    assert ids() == {good, bad, other}
    assert ids(type="archive.Note") == {good, bad}
    assert ids(queue="elsewhere") == {other}
    assert ids(state="failed") == {bad}
    assert ids(tag="mail") == {good, bad}
    assert ids(tag="50%_off") == {good, bad}
    assert ids(tag="50%xoff") == set()
    assert ids(tag="%") == set()
    assert ids(error="NO SUCH note") == {bad}
    assert ids(error="no_such") == set()
    assert ids(since=before) == {good, bad, other}
    assert ids(since=time.time() + 60) == set()
    assert ids(until=datetime.now(UTC) + timedelta(minutes=1), type="other.type") == {other}
    assert ids(until=before) == set()
    assert archive.counts() == {"completed": 1, "failed": 1, "enqueued": 1}


def test_search_goes_on_behind_a_page(archive: SqlArchive, queue: Queue) -> None:
    pushed = queue.push_many([Note(number=number) for number in range(25)])
    assert queue.flush()
    found: list[str] = []
    after = None
    for _ in range(10):
        page = archive.search(limit=10, after=after)
        if not page:
            break
        found += [job.job_id for job in page]
        after = page[-1].cursor
    assert found == sorted(pushed, reverse=True)  # pushed at one moment, so the ids decide


def test_pending_is_what_has_no_end(archive: SqlArchive, queue: Queue) -> None:
    waiting = queue.push(Note())
    delayed = queue.push(Note().delay(600))
    elsewhere = queue.enqueue("other.type", queue="elsewhere")
    assert queue.flush()
    assert [job.job_id for job in archive.pending()] == [waiting, delayed, elsewhere]
    assert [job.job_id for job in archive.pending("elsewhere")] == [elsewhere]
    assert [job.job_id for job in archive.pending(type="archive.Note")] == [waiting, delayed]
    with queue.worker(["notes"], poll=0.05):
        until = time.monotonic() + 30
        while queue.sizes("notes").waiting + queue.sizes("notes").reserved and time.monotonic() < until:
            time.sleep(0.01)
    assert queue.flush()
    assert [job.job_id for job in archive.pending("notes")] == [delayed]


def test_pending_reads_more_than_a_page(archive: SqlArchive, queue: Queue) -> None:
    pushed = queue.push_many([Note(number=number) for number in range(2500)])
    assert queue.flush()
    assert [job.job_id for job in archive.pending()] == pushed


def test_every_way_to_push_is_archived(archive: SqlArchive, queue: Queue) -> None:
    import asyncio

    pushed = [queue.push(Note()), *queue.push_many([Note(), Note()])]
    pushed.append(asyncio.run(queue.push_async(Note())))
    pushed.append(queue.enqueue("archive.Note", {"number": 1}))
    assert queue.flush()
    assert {job.job_id for job in archive.pending()} == set(pushed)


def test_a_job_that_an_earlier_one_stands_for_is_not_archived(archive: SqlArchive, queue: Queue) -> None:
    class Once(Job, queue="notes", name="archive.Once", unique_key="one"):
        def handle(self) -> None: ...

    first = queue.push(Once())
    assert queue.push(Once()) == first
    assert queue.push_many([Once(), Once()]) == [first, first]
    assert queue.flush()
    assert [job.job_id for job in archive.pending()] == [first]
    assert states(archive, first) == [("enqueued", 1)]


def test_a_dead_letter_that_is_retried_is_pending_again(archive: SqlArchive, queue: Queue) -> None:
    job_id = queue.push(Note(how="bury"))
    run(queue)
    assert queue.dead("notes").retry() == 1
    assert queue.flush()
    assert [job.job_id for job in archive.pending()] == [job_id]
    run(queue)
    assert states(archive, job_id) == [("enqueued", 1), ("failed", 1), ("enqueued", 1), ("failed", 1)]


def test_what_is_cancelled_or_cleared_is_not_pending(archive: SqlArchive, queue: Queue) -> None:
    cancelled, cleared = queue.push(Note()), queue.push(Note())
    kept = queue.enqueue("other.type", queue="elsewhere")
    assert queue.cancel(cancelled)
    assert queue.clear("notes") == 1
    assert queue.flush()
    assert [job.job_id for job in archive.pending()] == [kept]
    assert states(archive, cancelled) == [("enqueued", 1), ("cancelled", 1)]
    found = archive.find(cleared)
    assert found is not None
    assert found.state == "cancelled"


def test_pop_complete_and_fail_are_archived(archive: SqlArchive, queue: Queue) -> None:
    first, second = queue.push(Note()), queue.push(Note())
    job = queue.pop("notes")
    assert job is not None
    queue.complete(job)
    job = queue.pop("notes")
    assert job is not None
    queue.fail(job, RuntimeError("by hand"))
    assert queue.flush()
    assert states(archive, first) == [("enqueued", 1), ("completed", 1)]
    assert states(archive, second) == [("enqueued", 1), ("retried", 1)]
    assert [job.job_id for job in archive.pending()] == [second]


def test_an_entry_that_is_no_job_is_archived_as_failed(archive: SqlArchive, queue: Queue) -> None:
    from millstream.drivers.base import PushItem

    queue.driver.inner.push([PushItem("strange", "notes", "default", b"\xff\x00 no job")])  # type: ignore[attr-defined]
    run(queue)
    found = archive.find("strange")
    assert found is not None
    assert (found.state, found.type) == ("failed", "")
    assert found.error.startswith("UnreadableEnvelope")


def test_characters_that_databases_do_not_like(archive: SqlArchive, queue: Queue) -> None:
    class Odd(Job, queue="notes", name="archive.Odd", max_attempts=1):
        text: str

        def handle(self) -> None:
            raise ValueError(self.text)

    job_id = queue.push(Odd(text="a\0b 🎉 'quoted' \\u0000 %s ?"))
    run(queue)
    found = archive.find(job_id)
    assert found is not None
    assert found.fields["text"] == "a\0b 🎉 'quoted' \\u0000 %s ?"
    assert found.error == "ValueError: a\ufffdb 🎉 'quoted' \\u0000 %s ?"
    assert [job.job_id for job in archive.search(error="🎉 'QUOTED' \\u0000 %s")] == [job_id]


@pytest.mark.parametrize(
    ("flags", "in_history", "in_archive"),
    [
        ({"completed": False}, {"enqueued", "retried", "failed"}, {"completed", "failed", "enqueued"}),
        ({"failed": False}, {"enqueued", "completed"}, {"completed", "failed", "enqueued"}),
        ({"enqueued": False}, {"completed", "retried", "failed"}, {"completed", "failed"}),
        ({"enqueued": False, "failed": False}, {"completed"}, {"completed"}),
    ],
)
def test_flags_say_what_is_kept(
    open_archive: OpenArchive,
    open_queue: OpenQueue,
    database_url: str,
    flags: dict[str, bool],
    in_history: set[str],
    in_archive: set[str],
) -> None:
    archive = open_archive(database_url, **flags)
    queue = open_queue(archive=archive)
    ids = [queue.push(Note(how="done")), queue.push(Note(how="fail")), queue.push(Note().delay(600))]
    with queue.worker(["notes"], poll=0.05):
        until = time.monotonic() + 30
        while queue.sizes("notes").total > 1 and time.monotonic() < until:
            time.sleep(0.01)
    assert queue.flush()
    assert {record.state for job_id in ids for record in archive.history(job_id)} == in_history
    assert set(archive.counts()) == in_archive


def test_a_worker_may_report_the_end_before_the_producer_reports_the_push(
    archive: SqlArchive, open_queue: OpenQueue
) -> None:
    slow = open_queue("memory://late", archive=archive)
    job_id = slow.push(Note())
    outlet = slow.recorder.outlets["archive"]  # type: ignore[union-attr]
    taken = open_queue("memory://late", archive=archive)
    job = taken.pop("notes")
    assert job is not None
    outlet_notes = list(outlet._buffer)  # as if the producer were slow
    taken.complete(job)
    assert taken.flush()
    assert outlet_notes or archive.history(job_id)
    assert slow.flush()
    found = archive.find(job_id)
    assert found is not None
    assert found.state == "completed"
    assert list(archive.pending()) == []


def test_a_batch_that_is_written_twice_adds_nothing(archive: SqlArchive, queue: Queue) -> None:
    outlet = queue.recorder.outlets["archive"]  # type: ignore[union-attr]
    written: list[list[object]] = []
    write = outlet.sink.write

    def twice(notes: list[object]) -> None:
        write(notes)  # type: ignore[arg-type]
        write(notes)  # type: ignore[arg-type]
        written.append(notes)

    outlet.sink.write = twice  # type: ignore[method-assign, assignment]
    job_id = queue.push(Note(how="fail once"))
    run(queue)
    assert written
    assert states(archive, job_id) == [("enqueued", 1), ("retried", 1), ("completed", 2)]


def test_a_push_gives_the_same_rows_whichever_way_it_is_written(
    archive: SqlArchive, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usually the database takes the envelopes apart, in one document; where it cannot, this process does."""

    class Rich(Job, queue="rich", name="archive.Rich", max_attempts=9, tags=("a", "ü"), version=4):
        text: str
        number: int

        def handle(self) -> None: ...

    def push() -> tuple[list[str], list[Record]]:
        job = Rich(text='"quoted" 🎉 \\ é', number=2**70).with_priority("low").delay(50)
        ids = [queue.push(job), queue.push(Note(number=1)), queue.enqueue("bare")]
        assert queue.flush()
        return ids, [archive.history(job_id)[0] for job_id in ids]

    calls: list[str] = []
    made_of = Documents.made_of

    def spied(self: Documents, bodies: list[bytes], *, mariadb: bool) -> str | None:
        calls.append("document")
        return made_of(self, bodies, mariadb=mariadb)

    monkeypatch.setattr(Documents, "made_of", spied)
    first, documents = push()
    assert calls
    monkeypatch.setattr(Documents, "made_of", lambda *_, **__: None)
    second, rows = push()
    times = {"at": 0.0, "enqueued_at": 0.0, "job_id": ""}
    for one, other in zip(documents, rows, strict=True):
        assert one.at == one.enqueued_at == pytest.approx(other.at, abs=30)
        assert one.due_at is None or one.due_at - one.at == pytest.approx(50, abs=1e-3)
        assert replace(one, due_at=None, **times) == replace(other, due_at=None, **times)  # type: ignore[arg-type]
    for one_id, other_id in zip(first, second, strict=True):
        jobs = [archive.find(one_id), archive.find(other_id)]
        assert jobs[0] is not None
        assert jobs[1] is not None
        assert replace(jobs[0], due_at=None, **times) == replace(jobs[1], due_at=None, **times)  # type: ignore[arg-type]
    bodies = {job.job_id: job for job in archive.pending()}
    for job_id in (*first, *second):
        view = queue.find(job_id)
        assert view is not None
        body = bodies[job_id].body
        assert body is not None
        assert queue.codec.decode(body.encode()) == view.envelope


def test_purge_spares_what_is_pending(archive: SqlArchive, queue: Queue) -> None:
    done = queue.push_many([Note(number=number) for number in range(1200)])
    run(queue)
    kept = queue.push(Note().delay(600))
    assert queue.flush()
    assert archive.purge(timedelta(days=1)) == archive.purge(datetime(2020, 1, 1, tzinfo=UTC))
    purged = archive.purge(0)
    assert (purged.records, purged.jobs) == (2 * len(done) + 1, len(done))
    assert archive.find(done[0]) is None
    assert [job.job_id for job in archive.pending()] == [kept]
    assert archive.purge(0) == archive.purge(0)


def test_retention_deletes_by_itself_in_bounded_steps(
    open_archive: OpenArchive, open_queue: OpenQueue, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.archive import store, writing

    archive = open_archive(database_url, retention=0.05)
    queue = open_queue(archive=archive)
    queue.push_many([Note(number=number) for number in range(40)])
    run(queue)
    assert archive.counts() == {"completed": 40}
    monkeypatch.setattr(writing, "RETENTION_EVERY", 0.0)
    monkeypatch.setattr(writing, "RETENTION_STEPS", 2)
    monkeypatch.setattr(store, "PURGE_STEP", 10)
    time.sleep(0.06)
    queue.push(Note().delay(600))
    assert queue.flush()
    assert archive.counts() == {"completed": 20, "enqueued": 1}


def test_a_row_has_the_columns_of_a_record() -> None:
    record = Record(
        **{name: f"<{name}>" for name in HISTORY_COLUMNS if name not in ("tags", "headers")},  # type: ignore[arg-type]
        tags=["<tags>"],
        headers={"<headers>": ""},
    )
    for name, value in zip(HISTORY_COLUMNS, history_row(record), strict=True):
        assert f"<{name}>" in value


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda archive: archive.find(""), "job_id"),
        (lambda archive: archive.find(7), "job_id"),
        (lambda archive: archive.history(None), "job_id"),
        (lambda archive: archive.search(state="done"), "one of enqueued, completed"),
        (lambda archive: archive.search(limit=0), "limit"),
        (lambda archive: archive.search(limit=10**6), "limit"),
        (lambda archive: archive.search(after="yesterday"), "cursor"),
        (lambda archive: archive.search(since=datetime(2026, 1, 1)), "time zone"),
        (lambda archive: archive.search(tag=""), "tag"),
        (lambda archive: archive.search(error=3), "error"),
        (lambda archive: archive.purge("a week"), "older_than"),
        (lambda archive: archive.purge(-1), "older_than"),
        (lambda archive: archive.restore("redis://"), "queue object"),
    ],
)
def test_bad_arguments_are_named(open_archive: OpenArchive, file_url: str, call: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call(open_archive(file_url))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "sqlite:///a.db", "completed": "yes"}, "completed must be true or false"),
        (
            {"url": "sqlite:///a.db", "completed": False, "failed": False, "enqueued": False},
            "what is to be kept",
        ),
        ({"url": "sqlite:///a.db", "retention": -1}, "retention must be a number above 0"),
        ({"url": "sqlite:///a.db", "retention": "30d"}, "retention must be a number above 0"),
        ({"url": "sqlite:///a.db", "buffer": 0}, "buffer must be a number above 0"),
        ({"url": "sqlite:///a.db", "tables": "Drop Table"}, "cannot begin a table's name"),
        ({"url": "sqlite:///a.db", "pool": 3}, "unknown archive option 'pool'"),
        ({"url": "sqlite://"}, "needs a file"),
        ({"completed": True}, "needs a url"),
        ({"url": 7}, "is no URL"),
        (7, "must be a SqlArchive"),
    ],
)
def test_an_archive_that_could_never_work_is_refused_at_once(options: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        open_archive(options)
    with pytest.raises(ConfigurationError, match=says):
        connect("memory://", archive=options)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UnknownScheme, match="redis"):
        SqlArchive("redis://localhost")
    with pytest.raises(ConfigurationError, match="unknown option 'pool'"):
        SqlArchive("sqlite:///a.db", pool=3)


def test_a_server_without_tables_says_what_to_run(postgres: object, tables: str) -> None:
    with (
        SqlArchive(postgres.url, tables=tables) as archive,  # type: ignore[attr-defined]
        pytest.raises(SchemaNotReady, match="millstream migrate schema"),
    ):
        archive.initialize()


def test_a_closed_archive_says_so(open_archive: OpenArchive, file_url: str) -> None:
    archive = open_archive(file_url)
    archive.initialize()
    archive.close()
    with pytest.raises(BrokerClosed):
        archive.find("x")
