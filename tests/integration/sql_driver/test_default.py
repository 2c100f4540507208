"""The embedded default: no URL given, one file in the working folder, several processes on it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream import connect
from millstream.errors import BrokerFull, BrokerUnavailable, ConfigurationError, MissingExtra

ROOT = Path(__file__).parents[3]
PRODUCERS, WORKERS, EACH = 4, 2, 50

APP = """
import os, time
from millstream import Job, connect

queue = connect()

class Note(Job, name="default.Note"):
    text: str

    def handle(self) -> None:
        with open("notes", "a") as file:  # one write of a short line: whole, also from several processes
            file.write(f"{os.getpid()} {self.text}\\n")
        time.sleep(0.005)  # so that one worker alone is not done before the other looks
"""
PRODUCE = """
import sys
from app import Note, queue
input()
for number in range(0, int(sys.argv[2]), 10):
    for some in range(5):
        queue.push(Note(text=f"{sys.argv[1]}-{number + some}"))
    queue.push_many([Note(text=f"{sys.argv[1]}-{number + some}") for some in range(5, 10)])
"""
WORK = """
from app import queue
with queue.worker(concurrency=4) as worker:
    print("ready", flush=True)
    input()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and an environment that says nothing."""
    for name in [name for name in os.environ if name.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Start:
    def begin(script: str, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, *args],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    return begin


def test_four_producers_and_two_workers_share_the_default_file(folder: Path, start: Start) -> None:
    """They all start at once on a file that nobody has made yet."""
    workers = [start(WORK) for _ in range(WORKERS)]
    producers = [start(PRODUCE, f"p{number}", str(EACH)) for number in range(PRODUCERS)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for producer in producers:
            assert producer.stdin is not None
            producer.stdin.write("go\n")
            producer.stdin.flush()
        for producer in producers:
            producer.communicate(timeout=100)
            assert producer.returncode == 0
        with connect() as queue:
            assert queue.drain(timeout=60)
        for worker in workers:
            worker.communicate("end\n", timeout=30)
            assert worker.returncode == 0
    finally:
        for process in (*producers, *workers):
            process.kill()
            process.wait()
    lines = [line.split() for line in (folder / "notes").read_text().splitlines()]
    wanted = [f"p{producer}-{number}" for producer in range(PRODUCERS) for number in range(EACH)]
    assert sorted(text for _, text in lines) == sorted(wanted)
    assert len({pid for pid, _ in lines}) == WORKERS, "one of the workers had nothing to do"


def test_a_locked_file_gives_a_clear_error(folder: Path) -> None:
    with connect() as queue:
        kept = queue.enqueue("a.task")
    holder = sqlite3.connect("millstream.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with (
            connect(lock_timeout=0.1) as queue,
            pytest.raises(BrokerUnavailable, match=r"millstream\.db is locked"),
        ):
            queue.enqueue("a.task")
    finally:
        holder.close()
    with connect() as queue:
        assert queue.find(kept) is not None
        assert queue.size() == 1


def test_a_file_that_somebody_is_making_gives_a_clear_error(folder: Path) -> None:
    holder = sqlite3.connect("millstream.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(BrokerUnavailable, match=r"millstream\.db is locked"):
            connect(lock_timeout=0.1)
    finally:
        holder.close()
    with connect() as queue:
        queue.enqueue("a.task")


FULL = """
import resource, signal, sys
from millstream import connect
from millstream.errors import BrokerError, BrokerFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
limit(8192)
try:
    connect()
except BrokerError as error:
    print("connect:", type(error).__name__, error)
limit(resource.RLIM_INFINITY)
queue = connect()
pushed = [queue.enqueue("a.task")]
limit(300_000)
try:
    while True:
        pushed.append(queue.enqueue("a.task", {"text": "x" * 10_000}))
except BrokerError as error:
    print("push:", type(error).__name__, error)
limit(resource.RLIM_INFINITY)
assert queue.size() == len(pushed) > 1, (queue.size(), len(pushed))
assert all(queue.find(job_id) for job_id in pushed)
queue.enqueue("a.task")
"""


def test_a_disk_without_room_gives_a_clear_error_and_loses_nothing(start: Start) -> None:
    process = start(FULL)
    said = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0, said
    assert [line.split(":")[0] for line in said] == ["connect", "push"]
    for line in said:
        assert "millstream.db" in line
        assert "nothing was written" in line


def test_a_full_file_is_said_so(folder: Path) -> None:
    with connect(pool_size=1, max_overflow=0) as queue:
        kept = queue.enqueue("a.task")
        database = queue.driver._database  # type: ignore[attr-defined]
        database.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1").all(), repeat=False)
        with pytest.raises(BrokerFull, match=r"millstream\.db: the disk is full"):
            queue.enqueue("a.task", {"text": "x" * 200_000})
        assert queue.find(kept) is not None


READ_ONLY = """
import os, sys
import sqlalchemy.dialects.sqlite
from millstream import connect
from millstream.errors import AccessDenied
import millstream.drivers.sql
os.setuid(65534)  # after the imports: this user may not be able to read the program's files
try:
    connect().enqueue("a.task")
except AccessDenied as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody who may not write")
@pytest.mark.parametrize("exists", [True, False])
def test_a_file_or_folder_that_cannot_be_written_gives_a_clear_error(
    folder: Path, start: Start, exists: bool
) -> None:
    if exists:
        with connect() as queue:
            queue.enqueue("a.task")
        (folder / "millstream.db").chmod(0o444)
    for each in [folder, *folder.parents[:-2]]:
        each.chmod(0o755)
    said = start(READ_ONLY).communicate(timeout=60)[0]
    assert "millstream.db cannot be" in said
    if exists:
        with connect() as queue:
            assert queue.size() == 1


def test_a_folder_that_is_gone_gives_a_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_URL", "sqlite:///nowhere/millstream.db")
    with pytest.raises(ConfigurationError, match="there is no folder"):
        connect()


@pytest.mark.parametrize(
    ("url", "library"), [("postgresql://localhost/x", "psycopg"), ("mysql://localhost/x", "pymysql")]
)
def test_only_the_servers_need_an_extra(url: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library}.*pip install 'millstream\[sql\]'"):
        connect(url)
