"""The driver of a projection dies between its steps: the next run ends with the table of one that never died.

A step is ``folded`` (the tasks are done, the table knows nothing), ``merged`` (the table has the batch, and
Spark's checkpoint does not know it) or ``replaced`` (a rebuild is in the table). The long form ends processes
with a Spark of their own by SIGKILL there; the short one raises there, on the Spark of all tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import run_python
from tests.spark.test_projections import STREAM, Shop, check, events, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
ROWS = 200  # of a batch

KILLED = """
import os, signal, sys

from millstream.spark import session
from millstream.spark.projections import project
from tests.spark.conftest import CONF
from tests.spark.test_projections import STREAM, account

url, table, step, number, rebuild, rows = sys.argv[1:]

def after(now, batch):
    if (now, batch) == (step, int(number)):
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

project(session("local[2]", conf=CONF), url, STREAM, key="account", fold=account, table=table,
        columns="balance bigint", max_rows=int(rows), rebuild=rebuild == "rebuild", after=after)
"""


class Crash(Exception):
    """The driver dies here."""


def crash_at(step: str, number: int) -> Any:
    def after(now: str, batch: int) -> None:
        if (now, batch) == (step, number):
            raise Crash("the driver dies here")

    return after


def kill_at(shop: Shop, step: str, number: int, *, rebuild: bool = False) -> None:
    """Run the projection in a process of its own, which kills itself there."""
    what = "rebuild" if rebuild else "follow"
    done = run_python(KILLED, shop.url, str(shop.table), step, str(number), what, str(ROWS), timeout=150)
    assert done.returncode == -9, done.stderr[-3000:]
    assert "killed" in done.stdout


def version(table: Path) -> int:
    return DeltaTable(str(table)).version()


def is_as_if_never_killed(shop: Shop) -> None:
    check(shop.table, shop.broker)
    shop.project(table=str(shop.folder / "control"), max_rows=1000, partitions=1)
    assert rows(shop.table) == rows(shop.folder / "control")


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Any:
    made = Shop(spark, tmp_path)
    with made.broker:
        made.broker.xadd_many(STREAM, events(500, 11))
        yield made


@pytest.mark.long("starts a second Java")
def test_a_driver_killed_between_the_table_and_the_checkpoint(shop: Shop) -> None:
    kill_at(shop, "merged", 1)
    assert sum(row["events"] for row in rows(shop.table).values()) == 2 * ROWS
    assert [path.name for path in (shop.checkpoint / "0" / "commits").glob("[0-9]*")] == ["0"]
    before = version(shop.table)
    shop.broker.xadd_many(STREAM, events(100, 12))
    after = shop.project(max_rows=ROWS)
    # The second batch came again and changed nothing; then there was one of the rest.
    assert (after.batches, after.version) == (2, before + 1)
    is_as_if_never_killed(shop)


def test_a_driver_that_dies_at_any_step_is_as_if_it_had_not(shop: Shop) -> None:
    for step, number, known in (("merged", 0, ROWS), ("folded", 1, ROWS)):
        with pytest.raises(Exception, match="the driver dies here"):
            shop.project(max_rows=ROWS, partitions=1, after=crash_at(step, number))
        assert sum(row["events"] for row in rows(shop.table).values()) == known
    shop.broker.xadd_many(STREAM, events(50, 13))
    assert shop.project(max_rows=ROWS, partitions=1).events == 350
    is_as_if_never_killed(shop)


@pytest.mark.long("the other test has the same steps without a rebuild")
def test_a_rebuild_that_dies_at_any_step_is_as_if_it_had_not(shop: Shop) -> None:
    shop.project(partitions=1)
    before = rows(shop.table)
    for step in ("folded", "replaced"):
        with pytest.raises(Crash):
            shop.project(rebuild=True, partitions=1, after=crash_at(step, 0))
        assert rows(shop.table) == before
    shop.broker.xadd_many(STREAM, events(50, 13))
    assert shop.project(max_rows=ROWS, partitions=1).events == 50
    is_as_if_never_killed(shop)


@pytest.mark.timeout(900)
@pytest.mark.long("six Javas, one after the other")
def test_a_projection_that_is_killed_again_and_again(shop: Shop) -> None:
    shop.broker.xadd_many(STREAM, events(1000, 14))
    for step, number in (("folded", 0), ("merged", 1), ("folded", 2), ("merged", 4)):
        kill_at(shop, step, number)
        shop.broker.xadd_many(STREAM, events(30, number))
    before = rows(shop.table)
    assert sum(row["events"] for row in before.values()) == 5 * ROWS
    kill_at(shop, "folded", 0, rebuild=True)
    assert rows(shop.table) == before
    kill_at(shop, "replaced", 0, rebuild=True)
    check(shop.table, shop.broker)
    shop.broker.xadd_many(STREAM, events(60, 15))
    assert shop.project(max_rows=ROWS).events == 60
    is_as_if_never_killed(shop)
