"""What may be put into a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.brokers.payload import MAX_NAME, check_name, encode_body, encode_data, encode_headers
from millstream.errors import InvalidData, InvalidName, PayloadTooLarge
from millstream.message import Typed

LIMIT = 10**6
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(texts, values, max_size=6))
def test_what_is_accepted_is_json_that_any_reader_understands(data: dict[str, Any]) -> None:
    assert json.loads(encode_data(data, LIMIT)) == data


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "data['a']"),
        ([1, float("inf")], "data['a'][1]"),
        ({"b": {"c": b"x"}}, "data['a']['b']['c']"),
        ((1, (2, {3})), "data['a'][1][1]"),
        (object(), "data['a']"),
    ],
)
def test_the_path_says_where(value: Any, path: str) -> None:
    with pytest.raises(InvalidData) as caught:
        encode_data({"a": value}, LIMIT)
    assert caught.value.path == path
    assert str(caught.value).startswith(path + ": ")


def test_a_number_as_key_is_not_made_a_text() -> None:
    with pytest.raises(InvalidData, match="has the key 1; JSON keys are texts"):
        encode_data({1: "a"}, LIMIT)  # type: ignore[dict-item]
    with pytest.raises(InvalidData, match="JSON keys are texts"):
        encode_data({"a": {"b": {None: 1}}}, LIMIT)


def test_depth_has_a_limit() -> None:
    deep: dict[str, Any] = {}
    for _ in range(90):
        deep = {"a": deep}
    encode_data(deep, LIMIT)
    for _ in range(20):
        deep = {"a": deep}
    with pytest.raises(InvalidData, match="nested deeper than 100"):
        encode_data(deep, LIMIT)


def test_the_size_is_that_of_the_json_text() -> None:
    assert encode_data({"a": "x" * 92}, 100) == b'{"a":"' + b"x" * 92 + b'"}'
    with pytest.raises(PayloadTooLarge) as caught:
        encode_data({"a": "x" * 93}, 100)
    assert (caught.value.size, caught.value.limit) == (101, 100)


def test_an_entry_without_type_and_headers_is_its_json_alone() -> None:
    assert encode_body({"a": 1}, LIMIT, None, None) == b'{"a":1}'
    assert encode_body({"a": 1}, LIMIT, None, {}) == b'{"a":1}'
    assert encode_body({}, LIMIT, "t", None) == Typed(b"{}", "t", None)
    assert encode_body({}, LIMIT, None, {"h": "v"}) == Typed(b"{}", None, b'{"h":"v"}')


@given(st.dictionaries(texts, texts, min_size=1, max_size=5))
def test_headers_are_json(headers: dict[str, str]) -> None:
    assert json.loads(encode_headers(headers)) == headers


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": None}, {"a": ["b"]}, ["a"], "a", 5])
def test_other_headers_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidData, match="headers"):
        encode_headers(headers)


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=MAX_NAME))
def test_printable_names_are_accepted(name: str) -> None:
    assert check_name("stream", name) is name


@given(
    st.text(max_size=10),
    st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp"]),
    st.text(max_size=10),
)
def test_names_that_cannot_be_printed_are_refused(before: str, bad: str, after: str) -> None:
    with pytest.raises(InvalidName, match="cannot be a stream name"):
        check_name("stream", before + bad + after)


def test_the_length_of_a_name_has_a_limit() -> None:
    check_name("group", "x" * MAX_NAME)
    with pytest.raises(
        InvalidName, match=rf"{MAX_NAME + 1} characters, and {MAX_NAME} are allowed"
    ) as caught:
        check_name("group", "x" * (MAX_NAME + 1))
    assert len(str(caught.value)) < 200
