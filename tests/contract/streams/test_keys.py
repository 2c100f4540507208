"""xadd with a key: adding once, however often the call is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import StreamBroker
from millstream.errors import InvalidData, InvalidName
from tests.contract.streams.helpers import Background, numbers, until


def test_a_second_call_with_the_key_adds_nothing(broker: StreamBroker, stream: str) -> None:
    first = broker.xadd(stream, {"n": 1}, key="order-7")
    assert broker.xadd(stream, {"n": 2}, key="order-7") == first
    assert numbers(broker.xrange(stream)) == [1]


def test_other_keys_and_no_key_add(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"n": 1}, key="a")
    broker.xadd(stream, {"n": 2}, key="b")
    broker.xadd(stream, {"n": 3})
    broker.xadd(stream, {"n": 4})
    assert numbers(broker.xrange(stream)) == [1, 2, 3, 4]


def test_a_key_belongs_to_its_stream(broker: StreamBroker, stream: str, other: str) -> None:
    broker.xadd(stream, {"n": 1}, key="same")
    broker.xadd(other, {"n": 2}, key="same")
    assert numbers(broker.xrange(other)) == [2]


def test_the_key_is_remembered_when_the_entry_is_gone(broker: StreamBroker, stream: str) -> None:
    first = broker.xadd(stream, {"n": 1}, key="k")
    broker.xdel(stream, first)
    assert broker.xadd(stream, {"n": 2}, key="k") == first
    assert broker.xlen(stream) == 0


def test_a_key_with_an_explicit_id(broker: StreamBroker, stream: str) -> None:
    assert broker.xadd(stream, {"n": 1}, key="k", id="5-5") == "5-5"
    assert broker.xadd(stream, {"n": 1}, key="k", id="5-5") == "5-5"
    assert broker.xlen(stream) == 1


def test_a_key_with_type_headers_and_limit(broker: StreamBroker, stream: str) -> None:
    for number in range(4):
        for _ in range(2):
            broker.xadd(stream, {"n": number}, key=f"k{number}", type="t", headers={"h": "v"}, maxlen=2)
    messages = broker.xrange(stream)
    assert numbers(messages) == [2, 3]
    assert {(message.type, message.headers["h"]) for message in messages} == {("t", "v")}


def test_a_refused_addition_does_not_use_up_the_key(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"n": 0}, id="5-0")
    with pytest.raises(InvalidData):
        broker.xadd(stream, {"n": b"bytes"}, key="k")
    with pytest.raises(ValueError, match="not greater"):
        broker.xadd(stream, {"n": 1}, key="k", id="4-0")
    broker.xadd(stream, {"n": 2}, key="k")
    assert numbers(broker.xrange(stream)) == [0, 2]


def test_a_key_is_forgotten_after_its_time(opened: Callable[..., StreamBroker], stream: str) -> None:
    broker = opened(key_ttl=0.15)
    first = broker.xadd(stream, {"n": 1}, key="k")
    assert broker.xadd(stream, {"n": 1}, key="k") == first
    until(lambda: broker.xadd(stream, {"n": 2}, key="k") != first, "the key to be forgotten")
    assert numbers(broker.xrange(stream)) == [1, 2]


def test_one_key_from_many_threads_adds_one_entry(broker: StreamBroker, stream: str) -> None:
    calls = [Background(broker.xadd, stream, {"n": number}, key="k") for number in range(16)]
    assert len({call.result() for call in calls}) == 1
    assert broker.xlen(stream) == 1


@pytest.mark.parametrize("bad", ["", "a\nb", "x" * 513, 7, b"k"])
def test_a_key_must_be_a_printable_text(broker: StreamBroker, stream: str, bad: str) -> None:
    with pytest.raises(InvalidName, match="key"):
        broker.xadd(stream, {}, key=bad)
    assert broker.xlen(stream) == 0
