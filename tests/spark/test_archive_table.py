"""The archive's Delta table and its files, without Spark: what a commit adds, and what it does not."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake

from millstream.errors import ConfigurationError, InvalidInput
from millstream.spark.archiving import compact, vacuum
from millstream.spark.archiving.location import Location, parse_location
from millstream.spark.archiving.positions import TIDY_EVERY, Batch, Positions
from millstream.spark.archiving.table import ArchiveTable, source_name
from millstream.spark.archiving.writing import by_day
from millstream.spark.statetable import StateTable
from tests.spark.archives import EVENTS, SOURCE, events, write


@pytest.fixture
def table(tmp_path: Path) -> ArchiveTable:
    made = ArchiveTable(Location(str(tmp_path / "archive")))
    made.prepare(EVENTS, SOURCE)
    return made


def rows(table: ArchiveTable) -> list[dict[str, Any]]:
    return table.open().to_pyarrow_table().to_pylist()


def add(table: ArchiveTable, batch: int, count: int = 10, day: str = "2026-03-01") -> int | None:
    files = write(Path(table.location.uri), [events(count, day, first=batch * 1000)])
    return table.commit(batch, files, {"batch": batch})


def test_files_that_were_written_and_not_committed_are_not_in_the_table(table: ArchiveTable) -> None:
    write(Path(table.location.uri), [events(10)])
    assert rows(table) == []
    assert table.committed() == 0


def test_a_table_with_a_broken_log_is_one_line(table: ArchiveTable) -> None:
    (log,) = Path(table.location.uri, "_delta_log").glob("*0.json")
    log.write_text("{broken")
    opened = (table.open, StateTable(table.location.uri, "x").open)
    for open_it in opened:
        with pytest.raises(ConfigurationError, match=r"cannot be opened: .*Json error") as raised:
            open_it()
        assert "\n" not in str(raised.value)


def test_a_batch_that_is_committed_twice_adds_nothing(table: ArchiveTable) -> None:
    assert add(table, 1) == 1
    assert add(table, 1) is None
    assert (len(rows(table)), table.committed()) == (10, 1)
    assert add(table, 2) == 2
    assert len(rows(table)) == 20


def test_of_two_runs_that_commit_the_same_batch_at_once_one_wins(table: ArchiveTable) -> None:
    files = [write(Path(table.location.uri), [events(10)]) for _ in range(4)]
    versions: list[int | None] = []
    start = threading.Barrier(4)

    def run(mine: Any) -> None:
        start.wait()
        versions.append(table.commit(1, mine, {}))

    threads = [threading.Thread(target=run, args=(mine,)) for mine in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions, key=str) == [1, None, None, None]
    assert len(rows(table)) == 10


def test_of_two_runs_that_make_the_table_at_once_one_does(tmp_path: Path) -> None:
    """A second creation behind the first would set the archive's progress back to nothing."""
    for turn in range(5):
        path = tmp_path / str(turn)
        start = threading.Barrier(4)

        def run(path: Path = path, start: threading.Barrier = start) -> None:
            made = ArchiveTable(Location(str(path)))
            start.wait()
            made.prepare(EVENTS, SOURCE)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert DeltaTable(path).version() == 0


def test_without_the_transaction_the_same_race_would_add_twice(table: ArchiveTable) -> None:
    """The control: the same files committed as plain appends."""
    for _ in range(2):
        write_deltalake(table.location.uri, table.open().to_pyarrow_table().slice(0, 0), mode="append")
        files = write(Path(table.location.uri), [events(10)])
        opened = table.open()
        from deltalake.transaction import AddAction

        actions = [AddAction(file.path, file.size, {"day": file.day}, 0, True, file.stats) for file in files]
        opened.create_write_transaction(actions, "append", opened.schema(), partition_by=["day"])
    assert len(rows(table)) == 20


def test_a_commit_waits_for_no_compaction_and_a_compaction_for_no_commit(table: ArchiveTable) -> None:
    for batch in range(1, 5):
        add(table, batch)
    before = table.open()
    assert add(table, 5) is not None
    before.optimize.compact()  # of a version that is not the newest any more
    assert len(rows(table)) == 50
    assert add(table, 6) is not None


