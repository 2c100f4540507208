"""create_group, delete_group, delete_consumer."""

from __future__ import annotations

import pytest

from millstream import StreamBroker
from millstream.errors import GroupNotFound, StreamNotFound
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, numbers


def test_a_group_brings_its_stream_to_be(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    assert broker.xlen(stream) == 0
    [group] = broker.group_info(stream)
    assert (group.name, group.last_delivered_id, group.pending, group.lag, group.consumers) == (
        GROUP, "0-0", 0, 0, [],
    )  # fmt: skip


def test_a_group_starts_at_new_entries_by_default(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 2)
    broker.create_group(stream, GROUP)
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []
    fill(broker, stream, 1, first=2)
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [2]


@pytest.mark.parametrize("start", ["0", "0-0"])
def test_a_group_from_the_beginning_is_given_everything(
    broker: StreamBroker, stream: str, start: str
) -> None:
    fill(broker, stream, 3)
    broker.create_group(stream, GROUP, start)
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [0, 1, 2]


def test_a_group_can_start_after_any_id(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 5)
    broker.create_group(stream, GROUP, added[2])
    assert broker.group_info(stream)[0].last_delivered_id == added[2]
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [3, 4]


def test_a_start_between_two_entries(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"n": 1}, id="10-0")
    broker.xadd(stream, {"n": 2}, id="20-0")
    broker.create_group(stream, GROUP, "15")
    assert broker.group_info(stream)[0].lag == 1
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [2]


def test_a_start_in_the_future_waits_for_ids_above_it(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"n": 1}, id="10-0")
    broker.create_group(stream, GROUP, "20-0")
    broker.xadd(stream, {"n": 2}, id="15-0")
    broker.xadd(stream, {"n": 3}, id="20-0")
    assert broker.group_info(stream)[0].lag == 0
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []
    broker.xadd(stream, {"n": 4}, id="20-1")
    assert broker.group_info(stream)[0].lag == 1
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [4]


def test_new_entries_means_after_the_newest_id_even_if_it_was_deleted(
    broker: StreamBroker, stream: str
) -> None:
    added = fill(broker, stream, 3)
    broker.xdel(stream, added[2])
    broker.create_group(stream, GROUP, "$")
    assert broker.group_info(stream)[0].last_delivered_id == added[2]
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []


