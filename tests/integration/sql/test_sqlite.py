"""What only a file has: locks of other processes, full disks, read-only files, paths."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream import open_broker
from millstream.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigurationError,
    MillstreamError,
)
from millstream.sql.writing import driver_of
from tests.contract.streams.helpers import GROUP, ids
from tests.integration.sql.conftest import Open

ROOT = Path(__file__).parents[3]


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


# -- locked -----------------------------------------------------------------------------------------


def test_a_lock_is_waited_for(file_url: str, opened: Open) -> None:
    broker = opened(file_url)
    with sqlite3.connect(path_of(file_url), check_same_thread=False) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.3, other.rollback).start()
        broker.xadd("s", {"n": 1})
    other.close()
    assert broker.xlen("s") == 1


def test_a_lock_that_stays_gives_a_clear_error_and_nothing_is_lost(file_url: str, opened: Open) -> None:
    broker = opened(file_url, lock_timeout=0.2)
    kept = broker.xadd("s", {"n": 1})
    other = sqlite3.connect(path_of(file_url))
    other.execute("BEGIN IMMEDIATE")
    for call in (
        lambda: broker.xadd("s", {"n": 2}),
        lambda: broker.xadd("s", {"n": 2}, key="k"),
        lambda: broker.xadd_many("s", [{}, {}]),
        lambda: broker.create_group("s", GROUP),
        lambda: broker.xdel("s", kept),
    ):
        with pytest.raises(BrokerUnavailable, match=r"is locked: another process .* may be repeated"):
            call()
    assert ids(broker.xrange("s")) == [kept]  # reading goes on beside a writer
    other.rollback()
    other.close()
    broker.xadd("s", {"n": 3})
    assert broker.xlen("s") == 2


def test_several_processes_add_and_read(file_url: str, opened: Open) -> None:
    broker = opened(file_url, synchronous="normal")
    broker.create_group("s", GROUP, "0")
    script = """
import sys
from millstream import open_broker
url, name = sys.argv[1:]
with open_broker(url, synchronous="normal") as broker:
    for n in range(50):
        broker.xadd("s", {"from": name, "n": n})
        for message in broker.xreadgroup("workers", name, "s", 1):
            print(message.id)
            assert broker.xack("s", "workers", message.id) == 1
"""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, file_url, f"c{number}"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    seen = [line for worker in workers for line in worker.communicate(timeout=60)[0].split()]
    assert {worker.returncode for worker in workers} == {0}
    seen += ids(broker.xreadgroup(GROUP, "rest", "s", 500))
    assert sorted(seen) == sorted(ids(broker.xrange("s")))
    assert len(set(seen)) == 200


def test_a_killed_process_loses_nothing_that_it_was_told(file_url: str, opened: Open) -> None:
    script = """
import sys
from millstream import open_broker
broker = open_broker(sys.argv[1])
while True:
    print(broker.xadd("s", {"n": 1}), flush=True)
"""
    broker = opened(file_url)
    told: list[str] = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", script, file_url],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as adder:
            assert adder.stdout is not None
            told += [adder.stdout.readline().strip() for _ in range(30)]
            adder.send_signal(signal.SIGKILL)
            rest = adder.stdout.read().split("\n")
            told += rest[:-1]
    stored = ids(broker.xrange("s"))
    assert set(told) <= set(stored)
    assert len(stored) <= len(told) + 3  # one each may be stored and not told yet
    assert broker.xlen("s") == len(stored)


# -- full -------------------------------------------------------------------------------------------


def test_a_full_disk_gives_a_clear_error_and_loses_nothing(file_url: str, opened: Open) -> None:
    broker = opened(file_url, pool_size=1, max_overflow=0)
    broker.create_group("s", GROUP, "0")

    def limit(pages: str) -> None:
        broker._database.write(
            lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all(), repeat=False
        )

    pages = broker._database.read(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one())
    limit(str(pages + 20))
    added = []

    def fill() -> None:
        for _ in range(100):
            added.append(broker.xadd("s", {"text": "x" * 3000}))

    with pytest.raises(BrokerFull, match="nothing was written"):
        fill()
    with pytest.raises(BrokerFull):
        broker.xadd_many("s", [{"text": "x" * 3000}] * 50)
    assert 2 < len(added) < 50
    assert ids(broker.xrange("s")) == added
    assert broker.xlen("s") == len(added)
    limit("1000000")
    more = broker.xadd("s", {"n": 1})
    assert ids(broker.xreadgroup(GROUP, "c", "s", 100)) == [*added, more]


def test_a_file_system_without_room_gives_the_same_error(tmp_path: Path) -> None:
    """A process can limit the size of its files; what fails is then the write, as on a full disk."""
    script = """
