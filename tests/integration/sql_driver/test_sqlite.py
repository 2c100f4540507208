"""What only a file has: locks of other processes, full disks, read-only files."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.drivers.base import PushItem
from millstream.drivers.sql import SqlDriver
from millstream.drivers.sql.gathering import Push, _Ticket
from millstream.errors import AccessDenied, BrokerFull, BrokerUnavailable
from millstream.sql.writing import driver_of
from tests.contract.drivers.helpers import Q, complete, counts, drain, ids, item, one, push, take
from tests.integration.sql_driver.conftest import Open, start
from tests.servers.process import wait_until


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def test_a_lock_is_waited_for(file_url: str, opened: Open) -> None:
    driver = opened(file_url)
    push(driver, 0)
    other = sqlite3.connect(path_of(file_url), check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, other.rollback)
    timer.start()
    push(driver, 1)
    timer.join()
    other.close()
    assert counts(driver) == (2, 0, 0, 0)


def test_a_lock_that_stays_gives_a_clear_error_and_nothing_is_lost(file_url: str, opened: Open) -> None:
    driver = opened(file_url, lock_timeout=0.1)
    push(driver, 0, 1)
    held = one(driver)
    other = sqlite3.connect(path_of(file_url))
    other.execute("BEGIN IMMEDIATE")
    for call in (
        lambda: push(driver, 2),
        lambda: push(driver, 2, unique_key="k"),
        lambda: take(driver),
        lambda: complete(driver, held),
        lambda: driver.extend([held]),
        lambda: driver.pause(Q),
        lambda: driver.clear(Q),
    ):
        with pytest.raises(BrokerUnavailable, match=r"is locked: another process .* may be repeated"):
            call()
    assert counts(driver) == (1, 1, 0, 0)  # reading goes on beside a writer
    other.rollback()
    other.close()
    assert complete(driver, held) == [True]
    push(driver, 2)
    assert len(drain(driver)) == 2


def test_a_full_disk_gives_a_clear_error_and_loses_nothing(file_url: str, opened: Open) -> None:
    driver = opened(file_url, pool_size=1, max_overflow=0)
    push(driver, 0)
    database = driver._database

    def limit(pages: str) -> None:
        database.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all(), repeat=False)

    pages = database.read(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one())
    limit(str(pages + 20))
    added: list[str] = ids(drain(driver))

    def large() -> PushItem:
        job = item()
        return PushItem(job.id, Q, "default", job.body + b"x" * 3000)

    def fill() -> None:
        for _ in range(100):
            added.extend(driver.push([large()]))

    with pytest.raises(BrokerFull, match="nothing was written"):
        fill()
    with pytest.raises(BrokerFull):
        driver.push([large() for _ in range(50)])
    with pytest.raises(BrokerFull):
        driver.push([item(unique_key="k"), *(large() for _ in range(50))])
    assert 3 < len(added) < 50
    assert counts(driver)[0] == len(added) - 1
    limit("1000000")
    (more,) = driver.push([large()])
    assert ids(drain(driver)) == [*added[1:], more]


READ_ONLY = """
import os, sys
import sqlalchemy.dialects.sqlite
from millstream.drivers.sql import SqlDriver
from millstream.errors import AccessDenied
from tests.contract.drivers.helpers import push
os.setuid(65534)  # after the imports: this user may not be able to read the program's files
try:
    push(SqlDriver(sys.argv[1], prefix=sys.argv[2]), 2)
