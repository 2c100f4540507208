"""Reads that wait. Every test waits on what it waits for, never on a guess of how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from millstream import StreamBroker
from millstream.errors import GroupNotFound, StreamNotFound
from tests.contract.streams.helpers import GROUP, Background, deliver, fill, ids, numbers

Waiting = Callable[[int], None]


def test_without_waiting_an_empty_answer_comes_at_once(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    began = time.monotonic()
    assert broker.xreadgroup(GROUP, "a", stream, 1, 0) == []
    assert broker.xread({stream: "$"}, None, 0) == []
    assert time.monotonic() - began < 5


def test_a_wait_ends_with_an_empty_answer_when_its_time_has_passed(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    for read in (
        lambda: broker.xreadgroup(GROUP, "a", stream, 1, 60),
        lambda: broker.xread({stream: "$"}, None, 60),
    ):
        began = time.monotonic()
        assert read() == []
        assert time.monotonic() - began >= 0.055


def test_a_waiting_reader_wakes_on_an_addition(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    broker.create_group(stream, GROUP)
    reader = Background(broker.xreadgroup, GROUP, "a", stream, 1, None)
    waiting(1)
    added = broker.xadd(stream, {"n": 1}, type="t", headers={"h": "1"})
    [message] = reader.result()
    assert (message.id, message.data, message.delivery_count) == (added, {"n": 1}, 1)
    assert (message.type, message.headers) == ("t", {"h": "1"})
    assert ids(broker.xpending(stream, GROUP, "a")) == [added]


def test_a_waiting_reader_wakes_long_before_its_time(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    reader = Background(broker.xreadgroup, GROUP, "a", stream, 1, 60_000)
    waiting(1)
    broker.xadd(stream, {"n": 1})
    assert numbers(reader.result()) == [1]


def test_a_waiting_reader_gets_up_to_count_of_one_addition(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    reader = Background(broker.xreadgroup, GROUP, "a", stream, 3, None)
    waiting(1)
    fill(broker, stream, 5)
    assert numbers(reader.result()) == [0, 1, 2]
    assert numbers(broker.xreadgroup(GROUP, "b", stream, 10)) == [3, 4]


def test_what_is_there_already_is_delivered_without_waiting(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 2)
    broker.create_group(stream, GROUP, "0")
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10, None)) == [0, 1]
    assert numbers(broker.xread({stream: "0"}, 10, None)) == [0, 1]


def test_waiting_readers_are_served_in_the_order_in_which_they_began(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    readers = []
    for position in range(6):
        readers.append(Background(broker.xreadgroup, GROUP, f"c{position}", stream, 1, None))
        waiting(position + 1)
    for number in range(6):
        broker.xadd(stream, {"n": number})
    assert [numbers(reader.result()) for reader in readers] == [[0], [1], [2], [3], [4], [5]]


def test_one_batch_serves_several_readers_in_turn(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    readers = []
    for position in range(3):
        readers.append(Background(broker.xreadgroup, GROUP, f"c{position}", stream, 2, None))
        waiting(position + 1)
    fill(broker, stream, 5)
    assert [numbers(reader.result()) for reader in readers] == [[0, 1], [2, 3], [4]]


def test_a_reader_whose_time_has_passed_takes_nothing_from_those_behind_it(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    first = Background(broker.xreadgroup, GROUP, "a", stream, 1, 300)
    waiting(1)
    second = Background(broker.xreadgroup, GROUP, "b", stream, 1, None)
    assert first.result() == []
    waiting(1)
    broker.xadd(stream, {"n": 1})
    assert numbers(second.result()) == [1]
    assert [entry.consumer for entry in broker.xpending(stream, GROUP)] == ["b"]


def test_readers_of_different_groups_all_get_the_entry(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    readers = []
    for group in ("one", "two", "three"):
        broker.create_group(stream, group)
        readers.append(Background(broker.xreadgroup, group, "a", stream, 1, None))
    waiting(3)
    broker.xadd(stream, {"n": 1})
    assert [numbers(reader.result()) for reader in readers] == [[1], [1], [1]]


def test_readers_of_another_stream_sleep_on(
    broker: StreamBroker, stream: str, other: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    broker.create_group(other, GROUP)
    reader = Background(broker.xreadgroup, GROUP, "a", stream, 1, None)
    waiting(1)
    broker.xadd(other, {"n": 1})
    assert numbers(broker.xreadgroup(GROUP, "a", other, 1, None)) == [1]
    assert not reader.done
    broker.xadd(stream, {"n": 2})
    assert numbers(reader.result()) == [2]


def test_a_reader_waits_on_though_the_stream_has_entries_that_the_group_has_read(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    deliver(broker, stream, 3)
    reader = Background(broker.xreadgroup, GROUP, "b", stream, 1, None)
    waiting(1)
    broker.xadd(stream, {"n": 3})
    assert numbers(reader.result()) == [3]


def test_deleting_the_group_wakes_its_readers(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    broker.create_group(stream, GROUP)
    readers = [Background(broker.xreadgroup, GROUP, name, stream, 1, None) for name in "abc"]
    waiting(3)
    broker.delete_group(stream, GROUP)
    for reader in readers:
        with pytest.raises(GroupNotFound):
            reader.result()


def test_deleting_the_stream_wakes_its_readers(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    broker.create_group(stream, GROUP)
    readers = [Background(broker.xreadgroup, GROUP, name, stream, 1, None) for name in "abc"]
    waiting(3)
    broker.delete_stream(stream)
    for reader in readers:
        with pytest.raises(StreamNotFound):
            reader.result()


def test_deleting_another_group_disturbs_nobody(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    broker.create_group(stream, GROUP)
    broker.create_group(stream, "doomed")
    reader = Background(broker.xreadgroup, GROUP, "a", stream, 1, None)
    waiting(1)
    broker.delete_group(stream, "doomed")
    broker.xadd(stream, {"n": 1})
    assert numbers(reader.result()) == [1]


def test_a_waiting_consumer_is_a_member_of_its_group(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    reader = Background(broker.xreadgroup, GROUP, "patient", stream, 1, None)
    waiting(1)
    broker.xadd(stream, {})
    reader.result()
    assert [consumer.name for consumer in broker.group_info(stream)[0].consumers] == ["patient"]


def test_xread_wakes_on_an_addition(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    fill(broker, stream, 2)
    reader = Background(broker.xread, {stream: "$"}, None, None)
    waiting(1)
    broker.xadd(stream, {"n": 2})
    assert numbers(reader.result()) == [2]


def test_xread_waits_for_a_stream_that_does_not_exist_yet(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    for after in ("$", "0"):
        name = stream + after
        reader = Background(broker.xread, {name: after}, None, None)
        waiting(1)
        broker.xadd(name, {"n": 1})
        assert numbers(reader.result()) == [1]


def test_every_reader_outside_of_groups_gets_the_entry(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    readers = [Background(broker.xread, {stream: "$"}, None, None) for _ in range(4)]
    waiting(4)
    added = broker.xadd(stream, {"n": 1})
    assert [ids(reader.result()) for reader in readers] == [[added]] * 4


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_xread_wakes_on_any_of_its_streams(
    broker: StreamBroker, stream: str, waiting: Waiting, chosen: int
) -> None:
    names = [stream + suffix for suffix in "abc"]
    reader = Background(broker.xread, dict.fromkeys(names, "$"), None, None)
    waiting(1)
    broker.xadd(names[chosen], {"n": chosen})
    [message] = reader.result()
    assert (message.stream, message.data) == (names[chosen], {"n": chosen})


def test_xread_waits_on_for_ids_above_its_own(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    reader = Background(broker.xread, {stream: "20-0"}, None, None)
    waiting(1)
    broker.xadd(stream, {"n": 1}, id="10-0")
    broker.xadd(stream, {"n": 2}, id="20-0")
    broker.xadd(stream, {"n": 3}, id="20-1")
    assert numbers(reader.result()) == [3]


def test_xread_and_a_group_wake_on_the_same_entry(
    broker: StreamBroker, stream: str, waiting: Waiting
) -> None:
    broker.create_group(stream, GROUP)
    member = Background(broker.xreadgroup, GROUP, "a", stream, 1, None)
    outsider = Background(broker.xread, {stream: "$"}, None, None)
    waiting(2)
    broker.xadd(stream, {"n": 1})
    assert numbers(member.result()) == [1]
    assert numbers(outsider.result()) == [1]


def test_a_reader_wakes_on_each_kind_of_addition(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    broker.create_group(stream, GROUP)
    for add in (
        lambda: broker.xadd(stream, {"n": 1}),
        lambda: broker.xadd(stream, {"n": 1}, key="once"),
        lambda: broker.xadd_many(stream, [{"n": 1}]),
        lambda: broker.xadd(stream, {"n": 1}, maxlen=100),
        lambda: broker.xadd(stream, {"n": 1}, maxlen=100, plain=True),
        lambda: broker.xadd(stream, {"n": 1}, id="99999999999999-*"),
    ):
        reader = Background(broker.xreadgroup, GROUP, "a", stream, 1, None)
        waiting(1)
        add()
        assert numbers(reader.result()) == [1]


def test_two_waits_in_a_row_of_the_same_consumer(broker: StreamBroker, stream: str, waiting: Waiting) -> None:
    broker.create_group(stream, GROUP)
    for number in range(5):
        reader = Background(broker.xreadgroup, GROUP, "a", stream, 1, None)
        waiting(1)
        broker.xadd(stream, {"n": number})
        assert numbers(reader.result()) == [number]
