"""Projections: incremental and rebuilt are the same, events count once, a fold that raises costs nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millstream import StreamBroker, open_broker
from millstream.errors import ConfigurationError, InvalidInput, ProjectionFailed
from millstream.spark.folding import Event
from millstream.spark.projections import ProjectionResult, load_fold, project
from tests.servers.process import requirement_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)  # on a busy machine the first batch of a query takes its time
KEYS = 300
STREAM = "events:accounts"


def account(state: Any, event: Event) -> Any:
    """A fold whose result depends on the order of the events, and on each of them."""
    if event.data["kind"] == "closed":
        return None
    state = state or {"balance": 0, "path": 7, "seen": []}
    amount = event.data["amount"]
    return {
        "balance": state["balance"] + amount,
        "path": (state["path"] * 31 + amount) % 1_000_003,
        "seen": [*state["seen"][-2:], event.id],
        "type": event.type,
        "tenant": event.headers.get("tenant"),
    }


def choosy(state: Any, event: Event) -> Any:
    """The same, but it does not know one kind of event."""
    if event.data["kind"] == "strange":
        raise KeyError("strange")
    return account(state, event)


def events(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    made: list[dict[str, Any]] = []
    for _ in range(count):
        kind = "closed" if chance.random() < 0.01 else "moved"
        made.append(
            {"account": f"a{chance.randrange(KEYS)}", "kind": kind, "amount": chance.randrange(-500, 500)}
        )
    return made


def expected(broker: StreamBroker) -> dict[str, tuple[Any, int, str]]:
    """What a plain loop over the stream gives: the state, how many events, the last id."""
    found: dict[str, tuple[Any, int, str]] = {}
    for message in broker.xrange(STREAM):
        if "account" in message.data:
            key = message.data["account"]
            state, count, _ = found.get(key, (None, 0, ""))
            event = Event(STREAM, message.id, message.type or "", message.data, dict(message.headers or {}))
            found[key] = (account(state, event), count + 1, message.id)
    return found


def rows(table: Path) -> dict[str, dict[str, Any]]:
    found = {row["key"]: row for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()}
    assert len(found) == DeltaTable(str(table)).to_pyarrow_table().num_rows
    return found


def check(table: Path, broker: StreamBroker) -> None:
    import json

    wanted = expected(broker)
    there = rows(table)
    assert set(there) == set(wanted)
    for key, (state, count, last_id) in wanted.items():
        row = there[key]
        assert (row["stream"], row["events"], row["last_id"]) == (STREAM, count, last_id)
        assert (None if row["state"] is None else json.loads(row["state"])) == state
        assert row["balance"] == (None if state is None else state["balance"])
        assert int(row["updated_at"].timestamp() * 1000) == int(last_id.split("-")[0])


class Shop:
    """A stream in a SQLite file, its projection, and how to run it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        if find_spec("google") is None or find_spec("google.protobuf") is None:
            requirement_missing("the Python package protobuf")
        self.spark, self.folder = spark, folder
        self.url, self.table = f"sqlite:///{folder}/events.db", folder / "accounts"
        self.checkpoint = folder / "accounts.checkpoint"
        self.broker = open_broker(self.url)

    def project(self, **changes: Any) -> ProjectionResult:
        given = {"key": "account", "fold": account, "table": str(self.table), "columns": "balance bigint"}
        return project(self.spark, self.url, STREAM, **(given | changes))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(spark, tmp_path)
    with made.broker:
        yield made


