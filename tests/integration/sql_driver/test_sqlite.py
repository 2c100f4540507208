"""What only a file has: locks of other processes, full disks, read-only files."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from millstream.drivers.base import PushItem
from millstream.drivers.sql import SqlDriver
from millstream.errors import AccessDenied, BrokerFull, BrokerUnavailable
from tests.contract.drivers.helpers import Q, complete, counts, drain, ids, item, one, push, take
from tests.integration.sql_driver.conftest import Open, start


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
        database.read(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())

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
    driver = opened(file_url, pool_size=1, max_overflow=0)
    push(driver, 1)
    driver._database.read(lambda c: c.exec_driver_sql("PRAGMA query_only = 1"))
    with pytest.raises(AccessDenied, match="read-only"):
        push(driver, 2)
    driver._database.read(lambda c: c.exec_driver_sql("PRAGMA query_only = 0"))
    assert counts(driver) == (1, 0, 0, 0)
