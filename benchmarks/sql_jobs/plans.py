"""What the database does for the statements of a worker, with a long queue and after it was worked off.

The statements are those that our driver really sends: it is asked to reserve and to settle, and each of its
statements is explained just before it runs. On PostgreSQL they are run for that (EXPLAIN ANALYZE), in a
transaction that is rolled back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.jobs.contenders import Contender, Failed, Measurement
from benchmarks.sql_jobs.homes import Home, PostgresHome

AT_ONCE = 200  # jobs that are reserved and settled by the explained statements
SLICES = 10  # of a whole drain, each with its own rate
PATIENCE = 60.0  # seconds for the worker to start


@dataclass(frozen=True)
class Plan:
    """One statement's."""

    step: str  # "reserve" or "settle"
    statement: str
    plan: str
    milliseconds: float | None  # as the server says
    blocks: int | None  # that it looked at


@dataclass(frozen=True)
class Picture:
    """The statements' plans, and the table, at one moment."""

    moment: str
    jobs: int
    plans: list[Plan]
    table: dict[str, Any]


def explain(home: Home, moment: str) -> Picture:
    """Reserve and settle some jobs, and say how the database does that."""
    from millstream.drivers.base import Settlement
    from millstream.drivers.sql import SqlDriver

    driver = SqlDriver(home.url, create=True)
    try:
        table = _table(home)
        waiting = driver.size("default").waiting
        held: list[Any] = []

        def reserve() -> None:
            held.extend(driver.reserve(["default"], "explain", AT_ONCE))

        reserve()  # the first call looks up names, and plans
        plans = _plans(driver, "reserve", reserve)
        driver.settle([Settlement(one, "complete") for one in held[:1]])
        plans += _plans(
            driver, "settle", lambda: driver.settle([Settlement(one, "complete") for one in held[-AT_ONCE:]])
        )
        driver.settle([Settlement(one, "release") for one in held])
        return Picture(moment, waiting, plans, table)
    finally:
        driver.close()


def _plans(driver: Any, step: str, call: Callable[[], object]) -> list[Plan]:
    from sqlalchemy import event

    engine, postgres = driver._database.engine, driver._database.backend == "postgresql"
    found: list[Plan] = []
    busy = False

    def before(connection: Any, cursor: Any, text: str, given: Any, context: Any, many: bool) -> None:
        nonlocal busy
        if busy or not re.search(r"_jobs\b", text):
            return
        busy = True
        try:
            found.append(_explained(connection, step, text, given, postgres))
        finally:
            busy = False

    event.listen(engine, "before_cursor_execute", before)
    try:
        call()
    finally:
        event.remove(engine, "before_cursor_execute", before)
    return found


def _explained(connection: Any, step: str, text: str, given: Any, postgres: bool) -> Plan:
    if not postgres:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", given).all()
        return Plan(step, text, "\n".join(str(row[-1]) for row in rows), None, None)
    connection.exec_driver_sql("BEGIN")
    try:
        options = "ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY ON"
        lines = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN ({options}) {text}", given).all()]
    finally:
        connection.exec_driver_sql("ROLLBACK")
    said = "\n".join(lines)
    took = re.search(r"Execution Time: ([\d.]+) ms", said)
    blocks = re.search(r"Buffers: shared((?: (?:hit|read|dirtied|written)=\d+)+)", said)
    looked = sum(map(int, re.findall(r"(?:hit|read)=(\d+)", blocks[1]))) if blocks else None
    return Plan(step, text, said, float(took[1]) if took else None, looked)


def _table(home: Home) -> dict[str, Any]:
    """How large the table and its indexes are, and how much of it is dead."""
    if not isinstance(home, PostgresHome):
        import sqlite3

        connection = sqlite3.connect(home.url.removeprefix("sqlite:///"))
        try:
            ask = {name: f"PRAGMA {name}" for name in ("page_count", "freelist_count", "page_size")}
            return {name: connection.execute(text).fetchone()[0] for name, text in ask.items()}
        finally:
            connection.close()
    with home.connect() as connection:
        columns = ("n_live_tup", "n_dead_tup", "autovacuum_count", "autoanalyze_count")
        row = connection.execute(
            f"SELECT {', '.join(columns)}, pg_table_size(relid), pg_indexes_size(relid)"
            " FROM pg_stat_user_tables WHERE relname = 'millstream_jobs'"
        ).fetchone()
    return dict(zip((*columns, "table_bytes", "index_bytes"), row, strict=True))


def work_off(home: Home, contender: Contender, jobs: int, seconds: float) -> list[float]:
    """Let one worker run all of the ``jobs`` that wait; the rate of each tenth of them, in order."""
    with (
        Measurement(jobs) as measurement,
        contender.workers(contender.kinds[0], 1, home.url, measurement) as workers,
    ):
        workers.wait_at_gate(1, PATIENCE)
        last, rates = measurement.open_gate(), []
        deadline = time.monotonic() + seconds
        for part in range(1, SLICES + 1):
            wanted = jobs * part // SLICES
            while measurement.progress(wanted) < wanted:
                workers.check()
                if time.monotonic() > deadline:
                    raise Failed(f"{measurement.progress(jobs):,} of {jobs:,} jobs ran in {seconds:.0f} s")
                time.sleep(0.02)
            begin = jobs * (part - 1) // SLICES
            end = max(measurement.sheet.started[begin:wanted])
            rates.append((wanted - begin) / (end - last) * 1e9)
            last = end
        time.sleep(0.5)  # the outcomes of the last ones
    return rates


def study(home: Home, contender: Contender, size: int, window: int, seconds: float) -> dict[str, Any]:
    """The plans at ``size`` jobs, the rates of working them off, and the plans with as many dead rows.

    PostgreSQL vacuums by itself, within a minute or two of when it is due; what comes of that is shown last.
    """
    label, jobs = f"{contender.name}_{size}", size + window
    home.bring_back(label)
    pictures = [explain(home, f"{jobs:,} jobs wait")]
    home.bring_back(label)
    rates = work_off(home, contender, jobs, seconds)
    contender.produce("bulk", 5 * AT_ONCE, contender.kinds[0], home.url)
    pictures.append(explain(home, f"{jobs:,} jobs were completed"))
    if isinstance(home, PostgresHome):
        home.tidy()
        pictures.append(explain(home, "and the table was vacuumed"))
    return {"pictures": [asdict(each) for each in pictures], "rates_by_tenth": rates}
