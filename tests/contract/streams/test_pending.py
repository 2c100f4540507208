"""xack, xackdel, xpending: what is on the pending list, and how it leaves it."""

from __future__ import annotations

import pytest

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, key_of, numbers, wait_idle


def test_delivered_entries_are_pending_for_their_consumer(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3, consumer="a")
    pending = broker.xpending(stream, GROUP)
    assert ids(pending) == added
    assert {entry.consumer for entry in pending} == {"a"}
    assert {entry.delivery_count for entry in pending} == {1}
    assert all(0 <= entry.idle_ms < 60_000 for entry in pending)


def test_an_acknowledged_entry_is_not_pending(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    assert broker.xack(stream, GROUP, [added[0], added[2]]) == 2
    assert ids(broker.xpending(stream, GROUP)) == [added[1]]
    assert broker.xlen(stream) == 3
    assert broker.group_info(stream)[0].pending == 1


def test_acknowledging_counts_what_was_pending(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2)
    assert broker.xack(stream, GROUP, [*added, "1-1", "99999999999999-0"]) == 2
    assert broker.xack(stream, GROUP, added) == 0


def test_acknowledging_the_same_id_twice_in_one_call_counts_once(broker: StreamBroker, stream: str) -> None:
    [only] = deliver(broker, stream, 1)
    assert broker.xack(stream, GROUP, [only, only]) == 1


def test_a_single_text_is_one_id(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    assert broker.xack(stream, GROUP, added[0]) == 1
    assert broker.xackdel(stream, GROUP, added[1]) == 1
    assert ids(broker.xclaim(stream, GROUP, "b", 0, added[2])) == [added[2]]
    assert broker.xdel(stream, added[2]) == 1


def test_acknowledging_nothing(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 1)
    assert broker.xack(stream, GROUP, []) == 0
    assert broker.xackdel(stream, GROUP, []) == 0
    assert broker.xclaim(stream, GROUP, "b", 0, []) == []
    assert len(broker.xpending(stream, GROUP)) == 1


def test_an_undelivered_entry_cannot_be_acknowledged(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 2)
    broker.create_group(stream, GROUP, "0")
    assert broker.xack(stream, GROUP, added) == 0
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [0, 1]


def test_anybody_may_acknowledge(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1, consumer="a")
    broker.xclaim(stream, GROUP, "b", 0, added)
    assert broker.xack(stream, GROUP, added) == 1


def test_an_unknown_group_counts_nothing(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1)
    assert broker.xack(stream, "unknown", added) == 0
    assert broker.xackdel(stream, "unknown", added) == 0
    assert broker.xlen(stream) == 1


def test_many_are_acknowledged_at_once(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2500)
    assert broker.xack(stream, GROUP, added) == 2500
    assert broker.xpending(stream, GROUP) == []


def test_an_id_in_another_spelling_is_the_same_id(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {}, id="5-0")
    broker.xadd(stream, {}, id="6-1")
    broker.create_group(stream, GROUP, "0")
    broker.xreadgroup(GROUP, "a", stream, 10)
    assert ids(broker.xclaim(stream, GROUP, "b", 0, ["5", "06-01"])) == ["5-0", "6-1"]
    assert broker.xack(stream, GROUP, ["5", "006-1"]) == 2


# -- xackdel ----------------------------------------------------------------------------------------


def test_ackdel_removes_the_entry(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    assert broker.xackdel(stream, GROUP, added[:2]) == 2
    assert ids(broker.xrange(stream)) == added[2:]
    assert ids(broker.xpending(stream, GROUP)) == added[2:]


def test_ackdel_leaves_what_is_not_pending_here(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 1)
    more = fill(broker, stream, 1, first=1)
    broker.xack(stream, GROUP, added)
    assert broker.xackdel(stream, GROUP, [*added, *more, "1-1"]) == 0
    assert broker.xlen(stream) == 2


def test_ackdel_keeps_what_another_group_was_not_given(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.create_group(stream, "slow", "0")
    broker.xreadgroup("slow", "s", stream, 1)
    broker.xack(stream, "slow", added[0])
    assert broker.xackdel(stream, GROUP, added) == 1
    assert ids(broker.xrange(stream)) == added[1:]
    assert broker.xpending(stream, GROUP) == []


def test_ackdel_keeps_what_another_group_has_not_acknowledged(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.create_group(stream, "slow", "0")
    broker.xreadgroup("slow", "s", stream, 3)
    broker.xack(stream, "slow", added[1])
    assert broker.xackdel(stream, GROUP, added) == 1
    assert ids(broker.xrange(stream)) == [added[0], added[2]]
    assert broker.xackdel(stream, "slow", added) == 2
    assert broker.xlen(stream) == 0


def test_ackdel_does_not_wait_for_a_group_that_started_later(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2)
    broker.create_group(stream, "late", "$")
    assert broker.xackdel(stream, GROUP, added) == 2


def test_ackdel_of_an_entry_that_is_gone_clears_the_pending_list(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2)
    broker.xdel(stream, added[0])
    assert broker.xackdel(stream, GROUP, added) == 1
    assert broker.xpending(stream, GROUP) == []


def test_ackdel_of_many(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2500)
    assert broker.xackdel(stream, GROUP, added) == 2500
    assert broker.xlen(stream) == 0
    assert broker.xpending(stream, GROUP) == []
    assert broker.group_info(stream)[0].lag == 0


def test_ackdel_of_the_same_id_twice(broker: StreamBroker, stream: str) -> None:
    [only] = deliver(broker, stream, 1)
    assert broker.xackdel(stream, GROUP, [only, only]) == 1


# -- xpending ---------------------------------------------------------------------------------------


def test_nothing_is_pending_in_a_new_group(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 2)
    broker.create_group(stream, GROUP, "0")
    assert broker.xpending(stream, GROUP) == []
    assert broker.xpending(stream, GROUP, "nobody") == []
    assert broker.group_info(stream)[0].consumers == []  # asking makes nobody a member


def test_the_pending_list_of_one_consumer(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 6)
    broker.create_group(stream, GROUP, "0")
    for name in "ababab":
        broker.xreadgroup(GROUP, name, stream)
    everything = broker.xpending(stream, GROUP)
    assert [entry.consumer for entry in everything] == list("ababab")
    assert ids(broker.xpending(stream, GROUP, "a")) == ids(everything)[::2]
    assert ids(broker.xpending(stream, GROUP, "b", count=2)) == ids(everything)[1:5:2]


def test_the_pending_list_by_range_and_count(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 6)
    assert ids(broker.xpending(stream, GROUP, count=2)) == added[:2]
    assert ids(broker.xpending(stream, GROUP, start=added[2])) == added[2:]
    assert ids(broker.xpending(stream, GROUP, start="(" + added[2])) == added[3:]
    assert ids(broker.xpending(stream, GROUP, end=added[2])) == added[:3]
    assert ids(broker.xpending(stream, GROUP, start=added[1], end="(" + added[4], count=2)) == added[1:3]
    assert broker.xpending(stream, GROUP, start=added[3], end=added[1]) == []


def test_a_long_pending_list_comes_whole_and_in_order(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3210)
    assert ids(broker.xpending(stream, GROUP)) == added
    assert ids(broker.xpending(stream, GROUP, "a", start="(" + added[5])) == added[6:]


def test_the_order_is_that_of_the_ids_whatever_was_claimed(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    broker.xclaim(stream, GROUP, "b", 0, [added[4], added[0], added[2]])
    pending = broker.xpending(stream, GROUP)
    assert ids(pending) == sorted(added, key=key_of)
    assert [entry.consumer for entry in pending] == list("babab")


def test_idle_time_grows_and_can_be_asked_for(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2)
    wait_idle(broker, stream, 50)
    broker.xclaim(stream, GROUP, "b", 0, added[0])
    fresh, old = broker.xpending(stream, GROUP)
    assert old.idle_ms >= 50
    assert fresh.idle_ms < old.idle_ms
    assert ids(broker.xpending(stream, GROUP, min_idle_ms=50)) in ([added[1]], added)
    assert broker.xpending(stream, GROUP, min_idle_ms=3_600_000) == []


def test_reading_again_sets_the_idle_time_back(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 1)
    wait_idle(broker, stream, 80)
    before = broker.xpending(stream, GROUP)[0].idle_ms
    broker.xreadgroup(GROUP, "a", stream, start="0")
    assert broker.xpending(stream, GROUP)[0].idle_ms < before


def test_a_deleted_entry_stays_pending_until_it_is_acknowledged(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 2)
    assert broker.xdel(stream, added[0]) == 1
    assert ids(broker.xpending(stream, GROUP)) == added
    assert broker.xack(stream, GROUP, added[0]) == 1
    assert ids(broker.xpending(stream, GROUP)) == added[1:]


@pytest.mark.parametrize("plain", [True, False])
def test_pending_entries_and_trimming(broker: StreamBroker, stream: str, plain: bool) -> None:
    added = deliver(broker, stream, 3)
    assert broker.xtrim(stream, 0, plain=plain) == (3 if plain else 0)
    assert ids(broker.xpending(stream, GROUP)) == added