def test_a_group_that_exists_is_left_unchanged(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    for start in ("0", "$", "1-1"):
        broker.create_group(stream, GROUP, start)
    [group] = broker.group_info(stream)
    assert group.last_delivered_id == added[-1]
    assert group.pending == 3
    assert broker.xreadgroup(GROUP, "a", stream, 10) == []


def test_groups_read_independently(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 3)
    broker.create_group(stream, "one", "0")
    broker.create_group(stream, "two", "0")
    assert numbers(broker.xreadgroup("one", "a", stream, 2)) == [0, 1]
    assert numbers(broker.xreadgroup("two", "a", stream, 10)) == [0, 1, 2]
    broker.xack(stream, "two", [entry.id for entry in broker.xpending(stream, "two")])
    assert len(broker.xpending(stream, "one")) == 2
    assert numbers(broker.xreadgroup("one", "a", stream, 10)) == [2]


def test_a_deleted_group_is_gone_and_its_entries_stay(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 3)
    assert broker.delete_group(stream, GROUP) is True
    assert broker.delete_group(stream, GROUP) is False
    assert broker.group_info(stream) == []
    assert broker.xlen(stream) == 3
    with pytest.raises(GroupNotFound):
        broker.xreadgroup(GROUP, "a", stream)


def test_a_group_made_again_begins_anew(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 3)
    broker.delete_group(stream, GROUP)
    broker.create_group(stream, GROUP, "0")
    assert broker.xpending(stream, GROUP) == []
    messages = broker.xreadgroup(GROUP, "b", stream, 10)
    assert numbers(messages) == [0, 1, 2]
    assert [message.delivery_count for message in messages] == [1, 1, 1]


def test_deleting_one_group_leaves_the_others(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 2, group="one")
    broker.create_group(stream, "two", "0")
    broker.xreadgroup("two", "a", stream, 2)
    broker.delete_group(stream, "one")
    assert [group.name for group in broker.group_info(stream)] == ["two"]
    assert len(broker.xpending(stream, "two")) == 2


def test_a_deleted_consumer_takes_its_pending_entries_along(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 3, consumer="a")
    fill(broker, stream, 1, first=3)
    broker.xreadgroup(GROUP, "b", stream, 10)
    assert broker.delete_consumer(stream, GROUP, "a") == 3
    assert [entry.consumer for entry in broker.xpending(stream, GROUP)] == ["b"]
    [group] = broker.group_info(stream)
    assert [consumer.name for consumer in group.consumers] == ["b"]
    assert group.pending == 1
    assert broker.xreadgroup(GROUP, "b", stream, 10) == []
    assert broker.xautoclaim(stream, GROUP, "b", 0, 10) != []
    assert broker.xlen(stream) == 4


def test_deleting_an_unknown_consumer_counts_nothing(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    assert broker.delete_consumer(stream, GROUP, "nobody") == 0
    assert broker.delete_consumer(stream, GROUP, "nobody", only_idle=True) == 0
    assert broker.group_info(stream)[0].consumers == []


def test_only_idle_spares_a_consumer_with_pending_entries(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2, consumer="a")
    assert broker.delete_consumer(stream, GROUP, "a", only_idle=True) == 2
    [group] = broker.group_info(stream)
    assert [(consumer.name, consumer.pending) for consumer in group.consumers] == [("a", 2)]
    assert ids(broker.xpending(stream, GROUP, "a")) == added
    broker.xack(stream, GROUP, added)
    assert broker.delete_consumer(stream, GROUP, "a", only_idle=True) == 0
    assert broker.group_info(stream)[0].consumers == []


def test_a_deleted_consumer_may_come_back(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 1, consumer="a")
    broker.delete_consumer(stream, GROUP, "a")
    fill(broker, stream, 1, first=1)
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [1]


def test_a_consumer_comes_to_be_when_it_first_reads_or_claims(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    broker.xreadgroup(GROUP, "reader", stream)
    broker.xclaim(stream, GROUP, "claimer", 0, ["1-1"])
    broker.xautoclaim(stream, GROUP, "sweeper", 0)
    broker.xreadgroup(GROUP, "historian", stream, start="0")
    names = [consumer.name for consumer in broker.group_info(stream)[0].consumers]
    assert names == ["claimer", "historian", "reader", "sweeper"]


def test_an_unknown_stream_or_group_is_an_error_that_says_what_to_do(
    broker: StreamBroker, stream: str
) -> None:
    calls = {
        "xreadgroup": lambda: broker.xreadgroup(GROUP, "a", stream),
        "history": lambda: broker.xreadgroup(GROUP, "a", stream, start="0"),
        "waiting": lambda: broker.xreadgroup(GROUP, "a", stream, 1, None),
        "xpending": lambda: broker.xpending(stream, GROUP),
        "xpending consumer": lambda: broker.xpending(stream, GROUP, "a", count=5),
        "xclaim": lambda: broker.xclaim(stream, GROUP, "a", 0, ["1-1"]),
        "xautoclaim": lambda: broker.xautoclaim(stream, GROUP, "a", 0),
        "xautoclaim_page": lambda: broker.xautoclaim_page(stream, GROUP, "a", 0),
        "delete_consumer": lambda: broker.delete_consumer(stream, GROUP, "a"),
        "only_idle": lambda: broker.delete_consumer(stream, GROUP, "a", only_idle=True),
    }
    for call in calls.values():
        with pytest.raises(StreamNotFound, match=r"comes to be with its first xadd") as caught:
            call()
        assert caught.value.stream == stream
    with pytest.raises(StreamNotFound):
        broker.group_info(stream)
    broker.xadd(stream, {})
    for call in calls.values():
        with pytest.raises(GroupNotFound, match=r"call create_group\(") as missing:
            call()
        assert (missing.value.stream, missing.value.group) == (stream, GROUP)
    assert broker.group_info(stream) == []


def test_what_counts_nothing_where_there_is_nothing(broker: StreamBroker, stream: str) -> None:
    for _ in range(2):
        assert broker.xack(stream, GROUP, ["1-1"]) == 0
        assert broker.xackdel(stream, GROUP, ["1-1"]) == 0
        assert broker.xdel(stream, ["1-1"]) == 0
        assert broker.xtrim(stream, 0) == 0
        assert broker.xtrim(stream, 0, plain=True) == 0
        assert broker.xtrim(stream, min_id="5") == 0
        assert broker.xrange(stream) == []
        assert broker.xrevrange(stream) == []
        assert broker.xread({stream: "0"}) == []
        assert broker.xread({stream: "$"}) == []
        assert broker.xlen(stream) == 0
        assert broker.delete_stream(stream) is False
        with pytest.raises(StreamNotFound):  # none of these brought it to be
            broker.group_info(stream)


def test_a_deleted_stream_takes_its_groups_along(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 2)
    assert broker.delete_stream(stream) is True
    assert broker.delete_stream(stream) is False
    assert broker.xlen(stream) == 0
    with pytest.raises(StreamNotFound):
        broker.group_info(stream)
    broker.xadd(stream, {"n": 9})
    with pytest.raises(GroupNotFound):
        broker.xreadgroup(GROUP, "a", stream)
    broker.create_group(stream, GROUP, "0")
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [9]
