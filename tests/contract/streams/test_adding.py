"""xadd and xadd_many: what is stored, and how it comes back."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from millstream import StreamBroker
from millstream.errors import InvalidData
from tests.contract.streams.helpers import GROUP, deliver, ids, key_of, numbers


def test_an_added_entry_can_be_read_back(broker: StreamBroker, stream: str) -> None:
    added = broker.xadd(stream, {"user": 7, "name": "Ada"})
    [message] = broker.xrange(stream)
    assert (message.id, message.stream, message.data) == (added, stream, {"user": 7, "name": "Ada"})


def test_the_stream_comes_to_be_with_its_first_entry(broker: StreamBroker, stream: str) -> None:
    assert broker.xlen(stream) == 0
    broker.xadd(stream, {"n": 1})
    assert broker.xlen(stream) == 1
    assert broker.group_info(stream) == []


def test_the_timestamp_is_the_time_of_the_addition(broker: StreamBroker, stream: str) -> None:
    before = time.time()
    broker.xadd(stream, {})
    after = time.time()
    [message] = broker.xrange(stream)
    assert before - 0.01 <= message.timestamp <= after + 0.01
    assert message.timestamp == key_of(message.id)[0] / 1000


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty text"),
        pytest.param("a\x00b\r\n\t\"\\'", id="control characters"),
        pytest.param("Zürich 水車 🌊 \u2028 \u00a0", id="unicode"),
        pytest.param("é and e\u0301", id="unicode is not normalised"),
        pytest.param(0, id="zero"),
        pytest.param(-1, id="negative"),
        pytest.param(2**53 + 1, id="past double precision"),
        pytest.param(2**63 - 1, id="64 bits signed"),
        pytest.param(2**64 - 1, id="64 bits unsigned"),
        pytest.param(-(2**63), id="64 bits negative"),
        pytest.param(10**40, id="past 64 bits"),
        pytest.param(-(10**40), id="far below zero"),
        pytest.param(0.1, id="float"),
        pytest.param(1e300, id="large float"),
        pytest.param(5e-324, id="smallest float"),
        pytest.param(-0.0, id="negative zero"),
        pytest.param(True, id="true"),
        pytest.param(False, id="false"),
        pytest.param(None, id="null"),
        pytest.param([], id="empty list"),
        pytest.param({}, id="empty mapping"),
        pytest.param([1, "a", None, [True, {"deep": [{}]}]], id="nested"),
        pytest.param({"a": {"b": {"c": [1, 2, {"d": None}]}}}, id="deep mapping"),
        pytest.param("1700000000000-0", id="text like an id"),
        pytest.param("[1, 2]", id="text like JSON"),
    ],
)
def test_json_values_come_back_as_they_went_in(broker: StreamBroker, stream: str, value: Any) -> None:
    broker.xadd(stream, {"value": value})
    got = broker.xrange(stream)[0].data["value"]
    assert got == value
    assert type(got) is type(value)
    assert repr(got) == repr(value)


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_one_and_true_stay_what_they_are(broker: StreamBroker, stream: str, value: Any) -> None:
    broker.xadd(stream, {"value": value})
    assert repr(broker.xrange(stream)[0].data) == repr({"value": value})


def test_a_tuple_comes_back_as_a_list(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"pair": (1, (2, 3))})
    assert broker.xrange(stream)[0].data == {"pair": [1, [2, 3]]}


def test_an_empty_mapping_is_an_entry(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {})
    assert broker.xrange(stream)[0].data == {}


@pytest.mark.parametrize("name", ["data", "type", "headers", "id", "", "key with space", "ключ", "\n"])
def test_any_text_may_be_a_key_of_the_data(broker: StreamBroker, stream: str, name: str) -> None:
    broker.xadd(stream, {name: "x"})
    [message] = broker.xrange(stream)
    assert message.data == {name: "x"}
    assert message.type is None
    assert message.headers == {}


def test_the_order_of_the_keys_is_kept(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"z": 1, "a": 2, "m": 3})
    assert list(broker.xrange(stream)[0].data) == ["z", "a", "m"]


@pytest.mark.parametrize("kind", [OrderedDict, MappingProxyType])
def test_any_mapping_is_data(broker: StreamBroker, stream: str, kind: Callable[[Any], Any]) -> None:
    broker.xadd(stream, kind({"a": 1}))
    assert broker.xrange(stream)[0].data == {"a": 1}


def test_a_large_entry_comes_back_whole(broker: StreamBroker, stream: str) -> None:
    data = {"text": "x" * 500_000, "list": list(range(20_000))}
    broker.xadd(stream, data)
    assert broker.xrange(stream)[0].data == data


def test_changing_what_was_passed_in_changes_nothing(broker: StreamBroker, stream: str) -> None:
    data: dict[str, Any] = {"list": [1], "map": {"a": 1}}
    broker.xadd(stream, data)
    broker.xadd_many(stream, [data])
    data["list"].append(2)
    data["map"]["b"] = 2
    data["new"] = 1
    assert [m.data for m in broker.xrange(stream)] == [{"list": [1], "map": {"a": 1}}] * 2


def test_changing_what_came_out_changes_nothing(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"list": [1]})
    broker.create_group(stream, GROUP, "0")
    [first] = broker.xrange(stream)
    first.data["list"].append(2)
    [delivered] = broker.xreadgroup(GROUP, "a", stream)
    assert delivered.data == {"list": [1]}
    delivered.data.clear()
    assert broker.xrange(stream)[0].data == {"list": [1]}
    assert broker.xclaim(stream, GROUP, "b", 0, [delivered.id])[0].data == {"list": [1]}


def test_the_data_of_a_message_is_its_own_every_time(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"n": 1})
    [message] = broker.xrange(stream)
    message.data["mine"] = True
    assert message.data == {"n": 1, "mine": True}


def test_type_and_headers_travel_beside_the_data(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {"n": 1}, type="order.placed", headers={"trace": "abc", "clé": "ü"})
    broker.create_group(stream, GROUP, "0")
    for message in [
        *broker.xrange(stream),
        *broker.xrevrange(stream),
        *broker.xread({stream: "0"}),
        *broker.xreadgroup(GROUP, "a", stream),
        *broker.xreadgroup(GROUP, "a", stream, start="0"),
        *broker.xclaim(stream, GROUP, "b", 0, broker.xrange(stream)[0].id),
        *broker.xautoclaim(stream, GROUP, "a", 0),
    ]:
        assert message.type == "order.placed"
        assert message.headers == {"trace": "abc", "clé": "ü"}
        assert message.data == {"n": 1}


def test_a_type_without_headers_and_headers_without_a_type(broker: StreamBroker, stream: str) -> None:
    broker.xadd(stream, {}, type="only.type")
    broker.xadd(stream, {}, headers={"only": "headers"})
    broker.xadd(stream, {}, headers={})
    got = [(message.type, message.headers) for message in broker.xrange(stream)]
    assert got == [("only.type", {}), (None, {"only": "headers"}), (None, {})]


def test_many_are_added_in_order(broker: StreamBroker, stream: str) -> None:
    added = broker.xadd_many(stream, [{"n": number} for number in range(2500)])
    assert len(added) == 2500
    assert sorted(added, key=key_of) == added
    messages = broker.xrange(stream)
    assert ids(messages) == added
    assert numbers(messages) == list(range(2500))


def test_many_may_be_a_generator(broker: StreamBroker, stream: str) -> None:
    assert len(broker.xadd_many(stream, ({"n": number} for number in range(3)))) == 3
    assert numbers(broker.xrange(stream)) == [0, 1, 2]


def test_many_of_none_adds_nothing(broker: StreamBroker, stream: str) -> None:
    assert broker.xadd_many(stream, []) == []
    assert broker.xlen(stream) == 0


def test_many_are_checked_before_the_first_is_written(broker: StreamBroker, stream: str) -> None:
    items: list[Any] = [{"n": number} for number in range(1500)] + [{"bad": float("nan")}]
    with pytest.raises(InvalidData, match="nan"):
        broker.xadd_many(stream, items)
    assert broker.xlen(stream) == 0


def test_ids_of_many_and_of_single_additions_grow_together(broker: StreamBroker, stream: str) -> None:
    added = []
    for _ in range(20):
        added.append(broker.xadd(stream, {}))
        added += broker.xadd_many(stream, [{}, {}, {}])
    assert ids(broker.xrange(stream)) == added == sorted(set(added), key=key_of)


def test_streams_do_not_see_each_other(broker: StreamBroker, stream: str, other: str) -> None:
    broker.xadd(stream, {"n": 1})
    broker.xadd(other, {"n": 2})
    deliver(broker, stream + "x", 1)
    assert numbers(broker.xrange(stream)) == [1]
    assert numbers(broker.xrange(other)) == [2]
    assert broker.group_info(other) == []


@pytest.mark.parametrize(
    "name", ["a b", "{tag}:x", "ü水", "a:b:c", "*", "-", "x" * 512, "$", "'\"", "\u3042"]
)
def test_any_printable_text_may_name_a_stream_group_and_consumer(
    broker: StreamBroker, stream: str, name: str
) -> None:
    place = (name + stream)[:512]
    broker.xadd(place, {"n": 1})
    broker.create_group(place, name, "0")
    [message] = broker.xreadgroup(name, name, place)
    assert message.stream == place
    [group] = broker.group_info(place)
    assert (group.name, group.consumers[0].name) == (name, name)
    assert broker.xack(place, name, message.id) == 1
    broker.delete_stream(place)
