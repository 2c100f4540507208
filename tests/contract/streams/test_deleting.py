"""xdel and delete_stream."""

from __future__ import annotations

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, numbers


def test_deleting_counts_what_existed(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 4)
    assert broker.xdel(stream, [added[1], added[2], "1-1"]) == 2
    assert broker.xdel(stream, added[1]) == 0
    assert ids(broker.xrange(stream)) == [added[0], added[3]]
    assert broker.xlen(stream) == 2


def test_deleting_the_same_id_twice_in_one_call_counts_once(broker: StreamBroker, stream: str) -> None:
    [only] = fill(broker, stream, 1)
    assert broker.xdel(stream, [only, only]) == 1


def test_an_emptied_stream_still_exists(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 2)
    broker.create_group(stream, GROUP, "0")
    broker.xdel(stream, added)
    assert broker.xlen(stream) == 0
    assert [group.name for group in broker.group_info(stream)] == [GROUP]
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []
    fill(broker, stream, 1, first=9)
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [9]


def test_deleting_the_first_and_the_last(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 5)
    broker.xdel(stream, [added[0], added[4]])
    assert numbers(broker.xrange(stream)) == [1, 2, 3]
    assert numbers(broker.xrevrange(stream, count=1)) == [3]
    fill(broker, stream, 1, first=5)
    assert numbers(broker.xrange(stream)) == [1, 2, 3, 5]


def test_deleting_many(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 3000)
    assert broker.xdel(stream, added[::2]) == 1500
    assert numbers(broker.xrange(stream)) == list(range(1, 3000, 2))
    assert broker.xdel(stream, added) == 1500
    assert broker.xlen(stream) == 0


def test_deleting_disturbs_no_other_entry_of_the_group(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    more = fill(broker, stream, 3, first=3)
    broker.xdel(stream, [added[1], more[1]])
    assert ids(broker.xpending(stream, GROUP)) == added
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [3, 5]


def test_a_stream_can_be_deleted_and_begun_again(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 3)
    assert broker.delete_stream(stream) is True
    assert broker.xrange(stream) == []
    fill(broker, stream, 1, first=7)
    assert numbers(broker.xrange(stream)) == [7]


def test_deleting_a_stream_leaves_the_others(broker: StreamBroker, stream: str, other: str) -> None:
    deliver(broker, stream, 2)
    deliver(broker, other, 2)
    broker.delete_stream(stream)
    assert broker.xlen(other) == 2
    assert len(broker.xpending(other, GROUP)) == 2
