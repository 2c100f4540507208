"""xclaim, xautoclaim and xautoclaim_page: how work moves to another consumer."""

from __future__ import annotations

import time

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, numbers, wait_idle

HOUR = 3_600_000


def test_a_claimed_entry_is_pending_for_its_new_consumer(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3, consumer="a")
    [message] = broker.xclaim(stream, GROUP, "b", 0, [added[1]])
    assert (message.id, message.stream, message.data) == (added[1], stream, {"n": 1})
    assert message.delivery_count == 2
    pending = broker.xpending(stream, GROUP)
    assert [entry.consumer for entry in pending] == ["a", "b", "a"]
    assert [entry.delivery_count for entry in pending] == [1, 2, 1]
    counts = {consumer.name: consumer.pending for consumer in broker.group_info(stream)[0].consumers}
    assert counts == {"a": 2, "b": 1}


def test_claims_come_in_the_order_given(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    wanted = [added[3], added[0], added[4]]
    assert ids(broker.xclaim(stream, GROUP, "b", 0, wanted)) == wanted


def test_every_claim_counts_one_delivery(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1)
    for expected, name in enumerate("bcab", start=2):
        [message] = broker.xclaim(stream, GROUP, name, 0, added)
        assert message.delivery_count == expected
    assert broker.xpending(stream, GROUP)[0].delivery_count == 5


def test_a_consumer_may_claim_its_own_entry(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1, consumer="a")
    wait_idle(broker, stream, 60)
    before = broker.xpending(stream, GROUP)[0].idle_ms
    [message] = broker.xclaim(stream, GROUP, "a", 0, added)
    assert message.delivery_count == 2
    [entry] = broker.xpending(stream, GROUP)
    assert entry.consumer == "a"
    assert entry.idle_ms < before
    assert broker.group_info(stream)[0].consumers[0].pending == 1


def test_what_is_not_idle_long_enough_is_not_claimed(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2, consumer="a")
    assert broker.xclaim(stream, GROUP, "b", HOUR, added) == []
    assert broker.xautoclaim(stream, GROUP, "b", HOUR, 10) == []
    assert broker.xautoclaim_page(stream, GROUP, "b", HOUR).messages == []
    pending = broker.xpending(stream, GROUP)
    assert [(entry.consumer, entry.delivery_count) for entry in pending] == [("a", 1), ("a", 1)]


def test_what_is_idle_long_enough_is_claimed_once(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2, consumer="a")
    wait_idle(broker, stream, 60)
    # The threshold of the second claim lies above any idle time that can have built up since the first.
    assert ids(broker.xclaim(stream, GROUP, "b", 60, added)) == added
    assert broker.xclaim(stream, GROUP, "c", HOUR, added) == []
    assert {entry.consumer for entry in broker.xpending(stream, GROUP)} == {"b"}


def test_what_is_not_pending_cannot_be_claimed(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1)
    more = fill(broker, stream, 1, first=1)
    broker.xack(stream, GROUP, added)
    assert broker.xclaim(stream, GROUP, "b", 0, [*added, *more, "1-1"]) == []
    assert broker.xpending(stream, GROUP) == []
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [1]


def test_claiming_a_deleted_entry_takes_it_off_the_pending_list(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.xdel(stream, added[1])
    assert ids(broker.xclaim(stream, GROUP, "b", 0, added)) == [added[0], added[2]]
    assert ids(broker.xpending(stream, GROUP)) == [added[0], added[2]]
    assert broker.group_info(stream)[0].pending == 2


def test_many_can_be_claimed_at_once(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2500)
    claimed = broker.xclaim(stream, GROUP, "b", 0, added[::-1])
    assert ids(claimed) == added[::-1]
    assert {message.delivery_count for message in claimed} == {2}


def test_a_claimed_entry_is_still_acknowledged_once(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1)
    broker.xclaim(stream, GROUP, "b", 0, added)
    assert broker.xack(stream, GROUP, added) == 1
    assert broker.xack(stream, GROUP, added) == 0


# -- xautoclaim -------------------------------------------------------------------------------------


def test_autoclaim_takes_the_oldest_first(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5, consumer="a")
    messages = broker.xautoclaim(stream, GROUP, "b", 0, 2)
    assert ids(messages) == added[:2]
    assert numbers(messages) == [0, 1]
    assert [message.delivery_count for message in messages] == [2, 2]
    assert [entry.consumer for entry in broker.xpending(stream, GROUP)] == list("bbaaa")


def test_autoclaim_takes_one_by_default(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    assert ids(broker.xautoclaim(stream, GROUP, "b", 0)) == added[:1]


def test_autoclaim_goes_on_where_it_ended(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 7)
    seen = [ids(broker.xautoclaim(stream, GROUP, "b", 0, 3)) for _ in range(3)]
    assert seen == [added[:3], added[3:6], added[6:]]
    assert ids(broker.xautoclaim(stream, GROUP, "b", 0, 3)) == added[:3]  # a new sweep


def test_autoclaim_of_an_empty_list(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    assert broker.xautoclaim(stream, GROUP, "a", 0, 10) == []
    assert broker.xautoclaim_page(stream, GROUP, "a", 0).cursor == "0-0"


def test_autoclaim_reaches_a_dead_consumers_entries_behind_many_live_ones(
    broker: StreamBroker, stream: str
) -> None:
    for idle_ms in (700, 7000):
        name = f"{stream}:{idle_ms}"
        added = deliver(broker, name, 303, consumer="dead")
        wait_idle(broker, name, idle_ms)
        live, dead, began = added[:300], added[300:], time.monotonic()
        assert len(broker.xclaim(name, GROUP, "live", 0, live)) == 300
        claimed: list[str] = []
        calls = 0
        while len(claimed) < 3 and calls < 40:
            claimed += ids(broker.xautoclaim(name, GROUP, "rescuer", idle_ms, 1))
            calls += 1
        if time.monotonic() - began < idle_ms / 1000:
            break  # otherwise the machine is so busy that the living have been idle for as long
    assert claimed == dead, f"after {calls} calls of 10 entries each"
    assert [entry.id for entry in broker.xpending(name, GROUP, "live")] == live


def test_the_cursor_of_one_group_is_not_that_of_another(
    broker: StreamBroker, stream: str, other: str
) -> None:
    added = deliver(broker, stream, 4, group="one")
    broker.create_group(stream, "two", "0")
    broker.xreadgroup("two", "a", stream, 4)
    elsewhere = deliver(broker, other, 4, group="one")
    assert ids(broker.xautoclaim(stream, "one", "b", 0, 2)) == added[:2]
    assert ids(broker.xautoclaim(stream, "two", "b", 0, 2)) == added[:2]
    assert ids(broker.xautoclaim(other, "one", "b", 0, 2)) == elsewhere[:2]
    assert ids(broker.xautoclaim(stream, "one", "b", 0, 2)) == added[2:]


def test_a_group_made_again_is_swept_from_its_beginning(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 6)
    broker.xautoclaim(stream, GROUP, "b", 0, 4)
    broker.delete_group(stream, GROUP)
    broker.create_group(stream, GROUP, "0")
    broker.xreadgroup(GROUP, "a", stream, 6)
    seen = ids(broker.xautoclaim(stream, GROUP, "b", 0, 6)) + ids(broker.xautoclaim(stream, GROUP, "b", 0, 6))
    assert set(seen) == set(added)


def test_autoclaim_skips_what_was_deleted(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 4)
    broker.xdel(stream, added[:2])
    claimed = [message for _ in range(4) for message in broker.xautoclaim(stream, GROUP, "b", 0, 2)]
    assert set(ids(claimed)) == set(added[2:])
    assert ids(broker.xpending(stream, GROUP)) == added[2:]


# -- xautoclaim_page --------------------------------------------------------------------------------


def test_a_page_says_where_the_next_one_begins(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    first = broker.xautoclaim_page(stream, GROUP, "b", 0, count=2)
    assert (ids(first.messages), first.cursor, first.deleted) == (added[:2], added[2], [])
    second = broker.xautoclaim_page(stream, GROUP, "b", 0, first.cursor, 2)
    assert (ids(second.messages), second.cursor) == (added[2:4], added[4])
    third = broker.xautoclaim_page(stream, GROUP, "b", 0, second.cursor, 2)
    assert (ids(third.messages), third.cursor) == (added[4:], "0-0")


def test_a_page_begins_with_the_start_itself(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    assert ids(broker.xautoclaim_page(stream, GROUP, "b", 0, added[1]).messages) == added[1:]


def test_a_page_may_begin_at_an_id_that_is_not_pending(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.xack(stream, GROUP, added[1])
    assert ids(broker.xautoclaim_page(stream, GROUP, "b", 0, added[1]).messages) == added[2:]


def test_a_page_looks_at_ten_times_count(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 25)
    page = broker.xautoclaim_page(stream, GROUP, "b", HOUR, count=1)
    assert (page.messages, page.cursor) == ([], added[10])
    page = broker.xautoclaim_page(stream, GROUP, "b", HOUR, page.cursor, count=1)
    assert (page.messages, page.cursor) == ([], added[20])
    page = broker.xautoclaim_page(stream, GROUP, "b", HOUR, page.cursor, count=1)
    assert (page.messages, page.cursor) == ([], "0-0")


def test_a_page_lists_what_was_deleted_while_pending(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    broker.xdel(stream, [added[1], added[3]])
    page = broker.xautoclaim_page(stream, GROUP, "b", 0)
    assert ids(page.messages) == [added[0], added[2], added[4]]
    assert page.deleted == [added[1], added[3]]
    assert ids(broker.xpending(stream, GROUP)) == [added[0], added[2], added[4]]
    again = broker.xautoclaim_page(stream, GROUP, "b", 0)
    assert again.deleted == []


def test_a_page_lists_what_was_trimmed_while_pending(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.xtrim(stream, 1, plain=True)
    page = broker.xautoclaim_page(stream, GROUP, "b", 0)
    assert (page.deleted, ids(page.messages)) == (added[:2], added[2:])


def test_pages_visit_every_entry_once(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 137)
    seen: list[str] = []
    cursor = "0-0"
    while True:
        page = broker.xautoclaim_page(stream, GROUP, "b", 0, cursor, 10)
        seen += ids(page.messages)
        cursor = page.cursor
        if cursor == "0-0":
            break
    assert seen == added


def test_a_page_sets_the_idle_time_back(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 1)
    wait_idle(broker, stream, 80)
    assert len(broker.xautoclaim_page(stream, GROUP, "b", 80).messages) == 1
    assert broker.xautoclaim_page(stream, GROUP, "c", HOUR).messages == []
    assert broker.xpending(stream, GROUP)[0].consumer == "b"
