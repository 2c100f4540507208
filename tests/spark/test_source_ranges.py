"""Partitions: every entry in exactly one of them, wherever the cuts fall; and about as many in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.message import Id
from millstream.spark.source.log import Log, Probe, State, Stride
from millstream.spark.source.pages import Page
from millstream.spark.source.ranges import ROWS_PER_PARTITION, Range, plan
from tests.servers import RedisServer
from tests.spark.sources import read_parts

TOP = (1 << 64) - 1


class Listed(Log):
    """Streams that are lists of ids."""

    def __init__(self, **streams: list[Id]) -> None:
        self.streams = streams
        self.asked = 0

    def probe(self, stream: str, probes: Sequence[Probe]) -> list[Id | None]:
        self.asked += len(probes)
        found: list[Id | None] = []
        for probe in probes:
            inside = [key for key in self.streams[stream] if probe.low <= key <= probe.high]
            found.append((inside[-1] if probe.newest else inside[0]) if inside else None)
        return found

    def find(self, pattern: str) -> list[str]:
        raise NotImplementedError

    def state(self, stream: str) -> State | None:
        raise NotImplementedError

    def pages(self, stream: str, low: Id, high: Id) -> Iterator[Page]:
        raise NotImplementedError

    def stride(self, stream: str, low: Id, high: Id, rows: int, size: int | None, *, first: bool) -> Stride:
        raise NotImplementedError

    def close(self) -> None: ...


def sizes(log: Listed, wanted: list[Range], parts: int | None) -> list[int]:
    """How many entries each partition has; checks that each entry is in exactly one."""
    slices = plan(log, wanted, parts)
    read = [
        [(r.stream, key) for r in each.ranges for key in log.streams[r.stream] if r.low <= key <= r.high]
        for each in slices
    ]
    together = [entry for each in read for entry in each]
    inside = [(r.stream, key) for r in wanted for key in log.streams[r.stream] if r.low <= key <= r.high]
    assert sorted(together) == sorted(inside), "an entry is missing, or twice"
    return [len(each) for each in read]


keys = st.one_of(
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.integers(0, 10**13), st.integers(0, 3)),
    st.tuples(st.integers(0, TOP), st.integers(0, TOP)),
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(keys, unique=True, max_size=60),
    st.lists(keys, unique=True, max_size=20),
    keys,
    keys,
    st.integers(1, 9),
)
def test_every_entry_is_in_exactly_one_partition(
    one: list[Id], two: list[Id], some: Id, other: Id, parts: int
) -> None:
    log = Listed(one=sorted(one), two=sorted(two))
    low, high = min(some, other), max(some, other)
    sizes(log, [Range("one", low, high), Range("two", (0, 0), (TOP, TOP))], parts)


def test_a_millisecond_with_thousands_is_cut_between_its_counters() -> None:
    log = Listed(s=[(1700000000000, seq) for seq in range(8000)])
    assert sizes(log, [Range("s", (0, 0), (TOP, TOP))], 4) == [2000] * 4


def test_an_even_stream_is_cut_evenly() -> None:
    log = Listed(s=[(1700000000000 + 7 * n, 0) for n in range(4000)])
    found = sizes(log, [Range("s", (0, 0), (TOP, TOP))], 4)
    assert len(found) == 4
    assert max(found) < 1.3 * 1000


def test_a_quiet_night_gets_no_partition_of_its_own() -> None:
    day = 86_400_000
    busy = [(day + n, 0) for n in range(2000)] + [(2 * day + n, 0) for n in range(2000)]
    found = sizes(Listed(s=busy), [Range("s", (0, 0), (TOP, TOP))], 4)
    assert len(found) == 4
    assert max(found) <= 2000, found


def test_many_short_streams_share_a_task() -> None:
    log = Listed(**{f"s{n}": [(5, n)] for n in range(200)})
    found = sizes(log, [Range(f"s{n}", (0, 0), (9, 0), 1.0) for n in range(200)], None)
    assert found == [200]
    assert len(sizes(log, [Range(f"s{n}", (0, 0), (9, 0), 1.0) for n in range(200)], 8)) >= 8


def test_a_short_range_asks_for_nothing_but_its_ends() -> None:
    log = Listed(s=[(n, 0) for n in range(1000)])
    sizes(log, [Range("s", (0, 0), (TOP, TOP), 1000.0)], None)
    assert log.asked == 2
    log = Listed(s=[(n, 0) for n in range(1000)])
    assert len(sizes(log, [Range("s", (0, 0), (TOP, TOP), 3.0 * ROWS_PER_PARTITION)], None)) == 3


def test_nothing_gives_no_partition() -> None:
    assert sizes(Listed(s=[]), [Range("s", (0, 0), (TOP, TOP))], 4) == []


@pytest.mark.parametrize("parts", [1, 8])
def test_on_a_server_a_burst_in_one_millisecond_is_read_once(redis7: RedisServer, parts: int) -> None:
    stream = f"ranges:burst:{parts}"
    with redis7.client() as client:
        pipe = client.pipeline(transaction=False)
        for seq in range(5657):
            pipe.xadd(stream, {"data": "{}"}, id=f"1700000000000-{seq}")
        pipe.execute()
    found = read_parts(redis7.url, stream, minPartitions=parts)
    assert len(found) == parts
    ids = [row["id"] for part in found for row in part]
    assert ids == [f"1700000000000-{seq}" for seq in range(5657)]
    assert max(map(len, found)) <= 5657 // parts + 2
