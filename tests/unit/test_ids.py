"""Entry ids: parsing, spelling, ranges, neighbours."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.errors import InvalidId
from millstream.message import (
    MAX_ID,
    MIN_ID,
    canonical_id,
    format_id,
    next_id,
    parse_id,
    parse_range,
    previous_id,
)

U64 = 2**64 - 1
numbers = st.one_of(st.integers(0, U64), st.sampled_from([0, 1, U64 - 1, U64]))
keys = st.tuples(numbers, numbers)


@given(keys)
def test_an_id_survives_being_written_and_read(key: tuple[int, int]) -> None:
    assert parse_id(format_id(key)) == key
    assert canonical_id(format_id(key)) == format_id(key)


@given(keys, st.integers(0, 5), st.integers(0, 5))
def test_leading_zeros_mean_nothing(key: tuple[int, int], left: int, right: int) -> None:
    assert canonical_id(f"{'0' * left}{key[0]}-{'0' * right}{key[1]}") == format_id(key)


@given(numbers, st.sampled_from([0, U64]))
def test_a_missing_counter_is_completed(ms: int, missing: int) -> None:
    assert parse_id(str(ms), missing) == (ms, missing)
    assert canonical_id(str(ms)) == f"{ms}-0"


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    assume(not (text.isascii() and text.replace("-", "", 1).isdigit()))
    with pytest.raises(InvalidId) as caught:
        parse_id(text)
    assert caught.value.text == text


@pytest.mark.parametrize(
    "bad", ["", "-", "1-", "-1", "1-2-3", "1.0", " 1", "1 ", "+1", "1_0", "٣", "²", "a-1", "*"]
)
def test_malformed_texts(bad: str) -> None:
    with pytest.raises(InvalidId, match="is not an entry id; expected 'ms-seq'"):
        parse_id(bad)


@pytest.mark.parametrize("bad", [None, 5, b"5-0", 1.5, ("5", "0")])
def test_other_types_are_refused(bad: str) -> None:
    with pytest.raises(InvalidId):
        parse_id(bad)


@pytest.mark.parametrize("bad", [f"{U64 + 1}-0", f"0-{U64 + 1}", f"{U64}-{U64 + 1}", f"{U64 + 1}"])
def test_numbers_over_64_bits_are_refused(bad: str) -> None:
    with pytest.raises(InvalidId):
        parse_id(bad)


@given(keys)
def test_neighbours(key: tuple[int, int]) -> None:
    assume(key != MAX_ID)
    after = next_id(key)
    assert after > key
    assert previous_id(after) == key


def test_the_ends_have_no_neighbours() -> None:
    with pytest.raises(InvalidId, match="next"):
        next_id(MAX_ID)
    with pytest.raises(InvalidId, match="previous"):
        previous_id(MIN_ID)


@given(st.lists(keys, min_size=1), keys, keys, st.booleans(), st.booleans())
def test_a_range_holds_what_lies_between_its_bounds(
    stored: list[tuple[int, int]],
    low: tuple[int, int],
    high: tuple[int, int],
    open_low: bool,
    open_high: bool,
) -> None:
    assume(not (open_low and low == MAX_ID))
    assume(not (open_high and high == MIN_ID))
    start = ("(" if open_low else "") + format_id(low)
    end = ("(" if open_high else "") + format_id(high)
    first, last = parse_range(start, end)
    for key in stored:
        inside = (key > low if open_low else key >= low) and (key < high if open_high else key <= high)
        assert (first <= key <= last) == inside


def test_the_names_of_the_ends() -> None:
    assert parse_range("-", "+") == (MIN_ID, MAX_ID)
    assert parse_range("5", "5") == ((5, 0), (5, U64))
    assert parse_range("(5", "(5") == ((5, 1), (5, U64 - 1))


@pytest.mark.parametrize("bad", ["((1-0", "(-", "(+", "(", "$", ">"])
def test_bounds_that_are_none(bad: str) -> None:
    for bounds in ((bad, "+"), ("-", bad)):
        with pytest.raises(InvalidId):
            parse_range(*bounds)
