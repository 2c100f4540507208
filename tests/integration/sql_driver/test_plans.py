"""What the databases do for each hot statement does not grow with the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event

from millstream.drivers.base import Settlement
from millstream.drivers.sql import SqlDriver
from tests.contract.drivers.helpers import Q, body_of, item, push, take
from tests.integration.sql_driver.conftest import Open

GROWS = {  # what a plan must not have in it; sorting what has the same position is fine
    "sqlite": re.compile(r"SCAN (?!CONSTANT)|TEMP B-TREE FOR (?!RIGHT PART|LAST TERM)"),
    "postgresql": re.compile(
        r"Seq Scan on \w*_(jobs|holds|letters)|-> {2}Sort |\ASort |Hash Join|Merge Join"
    ),
    "mysql": re.compile(r" ALL |filesort|temporary"),
}
# PostgreSQL's sort of rows that the caller named, found by their key and by nothing else: they are sorted to
# be locked in one order, and their number is the caller's, whatever the table holds.
NAMED_ROWS = re.compile(
    r"-> {2}Sort .*\n\s+Sort Key: id.*\n\s+-> {2}(?:Bitmap Heap|Index) Scan.*"
    r"(?:\n\s+(?:Recheck|Index) Cond: .*id = ANY.*|\n\s+-> {2}Bitmap Index Scan on \w+_jobs_pkey.*)+"
)
WAITING_ROWS = 5000


@pytest.fixture
def driver(url: str, opened: Open) -> SqlDriver:
    driver = opened(url)
    driver.push([item(n) for n in range(WAITING_ROWS)])
    driver.push([item(n, delay=0.001) for n in range(100)])
    driver.push([item(n, delay=60) for n in range(1000)])
    driver.push([item(n, unique_key=f"k{n}") for n in range(100)])
    if driver._database.backend == "postgresql":
        driver._database.run(lambda c: c.exec_driver_sql("ANALYZE"), repeat=True)
    return driver


def plans(driver: SqlDriver, call: Callable[[], Any]) -> dict[str, str]:
    """The plan of each statement about jobs that ``call`` sends."""
    found: dict[str, str] = {}
    backend = driver._database.backend
    explain = "EXPLAIN QUERY PLAN " if backend == "sqlite" else "EXPLAIN "
    busy = False

    def before(connection: Connection, cursor: Any, text: str, given: Any, context: Any, many: bool) -> None:
        nonlocal busy
        if busy or not re.search(r"_(jobs|holds|letters)\b", text) or text.startswith("INSERT"):
            return
        busy = True
        try:
            rows = connection.exec_driver_sql(explain + text, given[0] if many else given).all()
            found[text] = "\n".join(" ".join(map(str, row)) for row in rows)
        finally:
            busy = False

    event.listen(driver._database.engine, "before_cursor_execute", before)
    try:
        call()
    finally:
        event.remove(driver._database.engine, "before_cursor_execute", before)
    return found


def test_no_hot_statement_reads_more_than_it_answers_with(driver: SqlDriver) -> None:
    held = take(driver, 400, "a")

    def use() -> None:
        more = take(driver, 50, "a")
        take(driver, 50, "a", max_wait=0)
        driver.settle([Settlement(one, "complete") for one in held[:100]])
        driver.settle(
            [
                Settlement(one, outcome, body=body_of(one.id), delay=float(n % 2))  # type: ignore[arg-type]
                for n, one in enumerate(held[100:200])
                for outcome in [("retry", "bury", "release", "complete")[n % 4]]
            ]
        )
        driver.extend(more)
        driver.lease_lost(more[0])
        driver.recover([Q], "b", 0.001, 10)
        driver.promote_due([Q], 50)
        driver.next_due([Q])
        driver.cancel(push(driver, 1)[0], Q)
        driver.find(more[0].id, Q)
        push(driver, 1, 2, unique_key="new")
        driver.dead(Q, count=5)
        driver.retry_dead(Q, [item(job_id=letter.id) for letter in driver.dead(Q, count=5)])
        driver.delayed(Q, 5)

    found = plans(driver, use)
    assert len(found) > 10
    bad = GROWS[driver._database.backend]
    for text, said in found.items():
        assert not bad.search(NAMED_ROWS.sub("", said)), f"{text}\n{said}"


def test_the_plan_for_reserving_walks_the_lanes_in_their_order(driver: SqlDriver) -> None:
    found = plans(driver, lambda: take(driver, 10))
    assert len(found) >= 2
    for text, said in found.items():
        if "FORCE" in text or "IN (" not in text:
            assert "jobs_lanes" in said, f"{text}\n{said}"


def test_the_check_sees_a_statement_that_grows(driver: SqlDriver) -> None:
    """The control: a statement without an index is found out."""
    text = f"SELECT body FROM {driver._database.prefix}jobs WHERE deliveries = 77 ORDER BY body"
    found = plans(
        driver, lambda: driver._database.read(lambda connection: connection.exec_driver_sql(text).all())
    )
    assert GROWS[driver._database.backend].search(found[text])
