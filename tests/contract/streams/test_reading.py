"""xreadgroup without waiting, and the reads outside of every group."""

from __future__ import annotations

import pytest

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, numbers


def test_entries_come_oldest_first(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 5)
    broker.create_group(stream, GROUP, "0")
    messages = broker.xreadgroup(GROUP, "a", stream, 5)
    assert ids(messages) == added
    assert numbers(messages) == [0, 1, 2, 3, 4]
    assert {message.stream for message in messages} == {stream}


def test_one_entry_is_the_default(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 3)
    broker.create_group(stream, GROUP, "0")
    assert numbers(broker.xreadgroup(GROUP, "a", stream)) == [0]


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_count_is_the_most_that_comes(broker: StreamBroker, stream: str, count: int) -> None:
    fill(broker, stream, 20)
    broker.create_group(stream, GROUP, "0")
    seen = []
    while messages := broker.xreadgroup(GROUP, "a", stream, count):
        assert len(messages) <= count
        seen += numbers(messages)
    assert seen == list(range(20))


def test_each_entry_goes_to_one_consumer(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 30)
    broker.create_group(stream, GROUP, "0")
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for turn in range(15):
        name = "abc"[turn % 3]
        seen[name] += numbers(broker.xreadgroup(GROUP, name, stream, 2))
    assert sorted(number for share in seen.values() for number in share) == list(range(30))
    assert [entry.consumer for entry in broker.xpending(stream, GROUP)] == ["a", "a", "b", "b", "c", "c"] * 5


def test_the_first_delivery_counts_one(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 1)
    broker.create_group(stream, GROUP, "0")
    [message] = broker.xreadgroup(GROUP, "a", stream)
    assert message.delivery_count == 1


def test_a_delivered_entry_is_not_delivered_again(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2)
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []
    assert broker.xreadgroup(GROUP, "b", stream, 10) == []
    broker.xack(stream, GROUP, added)
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []


def test_a_deleted_entry_is_not_delivered(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 5)
    broker.create_group(stream, GROUP, "0")
    broker.xdel(stream, [added[0], added[2], added[4]])
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [1, 3]


def test_a_consumer_can_read_its_pending_entries_again(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3, consumer="a")
    fill(broker, stream, 2, first=3)
    broker.xreadgroup(GROUP, "b", stream, 1)
    again = broker.xreadgroup(GROUP, "a", stream, 10, start="0")
    assert ids(again) == added
    assert numbers(again) == [0, 1, 2]
    assert [message.delivery_count for message in again] == [2, 2, 2]
    assert [entry.delivery_count for entry in broker.xpending(stream, GROUP, "a")] == [2, 2, 2]
    assert numbers(broker.xreadgroup(GROUP, "b", stream, 10, start="0")) == [3]


def test_reading_again_goes_on_after_an_id(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    first = broker.xreadgroup(GROUP, "a", stream, 2, start="0")
    assert ids(first) == added[:2]
    second = broker.xreadgroup(GROUP, "a", stream, 2, start=first[-1].id)
    assert ids(second) == added[2:4]
    assert ids(broker.xreadgroup(GROUP, "a", stream, 2, start=added[3])) == added[4:]
    assert broker.xreadgroup(GROUP, "a", stream, 2, start=added[4]) == []


def test_reading_again_leaves_out_what_was_acknowledged(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.xack(stream, GROUP, added[1])
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10, start="0")) == [0, 2]


def test_reading_again_leaves_out_what_was_deleted(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 4)
    broker.xdel(stream, [added[0], added[1]])
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 1, start="0")) == [2]
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10, start="0")) == [2, 3]
    assert len(broker.xpending(stream, GROUP)) == 4


def test_reading_again_of_only_deleted_entries_is_empty(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 25)
    broker.xdel(stream, added)
    assert broker.xreadgroup(GROUP, "a", stream, 10, start="0") == []