import os, resource, signal, sys
from millstream import open_broker
from millstream.errors import BrokerError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
broker = open_broker(sys.argv[1])
broker.xadd("s", {"n": 1})
log = os.path.getsize(sys.argv[1].removeprefix("sqlite:///") + "-wal")  # the tables are still in it
resource.setrlimit(resource.RLIMIT_FSIZE, (log + 150_000, resource.RLIM_INFINITY))
added = 1
try:
    while True:
        broker.xadd("s", {"text": "x" * 10_000})
        added += 1
except BrokerError as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert broker.xlen("s") == len(broker.xrange("s")) == added > 1, (broker.xlen("s"), added)
broker.xadd("s", {"n": 1})
"""
    done = run(script, f"sqlite:///{tmp_path}/s.db")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("BrokerFull", "BrokerError")), done.stdout
    assert "nothing was written" in done.stdout


# -- read-only --------------------------------------------------------------------------------------

READ_ONLY = """
import os, sys
import sqlalchemy.dialects.sqlite
import millstream.brokers.sql
from millstream import open_broker
from millstream.errors import AccessDenied
os.setuid(65534)  # after the imports: this user may not be able to read the program's files
try:
    with open_broker(sys.argv[1]) as broker:
        broker.xadd("s", {"n": 2})
except AccessDenied as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody who may not write")
def test_a_read_only_file_gives_a_clear_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with open_broker(url) as broker:
        broker.xadd("s", {"n": 1})
    for folder in [tmp_path, *tmp_path.parents[:-2]]:
        folder.chmod(0o755)
    (tmp_path / "s.db").chmod(0o444)
    done = run(READ_ONLY, url)
    assert done.returncode == 0, done.stderr
    assert "s.db cannot be" in done.stdout
    with open_broker(url) as broker:
        assert broker.xlen("s") == 1


def test_a_file_that_becomes_read_only_gives_a_clear_error(file_url: str, opened: Open) -> None:
    broker = opened(file_url)
    kept = broker.xadd("s", {"n": 1})
    writer = driver_of(broker._database._writer._connection)  # type: ignore[union-attr, arg-type]
    writer.execute("PRAGMA query_only = 1")
    with pytest.raises(AccessDenied, match="read-only"):
        broker.xadd("s", {"n": 2})
    assert ids(broker.xrange("s")) == [kept]


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    with pytest.raises(BrokerError, match="not a sound SQLite database"):
        open_broker(f"sqlite:///{tmp_path}/notes.txt")
    assert (tmp_path / "notes.txt").read_text().startswith("not a database")


# -- URLs -------------------------------------------------------------------------------------------


def test_a_relative_path_is_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_broker("sqlite:///relative.db") as broker:
        monkeypatch.chdir("/")
        broker.xadd("s", {})
    assert (tmp_path / "relative.db").exists()


def test_an_absolute_path_has_four_slashes(tmp_path: Path) -> None:
    assert str(tmp_path).startswith("/")
    with open_broker(f"sqlite:///{tmp_path}/absolute.db") as broker:
        broker.xadd("s", {})
    assert (tmp_path / "absolute.db").exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused_with_what_to_use_instead(url: str) -> None:
    with pytest.raises(ConfigurationError, match="use memory://"):
        open_broker(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://file.db", "three slashes"),
        ("sqlite:///no/such/folder/f.db", "there is no folder"),
        ("sqlite:///f.db?colour=red", "unknown option 'colour'"),
        ("sqlite:///f.db?synchronous=off", "'full' or 'normal'"),
        ("sqlite:///f.db?max_payload=many", "'max_payload' of the URL cannot be 'many'"),
        ("sqlite:///f.db?prefix=a-b", "cannot begin a table's name"),
        ("sqlite:///f.db?max_stream_length=0", "at least 1"),
        ("sqlite+aiosqlite:///f.db", "names a driver"),
    ],
)
def test_a_url_that_cannot_be_meant(
    url: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MillstreamError, match=why):
        open_broker(url)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_in_wal_mode_and_additions_are_synced(file_url: str, opened: Open) -> None:
    broker = opened(file_url)
    ask = broker._database.read
    assert ask(lambda c: c.exec_driver_sql("PRAGMA journal_mode").scalar()) == "wal"
    assert ask(lambda c: c.exec_driver_sql("PRAGMA synchronous").scalar()) == 2
    broker.create_group("s", GROUP, "0")
    broker.xadd("s", {})
    broker.xreadgroup(
        GROUP, "c", "s"
    )  # a delivery may be relaxed; the connection is as strict again afterwards
    assert ask(lambda c: c.exec_driver_sql("PRAGMA synchronous").scalar()) == 2