def test_incremental_replayed_failed_mended_and_rebuilt_are_the_same(shop: Shop) -> None:
    shop.broker.xadd_many(STREAM, [*events(1500, 1), {"kind": "moved", "note": "no account"}])
    first = shop.project(max_rows=800)
    assert (first.events, first.without_key, first.repeated, first.batches) == (1500, 1, 0, 2)
    check(shop.table, shop.broker)

    # A crash between the commit of the table and that of the checkpoint: the second batch comes again, and
    # adds nothing. The third has an event that the fold does not know: it is as if it had not been tried.
    for file in (shop.checkpoint / "0" / "commits").glob("*1*"):
        file.unlink()
    before, folded = rows(shop.table), []
    shop.broker.xadd(STREAM, events(1, 5)[0], type="bank.moved", headers={"tenant": "acme"})
    shop.broker.xadd_many(STREAM, events(500, 2))
    bad = shop.broker.xadd(STREAM, {"account": "a7", "kind": "strange", "amount": 1})
    shop.broker.xadd_many(STREAM, events(500, 4))
    with pytest.raises(ProjectionFailed) as failed:
        shop.project(fold=choosy, on_progress=lambda what, *counts: folded.extend(counts))
    assert folded == [700]
    error = failed.value
    assert (error.stream, error.key, error.event_id) == (STREAM, "a7", bad)
    assert "KeyError: 'strange'" in error.cause
    assert (rows(shop.table), DeltaTable(str(shop.table)).version()) == (before, first.version)

    stop = Flag()  # with a fold that knows it; on and on, until it is stopped
    mended = shop.project(
        every=0.1, stop=stop, on_progress=lambda what, *_: what == "folding events" and stop.set()
    )
    assert (mended.events, mended.repeated, mended.version) == (1002, 0, first.version + 1)
    check(shop.table, shop.broker)
    rebuilt = shop.project(table=str(shop.folder / "rebuilt"), rebuild=True)
    assert (rebuilt.events, rebuilt.rebuilt, rebuilt.keys) == (2502, True, len(rows(shop.table)))
    assert rows(shop.folder / "rebuilt") == rows(shop.table)


def test_a_rebuild_from_the_archive_has_what_the_stream_has_lost(shop: Shop) -> None:
    shop.broker.xadd_many(STREAM, events(600, 6))
    kept = [
        {"stream": STREAM, "id": message.id, "data": message.body.decode(), "type": None, "headers": None}
        for message in shop.broker.xrange(STREAM)
    ]
    other = {"stream": "events:other", "id": "1-1", "data": '{"account": "x", "kind": "moved", "amount": 1}'}
    schema = pa.schema(
        [("stream", pa.string()), ("id", pa.string()), ("data", pa.string()), ("type", pa.string()),
         ("headers", pa.map_(pa.string(), pa.string()))]
    )  # fmt: skip
    archive = str(shop.folder / "archive")
    write_deltalake(archive, pa.Table.from_pylist([*kept[:500], other], schema))
    shop.broker.xadd_many(STREAM, events(50, 7))
    whole = expected(shop.broker)
    shop.broker.xtrim(STREAM, min_id=kept[400]["id"])
    rebuilt = shop.project(rebuild_from=archive)
    assert (rebuilt.events, rebuilt.generation) == (650, 1)
    assert {key: row["events"] for key, row in rows(shop.table).items()} == {
        key: count for key, (_, count, _) in whole.items()
    }
    shop.broker.xadd_many(STREAM, [{"account": "a1", "kind": "moved", "amount": 3}])
    after = shop.project()  # with a new checkpoint, from the states of the table
    assert (after.events, after.repeated, after.generation) == (1, 0, 1)
    assert rows(shop.table)["a1"]["events"] == whole["a1"][1] + 1
    with pytest.raises(InvalidInput, match="has no entries of 'events:none'"):
        project(shop.spark, shop.url, "events:none", key="account", fold=account,
                table=str(shop.folder / "none"), rebuild_from=archive)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"key": "@colour"}, InvalidInput, "use @stream, @type, @header.name"),
        ({"key": "a..b"}, InvalidInput, "no field of an event"),
        ({"fold": "nowhere"}, ConfigurationError, "app.folds:account"),
        ({"fold": "no_such_module:fold"}, ConfigurationError, "does not import"),
        ({"fold": "json:nothing"}, ConfigurationError, "no such function"),
        ({"fold": "json:__name__"}, ConfigurationError, "not a function"),
        ({"initial": {1, 2}}, InvalidInput, "initial must be a JSON value"),
        ({"columns": "balance"}, InvalidInput, "balance double, owner string"),
        ({"columns": "state string"}, InvalidInput, "has a column 'state' already"),
        ({"max_rows": 0}, InvalidInput, "max_rows must be above 0"),
        ({"every": -1}, InvalidInput, "every must be above 0"),
    ],
)
def test_bad_arguments_are_refused(
    shop: Shop, arguments: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        shop.project(**arguments)


def test_a_table_of_something_else_is_refused(shop: Shop) -> None:
    write_deltalake(str(shop.table), pa.table({"a": [1]}))
    with pytest.raises(ConfigurationError, match="is no projection"):
        shop.project()


def test_a_fold_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folds_of_a_test.py").write_text("def count(state, event):\n    return (state or 0) + 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert load_fold("folds_of_a_test:count")(1, None) == 2  # type: ignore[arg-type]