def test_entries_go_to_the_folder_of_their_day_in_utc(table: ArchiveTable) -> None:
    batch = pa.concat_batches([events(3, "2026-03-01"), events(2, "2026-03-02")])
    files = write(Path(table.location.uri), [batch])
    assert [(file.day, file.rows) for file in files] == [("2026-03-01", 3), ("2026-03-02", 2)]
    table.commit(1, files, {})
    assert {row["day"] for row in rows(table)} == {date(2026, 3, 1), date(2026, 3, 2)}
    found = table.open().to_pyarrow_table(filters=[("day", "=", date(2026, 3, 2))])
    assert found.num_rows == 2


def test_an_entry_without_a_date_that_a_calendar_has_is_kept(table: ArchiveTable) -> None:
    batch = events(3).to_pylist()
    batch[1]["timestamp"] = None
    odd = pa.Table.from_pylist(batch, schema=EVENTS)
    far = pa.array([None, None, 400_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    far_table = odd.set_column(2, EVENTS.field(2), far)
    days = [day for day, _ in by_day(far_table)]
    assert days == [None]
    table.commit(1, write(Path(table.location.uri), [*odd.to_batches(), *far_table.to_batches()]), {})
    found = table.open().to_pyarrow_table(columns=["id", "day"]).to_pylist()
    assert sorted(str(row["day"]) for row in found) == ["2026-03-01"] * 2 + ["None"] * 4


def test_a_file_grows_to_the_size_asked_for_and_then_comes_the_next(
    table: ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.spark.archiving.writing.BUFFERED", 1000)
    batches = [events(500, first=number * 500) for number in range(10)]
    files = write(Path(table.location.uri), batches, file_bytes=10_000)
    assert len(files) > 2
    assert sum(file.rows for file in files) == 5000
    table.commit(1, files, {})
    assert len({row["id"] for row in rows(table)}) == 5000


def test_more_days_than_files_may_be_open_lose_nothing(table: ArchiveTable) -> None:
    batches = [events(2, f"2026-03-{day:02d}", first=turn * 2) for turn in range(2) for day in range(1, 21)]
    files = write(Path(table.location.uri), batches)
    table.commit(1, files, {})
    found = rows(table)
    assert len(found) == len({row["id"] for row in found}) == 80


def test_readers_can_skip_files_by_the_statistics(table: ArchiveTable) -> None:
    add(table, 1)
    add(table, 2, day="2026-03-02")
    actions = pa.table(table.open().get_add_actions(flatten=True)).to_pylist()
    assert [action["num_records"] for action in actions] == [10, 10]
    for action in actions:
        assert action["min.timestamp"].date() == action["partition.day"] == action["max.timestamp"].date()
        assert action["null_count.type"] == 10
        assert "min.data" not in action or action["min.data"] is None
    late = datetime(2026, 3, 2, tzinfo=UTC)
    assert table.open().to_pyarrow_table(filters=[("timestamp", ">=", late)]).num_rows == 10


def test_a_column_that_came_later_is_null_in_what_was_there_before(table: ArchiveTable) -> None:
    add(table, 1)
    wider = EVENTS.append(pa.field("tenant", pa.string()))
    schema = table.prepare(wider, SOURCE)
    assert schema.names == wider.names
    batch = events(5, first=500).append_column("tenant", pa.array(["t"] * 5))
    table.commit(2, write(Path(table.location.uri), [batch], schema), {})
    assert sorted(str(row["tenant"]) for row in rows(table)) == ["None"] * 10 + ["t"] * 5
    # An older program, which does not know the column, goes on.
    schema = table.prepare(EVENTS, SOURCE)
    table.commit(3, write(Path(table.location.uri), [events(5, first=900)], schema), {})
    assert len(rows(table)) == 20


def test_a_column_with_another_type_is_refused(table: ArchiveTable) -> None:
    other = EVENTS.set(3, pa.field("data", pa.int64()))
    with pytest.raises(ConfigurationError, match=r"column 'data' is string in the table .* gives int64"):
        table.prepare(other, SOURCE)


def test_the_entries_of_two_brokers_do_not_mix(table: ArchiveTable) -> None:
    with pytest.raises(
        ConfigurationError, match=r"archives redis://127.0.0.1:1/0, and this is redis://other/0"
    ):
        table.prepare(EVENTS, "redis://other/0")
    table.prepare(EVENTS, "redis://other/0", same_source=True)
    table.prepare(EVENTS, "redis://other/0")
    with pytest.raises(ConfigurationError, match="archives redis://other/0"):
        table.prepare(EVENTS, SOURCE)


def test_another_delta_table_is_no_archive(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    other = ArchiveTable(Location(str(tmp_path / "other")))
    with pytest.raises(ConfigurationError, match="is no archive of Millstream; choose another folder"):
        other.prepare(EVENTS, SOURCE)
    assert DeltaTable(tmp_path / "other").version() == 0


def test_a_table_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no Delta table at .*nothing; make one with"):
        ArchiveTable(Location(str(tmp_path / "nothing"))).open()


@pytest.mark.parametrize(("text", "why"), [("", "is empty"), ("ftp://x/y", "is not a place for a table")])
def test_an_address_that_is_no_place(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_location(text)


def test_a_source_is_known_without_its_password() -> None:
    assert source_name("redis://user:secret@host:6379/0?socket_timeout=3") == "redis://host:6379/0"
    assert source_name("valkey://host:6379/0") == source_name("rediss://host:6379/0") == "redis://host:6379/0"
    assert source_name("postgresql+psycopg://me:pw@db/name") == "postgresql://db/name"
    assert source_name("sqlite:////var/lib/x.db") == "sqlite:///var/lib/x.db"


# -- positions -------------------------------------------------------------------------------------


def test_a_batch_means_what_was_written_down_first(tmp_path: Path) -> None:
    positions = Positions(Location(str(tmp_path)))
    assert positions.get(1) is None
    mine = Batch(1, {"s": {"after": "5-0"}}, {"end": {"s": {"after": "5-0"}}})
    assert positions.plan(mine) == mine
    other = Batch(1, {"s": {"after": "9-0"}}, {"end": {}})
    assert positions.plan(other) == mine
    assert Positions(Location(str(tmp_path))).get(1) == mine


def test_of_two_plans_at_once_both_obey_one(tmp_path: Path) -> None:
    plans = [Batch(1, {"s": {"after": f"{number}-0"}}, {}) for number in range(4)]
    found: list[Batch] = []
    start = threading.Barrier(4)

    def run(mine: Batch) -> None:
        start.wait()
        found.append(Positions(Location(str(tmp_path))).plan(mine))

    threads = [threading.Thread(target=run, args=(mine,)) for mine in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({str(each) for each in found}) == 1


def test_old_positions_are_forgotten_and_the_last_are_kept(tmp_path: Path) -> None:
    positions = Positions(Location(str(tmp_path)))
    for number in range(TIDY_EVERY - 15, TIDY_EVERY + 2):
        positions.plan(Batch(number, {"n": number}, {}))
        if number <= TIDY_EVERY:
            positions.tidy(number)
    assert positions.get(TIDY_EVERY - 15) is None
    assert [positions.get(number) is not None for number in (TIDY_EVERY, TIDY_EVERY + 1)] == [True, True]
    assert positions.plan(Batch(TIDY_EVERY + 2, {}, {})).number == TIDY_EVERY + 2


# -- maintenance -----------------------------------------------------------------------------------


def test_compaction_and_vacuum_keep_every_row_and_the_progress(table: ArchiveTable) -> None:
    path = Path(table.location.uri)
    positions = Positions(table.location)
    for batch in range(1, 6):
        positions.plan(Batch(batch, {"n": batch}, {}))
        add(table, batch)
    before = sorted(row["id"] for row in rows(table))
    orphan = write(path, [events(3)])[0]
    assert compact(path).files_after == 1
    assert sorted(row["id"] for row in rows(table)) == before
    would = vacuum(path, keep_hours=0, force=True, dry_run=True)
    assert orphan.path in would
    assert (path / orphan.path).exists()
    assert sorted(vacuum(path, keep_hours=0, force=True)) == sorted(would)
    assert len(would) == 6
    assert not (path / orphan.path).exists()
    assert sorted(row["id"] for row in rows(table)) == before
    assert table.committed() == 5
    assert positions.get(5) == Batch(5, {"n": 5}, {})
    assert add(table, 5) is None


def test_a_vacuum_that_could_hurt_a_running_query_must_be_forced(table: ArchiveTable) -> None:
    with pytest.raises(InvalidInput, match=r"keeps 1 hours, less than 168.*force=True"):
        vacuum(table.location.uri, keep_hours=1)
    with pytest.raises(InvalidInput, match="0 hours or more, not -1"):
        vacuum(table.location.uri, keep_hours=-1, force=True)
    orphan = write(Path(table.location.uri), [events(3)])[0]
    assert vacuum(table.location.uri) == []
    assert (Path(table.location.uri) / orphan.path).exists()
