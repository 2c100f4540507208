"""Streams and the archive in SQL databases, without a JVM."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from millstream import open_broker
from millstream.errors import EntriesLost, MillstreamError, StreamNotFound
from millstream.history import Record
from millstream.spark.source import sql as source_sql
from millstream.spark.source.globs import fits
from millstream.sql import Database, parse_url
from tests.spark.sources import Query, columns, read, read_parts


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path}/streams.db"
    else:
        found = request.getfixturevalue(request.param).url
    open_broker(found, create=True).close()
    return found


@pytest.fixture
def name() -> str:
    return f"sql:{uuid4().hex[:8]}"


def test_batches(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_sql, "FIRST_ROWS", 7)
    monkeypatch.setattr(source_sql, "MOST_ROWS", 11)
    with open_broker(url) as broker:
        added = broker.xadd_many(name, [{"n": n} for n in range(60)])
        added.append(broker.xadd(name, {"n": 60}, type="t", headers={"h": "é"}))
        broker.xadd(f"{name}:other", {})
        broker.create_group(name, "g", "0")
        broker.xreadgroup("g", "c", name, count=3)
        parts = read_parts(url, name, minPartitions=3)
        rows = [row for part in parts for row in part]
        assert [row["id"] for row in rows] == added
        assert len(parts) == 3
        assert (rows[0]["data"], rows[0]["type"], rows[0]["headers"]) == ('{"n":0}', None, [])
        assert (rows[-1]["type"], rows[-1]["headers"]) == ("t", [("h", "é")])
        assert sum(row["n"] for row in read(url, name, columns(n="long"))) == sum(range(61))
        assert len(read(url, f"{name}*")) == 62
        assert len(read(url, name, startingOffsets=added[50], endingOffsets=added[52])) == 3
        assert read(url, f"{name}:never") == []
        (group,) = broker.group_info(name)
        assert (group.pending, group.lag) == (3, 58)


def test_streaming_with_limits_restarts_and_losses(url: str, name: str) -> None:
    with open_broker(url) as broker:
        added = broker.xadd_many(name, [{"n": n} for n in range(25)])
        with Query(url, name, maxRowsPerTrigger=10) as query:
            first = query.step()
            assert query.reader.reportLatestOffset() == {name: {"after": added[-1], "lag": 15}}
            rest = query.step() + query.step()
            assert [row["id"] for row in first + rest] == added
            assert query.step() == []
        with Query(url, name, offset=query.batches[0][1], maxBytesPerTrigger=20) as later:
            assert [row["id"] for row in later.step()] == added[10:12], "eight bytes each"
        broker.xtrim(name, min_id=added[9])  # what was read last stays, so that nothing can be missing
        with Query(url, name, offset=query.batches[0][1]) as later:
            assert [row["id"] for row in later.step()] == added[10:]
        broker.xtrim(name, min_id=added[20])
        with (
            Query(url, name, offset=query.batches[0][1]) as later,
            pytest.raises(EntriesLost, match="may have been"),
        ):
            later.step()
        with Query(url, name, offset=query.batches[0][1], failOnDataLoss=False) as later:
            assert [row["id"] for row in later.step()] == added[20:]


def test_a_stream_that_comes_to_be_after_the_query_began_has_lost_nothing(url: str, name: str) -> None:
    with open_broker(url) as broker:
        broker.xadd(f"{name}:a", {"n": 0})
        broker.create_group(f"{name}:group", "g", "0")  # there, and without an entry
        with Query(url, f"{name}:live") as named, Query(url, f"{name}:*") as pattern:
            assert (named.step(), len(pattern.step())) == ([], 1)
            added = broker.xadd_many(f"{name}:live", [{"n": n} for n in range(5)])
            broker.xadd(f"{name}:group", {"n": 5})
            assert [row["id"] for row in named.step()] == added
            assert len(pattern.step()) == 6
            more = broker.xadd(f"{name}:live", {"n": 6})
            assert [row["id"] for row in named.step()] == [more]
            assert [row["id"] for row in pattern.step()] == [more]
            broker.xtrim(f"{name}:live", max_len=2, plain=True)
            for query in (named, pattern):
                with pytest.raises(EntriesLost, match="may have been"):  # read again, it is not the same
                    query.between(*query.batches[1])
        # Named at a restart: it may be older than the query, and trimmed long ago.
        with Query(url, f"{name}:a,{name}:live", offset={f"{name}:a": {"after": "0-0"}}) as later:
            assert len(later.step()) == 3


def test_a_stream_that_came_and_went_before_it_was_read(url: str, name: str) -> None:
    with open_broker(url) as broker:
        broker.create_group(f"{name}:group", "g", "0")
        with Query(url, f"{name}:none,{name}:group") as query:
            assert query.step() == []
            for stream in ("none", "group"):
                broker.xadd(f"{name}:{stream}", {"n": 1})
                broker.xtrim(f"{name}:{stream}", max_len=0, plain=True)
                with pytest.raises(EntriesLost, match="it has no entries now"):
                    query.step()
                broker.delete_stream(f"{name}:{stream}")
        broker.xadd(f"{name}:old", {"n": 1})
        broker.xtrim(f"{name}:old", max_len=0, plain=True)
        with Query(url, f"{name}:old", offset={}) as later:
            assert later.step() == [], "it was emptied before anybody asked for it"


def test_a_database_without_tables_is_not_given_any(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(MillstreamError, match="has no tables of Millstream"):
        read(f"sqlite:///{tmp_path}/empty.db", "s")
    assert (tmp_path / "empty.db").read_bytes() == b""


@pytest.mark.parametrize("options", [{"stream": "s"}, {"archive": True}])
def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(MillstreamError, match=rf"there is no file {tmp_path}/none.db, and"):
        read(f"sqlite:///{tmp_path}/none.db", **options)
    assert list(tmp_path.iterdir()) == []


def test_glob_patterns_mean_what_they_mean_in_redis() -> None:
    assert fits("a*c", "abbc")
    assert fits("a?c", "abc")
    assert not fits("a?c", "ac")
    assert fits("[a-c]x", "bx")
    assert not fits("[^a-c]x", "bx")
    assert fits(r"a\*", "a*")
    assert not fits(r"a\*", "ab")
    assert fits("a.b", "a.b")
    assert not fits("a.b", "axb")
    assert fits("a[", "a[")
    assert fits("[c-a]x", "bx"), "backwards"
    assert fits("[^]x", "bx")


# -- the archive -----------------------------------------------------------------------------------


def insert(url: str, *records: Record, commit: threading.Event | None = None) -> None:
    """Rows of the archive; where ``commit`` is given, not committed before it is set."""
    database = Database.open(parse_url(url), create=True)
    fields = Record.__struct_fields__
    mark = "?" if database.backend == "sqlite" else "%s"
    statement = (
        f"INSERT INTO millstream_history ({', '.join(fields)}) VALUES ({', '.join([mark] * len(fields))})"
    )

    def work(connection: Any) -> None:
        for record in records:
            values = msgspec.structs.asdict(record)
            values |= {key: msgspec.json.encode(values[key]).decode() for key in ("tags", "headers")}
            connection.exec_driver_sql(statement, tuple(values[field] for field in fields))
        if commit is not None:
            commit.wait(20)

    try:
        database.write(work, repeat=False)
    finally:
        database.close()


def record(job_id: str, at: float, **more: Any) -> Record:
    return Record(job_id=job_id, type="mail", state="completed", at=at, **more)


def test_the_archive_table(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/archive.db"
    records = [
        record("a", 5.25, seconds=0.5, tags=["x", "y"], headers={"tenant": "t"}, payload='{"user": 7}'),
        record("b", 6.0, error="é"),
        record("c", 7.0),
    ]
    open_broker(url).close()
    insert(url, *records)
    rows = read(url, archive=True)
    plain = [
        {k: v for k, v in row.items() if v is not None} | {"headers": dict(row["headers"])} for row in rows
    ]
    assert [msgspec.convert(row, Record) for row in plain] == records
    some = read(
        url, None, columns(job_id="string", at="double", timestamp="timestamp", _id="string"), archive=True
    )
    assert [(row["job_id"], row["at"], row["timestamp"].timestamp(), row["_id"]) for row in some] == [
        ("a", 5.25, 5.25, "0-1"),
        ("b", 6.0, 6.0, "0-2"),
        ("c", 7.0, 7.0, "0-3"),
    ]
    assert [len(part) for part in read_parts(url, archive=True, minPartitions=3)] == [1, 1, 1]
    with Query(url, archive=True, maxRowsPerTrigger=2) as query:
        assert [row["job_id"] for row in query.step()] == ["a", "b"]
        assert [row["job_id"] for row in query.step()] == ["c"]
        insert(url, record("d", 8.0))
        assert [row["job_id"] for row in query.step()] == ["d"]
        assert query.reader.reportLatestOffset() == {"archive": {"after": "0-4", "lag": 0}}


def test_a_row_that_is_committed_late_is_not_missed(postgres: Any) -> None:
    url = postgres.url
    open_broker(url, create=True).close()
    insert(url, record(f"first-{uuid4()}", 1.0))
    late, slow, quick = f"late-{uuid4()}", threading.Event(), f"quick-{uuid4()}"
    with Query(url, archive=True, startingOffsets="latest") as query:
        writer = threading.Thread(target=insert, args=(url, record(late, 2.0)), kwargs={"commit": slow})
        writer.start()
        with postgres.connect() as connection:  # until the number is taken
            for _ in range(2000):
                held = connection.execute(
                    "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted "
                    "AND relation = 'millstream_history'::regclass"
                ).fetchone()
                if held[0]:
                    break
        insert(url, record(quick, 3.0))  # takes a later number, and is committed first
        timer = threading.Timer(0.3, slow.set)
        timer.start()
        rows = query.step() + query.step()
        writer.join()
        timer.join()
        assert {row["job_id"] for row in rows} == {late, quick}


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    open_broker(url).close()
    database = Database.open(parse_url(url))
    database.write(
        lambda connection: connection.exec_driver_sql("DROP TABLE millstream_history"), repeat=False
    )
    database.close()
    with pytest.raises(StreamNotFound, match="millstream_history"):
        read(url, archive=True)
