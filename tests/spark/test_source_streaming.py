"""Streaming reads from Redis, without a JVM: offsets, limits, restarts, and entries that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from millstream.errors import EntriesLost
from tests.servers import RedisServer
from tests.spark.sources import Query, columns


@pytest.fixture
def name() -> str:
    return f"str:{uuid4().hex[:8]}"


@pytest.fixture
def client(redis7: RedisServer) -> Iterator[Any]:
    with redis7.client() as found:
        yield found


def add(client: Any, stream: str, low: int, high: int, data: str = '{"n":1}') -> None:
    pipe = client.pipeline(transaction=False)
    for seq in range(low, high):
        pipe.xadd(stream, {"data": data}, id=f"1700000000000-{seq}")
    pipe.execute()


def seqs(rows: list[Any]) -> list[int]:
    return sorted(int(row["id"].split("-")[1]) for row in rows)


def test_batch_after_batch(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 6)
    with Query(redis7.url, name) as query:
        assert seqs(query.step()) == [1, 2, 3, 4, 5]
        assert query.step() == []
        assert query.batches[-1][0] == query.batches[-1][1], "the same offset: Spark plans no batch"
        add(client, name, 6, 8)
        assert seqs(query.step()) == [6, 7]
        assert query.offset == {name: {"after": "1700000000000-7", "added": 7}}


def test_latest_starts_with_what_comes(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 6)
    with Query(redis7.url, name, startingOffsets="latest") as query:
        assert query.step() == []
        add(client, name, 6, 8)
        assert seqs(query.step()) == [6, 7]


def test_rows_of_a_batch_are_limited_and_none_is_lost(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 26)
    with Query(redis7.url, name, maxRowsPerTrigger=10) as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(10)
        batches = [seqs(query.step()) for _ in range(4)]
        assert batches == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)], []]
        assert [end[name]["added"] for _, end in query.batches] == [10, 20, 25, 25]
    with Query(redis7.url, name, maxRowsPerTrigger=10) as query:
        assert len(query.step(ReadAllAvailable())) == 25, "Trigger.Once asks for everything"


def test_streams_share_a_batch(redis7: RedisServer, client: Any, name: str) -> None:
    for part, count in (("a", 100), ("b", 3), ("c", 100)):
        add(client, f"{name}:{part}", 1, count + 1)
    with Query(redis7.url, f"{name}:*", maxRowsPerTrigger=30) as query:
        rows = query.step()
        counts = {part: sum(row["stream"] == f"{name}:{part}" for row in rows) for part in "abc"}
        assert sum(counts.values()) == 30
        assert counts["b"] == 3
        assert min(counts["a"], counts["c"]) >= 10
        seen = rows
        for _ in range(10):
            seen = seen + query.step()
        assert len(seen) == 203
        assert len({(row["stream"], row["id"]) for row in seen}) == 203


def test_bytes_of_a_batch_are_limited(redis7: RedisServer, client: Any, name: str) -> None:
    data = '{"n":"' + "x" * 92 + '"}'  # 100 bytes
    add(client, name, 1, 11, data)
    with Query(redis7.url, name, maxBytesPerTrigger=320) as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxBytes(320)
        assert [len(query.step()) for _ in range(5)] == [3, 3, 3, 1, 0]
    with Query(redis7.url, name, maxBytesPerTrigger=50) as query:
        assert [len(query.step()) for _ in range(11)] == [1] * 10 + [0], "what is too large goes alone"
    with Query(redis7.url, name, maxBytesPerTrigger=320, maxRowsPerTrigger=2) as query:
        assert [len(query.step()) for _ in range(3)] == [2, 2, 2], "the stricter limit counts"


def test_a_user_who_may_not_run_scripts_gets_the_same_batches(
    redis7: RedisServer, client: Any, name: str
) -> None:
    add(client, name, 1, 26)
    rights = "+xrange +xrevrange +xinfo +ping +hello +auth +select +client"
    client.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "-@all", *rights.split())
    try:
        url = redis7.url.replace("://", "://plain:pw@")
        for limits in ({"maxRowsPerTrigger": 10}, {"maxBytesPerTrigger": 70}):
            with Query(url, name, **limits) as query:
                batches = [seqs(query.step()) for _ in range(4)]
            assert batches == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)], []]
    finally:
        client.execute_command("ACL", "DELUSER", "plain")


def test_available_now_ends_where_it_began(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, f"{name}:a", 1, 11)
    with Query(redis7.url, f"{name}:*", maxRowsPerTrigger=4) as query:
        query.reader.prepareForTriggerAvailableNow()
        add(client, f"{name}:a", 11, 20)
        add(client, f"{name}:b", 1, 5)
        assert [len(query.step()) for _ in range(4)] == [4, 4, 2, 0]
    with Query(redis7.url, f"{name}:*", offset=query.offset) as later:
        assert len(later.step()) == 13, "the next run has the rest"


def test_a_restart_goes_on_where_it_was(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 11)
    with Query(redis7.url, name, maxRowsPerTrigger=4) as query:
        first = query.step()
        start, end = query.batches[0]
        second = query.step()
    add(client, name, 11, 14)
    with Query(redis7.url, name, offset=query.offset) as later:
        assert seqs(later.between(start, end)) == seqs(first), "a batch read again has the same entries"
        rest = later.step()
    assert seqs(first + second + rest) == [*range(1, 14)]


def test_another_schema_after_a_restart(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 3, '{"n":1,"user":"a"}')
    with Query(redis7.url, name, columns(n="long")) as query:
        assert query.step() == [{"n": 1}] * 2
    add(client, name, 3, 5, '{"n":"two","user":"b"}')
    wider = columns(n="string", user="string", _corrupt="string")
    with Query(redis7.url, name, wider, offset=query.offset) as later:
        assert later.step() == [{"n": "two", "user": "b", "_corrupt": None}] * 2
    with Query(redis7.url, name, columns(n="long", _corrupt="string"), offset=query.offset) as later:
        assert [row["_corrupt"] for row in later.step()] == ['{"n":"two","user":"b"}'] * 2


def test_a_stream_that_appears_later_is_read_from_its_beginning(
    redis7: RedisServer, client: Any, name: str
) -> None:
    add(client, f"{name}:a", 1, 3)
    with Query(redis7.url, f"{name}:*", startingOffsets="latest") as query:
        assert query.step() == []
        add(client, f"{name}:b", 1, 4)
        assert {row["stream"] for row in query.step()} == {f"{name}:b"}
    with Query(redis7.url, f"{name}:named") as query:
        assert query.step() == []
        add(client, f"{name}:named", 1, 4)
        assert len(query.step()) == 3


def test_a_stream_that_is_named_at_a_restart_is_read_from_its_oldest_entry(
    redis7: RedisServer, client: Any, name: str
) -> None:
    add(client, f"{name}:a", 1, 3)
    with Query(redis7.url, f"{name}:a") as query:
        query.step()
    add(client, f"{name}:b", 1, 10)
    client.xtrim(f"{name}:b", maxlen=4, approximate=False)  # before the query asked for it
    with Query(redis7.url, f"{name}:a,{name}:b", offset=query.offset, maxRowsPerTrigger=3) as later:
        assert seqs(later.step()) == [6, 7, 8]
        assert later.offset[f"{name}:b"]["added"] == 8
        assert seqs(later.step()) == [9]
        client.xtrim(f"{name}:b", maxlen=3, approximate=False)
        with pytest.raises(EntriesLost, match="may have been trimmed"):
            later.between(*later.batches[0])
    with Query(redis7.url, f"{name}:a,{name}:c", offset=query.offset) as later:
        assert later.step() == []
        add(client, f"{name}:c", 1, 10)
        client.xtrim(f"{name}:c", maxlen=4, approximate=False)
        with pytest.raises(EntriesLost, match="5 entries after it were trimmed"):
            later.step()


def test_a_stream_that_is_taken_out_at_a_restart_keeps_its_offset_and_is_not_read(
    redis7: RedisServer, client: Any, name: str
) -> None:
    a, b = f"{name}:a", f"{name}:b"
    for stream in (a, b):
        add(client, stream, 1, 3)
    with Query(redis7.url, f"{a},{b}") as query:
        query.step()
    for stream in (a, b):
        add(client, stream, 3, 6)
    with Query(redis7.url, a, offset=query.offset) as without:
        assert {row["stream"] for row in without.step()} == {a}
        assert list(without.reader.reportLatestOffset() or ()) == [a]
        without.reader.prepareForTriggerAvailableNow()
        add(client, a, 6, 7)
        add(client, b, 6, 7)
        assert without.step() == [], "it came after the query began"
    with Query(redis7.url, f"{a},{b}", offset=without.offset) as again:
        assert [(row["stream"], seqs([row])) for row in again.step()] == [
            (a, [6]),
            *((b, [seq]) for seq in range(3, 7)),
        ]
    client.delete(b)
    with Query(redis7.url, a, offset=again.offset) as without:
        assert without.step() == [], "what is not read cannot be lost"
    with (
        Query(redis7.url, f"{name}:*", offset=again.offset) as pattern,
        pytest.raises(EntriesLost, match="does not exist any more"),
    ):
        pattern.step()
    with Query(redis7.url, f"{name}:[a]", offset=again.offset) as narrower:
        assert narrower.step() == []


def test_a_start_that_the_stream_has_not_reached(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 4)
    with Query(redis7.url, name, startingOffsets="1700000000000-6") as query:
        assert query.step() == []
        add(client, name, 4, 6)
        assert query.step() == [], "still before it"
        add(client, name, 6, 8)
        assert seqs(query.step()) == [6, 7]


def test_the_progress_shows_the_lag(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 26)
    with Query(redis7.url, name, maxRowsPerTrigger=10) as query:
        assert query.reader.reportLatestOffset() is None
        query.step()
        assert query.reader.reportLatestOffset() == {
            name: {"after": "1700000000000-25", "added": 25, "lag": 15}
        }


# -- what is gone ----------------------------------------------------------------------------------


def test_what_was_trimmed_between_two_batches_is_noticed_and_counted(
    redis7: RedisServer, client: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, name, 1, 21)
    with Query(redis7.url, name, maxRowsPerTrigger=5) as query:
        query.step()
        client.xtrim(name, maxlen=8, approximate=False)  # leaves 13 to 20; 6 to 12 were never read
        with pytest.raises(EntriesLost, match="7 entries after it were trimmed") as failed:
            query.step()
        assert (failed.value.lost, failed.value.first) == (7, "1700000000000-13")
    with Query(redis7.url, name, offset=query.offset, failOnDataLoss=False, maxRowsPerTrigger=5) as later:
        with caplog.at_level("WARNING", logger="millstream.spark"):
            assert seqs(later.step()) == [13, 14, 15, 16, 17]
        assert "7 entries after it were trimmed" in caplog.text
        caplog.clear()
        assert seqs(later.step()) == [18, 19, 20]
        assert not caplog.text, "a loss is reported once"
        assert later.offset[name]["added"] == 20


def test_a_trim_up_to_what_was_read_is_no_loss(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 21)
    with Query(redis7.url, name, maxRowsPerTrigger=5) as query:
        query.step()
        client.xtrim(name, minid="1700000000000-6", approximate=False)
        assert seqs(query.step()) == [6, 7, 8, 9, 10]
        client.xtrim(name, maxlen=0, approximate=False)
        with pytest.raises(EntriesLost, match=r"10 entries after it were trimmed \(it has no entries now\)"):
            query.step()


def test_a_batch_that_is_read_again_after_a_trim_fails(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 11)
    with Query(redis7.url, name) as query:
        query.step()
        client.xtrim(name, maxlen=3, approximate=False)
        with pytest.raises(EntriesLost, match="7 entries after it were trimmed"):
            query.between(*query.batches[0])


def test_a_stream_that_was_deleted_and_made_anew(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 5, 10)
    with Query(redis7.url, name) as query:
        query.step()
        client.delete(name)
        with pytest.raises(EntriesLost, match="the stream does not exist any more"):
            query.step()
        add(client, name, 1, 4)
        with pytest.raises(EntriesLost, match="deleted and made anew"):
            query.step()
        client.delete(name)
        add(client, name, 20, 22)  # with later ids: only the count of additions shows it
        with pytest.raises(EntriesLost, match="deleted and made anew"):
            query.step()
    client.delete(name)
    add(client, name, 1, 4)
    with Query(redis7.url, name, offset=query.offset, failOnDataLoss=False) as later:
        assert seqs(later.step()) == [1, 2, 3]
        add(client, name, 4, 6)
        assert seqs(later.step()) == [4, 5]


def test_single_deletions_are_no_false_alarm(redis7: RedisServer, client: Any, name: str) -> None:
    add(client, name, 1, 31)
    with Query(redis7.url, name, maxRowsPerTrigger=10) as query:
        query.step()
        client.xdel(name, "1700000000000-12", "1700000000000-15")
        assert len(query.step()) == 10
        assert len(query.step()) == 8
        assert query.step() == []
        assert query.offset[name]["added"] == 30
