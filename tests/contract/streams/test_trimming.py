"""xtrim, and the limits of xadd: the safe rule, and Redis's own on request."""

from __future__ import annotations

import pytest

from millstream import StreamBroker
from tests.contract.streams.helpers import GROUP, deliver, fill, ids, numbers

both = pytest.mark.parametrize("plain", [True, False])


@both
def test_without_groups_the_oldest_go(broker: StreamBroker, stream: str, plain: bool) -> None:
    fill(broker, stream, 10)
    assert broker.xtrim(stream, 4, plain=plain) == 6
    assert numbers(broker.xrange(stream)) == [6, 7, 8, 9]
    assert broker.xlen(stream) == 4


@both
def test_a_stream_that_is_short_enough_is_left_alone(broker: StreamBroker, stream: str, plain: bool) -> None:
    fill(broker, stream, 3)
    assert broker.xtrim(stream, 3, plain=plain) == 0
    assert broker.xtrim(stream, 100, plain=plain) == 0
    assert broker.xlen(stream) == 3


@both
def test_a_stream_can_be_trimmed_to_nothing(broker: StreamBroker, stream: str, plain: bool) -> None:
    fill(broker, stream, 3)
    assert broker.xtrim(stream, 0, plain=plain) == 3
    assert broker.xlen(stream) == 0
    assert broker.group_info(stream) == []  # it still exists


@both
def test_trimming_below_an_id(broker: StreamBroker, stream: str, plain: bool) -> None:
    for ms in (10, 20, 30):
        broker.xadd(stream, {"n": ms}, id=f"{ms}-0")
        broker.xadd(stream, {"n": ms + 1}, id=f"{ms}-1")
    assert broker.xtrim(stream, min_id="20-1", plain=plain) == 3
    assert numbers(broker.xrange(stream)) == [21, 30, 31]
    assert broker.xtrim(stream, min_id="30", plain=plain) == 1
    assert broker.xtrim(stream, min_id="30", plain=plain) == 0
    assert broker.xtrim(stream, min_id="99-0", plain=plain) == 2
    assert broker.xlen(stream) == 0


def test_what_a_group_was_not_given_stays(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 5)
    broker.create_group(stream, GROUP, "0")
    assert broker.xtrim(stream, 0) == 0
    assert broker.xtrim(stream, min_id="99999999999999-0") == 0
    assert broker.xlen(stream) == 5