def test_reading_again_does_not_wait(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    assert broker.xreadgroup(GROUP, "a", stream, 1, None, start="0") == []


def test_reading_again_after_a_claim_is_the_new_owners_affair(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2, consumer="a")
    broker.xclaim(stream, GROUP, "b", 0, added[0])
    assert ids(broker.xreadgroup(GROUP, "a", stream, 10, start="0")) == added[1:]
    [message] = broker.xreadgroup(GROUP, "b", stream, 10, start="0")
    assert (message.id, message.delivery_count) == (added[0], 3)


# -- xrange and xrevrange ---------------------------------------------------------------------------


@pytest.fixture
def tens(broker: StreamBroker, stream: str) -> list[str]:
    """Entries 10-0, 10-1, 20-0, 30-0, 30-5, 40-0."""
    given = ["10-0", "10-1", "20-0", "30-0", "30-5", "40-0"]
    for number, entry_id in enumerate(given):
        broker.xadd(stream, {"n": number}, id=entry_id)
    return given


RANGES = [
    ("-", "+", [0, 1, 2, 3, 4, 5]),
    ("10-0", "40-0", [0, 1, 2, 3, 4, 5]),
    ("10-1", "30-0", [1, 2, 3]),
    ("10", "10", [0, 1]),
    ("30", "30", [3, 4]),
    ("30", "30-4", [3]),
    ("(10-0", "+", [1, 2, 3, 4, 5]),
    ("(10-1", "(40-0", [2, 3, 4]),
    ("(10", "+", [1, 2, 3, 4, 5]),
    ("-", "(30", [0, 1, 2, 3, 4]),
    ("-", "(30-0", [0, 1, 2]),
    ("(30-5", "(40-0", []),
    ("11", "19", []),
    ("40-1", "+", []),
    ("-", "9", []),
    ("30", "10", []),
    ("+", "-", []),
    ("-", "-", []),
    ("+", "+", []),
    ("20-0", "20-0", [2]),
]


@pytest.mark.parametrize(("start", "end", "expected"), RANGES)
@pytest.mark.usefixtures("tens")
def test_a_range_has_both_ends_unless_told_otherwise(
    broker: StreamBroker, stream: str, start: str, end: str, expected: list[int]
) -> None:
    assert numbers(broker.xrange(stream, start, end)) == expected
    assert numbers(broker.xrevrange(stream, end, start)) == expected[::-1]


@pytest.mark.usefixtures("tens")
@pytest.mark.parametrize("count", [1, 2, 6, 100])
def test_a_range_can_be_limited(broker: StreamBroker, stream: str, count: int) -> None:
    assert numbers(broker.xrange(stream, count=count)) == [0, 1, 2, 3, 4, 5][:count]
    assert numbers(broker.xrevrange(stream, count=count)) == [5, 4, 3, 2, 1, 0][:count]
    assert numbers(broker.xrange(stream, "(10-1", "+", count)) == [2, 3, 4, 5][:count]
    assert numbers(broker.xrevrange(stream, "(40-0", "-", count)) == [4, 3, 2, 1, 0][:count]


@pytest.mark.usefixtures("tens")
def test_a_range_skips_what_was_deleted(broker: StreamBroker, stream: str) -> None:
    broker.xdel(stream, ["10-0", "20-0", "40-0"])
    assert numbers(broker.xrange(stream)) == [1, 3, 4]
    assert numbers(broker.xrange(stream, count=2)) == [1, 3]
    assert numbers(broker.xrevrange(stream)) == [4, 3, 1]
    assert numbers(broker.xrevrange(stream, count=2)) == [4, 3]


def test_a_long_range_comes_whole(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 5000)
    assert ids(broker.xrange(stream)) == added
    assert ids(broker.xrevrange(stream)) == added[::-1]


def test_ranges_disturb_no_group(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 3)
    broker.create_group(stream, GROUP, "0")
    assert {message.delivery_count for message in broker.xrange(stream)} == {0}
    assert {message.delivery_count for message in broker.xrevrange(stream)} == {0}
    assert {message.delivery_count for message in broker.xread({stream: "0"})} == {0}
    [group] = broker.group_info(stream)
    assert (group.pending, group.lag, group.consumers) == (0, 3, [])
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [0, 1, 2]


# -- xread ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tens")
def test_xread_gives_what_comes_after_an_id(broker: StreamBroker, stream: str) -> None:
    assert numbers(broker.xread({stream: "0"})) == [0, 1, 2, 3, 4, 5]
    assert numbers(broker.xread({stream: "20-0"})) == [3, 4, 5]
    assert numbers(broker.xread({stream: "10"})) == [1, 2, 3, 4, 5]
    assert numbers(broker.xread({stream: "10-0"}, count=2)) == [1, 2]
    assert broker.xread({stream: "40-0"}) == []
    assert broker.xread({stream: "$"}) == []


def test_xread_gives_stream_by_stream_and_count_of_each(
    broker: StreamBroker, stream: str, other: str
) -> None:
    fill(broker, stream, 5)
    fill(broker, other, 5, first=100)
    both = broker.xread({other: "0", stream: "0"}, count=2)
    assert [(message.stream, message.data["n"]) for message in both] == [
        (other, 100), (other, 101), (stream, 0), (stream, 1),
    ]  # fmt: skip


def test_xread_skips_streams_without_news(broker: StreamBroker, stream: str, other: str) -> None:
    fill(broker, stream, 1)
    assert numbers(broker.xread({other: "0", stream: "0", other + "x": "$"})) == [0]


def test_xread_can_walk_a_stream(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 25)
    seen, after = [], "0"
    while messages := broker.xread({stream: after}, count=10):
        seen += numbers(messages)
        after = messages[-1].id
    assert seen == list(range(25))
