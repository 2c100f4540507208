"""Processes that make the same Delta table at the same moment: it is made once, and nobody's rows are lost.

Real processes, each with a deltalake of its own, let go by a barrier. No Spark is started.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from millstream.spark.archiving.table import replace_rows
from millstream.spark.statetable import StateTable
from tests.spark.test_folding import rows, states

RACERS, TURNS = 3, 6


pytestmark = pytest.mark.timeout(150)


def _open(path: str, racer: int) -> None:
    StateTable(path, "s by k").open()


def _merge(path: str, racer: int) -> None:
    assert StateTable(path, "s by k").merge(rows((f"k{racer}", str(racer), 1)), f"q{racer}", 0)


def _same_batch(path: str, racer: int) -> None:
    StateTable(path, "s by k").merge(rows(("a", str(racer), 1)), "q", 0)


def _rebuild(path: str, racer: int) -> None:
    StateTable(path, "s by k").replace(rows(("a", str(racer), 1), ("b", str(racer), 1)))


def _replace(path: str, racer: int) -> None:
    replace_rows(path, pa.table({"racer": [racer] * 10}))


def _carelessly(path: str, racer: int) -> None:
    write_deltalake(path, pa.table({"racer": [racer] * 10}), mode="overwrite")


ACTS = (_open, _merge, _same_batch, _rebuild, _replace, _carelessly)


def _run(folder: Path, racer: int, start: Barrier, told: Any) -> None:
    """One process: every act, on as many tables as there are turns."""
    errors: dict[str, list[str]] = {}
    for act in ACTS:
        for turn in range(TURNS):
            start.wait(60)
            try:
                act(_table(folder, act, turn), racer)
            except DeltaError as error:
                errors.setdefault(act.__name__, []).append(str(error))
    told.put(errors)


def _table(folder: Path, act: Callable[[str, int], object], turn: int) -> str:
    return str(folder / f"{act.__name__}{turn}")


class Raced:
    """What the racers left behind, and the errors that they met."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        context = multiprocessing.get_context("spawn")
        start, told = context.Barrier(RACERS), context.Queue()
        racers = [context.Process(target=_run, args=(folder, n, start, told)) for n in range(RACERS)]
        for racer in racers:
            racer.start()
        self._errors = [told.get(timeout=100) for _ in racers]
        for racer in racers:
            racer.join(30)
            assert racer.exitcode == 0

    def errors(self, act: Callable[[str, int], object]) -> list[str]:
        return [error for each in self._errors for error in each.get(act.__name__, [])]

    def tables(self, act: Callable[[str, int], object]) -> list[str]:
        return [_table(self._folder, act, turn) for turn in range(TURNS)]


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Raced:
    """One start of the processes for all: they take longer to import than to race."""
    return Raced(tmp_path_factory.mktemp("races"))


def operations(path: str) -> Counter[str]:
    return Counter(commit["operation"] for commit in DeltaTable(path).history())


def test_a_projection_is_made_once(raced: Raced) -> None:
    assert raced.errors(_open) == []
    assert [DeltaTable(path).version() for path in raced.tables(_open)] == [0] * TURNS


def test_first_batches_at_the_same_moment_are_all_in_the_table(raced: Raced) -> None:
    assert raced.errors(_merge) == []
    for path in raced.tables(_merge):
        assert operations(path) == {"CREATE TABLE": 1, "MERGE": RACERS}
        assert states(StateTable(path, "s by k")) == {f"k{n}": (str(n), 1) for n in range(RACERS)}


def test_the_same_batch_from_several_counts_once(raced: Raced) -> None:
    assert raced.errors(_same_batch) == []
    for path in raced.tables(_same_batch):
        assert operations(path) == {"CREATE TABLE": 1, "MERGE": 1}


def test_rebuilds_come_one_after_the_other(raced: Raced) -> None:
    assert raced.errors(_rebuild) == []
    for path in raced.tables(_rebuild):
        table = StateTable(path, "s by k")
        assert table.generation() == RACERS
        found = states(table)
        assert set(found) == {"a", "b"}
        assert found["a"] == found["b"]  # of one rebuild, not of two


def test_a_table_of_metrics_has_the_rows_of_one_run(raced: Raced) -> None:
    assert raced.errors(_replace) == []
    for path in raced.tables(_replace):
        found = DeltaTable(path).to_pyarrow_table()
        assert found.num_rows == 10
        assert len(set(found["racer"].to_pylist())) == 1


def test_with_tries_of_deltalakes_own_it_would_go_wrong(raced: Raced) -> None:
    """The control: racers are refused, or two of them both make the table and the rows of both are there."""
    counts = [DeltaTable(path).to_pyarrow_table().num_rows for path in raced.tables(_carelessly)]
    assert raced.errors(_carelessly) or any(count > 10 for count in counts), "no race was met"