except AccessDenied as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody who may not write")
def test_a_read_only_file_gives_a_clear_error(tmp_path: Path, space: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    driver = SqlDriver(url, prefix=space)
    push(driver, 1)
    driver.close()
    for folder in [tmp_path, *tmp_path.parents[:-2]]:
        folder.chmod(0o755)
    (tmp_path / "jobs.db").chmod(0o444)
    said = start(READ_ONLY, url, space).communicate(timeout=60)[0]
    assert "jobs.db cannot be" in said
    driver = SqlDriver(url, prefix=space)
    assert counts(driver) == (1, 0, 0, 0)
    driver.close()


def test_a_file_that_becomes_read_only_gives_a_clear_error(file_url: str, opened: Open) -> None:
    driver = opened(file_url)
    push(driver, 1)
    writer = driver_of(driver._database._writer._connection)  # type: ignore[union-attr, arg-type]
    writer.execute("PRAGMA query_only = 1")
    with pytest.raises(AccessDenied, match="read-only"):
        push(driver, 2)
    writer.execute("PRAGMA query_only = 0")
    assert counts(driver) == (1, 0, 0, 0)


# -- what is synced ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "push_synced", "settle_synced"),
    [("always", True, True), ("full", True, False), ("normal", False, False)],
)
def test_what_is_synced_to_the_disk(
    file_url: str, opened: Open, asked: str, push_synced: bool, settle_synced: bool
) -> None:
    driver = opened(file_url, synchronous=asked)

    def synced() -> bool:
        writer = driver_of(driver._database._writer._connection)  # type: ignore[union-attr, arg-type]
        return bool(writer.execute("PRAGMA synchronous").fetchone()[0] == 2)

    for _ in range(2):
        push(driver, 1)
        assert synced() is push_synced
        (held,) = take(driver)
        assert synced() is settle_synced
        complete(driver, held)
        assert synced() is settle_synced


# -- pushes of several threads -----------------------------------------------------------------------


def test_pushes_of_several_threads_gather_in_one_transaction(file_url: str, opened: Open) -> None:
    driver = opened(file_url)
    push(driver, 0)
    other = sqlite3.connect(path_of(file_url), check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # the first one waits here, and the others behind it
    gathering = driver._pusher._gathering
    written: list[int] = []
    write = gathering._write

    def counting(pushes: Sequence[Push]) -> None:
        write(pushes)
        written.append(len(pushes))

    gathering._write = counting  # type: ignore[method-assign]
    threads = [threading.Thread(target=push, args=(driver, n, n + 100)) for n in range(1, 9)]
    threads[0].start()
    wait_until(lambda: gathering._writing, "the first push")
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(gathering._waiting) == 7, "the others to wait")
    other.rollback()
    other.close()
    for thread in threads:
        thread.join(20)
    assert written == [1, 7]
    assert counts(driver)[0] == 17
    assert len(set(ids(drain(driver)))) == 17


def test_a_push_that_cannot_be_written_fails_alone(file_url: str, opened: Open) -> None:
    driver = opened(file_url)
    push(driver, 0)
    gathering = driver._pusher._gathering
    write, failed, done = gathering._write, [], []
    go = threading.Event()

    def picky(pushes: Sequence[Push]) -> None:
        go.wait(20)
        if any(item.body == b"bad" for _, items in pushes for item in items):
            raise BrokerFull("this one")
        write(pushes)

    gathering._write = picky  # type: ignore[method-assign]

    def run(items: list[PushItem]) -> None:
        try:
            done.extend(driver.push(items))
        except BrokerFull:
            failed.append(items)

    good = [item(n) for n in range(6)]
    bad = PushItem(item(99).id, Q, "default", b"bad")
    everybody = [good[0], good[1], bad, *good[2:]]
    threads = [threading.Thread(target=run, args=([one],)) for one in everybody]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda n=number: gathering._writing and len(gathering._waiting) >= n, "a push to wait")
    go.set()
    for thread in threads:
        thread.join(20)
    assert failed == [[bad]]
    assert sorted(done) == sorted(one.id for one in good)
    assert counts(driver)[0] == 7
    assert not gathering._writing


def test_a_thread_that_is_interrupted_holds_nobody_up(file_url: str, opened: Open) -> None:
    driver = opened(file_url)
    push(driver, 0)
    gathering = driver._pusher._gathering
    gathering._writing = True  # somebody writes, and for long
    interrupted: list[bool] = []

    class Bell:
        def acquire(self) -> None:
            raise KeyboardInterrupt

    def first() -> None:
        ticket = _Ticket((1, [item(1)]))
        gathering._waiting.append(ticket)
        ticket.bell = Bell()  # type: ignore[assignment]
        try:
            gathering._wait(ticket)
        except KeyboardInterrupt:
            interrupted.append(True)

    first()
    behind = threading.Thread(target=push, args=(driver, 2))
    behind.start()
    wait_until(lambda: len(gathering._waiting) == 2, "the push behind")
    gathering._let_next()
    behind.join(20)
    assert interrupted == [True]
    assert not behind.is_alive()
    assert counts(driver)[0] == 2
    assert not gathering._writing
