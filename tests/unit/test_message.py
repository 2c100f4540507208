"""What a broker hands out."""

from __future__ import annotations

import pytest

from millstream import Message
from millstream.message import Typed


def test_data_is_decoded_once_and_is_the_messages_own() -> None:
    message = Message("5-0", "s", b'{"a":[1]}')
    assert message.data == {"a": [1]}
    message.data["a"].append(2)
    assert message.data == {"a": [1, 2]}
    assert message.data is message.data


def test_type_and_headers() -> None:
    message = Message("5-0", "s", Typed(b'{"a":1}', "order.placed", b'{"trace":"x"}'), 3)
    assert (message.data, message.type, message.headers, message.delivery_count) == (
        {"a": 1}, "order.placed", {"trace": "x"}, 3,
    )  # fmt: skip
    assert message.data is message.data
    assert (message.type, message.headers) == ("order.placed", {"trace": "x"})
    plain = Message("5-0", "s", b"{}")
    assert (plain.type, plain.headers) == (None, {})


def test_the_timestamp_comes_from_the_id() -> None:
    assert Message("1700000000123-4", "s", b"{}").timestamp == 1_700_000_000.123


def test_messages_are_equal_by_what_they_say() -> None:
    one, same = Message("5-0", "s", b'{"a":1}'), Message("5-0", "s", b'{ "a": 1 }')
    assert one == same
    assert hash(one) == hash(same)
    assert one.data == same.data
    assert one == same
    for other in (
        Message("5-1", "s", b'{"a":1}'),
        Message("5-0", "t", b'{"a":1}'),
        Message("5-0", "s", b'{"a":2}'),
        Message("5-0", "s", b'{"a":1}', 2),
        Message("5-0", "s", Typed(b'{"a":1}', "t")),
        "5-0",
    ):
        assert one != other


def test_a_message_cannot_be_changed() -> None:
    message = Message("5-0", "s", b"{}")
    with pytest.raises(AttributeError):
        message.id = "6-0"  # type: ignore[misc]


def test_the_text_of_a_message_shows_what_matters() -> None:
    assert "5-0" in repr(Message("5-0", "s", b'{"a":1}'))