def test_what_a_group_has_not_acknowledged_stays(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    broker.xack(stream, GROUP, [added[0], added[1], added[3]])
    assert broker.xtrim(stream, 0) == 2
    assert ids(broker.xrange(stream)) == added[2:]
    broker.xack(stream, GROUP, added[2])
    assert broker.xtrim(stream, 0) == 2
    assert ids(broker.xrange(stream)) == added[4:]


def test_what_every_group_has_acknowledged_can_go(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 5)
    broker.xack(stream, GROUP, added)
    assert broker.xtrim(stream, 2) == 3
    assert ids(broker.xrange(stream)) == added[3:]


def test_the_slowest_group_decides(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 6, group="fast")
    broker.xack(stream, "fast", added)
    broker.create_group(stream, "slow", "0")
    broker.xreadgroup("slow", "s", stream, 2)
    broker.xack(stream, "slow", added[:2])
    assert broker.xtrim(stream, 0) == 2
    assert ids(broker.xrange(stream)) == added[2:]
    broker.delete_group(stream, "slow")
    assert broker.xtrim(stream, 0) == 4


def test_safe_trimming_goes_no_further_than_asked(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 6)
    broker.xack(stream, GROUP, added[:4])
    assert broker.xtrim(stream, 4) == 2
    assert ids(broker.xrange(stream)) == added[2:]
    assert broker.xtrim(stream, min_id=added[3]) == 1
    assert broker.xtrim(stream, 0) == 1


def test_plain_trimming_asks_no_group(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 3)
    fill(broker, stream, 3, first=3)
    assert broker.xtrim(stream, 1, plain=True) == 5
    assert numbers(broker.xrange(stream)) == [5]
    assert ids(broker.xpending(stream, GROUP)) == added
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [5]


def test_a_group_that_starts_at_new_entries_needs_nothing_older(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 5)
    broker.create_group(stream, GROUP, "$")
    assert broker.xtrim(stream, 0) == 5


def test_a_group_made_later_needs_what_is_left(broker: StreamBroker, stream: str) -> None:
    added = deliver(broker, stream, 4, group="first")
    broker.xack(stream, "first", added)
    assert broker.xtrim(stream, 3) == 1
    broker.create_group(stream, "second", "0")
    assert broker.xtrim(stream, 0) == 0
    assert broker.xlen(stream) == 3


def test_a_pending_entry_that_was_deleted_still_guards_what_is_newer(
    broker: StreamBroker, stream: str
) -> None:
    added = deliver(broker, stream, 3)
    broker.xack(stream, GROUP, [added[1], added[2]])
    broker.xdel(stream, added[0])
    assert broker.xtrim(stream, 0) == 0
    broker.xack(stream, GROUP, added[0])
    assert broker.xtrim(stream, 0) == 2


def test_dropping_a_consumer_releases_its_entries(broker: StreamBroker, stream: str) -> None:
    deliver(broker, stream, 3)
    assert broker.xtrim(stream, 0) == 0
    broker.delete_consumer(stream, GROUP, "a")
    assert broker.xtrim(stream, 0) == 3


def test_length_counts_entries_not_positions(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 10)
    broker.xdel(stream, added[2:6])
    assert broker.xtrim(stream, 5) == 1
    assert numbers(broker.xrange(stream)) == [1, 6, 7, 8, 9]
    assert broker.xtrim(stream, 4) == 1
    assert numbers(broker.xrange(stream)) == [6, 7, 8, 9]


@both
def test_adding_can_trim_in_the_same_step(broker: StreamBroker, stream: str, plain: bool) -> None:
    for number in range(10):
        broker.xadd(stream, {"n": number}, maxlen=3, plain=plain)
    assert numbers(broker.xrange(stream)) == [7, 8, 9]


@both
def test_adding_can_trim_below_an_id(broker: StreamBroker, stream: str, plain: bool) -> None:
    broker.xadd(stream, {"n": 1}, id="10-0")
    broker.xadd(stream, {"n": 2}, id="20-0")
    broker.xadd(stream, {"n": 3}, id="30-0", minid="20", plain=plain)
    assert numbers(broker.xrange(stream)) == [2, 3]


def test_adding_with_a_limit_spares_what_is_needed(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP, "0")
    for number in range(5):
        broker.xadd(stream, {"n": number}, maxlen=2)
    assert broker.xlen(stream) == 5
    first = broker.xreadgroup(GROUP, "a", stream, 4)
    broker.xack(stream, GROUP, ids(first))
    broker.xadd(stream, {"n": 5}, maxlen=2)
    assert numbers(broker.xrange(stream)) == [4, 5]
    broker.xadd(stream, {"n": 6}, minid="99999999999999-0")
    assert numbers(broker.xrange(stream)) == [4, 5, 6]


def test_adding_with_a_plain_limit_spares_nothing(broker: StreamBroker, stream: str) -> None:
    broker.create_group(stream, GROUP, "0")
    for number in range(5):
        broker.xadd(stream, {"n": number}, maxlen=2, plain=True)
    assert numbers(broker.xreadgroup(GROUP, "a", stream, 10)) == [3, 4]


@both
def test_a_limit_of_nothing_removes_even_what_was_just_added(
    broker: StreamBroker, stream: str, plain: bool
) -> None:
    broker.xadd(stream, {"n": 1}, maxlen=0, plain=plain)
    assert broker.xlen(stream) == 0
    broker.xadd(stream, {"n": 2})
    assert numbers(broker.xrange(stream)) == [2]


def test_a_long_stream_is_trimmed_exactly(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 3000)
    assert broker.xtrim(stream, 1234) == 3000 - 1234
    assert numbers(broker.xrange(stream, count=2)) == [3000 - 1234, 3000 - 1233]
    assert broker.xtrim(stream, 777, plain=True) == 1234 - 777
