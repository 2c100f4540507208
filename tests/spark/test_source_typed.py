"""JSON into typed columns: both ways give the same, and no record is lost on either."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.errors import MalformedEntry
from millstream.spark.source.pages import Row, RowsPage
from millstream.spark.source.typed import TypedReader
from tests.spark.sources import columns


def page_of(*texts: str) -> RowsPage:
    return RowsPage([Row((5, place), text) for place, text in enumerate(texts)])


def read(schema: StructType, *texts: str, fast: bool | None = None) -> list[Any]:
    """The rows, and their text where it did not fit; ``fast`` says which way they must have taken."""
    reader = TypedReader(list(schema), {}, permissive=True)
    if fast is False:
        reader._lines.read = lambda page: None  # type: ignore[method-assign]
    arrays, corrupt = reader.read("s", page_of(*texts))
    if fast is not None:
        assert bool(reader.fast_pages) is fast, "it took the other way"
    texts_kept = [None] * len(texts) if corrupt is None else corrupt.to_pylist()
    rows = list(zip(*(arrays[field.name].to_pylist() for field in schema), strict=True))
    assert len(rows) == len(texts)
    assert reader.malformed == sum(text is not None for text in texts_kept)
    return [row if kept is None else ("corrupt", kept) for row, kept in zip(rows, texts_kept, strict=True)]


BASIC = columns(n="long", i="integer", x="double", s="string", b="boolean", l=ArrayType(StringType()))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
records = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(st.integers(-(2**63), 2**63 - 1), anything),
        "i": st.one_of(st.integers(-(2**31), 2**31 - 1), anything),
        "x": st.one_of(st.floats(allow_nan=False, allow_infinity=False), anything),
        "s": st.one_of(st.text(max_size=8), anything),
        "b": st.one_of(st.booleans(), anything),
        "l": st.one_of(st.lists(st.text(max_size=4), max_size=3), anything),
        "other": anything,
    },
)
good = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "i": st.integers(-(2**31), 2**31 - 1),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "s": st.text(max_size=8),
        "b": st.booleans(),
        "l": st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=3),
        "other": st.integers(-5, 5),
    },
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(records.map(json.dumps), st.text(max_size=12)), min_size=1, max_size=6))
def test_the_fast_way_and_the_sure_way_agree(texts: list[str]) -> None:
    assert read(BASIC, *texts) == read(BASIC, *texts, fast=False)


@settings(max_examples=40, deadline=None)
@given(st.lists(good, min_size=1, max_size=6), st.booleans())
def test_records_that_fit_take_the_fast_way(sample: list[dict[str, Any]], ascii_only: bool) -> None:
    texts = [json.dumps(record, ensure_ascii=ascii_only) for record in sample]
    if any("NaN" in text or "Inf" in text for text in texts):
        return  # looked at more closely, on purpose
    found = read(BASIC, *texts, fast=True)
    assert found == [
        tuple(float(r[k]) if k == "x" and k in r else r.get(k) for k in ("n", "i", "x", "s", "b", "l"))
        for r in sample
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ('{"n":1}{"n":2}', "{}"),  # two objects in one entry, none in the other: the count would be right
        ('{"n":1} {"n":2}', ""),
        ('{"n":NaN}', '{"n":1}'),
        ('{"other":Infinity}', '{"n":1}'),
        ('{"n":1,"n":2}',),
        ('{"n":1',),
        ("[1]",),
        ("null",),
        ("",),
        ('{"n":9223372036854775808}',),
        ('{"i":2147483648}',),
        ('{"n":1.0}',),
        ('{"n":"1"}',),
        ('{"x":1e999}',),
        ('{"x":0.02E310}',),
        ('{"x":-0}', '{"x":-0.0}'),
        ('{"b":1}',),
        ('{"s":"\\ud800"}',),
        ('{"l":"x"}',),
        ('{"n":1}\n', '\n{"n":2}'),
    ],
)
def test_what_could_fool_a_reader_of_lines(texts: tuple[str, ...]) -> None:
    assert repr(read(BASIC, *texts)) == repr(read(BASIC, *texts, fast=False))  # repr: -0.0 == 0.0


def test_a_malformed_record_keeps_its_place_and_its_text() -> None:
    found = read(BASIC, '{"n":1}', "no json", '{"n":"x"}', '{"n":4}')
    assert [row[0] for row in found] == [1, "corrupt", "corrupt", 4]
    assert [row[1] for row in found[1:3]] == ["no json", '{"n":"x"}']


def test_without_a_place_for_it_the_read_fails_and_names_the_entry() -> None:
    reader = TypedReader(list(BASIC), {}, permissive=False)
    with pytest.raises(
        MalformedEntry, match=r"the entry 5-1 of 's' does not fit the schema: .*`int"
    ) as failed:
        reader.read("s", page_of('{"n":1}', '{"n":"x"}'))
    assert failed.value.entry_id == "5-1"


def test_a_string_column_takes_any_value() -> None:
    schema = columns(s="string")
    texts = ('{"s":"x"}', '{"s":5}', '{"s":{"a": [1]}}', '{"s":null}', '{"s":true}', "{}")
    assert read(schema, *texts) == [("x",), ("5",), ('{"a": [1]}',), (None,), ("true",), (None,)]


def test_every_type() -> None:
    schema = columns(
        b1=ByteType(), i2=ShortType(), i4=IntegerType(), i8=LongType(), f4=FloatType(), f8=DoubleType(),
        d=DecimalType(6, 2), day=DateType(), t=TimestampType(), naive=TimestampNTZType(), raw=BinaryType(),
        a=ArrayType(LongType()), m=MapType(StringType(), DoubleType()),
        o=columns(x="long", inner=columns(y="string")),
    )  # fmt: skip
    text = json.dumps(
        {"b1": -128, "i2": 5, "i4": 5, "i8": 2**62, "f4": 0.1, "f8": 0.1, "d": 12.5, "day": "2026-01-31",
         "t": "2026-01-31T08:00:00.123456+01:00", "naive": "2026-01-31T08:00:00", "raw": "AAH/",
         "a": [1, None], "m": {"k": 1}, "o": {"x": 1, "inner": {"y": "z", "other": 1}}}
    )  # fmt: skip
    (row,) = read(schema, text)
    named = dict(zip(schema.fieldNames(), row, strict=True))
    assert named.pop("f4") == pytest.approx(0.1, abs=1e-7)
    assert named.pop("t") == dt.datetime(2026, 1, 31, 7, 0, 0, 123456, tzinfo=dt.UTC)
    assert named == {
        "b1": -128, "i2": 5, "i4": 5, "i8": 2**62, "f8": 0.1, "d": Decimal("12.50"),
        "day": dt.date(2026, 1, 31), "naive": dt.datetime(2026, 1, 31, 8),
        "raw": b"\x00\x01\xff", "a": [1, None], "m": [("k", 1.0)],
        "o": {"x": 1, "inner": {"y": "z"}},
    }  # fmt: skip
    bad = {"b1": 128, "i2": 40000, "i4": 2**31, "i8": 2**63, "f8": "x", "d": 12345.5, "day": "x", "t": "x",
           "naive": 5, "raw": "!", "a": [1.5], "m": {"k": "x"}, "o": {"x": "y"}}  # fmt: skip
    for name, value in bad.items():
        kind, _ = read(schema, json.dumps({name: value}))[0][0:2]
        assert kind == "corrupt", name
    assert read(schema, '{"d": 1.005}')[0][0] == "corrupt", "no digit is rounded away"


@pytest.mark.parametrize("fast", [True, False])
def test_timestamps(fast: bool) -> None:
    schema = columns(t="timestamp")
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    texts = ['{"t":"2026-01-31T12:00:00Z"}', '{"t":"2026-01-31T13:00:00.000+01:00"}', "{}"]
    assert read(schema, *texts, fast=fast) == [(noon,), (noon,), (None,)]
    texts = ['{"t":"2026-01-31T12:00:00"}', f'{{"t":{noon.timestamp()}}}', '{"t":1769860800}']
    assert read(schema, *texts) == [(noon,)] * 3, "without a zone it is UTC; a number is seconds"
    assert read(schema, '{"t":1e300}')[0][0] == "corrupt"


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-01-02", "2026-01-02T00:00:00"),  # a date alone is its midnight, in UTC
        ("2026-01-02T03", "2026-01-02T03:00:00"),
        ("2026-01-02 03:04", "2026-01-02T03:04:00"),
        ("2026-01-02 03:04:05+02", "2026-01-02T01:04:05"),
        ("2026-01-02T03:04:05-0230", "2026-01-02T05:34:05"),
        ("2026-01-02t03:04:05.999999999z", "2026-01-02T03:04:05.999999"),  # cut off, as Spark does
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999"),
        ("0000-01-01T00:00:00Z", None),
        ("0000-12-31T23:30:00-01:00", None),
        ("0001-01-01T00:00:00+01:00", None),
        ("9999-12-31T23:59:59-01:00", None),
        ("2026-01-02T24:00:00Z", None),
        ("2026-W01-1T00:00:00Z", None),
        ("20260102T030405Z", None),
        ("1767322000", None),
    ],
)
def test_a_timestamp_is_the_same_whatever_stands_beside_it(text: str, iso: str | None) -> None:
    record = f'{{"t":"{text}"}}'
    moment = None if iso is None else dt.datetime.fromisoformat(iso)
    expected = ("corrupt", record) if moment is None else (moment.replace(tzinfo=dt.UTC),)
    naive = ("corrupt", record) if moment is None else (moment,)
    schema = columns(t="timestamp")
    assert read(schema, record) == read(schema, record, '{"t":1767322000}')[:1] == [expected]
    assert read(schema, record, '{"t":"2026-01-01T00:00:00Z"}')[:1] == [expected]
    assert read(columns(t=TimestampNTZType()), record) == [naive]


numbers_like = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
timestamps_like = st.tuples(
    st.sampled_from(["0000", "0001", "1969", "2024", "2026", "9999", "10000", "-001", "26"]),
    st.sampled_from(["-01-01", "-02-29", "-12-31", "-13-01", "-1-1", "0101", "-W01-1", ""]),
    st.sampled_from(["", "T", " ", "t", "_"]),
    st.sampled_from(["", "00:00:00", "23:59:59", "24:00:00", "12:60:00", "12:00:60", "12:30", "12", "1:2:3"]),
    st.sampled_from(["", ".", ".5", ".123456", ".1234567", ".999999999", ",5"]),
    st.sampled_from(
        ["", "Z", "z", "+00:00", "-00:00", "+02", "-0230", "+23:59", "+24:00", "+1:00", " Z", "UTC"]
    ),
).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.one_of(timestamps_like.map(lambda text: f'"{text}"'), numbers_like))
def test_both_ways_take_the_same_texts_for_timestamps_and_numbers(text: str) -> None:
    for kind in ("timestamp", "double", "float", "long", ArrayType(DoubleType())):
        schema = columns(v=kind)
        record = f'{{"v":[{text},null]}}' if isinstance(kind, ArrayType) else f'{{"v":{text}}}'
        assert repr(read(schema, record)) == repr(read(schema, record, fast=False))


def test_fields_that_arrow_cannot_read_are_read_where_they_are() -> None:
    schema = columns(n="long", m=MapType(StringType(), StringType()))
    texts = ['{"n":1}', '{"n":2,"m":{"a":"b"}}', '{"n":3,"\\u006d":{"c":"d"}}']
    expected = [(1, None), (2, [("a", "b")]), (3, [("c", "d")])]
    assert read(schema, *texts, fast=True) == read(schema, *texts, fast=False) == expected


def test_a_page_with_trouble_does_not_slow_down_all_others_for_ever() -> None:
    reader = TypedReader(list(BASIC), {}, permissive=True)
    for _ in range(3):
        reader.read("s", page_of("no json"))
    before = reader.fast_pages
    for _ in range(10):
        reader.read("s", page_of('{"n":1}'))
    assert reader.fast_pages > before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12345678901234567890.1234567890", "12345678901234567890.1234567890"),
        ("9223372036854775807", "9223372036854775807.0000000000"),
        ("-9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999"),
        ("1E-10", "0.0000000001"),
        ("9999999999999999999999999999.99999999999", None),  # one digit too many, and no rounding up
        ("10000000000000000000000000000", None),
        ("1e-999999999", None),
        ("1e999999999", None),
    ],
)
def test_decimals_have_all_their_digits(text: str, value: str | None) -> None:
    for record in (f'{{"d":{text}}}', f'{{"d":"{text}"}}'):
        expected = ("corrupt", record) if value is None else (Decimal(value),)
        assert read(columns(d=DecimalType(38, 10)), record) == [expected]


def test_decimals_of_the_widest_scale() -> None:
    record = '{"d":0.' + "9" * 38 + "}"
    assert read(columns(d=DecimalType(38, 38)), record) == [(Decimal("0." + "9" * 38),)]
    more = '{"d":0.' + "9" * 39 + "}"
    assert read(columns(d=DecimalType(38, 38)), more) == [("corrupt", more)]
