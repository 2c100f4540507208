"""What a task does with the events of a key, and the table that the result goes to. No Spark is started."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from millstream.errors import ConfigurationError, MissingExtra
from millstream.spark.folding import MARK, Event, Folder, FoldFailed
from millstream.spark.projections import project
from millstream.spark.statetable import COLUMNS, StateTable


class Kept:
    """A value state of Spark, in memory."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self.value is not None

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value


class Handle:
    def __init__(self, kept: Kept) -> None:
        self.kept = kept

    def getValueState(self, name: str, schema: str) -> Kept:
        return self.kept


def join(state: Any, event: Event) -> Any:
    return (state or "") + event.data["text"]


def folder(fold: Any = join, initial: str | None = None) -> tuple[Folder, Kept]:
    kept = Kept()
    made = Folder(fold, initial)
    made.init(Handle(kept))  # type: ignore[arg-type]
    return made, kept


def event(place: str, text: str) -> Row:
    return Row(stream="s", key="k", id=place, type=None, headers=None, data=json.dumps({"text": text}))


def run(made: Folder, *rows: Row, key: tuple[str, str | None] = ("s", "k")) -> Row:
    (out,) = made.handleInputRows(key, iter(rows), None)
    return out


def test_events_are_folded_by_their_ids_not_by_their_texts() -> None:
    made, kept = folder()
    out = run(made, event("10-0", "d"), event("9-10", "c"), event("9-9", "b"), event("2-0", "a"))
    assert (out.state, out.events, out.last_id, out.folded) == ('"abcd"', 4, "10-0", 4)
    assert kept.value == ('"abcd"', 4, "10-0")


def test_an_event_counts_once_however_often_it_comes() -> None:
    made, _ = folder()
    run(made, event("1-0", "a"), event("2-0", "b"))
    again = run(made, event("2-0", "b"), event("1-0", "a"), event("3-0", "c"), event("3-0", "c"))
    assert (again.state, again.events, again.folded, again.passed) == ('"abc"', 3, 1, 3)


def test_none_ends_an_entity_and_it_may_begin_again() -> None:
    made, kept = folder(lambda state, e: None if e.data["text"] == "end" else (state or 0) + 1, initial="10")
    assert run(made, event("1-0", "x")).state == "11"
    ended = run(made, event("2-0", "end"))
    assert (ended.state, ended.events) == (None, 2)
    assert kept.value == (None, 2, "2-0")
    assert run(made, event("3-0", "x")).state == "1"  # not from the initial state again


def test_the_state_of_the_table_is_where_a_new_checkpoint_begins() -> None:
    made, _ = folder()
    made.handleInitialState(("s", "k"), Row(state='"ab"', events=2, last_id="2-0"), None)
    out = run(made, event("2-0", "b"), event("3-0", "c"))
    assert (out.state, out.events, out.passed) == ('"abc"', 3, 1)


def test_events_without_a_key_are_counted_and_nothing_else() -> None:
    made, kept = folder()
    out = run(made, event("1-0", "a"), event("2-0", "b"), key=("s", None))
    assert (out.key, out.folded, out.passed, kept.value) == (None, 0, 2, None)


def test_a_fold_that_raises_leaves_the_state_and_says_where() -> None:
    made, kept = folder()
    run(made, event("1-0", "a"))
    with pytest.raises(FoldFailed) as failed:
        run(made, event("2-0", "b"), Row(stream="s", key="k", id="3-0", type=None, headers=None, data="{}"))
    what = json.loads(str(failed.value).removeprefix(MARK))
    assert what == {"stream": "s", "key": "k", "event_id": "3-0", "cause": "KeyError: 'text'"}
    assert kept.value == ('"a"', 1, "1-0")


def test_a_state_that_is_no_json_is_refused() -> None:
    made, kept = folder(lambda state, e: object())
    with pytest.raises(FoldFailed, match="the state is no JSON value"):
        run(made, event("1-0", "a"))
    assert kept.value is None


def test_an_event_knows_its_time() -> None:
    assert Event("s", "1500-3", "", {}, {}).timestamp == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)


def test_without_protobuf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingExtra, match=r"'protobuf'.*millstream\[spark\]"):
        project(None, "sqlite:///x.db", "s", key="k", fold=join, table="t")  # type: ignore[arg-type]


# -- the table -------------------------------------------------------------------------------------


def rows(*given: tuple[str, str, int]) -> pa.Table:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.Table.from_pylist(
        [
            {"stream": "s", "key": key, "state": state, "events": n, "last_id": f"{n}-0",
             "position": f"{n:020d}-{0:020d}", "updated_at": at}
            for key, state, n in given
        ],
        COLUMNS,
    )  # fmt: skip


def states(table: StateTable) -> dict[str, tuple[str, int]]:
    return {row["key"]: (row["state"], row["events"]) for row in table.open().to_pyarrow_table().to_pylist()}


def test_a_batch_of_a_query_counts_once(tmp_path: Path) -> None:
    table = StateTable(str(tmp_path / "t"), "s by k")
    assert table.merge(rows(("a", "1", 1), ("b", "1", 1)), "q1", 0)
    assert table.merge(rows(("b", "2", 2), ("c", "2", 2)), "q1", 1)
    version = table.version()
    for batch in (0, 1):
        assert not table.merge(rows(("a", "wrong", 9)), "q1", batch)
    assert table.version() == version
    assert states(table) == {"a": ("1", 1), "b": ("2", 2), "c": ("2", 2)}
    assert table.positions() == {"s": f"{2:020d}-{0:020d}"}
    assert table.merge(rows(("a", "3", 3)), "q2", 0)  # another query has numbers of its own


def test_a_row_never_goes_back(tmp_path: Path) -> None:
    table = StateTable(str(tmp_path / "t"), "s by k")
    table.merge(rows(("a", "10", 10)), "q1", 0)
    table.merge(rows(("a", "9", 9)), "q2", 0)
    assert states(table) == {"a": ("10", 10)}


def test_a_rebuild_is_one_commit_and_a_new_generation(tmp_path: Path) -> None:
    table = StateTable(str(tmp_path / "t"), "s by k")
    table.merge(rows(("a", "1", 1), ("b", "1", 1)), "q1", 0)
    version = table.version()
    assert (table.generation(), table.replace(rows(("b", "2", 2))), table.generation()) == (0, 1, 1)
    assert table.version() == version + 1
    assert states(table) == {"b": ("2", 2)}
    table.merge(rows(("c", "3", 3)), "q1", 1)
    assert table.generation() == 1


def test_another_projection_or_other_columns_are_refused(tmp_path: Path) -> None:
    StateTable(str(tmp_path / "t"), "s by k").open()
    with pytest.raises(ConfigurationError, match="is the projection of s by k, and this is of s by other"):
        StateTable(str(tmp_path / "t"), "s by other").open()
    wider = StateTable(str(tmp_path / "t"), "s by k", pa.schema([("balance", pa.int64())]))
    with pytest.raises(ConfigurationError, match="rebuild it"):
        wider.check_columns()
    wider.replace(rows().append_column("balance", pa.array([], pa.int64())))
    wider.check_columns()
