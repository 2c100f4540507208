"""Entry ids: made, given, refused, and always growing."""

from __future__ import annotations

import pytest

from millstream import StreamBroker
from millstream.errors import IdNotGreater, InvalidId
from tests.contract.streams.helpers import fill, ids, key_of

U64 = 2**64 - 1


def test_made_ids_grow(broker: StreamBroker, stream: str) -> None:
    added = [broker.xadd(stream, {}) for _ in range(300)]
    assert added == sorted(set(added), key=key_of)


def test_an_explicit_id_is_kept(broker: StreamBroker, stream: str) -> None:
    assert broker.xadd(stream, {}, id="1234-5") == "1234-5"
    assert ids(broker.xrange(stream)) == ["1234-5"]


def test_an_id_without_counter_has_the_counter_zero(broker: StreamBroker, stream: str) -> None:
    assert broker.xadd(stream, {}, id="5") == "5-0"
    with pytest.raises(IdNotGreater):
        broker.xadd(stream, {}, id="5-0")


@pytest.mark.parametrize(("given", "meant"), [("05", "5-0"), ("5-00", "5-0"), ("007-01", "7-1")])
def test_ids_have_one_spelling(broker: StreamBroker, stream: str, given: str, meant: str) -> None:
    assert broker.xadd(stream, {}, id=given) == meant
    assert ids(broker.xrange(stream, given, given)) == [meant]
    assert broker.xdel(stream, given) == 1


def test_the_counter_alone_can_be_made(broker: StreamBroker, stream: str) -> None:
    assert broker.xadd(stream, {}, id="7-*") == "7-0"
    assert broker.xadd(stream, {}, id="7-*") == "7-1"
    broker.xadd(stream, {}, id="7-9")
    assert broker.xadd(stream, {}, id="7-*") == "7-10"
    assert broker.xadd(stream, {}, id="8-*") == "8-0"


def test_the_smallest_made_counter_in_millisecond_zero_is_one(broker: StreamBroker, stream: str) -> None:
    assert broker.xadd(stream, {}, id="0-*") == "0-1"


def test_the_made_counter_refuses_an_older_millisecond(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {}, id="7-3")
    with pytest.raises(IdNotGreater, match="not greater"):
        broker.xadd(stream, {}, id="6-*")


@pytest.mark.parametrize("given", ["7-3", "7-2", "7", "6-99", "0-1"])
def test_an_id_that_is_not_greater_is_refused(broker: StreamBroker, stream: str, given: str) -> None:
    broker.xadd(stream, {}, id="7-3")
    with pytest.raises(IdNotGreater, match="ids only grow") as caught:
        broker.xadd(stream, {"n": 1}, id=given)
    assert caught.value.stream == stream
    assert caught.value.last_id == "7-3"
    assert ids(broker.xrange(stream)) == ["7-3"]


def test_zero_is_below_every_id(broker: StreamBroker, stream: str) -> None:
    with pytest.raises(IdNotGreater):
        broker.xadd(stream, {}, id="0-0")
    assert broker.delete_stream(stream) is False


@pytest.mark.parametrize("plain", [True, False])
def test_the_newest_id_is_remembered_when_its_entry_is_gone(
    broker: StreamBroker, stream: str, plain: bool
) -> None:
    broker.xadd(stream, {}, id="9-9")
    if plain:
        broker.xtrim(stream, 0, plain=True)
    else:
        broker.xdel(stream, "9-9")
    assert broker.xlen(stream) == 0
    with pytest.raises(IdNotGreater) as caught:
        broker.xadd(stream, {}, id="9-9")
    assert caught.value.last_id == "9-9"


def test_a_made_id_follows_an_explicit_one_from_the_future(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {}, id="99999999999999-7")
    assert broker.xadd(stream, {}) == "99999999999999-8"
    assert broker.xadd_many(stream, [{}, {}]) == ["99999999999999-9", "99999999999999-10"]


def test_a_made_id_takes_the_next_millisecond_after_the_last_counter(
    broker: StreamBroker, stream: str
) -> None:
    broker.xadd(stream, {}, id=f"99999999999999-{U64}")
    assert broker.xadd(stream, {}) == "100000000000000-0"


def test_after_the_last_possible_id_nothing_can_be_added(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {}, id=f"{U64}-{U64}")
    for wanted in ("*", f"{U64}-*", f"{U64}-{U64}"):
        with pytest.raises(IdNotGreater):
            broker.xadd(stream, {}, id=wanted)
    assert broker.xlen(stream) == 1


