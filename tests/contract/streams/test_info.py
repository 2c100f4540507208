"""group_info: positions, pending entries, exact lag, members."""

from __future__ import annotations

import time

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, until


def lag(broker: StreamBroker, stream: str, group: str = GROUP) -> int:
    return next(info.lag for info in broker.group_info(stream) if info.name == group)


def test_groups_and_consumers_are_sorted_by_name(broker: StreamBroker, stream: str) -> None:
    for group in ("b", "c", "a", "B"):
        broker.create_group(stream, group)
    for name in ("z", "x", "y"):
        broker.xreadgroup("a", name, stream)
    info = broker.group_info(stream)
    assert [group.name for group in info] == ["B", "a", "b", "c"]
    assert [consumer.name for consumer in info[1].consumers] == ["x", "y", "z"]


def test_the_position_is_the_last_delivered_id(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 3)
    broker.create_group(stream, GROUP, "0")
    assert broker.group_info(stream)[0].last_delivered_id == "0-0"
    broker.xreadgroup(GROUP, "a", stream, 2)
    assert broker.group_info(stream)[0].last_delivered_id == added[1]
    broker.xreadgroup(GROUP, "a", stream, 2, start="0")
    broker.xclaim(stream, GROUP, "b", 0, added[0])
    assert broker.group_info(stream)[0].last_delivered_id == added[1]


def test_pending_counts_follow_reads_claims_and_acks(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5, consumer="a")
    broker.xclaim(stream, GROUP, "b", 0, added[:2])
    broker.xack(stream, GROUP, [added[0], added[4]])
    [group] = broker.group_info(stream)
    assert group.pending == 3
    assert [(member.name, member.pending) for member in group.consumers] == [("a", 2), ("b", 1)]


def test_a_consumer_that_only_asked_has_nothing_pending(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP)
    before = time.time()
    broker.xreadgroup(GROUP, "a", stream)
    [member] = broker.group_info(stream)[0].consumers
    assert member.pending == 0
    assert 0 <= member.idle_ms < 60_000
    assert before - 1 <= member.last_activity <= time.time() + 1


def test_the_idle_time_of_a_consumer_grows_until_it_is_given_something(
    broker: StreamBroker, stream: str
) -> None:
    deliver(broker, stream, 1)
    idle = until(
        lambda: next((m.idle_ms for m in broker.group_info(stream)[0].consumers if m.idle_ms >= 80), 0),
        "80 ms of idling",
    )
    fill(broker, stream, 1)
    broker.xreadgroup(GROUP, "a", stream)
    assert broker.group_info(stream)[0].consumers[0].idle_ms < idle


def test_lag_counts_what_was_not_delivered(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP, "0")
    assert lag(broker, stream) == 0
    fill(broker, stream, 5)
    assert lag(broker, stream) == 5
    broker.xreadgroup(GROUP, "a", stream, 2)
    assert lag(broker, stream) == 3
    broker.xreadgroup(GROUP, "a", stream, 10)
    assert lag(broker, stream) == 0
    assert broker.group_info(stream)[0].pending == 5


def test_lag_of_groups_that_start_in_different_places(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 5)
    broker.create_group(stream, "all", "0")
    broker.create_group(stream, "middle", added[1])
    broker.create_group(stream, "new", "$")
    assert {group.name: group.lag for group in broker.group_info(stream)} == {"all": 5, "middle": 3, "new": 0}


def test_lag_is_exact_after_deletions(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 10)
    broker.create_group(stream, GROUP, "0")
    broker.xdel(stream, [added[0], added[5], added[9]])
    assert lag(broker, stream) == 7
    broker.xreadgroup(GROUP, "a", stream, 3)  # 1 2 3
    assert lag(broker, stream) == 4
    broker.xdel(stream, [added[2], added[7]])  # one delivered, one not
    assert lag(broker, stream) == 3
    assert len(broker.xreadgroup(GROUP, "a", stream, 10)) == 3
    assert lag(broker, stream) == 0


def test_lag_is_exact_after_trimming(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 10)
    broker.create_group(stream, GROUP, "0")
    broker.xreadgroup(GROUP, "a", stream, 2)
    broker.xtrim(stream, 4, plain=True)
    assert lag(broker, stream) == 4
    broker.xadd(stream, {}, maxlen=2, plain=True)
    assert lag(broker, stream) == 2
    broker.xtrim(stream, 0, plain=True)
    assert lag(broker, stream) == 0


def test_lag_is_exact_when_the_stream_was_emptied_and_filled_again(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    broker.xdel(stream, added)
    fill(broker, stream, 4)
    broker.xdel(stream, ids(broker.xrange(stream, count=1)))
    assert lag(broker, stream) == 3


def test_lag_is_exact_with_explicit_ids(broker: StreamBroker, stream: str) -> None:
    for ms in (10, 20, 30, 40):
        broker.xadd(stream, {}, id=f"{ms}-0")
    broker.create_group(stream, GROUP, "25-7")
    assert lag(broker, stream) == 2
    broker.xadd(stream, {}, id="50-0")
    broker.xdel(stream, "40-0")
    assert lag(broker, stream) == 2


def test_lag_is_exact_after_settling_with_ackdel(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 4)
    fill(broker, stream, 3, first=4)
    broker.xackdel(stream, GROUP, added)
    assert lag(broker, stream) == 3
    assert broker.group_info(stream)[0].pending == 0


def test_pending_counts_entries_that_are_gone_until_somebody_finds_out(
    broker: StreamBroker, stream: str
) -> None:
    added = deliver(broker, stream, 3)
    broker.xdel(stream, added[0])
    assert broker.group_info(stream)[0].pending == 3
    broker.xautoclaim_page(stream, GROUP, "b", 0)
    assert broker.group_info(stream)[0].pending == 2
