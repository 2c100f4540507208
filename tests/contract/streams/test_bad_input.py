"""What every broker refuses, with the error that says why. Nothing is written by a refused call."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest

from millstream import StreamBroker
from millstream.errors import (
    BrokerClosed,
    InvalidData,
    InvalidInput,
    InvalidName,
    MillstreamError,
    PayloadTooLarge,
    StreamNotFound,
)
from tests.contract.streams.helpers import GROUP, fill

# Every method that takes a stream, as a call that is right in everything but the name.
ON_STREAM: dict[str, Callable[[StreamBroker, str], Any]] = {
    "xadd": lambda b, s: b.xadd(s, {}),
    "xadd key": lambda b, s: b.xadd(s, {}, key="k"),
    "xadd typed": lambda b, s: b.xadd(s, {}, type="t"),
    "xadd explicit": lambda b, s: b.xadd(s, {}, id="5-5"),
    "xadd limited": lambda b, s: b.xadd(s, {}, maxlen=5),
    "xadd_many": lambda b, s: b.xadd_many(s, [{}]),
    "create_group": lambda b, s: b.create_group(s, GROUP),
    "delete_group": lambda b, s: b.delete_group(s, GROUP),
    "delete_consumer": lambda b, s: b.delete_consumer(s, GROUP, "c"),
    "delete_consumer only_idle": lambda b, s: b.delete_consumer(s, GROUP, "c", only_idle=True),
    "xreadgroup": lambda b, s: b.xreadgroup(GROUP, "c", s),
    "xreadgroup waiting": lambda b, s: b.xreadgroup(GROUP, "c", s, 1, 10),
    "xreadgroup history": lambda b, s: b.xreadgroup(GROUP, "c", s, start="0"),
    "xack": lambda b, s: b.xack(s, GROUP, "1-1"),
    "xack many": lambda b, s: b.xack(s, GROUP, ["1-1", "1-2"]),
    "xackdel": lambda b, s: b.xackdel(s, GROUP, "1-1"),
    "xpending": lambda b, s: b.xpending(s, GROUP),
    "xclaim": lambda b, s: b.xclaim(s, GROUP, "c", 0, "1-1"),
    "xautoclaim": lambda b, s: b.xautoclaim(s, GROUP, "c", 0),
    "xautoclaim_page": lambda b, s: b.xautoclaim_page(s, GROUP, "c", 0),
    "xrange": lambda b, s: b.xrange(s),
    "xrevrange": lambda b, s: b.xrevrange(s),
    "xread": lambda b, s: b.xread({s: "0"}),
    "xread new": lambda b, s: b.xread({s: "$"}),
    "xlen": lambda b, s: b.xlen(s),
    "xtrim": lambda b, s: b.xtrim(s, 5),
    "xtrim plain": lambda b, s: b.xtrim(s, 5, plain=True),
    "xdel": lambda b, s: b.xdel(s, "1-1"),
    "delete_stream": lambda b, s: b.delete_stream(s),
    "group_info": lambda b, s: b.group_info(s),
}
ON_GROUP: dict[str, Callable[[StreamBroker, str, str], Any]] = {
    "create_group": lambda b, s, g: b.create_group(s, g),
    "delete_group": lambda b, s, g: b.delete_group(s, g),
    "delete_consumer": lambda b, s, g: b.delete_consumer(s, g, "c"),
    "xreadgroup": lambda b, s, g: b.xreadgroup(g, "c", s),
    "xpending": lambda b, s, g: b.xpending(s, g),
    "xack": lambda b, s, g: b.xack(s, g, "1-1"),
    "xackdel": lambda b, s, g: b.xackdel(s, g, "1-1"),
    "xclaim": lambda b, s, g: b.xclaim(s, g, "c", 0, "1-1"),
    "xautoclaim": lambda b, s, g: b.xautoclaim(s, g, "c", 0),
    "xautoclaim_page": lambda b, s, g: b.xautoclaim_page(s, g, "c", 0),
}
ON_CONSUMER: dict[str, Callable[[StreamBroker, str, str], Any]] = {
    "delete_consumer": lambda b, s, c: b.delete_consumer(s, GROUP, c),
    "xreadgroup": lambda b, s, c: b.xreadgroup(GROUP, c, s),
    "xreadgroup history": lambda b, s, c: b.xreadgroup(GROUP, c, s, start="0"),
    "xclaim": lambda b, s, c: b.xclaim(s, GROUP, c, 0, "1-1"),
    "xautoclaim": lambda b, s, c: b.xautoclaim(s, GROUP, c, 0),
    "xautoclaim_page": lambda b, s, c: b.xautoclaim_page(s, GROUP, c, 0),
    "xpending": lambda b, s, c: b.xpending(s, GROUP, c),
}
BAD_NAMES = [
    pytest.param("", "empty", id="empty"),
    pytest.param("a\nb", "control character", id="newline"),
    pytest.param("a\x00b", "control character", id="nul"),
    pytest.param("\x1b[31m", "control character", id="escape"),
    pytest.param("x\u200b", "control character", id="invisible"),
    pytest.param("x" * 513, "513 characters", id="too long"),
    pytest.param(7, "must be a text", id="number"),
    pytest.param(b"bytes", "must be a text", id="bytes"),
    pytest.param(None, "must be a text", id="none"),
]


@pytest.mark.parametrize("method", ON_STREAM)
@pytest.mark.parametrize(("bad", "why"), BAD_NAMES)
def test_a_bad_stream_name_is_refused(broker: StreamBroker, method: str, bad: str, why: str) -> None:
    with pytest.raises(InvalidName, match=why):
        ON_STREAM[method](broker, bad)


@pytest.mark.parametrize("method", ON_GROUP)
@pytest.mark.parametrize(("bad", "why"), BAD_NAMES)
def test_a_bad_group_name_is_refused(
    broker: StreamBroker, stream: str, method: str, bad: str, why: str
) -> None:
    fill(broker, stream, 1)
    with pytest.raises(InvalidName, match=why) as caught:
        ON_GROUP[method](broker, stream, bad)
    assert caught.value.kind == "group"
    assert broker.group_info(stream) == []


@pytest.mark.parametrize("method", ON_CONSUMER)
@pytest.mark.parametrize(("bad", "why"), BAD_NAMES[:-1])  # None is no name, and asks xpending for everybody
def test_a_bad_consumer_name_is_refused(
    broker: StreamBroker, stream: str, method: str, bad: str, why: str
) -> None:
    fill(broker, stream, 1)
    broker.create_group(stream, GROUP, "0")
    with pytest.raises(InvalidName, match=why) as caught:
        ON_CONSUMER[method](broker, stream, bad)
    assert caught.value.kind == "consumer"
    [group] = broker.group_info(stream)
    assert (group.consumers, group.lag) == ([], 1)


BAD_DATA = [
    pytest.param(None, "must be a mapping", id="none"),
    pytest.param([1], "must be a mapping", id="list"),
    pytest.param("text", "must be a mapping", id="text"),
    pytest.param(b"{}", "must be a mapping", id="bytes"),
    pytest.param({1: "a"}, "JSON keys are texts", id="number as key"),
    pytest.param({None: "a"}, "JSON keys are texts", id="none as key"),
    pytest.param({b"k": "a"}, "JSON keys are texts", id="bytes as key"),
    pytest.param({"a": float("nan")}, "nan", id="nan"),
    pytest.param({"a": float("inf")}, "inf", id="infinity"),
    pytest.param({"a": [float("-inf")]}, r"\['a'\]\[0\]", id="nested infinity"),
    pytest.param({"a": b"bytes"}, "a bytes", id="bytes value"),
    pytest.param({"a": {1, 2}}, "a set", id="set"),
    pytest.param({"a": object()}, "a object", id="object"),
    pytest.param({"a": datetime.datetime(2026, 1, 1)}, "a datetime", id="datetime"),
    pytest.param({"a": decimal.Decimal(1)}, "a Decimal", id="decimal"),
    pytest.param({"a": 1j}, "a complex", id="complex"),
    pytest.param({"a": {"b": [0, {"c": b""}]}}, r"data\['a'\]\['b'\]\[1\]\['c'\]", id="the path is named"),
    pytest.param({"a": {"b": {2: 3}}}, r"data\['a'\]\['b'\]", id="nested key"),
    pytest.param({"a": "\ud800"}, "surrogate", id="lone surrogate"),
    pytest.param({"\ud800": 1}, "surrogate", id="lone surrogate in a key"),
]


@pytest.mark.parametrize(("bad", "why"), BAD_DATA)
def test_data_that_is_not_a_mapping_of_json_values_is_refused(
    broker: StreamBroker, stream: str, bad: Any, why: str
) -> None:
    for call in (
        lambda: broker.xadd(stream, bad),
        lambda: broker.xadd(stream, bad, key="k"),
        lambda: broker.xadd(stream, bad, type="t"),
        lambda: broker.xadd_many(stream, [{}, bad]),
    ):
        with pytest.raises(InvalidData, match=why) as caught:
            call()
        assert caught.value.path.startswith("data")
    with pytest.raises(StreamNotFound):
        broker.group_info(stream)


def test_data_that_contains_itself_is_refused(broker: StreamBroker, stream: str) -> None:
    loop: dict[str, Any] = {}
    loop["me"] = [loop]
    with pytest.raises(InvalidData, match="nested deeper"):
        broker.xadd(stream, loop)


@pytest.mark.parametrize(
    "headers", [{"a": 1}, {"a": None}, {1: "a"}, {"a": b"b"}, ["a"], "text", {"a": "\ud800"}], ids=repr
)
def test_headers_must_be_texts_by_text(broker: StreamBroker, stream: str, headers: Any) -> None:
    with pytest.raises(InvalidData, match="header"):
        broker.xadd(stream, {}, headers=headers)
    assert broker.xlen(stream) == 0


@pytest.mark.parametrize("bad", ["", "a\nb", 7, b"t"])
def test_a_type_must_be_a_printable_text(broker: StreamBroker, stream: str, bad: Any) -> None:
    with pytest.raises(InvalidName, match="type"):
        broker.xadd(stream, {}, type=bad)
    assert broker.xlen(stream) == 0


def test_a_payload_over_the_limit_is_refused(opened: Callable[..., StreamBroker], stream: str) -> None:
    broker = opened(max_payload=100)
    room = 100 - len('{"a":""}')
    broker.xadd(stream, {"a": "x" * room})
    for call in (
        lambda: broker.xadd(stream, {"a": "x" * (room + 1)}),
        lambda: broker.xadd(stream, {"a": "x" * (room + 1)}, key="k"),
        lambda: broker.xadd(stream, {"a": "x" * (room + 1)}, type="t"),
        lambda: broker.xadd_many(stream, [{}, {"a": "x" * (room + 1)}]),
    ):
        with pytest.raises(PayloadTooLarge, match="max_payload") as caught:
            call()
        assert (caught.value.size, caught.value.limit) == (101, 100)
    assert broker.xlen(stream) == 1


def test_the_limit_counts_bytes_not_characters(opened: Callable[..., StreamBroker], stream: str) -> None:
    broker = opened(max_payload=20)
    broker.xadd(stream, {"a": "x" * 10})
    with pytest.raises(PayloadTooLarge):
        broker.xadd(stream, {"a": "水" * 10})


@pytest.mark.parametrize("bad", [0, -1, 1.5, "1", True])
def test_a_bad_count_is_refused(broker: StreamBroker, stream: str, bad: Any) -> None:
    fill(broker, stream, 1)
    broker.create_group(stream, GROUP, "0")
    for call in (
        lambda: broker.xreadgroup(GROUP, "a", stream, bad),
        lambda: broker.xreadgroup(GROUP, "a", stream, bad, start="0"),
        lambda: broker.xautoclaim(stream, GROUP, "a", 0, bad),
        lambda: broker.xautoclaim_page(stream, GROUP, "a", 0, count=bad),
        lambda: broker.xpending(stream, GROUP, count=bad),
        lambda: broker.xrange(stream, count=bad),
        lambda: broker.xrevrange(stream, count=bad),
        lambda: broker.xread({stream: "0"}, bad),
    ):
        with pytest.raises(InvalidInput, match="count must be"):
            call()
    assert broker.group_info(stream)[0].consumers == []


@pytest.mark.parametrize("bad", [-1, 1.5, "1", True])
def test_a_bad_waiting_time_is_refused(broker: StreamBroker, stream: str, bad: Any) -> None:
    fill(broker, stream, 1)
    broker.create_group(stream, GROUP, "0")
    for call in (
        lambda: broker.xreadgroup(GROUP, "a", stream, 1, bad),
        lambda: broker.xread({stream: "0"}, 1, bad),
    ):
        with pytest.raises(InvalidInput, match="block_ms must be"):
            call()
    assert broker.group_info(stream)[0].lag == 1


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_a_bad_idle_time_is_refused(broker: StreamBroker, stream: str, bad: Any) -> None:
    broker.create_group(stream, GROUP)
    for call in (
        lambda: broker.xclaim(stream, GROUP, "a", bad, "1-1"),
        lambda: broker.xautoclaim(stream, GROUP, "a", bad),
        lambda: broker.xautoclaim_page(stream, GROUP, "a", bad),
        lambda: broker.xpending(stream, GROUP, min_idle_ms=bad),
    ):
        with pytest.raises(InvalidInput, match="min_idle_ms must be"):
            call()


@pytest.mark.parametrize("bad", [-1, 1.5, "1", True])
def test_a_bad_length_is_refused(broker: StreamBroker, stream: str, bad: Any) -> None:
    fill(broker, stream, 2)
    for call in (lambda: broker.xtrim(stream, bad), lambda: broker.xadd(stream, {}, maxlen=bad)):
        with pytest.raises(InvalidInput, match="greatest length must be"):
            call()
    assert broker.xlen(stream) == 2


def test_exactly_one_limit_must_be_given(broker: StreamBroker, stream: str) -> None:
    fill(broker, stream, 2)
    with pytest.raises(InvalidInput, match="what to trim by"):
        broker.xtrim(stream)
    with pytest.raises(InvalidInput, match="not both"):
        broker.xtrim(stream, 1, "1-1")
    with pytest.raises(InvalidInput, match="not both"):
        broker.xadd(stream, {}, maxlen=1, minid="1-1")
    assert broker.xlen(stream) == 2


@pytest.mark.parametrize("ids", [None, 5, [5], [None], b"1-1", [b"1-1"]], ids=repr)
def test_ids_must_be_texts(broker: StreamBroker, stream: str, ids: Any) -> None:
    broker.create_group(stream, GROUP)
    for call in (
        lambda: broker.xack(stream, GROUP, ids),
        lambda: broker.xackdel(stream, GROUP, ids),
        lambda: broker.xdel(stream, ids),
        lambda: broker.xclaim(stream, GROUP, "a", 0, ids),
    ):
        with pytest.raises(InvalidInput, match="not an entry id"):
            call()


def test_every_refusal_is_a_value_error_of_this_package(broker: StreamBroker) -> None:
    with pytest.raises(ValueError, match="cannot be a stream name") as caught:
        broker.xadd("", {})
    assert isinstance(caught.value, MillstreamError)


# -- life -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ON_STREAM)
def test_a_closed_broker_says_so(opened: Callable[..., StreamBroker], stream: str, method: str) -> None:
    broker = opened()
    broker.close()
    with pytest.raises(BrokerClosed, match=r"open a new one"):
        ON_STREAM[method](broker, stream)


def test_closing_twice_is_no_error(opened: Callable[..., StreamBroker]) -> None:
    broker = opened()
    broker.close()
    broker.close()


def test_a_broker_is_a_context_manager(opened: Callable[..., StreamBroker], stream: str) -> None:
    with opened() as broker:
        broker.xadd(stream, {"n": 1})
        assert broker.xlen(stream) == 1
    with pytest.raises(BrokerClosed):
        broker.xlen(stream)
