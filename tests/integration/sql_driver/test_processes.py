"""Several processes, and processes that are killed."""

from __future__ import annotations

import time
from pathlib import Path

from millstream.drivers.base import Reservation
from tests.contract.drivers.helpers import (
    Background,
    Q,
    complete,
    counts,
    drain,
    ids,
    item,
    numbers,
    push,
    take,
)
from tests.integration.sql_driver.conftest import Open, start

BOTH = """
import sys
from millstream.drivers.sql import SqlDriver
from tests.contract.drivers.helpers import complete, ids, item, take
url, space, name = sys.argv[1:]
driver = SqlDriver(url, prefix=space)
for n in range(0, 200, 10):
    driver.push([item(f"{name}-{n + k}") for k in range(10)])
    found = take(driver, 7, name)
    assert all(complete(driver, *found))
    print(*ids(found), sep="\\n")
driver.close()
"""


def test_processes_on_one_sqlite_file_share_its_jobs(file_url: str, opened: Open, space: str) -> None:
    driver = opened(f"{file_url}?synchronous=normal")
    workers = [start(BOTH, file_url, space, f"p{number}") for number in range(2)]
    seen: list[str] = []
    while any(worker.poll() is None for worker in workers):
        found = take(driver, 5, "here", wait=0.05)
        assert all(complete(driver, *found))
        seen += ids(found)
    for worker in workers:
        seen += worker.communicate(timeout=30)[0].split()
        assert worker.returncode == 0
    seen += ids(drain(driver))
    assert len(seen) == len(set(seen)) == 400
    assert counts(driver) == (0, 0, 0, 0)


HOLD = """
import sys, time
from millstream.drivers.sql import SqlDriver
from tests.contract.drivers.helpers import take
driver = SqlDriver(sys.argv[1], prefix=sys.argv[2])
found = take(driver, 20, "doomed", wait=20)
for one in found:
    print(one.id, one.entry_id, one.delivery_count, flush=True)
print("all", flush=True)
time.sleep(60)
"""


def test_a_killed_processs_jobs_are_taken_over_after_the_lease_and_its_acks_refused(
    url: str, opened: Open, space: str
) -> None:
    driver = opened(url)
    pushed = push(driver, *range(20))
    lease = 1.0
    with start(HOLD, url, space) as holder:
        assert holder.stdout is not None
        lines = iter(holder.stdout.readline, "all\n")
        held = [Reservation(*_fields(line)) for line in lines]
        reserved_at = time.monotonic()
        holder.kill()
    assert sorted(ids(held)) == sorted(pushed)
    assert driver.recover([Q], "heir", 30) == []
    found: list[Reservation] = []
    while len(found) < 20:
        assert time.monotonic() - reserved_at < lease + 2, "not taken over within lease + 2 s"
        found += driver.recover([Q], "heir", lease)
        time.sleep(0.02)
    assert {one.delivery_count for one in found} == {2}
    assert complete(driver, *held) == [False] * 20, "a stale ack was accepted"
    assert driver.extend(held) == [False] * 20
    assert counts(driver) == (0, 20, 0, 0)
    assert complete(driver, *found) == [True] * 20


def _fields(line: str) -> tuple[str, str, str, str, bytes, str, int]:
    job_id, entry_id, count = line.split()
    return job_id, Q, "default", entry_id, b"", "doomed", int(count)


PUSH = """
import sys
from millstream.drivers.sql import SqlDriver
from tests.contract.drivers.helpers import item
driver = SqlDriver(sys.argv[1], prefix=sys.argv[2])
while True:
    print(*driver.push([item(n) for n in range(5)]), flush=True)
"""


def test_a_killed_producer_loses_nothing_that_it_was_told(url: str, opened: Open, space: str) -> None:
    driver = opened(url)
    with start(PUSH, url, space) as producer:
        assert producer.stdout is not None
        told = [producer.stdout.readline() for _ in range(20)]
        producer.kill()
        told += producer.stdout.read().splitlines(keepends=True)
    known = {job_id for line in told if line.endswith("\n") for job_id in line.split()}
    # What the server is still working on is committed or rolled back before long.
    time.sleep(0.1)
    found = set(ids(drain(driver)))
    assert known <= found
    assert len(found) <= len(known) + 10
    assert len(found) % 5 == 0, "a part of a push was added"


def test_a_push_of_another_process_ends_the_wait(url: str, opened: Open, space: str, tmp_path: Path) -> None:
    driver = opened(url)
    call = Background(take, driver, wait=30)
    script = """
import sys
from millstream.drivers.sql import SqlDriver
from tests.contract.drivers.helpers import item
driver = SqlDriver(sys.argv[1], prefix=sys.argv[2])
driver.push([item("there")])
print("pushed", flush=True)
driver.close()
"""
    with start(script, url, space) as producer:
        assert producer.stdout is not None
        assert producer.stdout.readline() == "pushed\n"
        pushed_at = time.monotonic()
    assert numbers(call.result(5)) == ["there"]
    assert call.finished_at - pushed_at < 1


def test_a_forked_childs_calls_are_its_own(url: str, opened: Open) -> None:
    """A child that went on with its parent's slots would be told that its pushes were made already."""
    import multiprocessing

    driver = opened(url)
    push(driver, "before")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_push_in_child, args=(driver, n)) for n in range(2)]
    for child in children:
        child.start()
    push(driver, "parent")
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    assert sorted(numbers(drain(driver))) == ["before", "child-0", "child-1", "parent"]


def _push_in_child(driver: object, number: int) -> None:
    driver.push([item(f"child-{number}")])  # type: ignore[attr-defined]