def test_large_ids_sort_as_numbers(broker: StreamBroker, stream: str) -> None:
    given = ["1-9", "1-10", "9-0", "10-0", "100-2", f"100-{2**60}", f"{2**60}-1", f"{2**60 + 1}-0"]
    for entry_id in given:
        broker.xadd(stream, {}, id=entry_id)
    assert ids(broker.xrange(stream)) == given
    assert ids(broker.xrange(stream, "9", "(100-3")) == ["9-0", "10-0", "100-2"]


def test_a_deleted_stream_forgets_its_newest_id(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {}, id="9-9")
    assert broker.delete_stream(stream)
    assert broker.xadd(stream, {}, id="1-1") == "1-1"


@pytest.mark.parametrize(
    "bad",
    ["", "abc", "1-", "-1", "1-2-3", "1.5", "1-a", " 1-0", "1-0 ", "+1", "٣-٠", "²", "0x10", "1_0", "*-1",
     "*-*", "+", "-", "(5-0", "$", ">", f"{2**64}-0", f"0-{2**64}", "1-0\n", None, 5, b"5-0", 1.5],
)  # fmt: skip
def test_a_malformed_id_is_refused_everywhere(broker: StreamBroker, stream: str, bad: str) -> None:
    fill(broker, stream, 1)
    broker.create_group(stream, "g", "0")
    ranges = () if bad in ("+", "-", "(5-0") else (bad,)
    calls = [
        lambda: broker.xadd(stream, {}, id=bad),
        lambda: broker.xack(stream, "g", [bad]),
        lambda: broker.xackdel(stream, "g", [bad]),
        lambda: broker.xdel(stream, [bad]),
        lambda: broker.xclaim(stream, "g", "c", 0, [bad]),
        lambda: broker.xautoclaim_page(stream, "g", "c", 0, bad),
    ]
    if bad != "$":
        calls.append(lambda: broker.create_group(stream, "h", bad))
        calls.append(lambda: broker.xread({stream: bad}))
    if bad != ">":
        calls.append(lambda: broker.xreadgroup("g", "c", stream, start=bad))
    if bad is not None:
        calls.append(lambda: broker.xtrim(stream, min_id=bad))
        calls.append(lambda: broker.xadd(stream, {}, minid=bad))
    for text in ranges:
        calls += [
            lambda text=text: broker.xrange(stream, text),
            lambda text=text: broker.xrange(stream, "-", text),
            lambda text=text: broker.xrevrange(stream, text),
            lambda text=text: broker.xpending(stream, "g", start=text),
            lambda text=text: broker.xpending(stream, "g", end=text),
        ]
    for position, call in enumerate(calls):
        with pytest.raises(InvalidId, match="not an entry id"):
            pytest.fail(f"call {position} let {bad!r} pass and returned {call()!r}")
    assert broker.xlen(stream) == 1
    assert [group.name for group in broker.group_info(stream)] == ["g"]


@pytest.mark.parametrize("stars", ["**", "5-*-*", "-*", "a-*", "*-"])
def test_a_malformed_pattern_is_refused(broker: StreamBroker, stream: str, stars: str) -> None:
    with pytest.raises(InvalidId, match="not an entry id"):
        broker.xadd(stream, {}, id=stars)
    assert broker.xlen(stream) == 0


def test_a_bad_id_among_good_ones_means_that_nothing_happened(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 3)
    broker.create_group(stream, "g", "0")
    broker.xreadgroup("g", "a", stream, 3)
    for call in (
        lambda: broker.xack(stream, "g", [added[0], "bad"]),
        lambda: broker.xackdel(stream, "g", [added[0], "bad"]),
        lambda: broker.xdel(stream, [added[0], "bad"]),
        lambda: broker.xclaim(stream, "g", "b", 0, [added[0], "bad"]),
    ):
        with pytest.raises(InvalidId, match="'bad'"):
            call()
    assert broker.xlen(stream) == 3
    assert [entry.consumer for entry in broker.xpending(stream, "g")] == ["a", "a", "a"]


def test_the_id_in_the_error_is_the_one_that_was_given(broker: StreamBroker, stream: str) -> None:
    with pytest.raises(InvalidId) as caught:
        broker.xadd(stream, {}, id="12:0")
    assert caught.value.text == "12:0"
    broker.xadd(stream, {}, id="5-5")
    with pytest.raises(IdNotGreater, match="5-4") as refused:
        broker.xadd(stream, {}, id="5-4")
    assert refused.value.entry_id == "5-4"


def test_ids_are_accepted_in_any_sequence(broker: StreamBroker, stream: str) -> None:
    added = fill(broker, stream, 4)
    assert broker.xdel(stream, tuple(added[:2])) == 2
    assert broker.xdel(stream, added[2]) == 1
    assert broker.xdel(stream, []) == 0
    assert ids(broker.xrange(stream)) == added[3:]
