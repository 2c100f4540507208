"""The archive's database goes away, or a process is killed: jobs are not affected, and the loss is known."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import Queue
from millstream.archive import SqlArchive
from millstream.recording import OutletStats
from millstream.recording.notes import OVERHEAD
from tests.archive.conftest import TABLES, OpenArchive, OpenQueue
from tests.archive.jobs import Note, until
from tests.servers import RedisServer, TcpProxy

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Note.ran.clear()


@pytest.fixture(params=("postgres", "mariadb"))
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(server: Any) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as started:
        yield started


def stats(queue: Queue) -> OutletStats:
    assert queue.recorder is not None
    return queue.recorder.stats()["archive"]


def cut(proxy: TcpProxy) -> None:
    proxy.refuse()
    proxy.reset_all()


def test_jobs_run_while_the_database_is_away_and_their_records_follow(
    server: Any,
    proxy: TcpProxy,
    open_archive: OpenArchive,
    open_queue: OpenQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "millstream.history")
    archive = open_archive(server.url_at(proxy.port), connect_timeout=1.0)
    queue = open_queue(archive=archive)
    first = queue.push(Note(number=-1).delay(600))
    assert queue.flush()
    cut(proxy)
    ids = queue.push_many([Note(number=number) for number in range(300)])
    ids += [queue.push(Note(number=number)) for number in range(300, 320)]
    with queue.worker(["notes"], poll=0.05, grace=5.0):
        until(lambda: len(Note.ran) == 320)
        until(lambda: stats(queue).failing_since)  # the fault has happened
        assert stats(queue).last_error
        proxy.heal()
    assert queue.flush(30)
    assert Counter(Note.ran) == Counter(range(320))
    assert archive.counts() == {"completed": 320, "enqueued": 1}
    assert [record.state for record in archive.history(ids[0])] == ["enqueued", "completed"]
    assert [job.job_id for job in archive.pending()] == [first]
    assert stats(queue).dropped == 0
    said = [record.message for record in caplog.records]
    assert sum("records wait" in message for message in said) == 1
    assert sum("written again" in message for message in said) == 1


def test_a_long_outage_costs_records_and_says_how_many(
    server: Any, proxy: TcpProxy, open_archive: OpenArchive, open_queue: OpenQueue
) -> None:
    archive = open_archive(server.url_at(proxy.port), connect_timeout=1.0, buffer=50 * (OVERHEAD + 300))
    queue = open_queue(archive=archive)
    assert archive.counts() == {}
    cut(proxy)
    for number in range(400):
        queue.push(Note(number=number).delay(600))
    assert queue.sizes("notes").delayed == 400
    lost = stats(queue).dropped
    assert 0 < lost < 400
    assert stats(queue).buffered_bytes <= 50 * (OVERHEAD + 300)
    proxy.heal()
    assert queue.flush(30)
    assert archive.counts() == {"enqueued": 400 - lost}
    assert stats(queue).written == 400 - lost


def test_a_batch_whose_commit_got_no_answer_is_written_once(
    server: Any, proxy: TcpProxy, open_archive: OpenArchive, open_queue: OpenQueue
) -> None:
    archive = open_archive(server.url_at(proxy.port), connect_timeout=1.0)
    queue = open_queue(archive=archive)
    queue.push(Note(number=0).delay(600))
    assert queue.flush()
    proxy.drop_next_reply(matching=b"COMMIT")
    ids = queue.push_many([Note(number=number).delay(600) for number in range(1, 51)])
    assert queue.flush(60)
    assert proxy.fired.is_set()
    assert proxy.faults["dropped_replies"] + proxy.faults["cut_replies"] == 1
    assert archive.counts() == {"enqueued": 51}
    assert [len(archive.history(job_id)) for job_id in ids] == [1] * 50
    assert stats(queue).dropped == 0


def test_a_program_starts_without_its_archive(
    tmp_path: Path, open_archive: OpenArchive, open_queue: OpenQueue
) -> None:
    folder = tmp_path / "not yet"
    archive = SqlArchive(f"sqlite:///{folder}/archive.db")
    queue = open_queue(archive=archive)
    job_id = queue.push(Note())
    until(lambda: stats(queue).failing_since)
    assert "there is no folder" in stats(queue).last_error
    folder.mkdir()
    assert queue.flush(30)
    assert archive.find(job_id) is not None
    archive.close()


def test_a_locked_file_is_waited_for(file_url: str, open_archive: OpenArchive, open_queue: OpenQueue) -> None:
    archive = open_archive(file_url, lock_timeout=0.1)
    queue = open_queue(archive=archive)
    other = sqlite3.connect(file_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    job_id = queue.push(Note())
    until(lambda: "locked" in stats(queue).last_error)
    other.execute("ROLLBACK")
    other.close()
    assert queue.flush(30)
    assert archive.find(job_id) is not None


def test_closing_a_queue_writes_what_is_left(
    file_url: str, open_archive: OpenArchive, open_queue: OpenQueue
) -> None:
    archive = open_archive(file_url, delay=60.0)
    queue = open_queue(archive=archive)
    ids = [queue.push(Note(number=number)) for number in range(50)]
    queue.close()
    assert {job.job_id for job in archive.pending()} == set(ids)


# -- processes ---------------------------------------------------------------------------------------------


def program(tmp_path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / f"program{time.monotonic_ns()}.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
    )


PRODUCER = """
    import os, signal, sys
    from millstream import SqlArchive, connect
    from tests.archive.jobs import Note

    url, prefix, archive_url, tables, end = sys.argv[1:]
    queue = connect(url, prefix=prefix, archive=SqlArchive(archive_url, tables=tables, delay=60.0))
    queue.push_many([Note(number=number) for number in range(100)])
    assert queue.flush()
    queue.push_many([Note(number=number) for number in range(100, 200)])
    print("pushed", flush=True)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "known"), [("kill", 100), ("exit", 200)])
def test_a_producer_that_ends(
    end: str,
    known: int,
    tmp_path: Path,
    redis7: RedisServer,
    open_archive: OpenArchive,
    open_queue: OpenQueue,
    file_url: str,
    prefix: str,
) -> None:
    """A killed one loses what it had not written; one that just ends, nothing. The jobs are all there."""
    archive = open_archive(file_url)
    process = program(tmp_path, PRODUCER, redis7.url, prefix, file_url, TABLES, end)
    out, _ = process.communicate(timeout=60)
    assert out == "pushed\n"
    assert process.returncode == (-signal.SIGKILL if end == "kill" else 0)
    queue = open_queue(redis7.url, prefix=prefix, archive=archive)
    assert queue.size("notes") == 200
    assert len(list(archive.pending())) == known
    with queue.worker(["notes"], poll=0.05):
        assert queue.drain(["notes"], timeout=60)
    assert queue.flush()
    assert archive.counts() == {"completed": 200}  # their ends are known all the same
    assert Counter(Note.ran) == Counter(range(200))


WORKER = """
    import sys
    from millstream import Job, SqlArchive, connect

    class Slow(Job, queue="notes", name="archive.Slow"):
        number: int
        def handle(self):
            import time
            time.sleep(0.005)

    url, prefix, archive_url, tables = sys.argv[1:]
    queue = connect(url, prefix=prefix, archive=SqlArchive(archive_url, tables=tables))
    print("ready", flush=True)
    queue.work(["notes"], concurrency=4, lease=2.0)
"""


def test_a_killed_worker_leaves_no_job_without_an_end_for_good(
    tmp_path: Path,
    redis7: RedisServer,
    open_archive: OpenArchive,
    open_queue: OpenQueue,
    file_url: str,
    prefix: str,
) -> None:
    archive = open_archive(file_url)
    queue = open_queue(redis7.url, prefix=prefix, archive=archive)
    ids = [queue.enqueue("archive.Slow", {"number": number}, queue="notes") for number in range(300)]
    assert queue.flush()
    process = program(tmp_path, WORKER, redis7.url, prefix, file_url, TABLES)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    until(lambda: queue.size("notes") < 250)
    process.kill()
    process.communicate(timeout=30)
    left = queue.size("notes")
    assert left > 0  # it was killed in the middle
    second = program(tmp_path, WORKER, redis7.url, prefix, file_url, TABLES)
    try:
        assert queue.drain(["notes"], timeout=60)
    finally:
        second.terminate()
        second.communicate(timeout=30)
    assert second.returncode == 0
    pending = {job.job_id for job in archive.pending()}
    assert len(pending) <= 300 - left  # done by the killed one, and not told
    assert archive.counts().get("completed", 0) + len(pending) == len(ids)
    # Restoring runs those once more, and then every job has its end.
    assert archive.restore(queue).pushed == len(pending)
    third = program(tmp_path, WORKER, redis7.url, prefix, file_url, TABLES)
    try:
        assert queue.drain(["notes"], timeout=60)
    finally:
        third.terminate()
        third.communicate(timeout=30)
    assert archive.counts() == {"completed": 300}
