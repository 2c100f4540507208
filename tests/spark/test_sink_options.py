"""What the sink refuses before any row is read, and how values become JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DayTimeIntervalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from millstream import Job
from millstream.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidData,
    InvalidName,
    InvalidPayload,
    PayloadTooLarge,
    UnknownJobType,
)
from millstream.spark.sink import batch_writer, stream_writer
from millstream.spark.sink.jsontext import objects
from millstream.spark.sink.options import read_options

URL = "redis://localhost:6379/0"
ENTRIES = {"url": URL, "stream": "events"}
JOBS = {"url": URL, "jobType": "Mail"}
PLAIN = StructType().add("user_id", LongType()).add("name", StringType())


class Registered(Job):
    """A job that a module of this test defines."""

    user_id: int
    name: str = ""

    def handle(self) -> None: ...


MODULE = Registered.__module__
TYPE = Registered._type.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r'needs option\("url"'),
        ({"url": "localhost"}, "not a broker URL"),
        ({"url": "memory://x", "stream": "e"}, "lives in one process"),
        ({"url": URL}, 'option\\("stream"'),
        ({**ENTRIES, "streamColumn": "name"}, "not both"),
        ({**ENTRIES, "stream": ""}, "option stream cannot be used"),
        ({**ENTRIES, "steam": "e"}, "did you mean 'stream'"),
        ({**ENTRIES, "queue": "q"}, "queue is one for jobs"),
        ({**JOBS, "dataColumn": "name"}, "dataColumn is one for entries"),
        ({**ENTRIES, "stageTtl": "soon"}, "stageTtl must be a number"),
        ({**ENTRIES, "stageTtl": "0"}, "stageTtl must be at least 1"),
        ({**ENTRIES, "fenceTtl": "nan"}, "fenceTtl must be at least 1"),
        ({**ENTRIES, "maxPayload": "1.5"}, "maxPayload must be a whole number"),
        ({**ENTRIES, "maxPayload": "0"}, "at least 1 byte"),
        ({**ENTRIES, "ignoreNullFields": "perhaps"}, "true or false"),
        ({**ENTRIES, "writeId": "a\nb"}, "option writeId"),
        ({**JOBS, "jobTypeColumn": "name"}, "not both"),
        ({**JOBS, "jobType": ""}, "option jobType"),
        ({**JOBS, "queue": "{a}"}, "option queue"),
        ({**JOBS, "priority": "soonish"}, "option priority"),
        ({**JOBS, "delay": "-1"}, "option delay"),
        ({**JOBS, "maxAttempts": "0"}, "option maxAttempts"),
        ({**JOBS, "timeout": "0"}, "option timeout"),
        ({**JOBS, "jitter": "2"}, "option jitter"),
        ({**JOBS, "headers": "[1]"}, "option headers"),
        ({**JOBS, "prefix": "a{b"}, "option prefix"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        batch_writer(PLAIN, options, False)


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"url": URL, "streamColumn": "nam"}, PLAIN, "did you mean 'name'"),
        ({"url": URL, "streamColumn": "user_id"}, PLAIN, "must be string; cast it"),
        ({**ENTRIES, "dataColumn": "name"}, PLAIN, "columns user_id would be lost"),
        ({**ENTRIES, "dataColumn": "body"}, PLAIN, "no such column"),
        (ENTRIES, StructType().add("type", StringType()), "no column is left"),
        (ENTRIES, StructType().add("a", LongType()).add("type", LongType()), "typeColumn"),
        (ENTRIES, StructType().add("a", DayTimeIntervalType()), "no form in JSON"),
        (ENTRIES, StructType().add("a", StructType().add("b", DayTimeIntervalType())), "column a.b"),
        (ENTRIES, StructType().add("a", MapType(DoubleType(), LongType())), "JSON keys are texts"),
        (ENTRIES, StructType().add("a", LongType()).add("a", LongType()), "two columns called 'a'"),
        ({**JOBS, "priorityColumn": "prio"}, PLAIN, "priorityColumn='prio'"),
        ({**JOBS, "delayColumn": "name"}, PLAIN, "delayColumn='name'"),
        ({**JOBS, "payloadColumn": "name"}, PLAIN, "columns user_id would be lost"),
        ({**JOBS, "jobModule": "no.such.module"}, PLAIN, "cannot be imported here"),
    ],
    ids=str,
)
def test_a_column_that_does_not_fit_is_named(
    options: dict[str, str], schema: StructType, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stream_writer(schema, options, False)


def test_overwriting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="append"):
        batch_writer(PLAIN, ENTRIES, True)
    with pytest.raises(ConfigurationError, match="complete") as raised:
        stream_writer(PLAIN, ENTRIES, True)
    assert '"append"' in str(raised.value)
    assert '"update"' not in str(raised.value)  # Spark refuses that one itself


def test_the_columns_of_a_registered_job_must_be_its_fields() -> None:
    known = {"url": URL, "jobType": TYPE, "jobModule": MODULE}
    batch_writer(PLAIN, known, False)
    with pytest.raises(InvalidPayload, match="no field for the column 'extra'"):
        batch_writer(StructType([*PLAIN.fields]).add("extra", LongType()), known, False)
    with pytest.raises(InvalidPayload, match="'user_id' has no default"):
        batch_writer(StructType().add("name", StringType()), known, False)
    with pytest.raises(UnknownJobType):
        batch_writer(PLAIN, {**known, "jobType": "Nobody"}, False)


def test_a_password_is_shown_nowhere() -> None:
    options = read_options({"url": "redis://ann:secret@127.0.0.1:1/0", "stream": "e"})
    assert "secret" not in repr(options)
    assert "ann" not in repr(options)
    writer = batch_writer(
        PLAIN, {"url": "redis://ann:secret@127.0.0.1:1/0?retry_for=0", "stream": "e"}, False
    )
    rows = pa.record_batch({"user_id": pa.array([1]), "name": pa.array(["a"])})
    with pytest.raises(BrokerUnavailable) as caught:
        writer.write(iter([rows]))
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


def text_of(values: list[Any], kind: pa.DataType, *, skip_nulls: bool = False) -> list[Any]:
    column = pa.array(values, kind)
    return [json.loads(text) for text in objects(["v"], [column], "", skip_nulls=skip_nulls).to_pylist()]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), -(2**63), -(2**63)),
        (pa.int8(), 5, 5),
        (pa.float64(), 1e300, 1e300),
        (pa.float64(), 0.1, 0.1),
        (pa.float32(), 0.5, 0.5),
        (pa.bool_(), True, True),
        (pa.string(), 'a"b\\c\n\t\x00\x1f/é😀', 'a"b\\c\n\t\x00\x1f/é😀'),
        (pa.large_string(), "large", "large"),
        (pa.decimal128(38, 2), Decimal("12.50"), 12.5),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.date32(), date(2026, 2, 28), "2026-02-28"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00.000000Z"),
        (
            pa.timestamp("us", "Asia/Tokyo"),
            datetime(1969, 12, 31, 23, 59, 59, 5, UTC),
            "1969-12-31T23:59:59.000005Z",
        ),
        (pa.timestamp("us"), datetime(2026, 1, 1, 1), "2026-01-01T01:00:00.000000"),
        (pa.timestamp("us"), datetime.min, "0001-01-01T00:00:00.000000"),
        (pa.timestamp("us"), datetime.max, "9999-12-31T23:59:59.999999"),
        (pa.date32(), date.min, "0001-01-01"),
        (pa.date32(), date.max, "9999-12-31"),
        (pa.map_(pa.date32(), pa.bool_()), [(date(2026, 1, 2), True)], {"2026-01-02": True}),
        (pa.list_(pa.string()), ["a", None, '"'], ["a", None, '"']),
        (pa.list_(pa.list_(pa.int64())), [[], [1], None], [[], [1], None]),
        (pa.map_(pa.string(), pa.int64()), [("k", 1), ('"', None)], {"k": 1, '"': None}),
        (pa.map_(pa.int32(), pa.bool_()), [(1, True)], {"1": True}),
        (
            pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))]),
            {"x": 1, "y": [0.5]},
            {"x": 1, "y": [0.5]},
        ),
        (pa.struct([("x", pa.struct([("y", pa.string())]))]), {"x": None}, {"x": None}),
        (pa.null(), None, None),
    ],
    ids=str,
)
def test_each_type_has_its_form(kind: pa.DataType, value: Any, expected: Any) -> None:
    assert text_of([value, None, value], kind) == [{"v": expected}, {"v": None}, {"v": expected}]
    assert text_of([None, value], kind, skip_nulls=True)[0] == {}


def test_decimals_keep_every_digit() -> None:
    column = pa.array([Decimal("12345678901234567890123456.789012345678")], pa.decimal128(38, 12))
    assert objects(["d"], [column], "", skip_nulls=False).to_pylist() == [
        '{"d":12345678901234567890123456.789012345678}'
    ]


def test_null_fields_may_be_left_out_at_every_level() -> None:
    kind = pa.struct([("x", pa.int64()), ("y", pa.string())])
    columns = [pa.array([None, 1]), pa.array([{"x": None, "y": "a"}, None], kind)]
    texts = objects(["a", "b"], columns, "", skip_nulls=True).to_pylist()
    assert texts == ['{"b":{"y":"a"}}', '{"a":1}']


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_has_not_is_told(value: float) -> None:
    with pytest.raises(InvalidData, match=r"column price.*NaN or infinite"):
        objects(["price"], [pa.array([1.0, value, None])], "column ", skip_nulls=False)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()], ids=str)
@pytest.mark.parametrize("days", [(date.min - date(1970, 1, 1)).days - 1, 2932897])  # 10000-01-01
def test_a_year_that_has_not_four_digits_is_told(kind: pa.DataType, days: int) -> None:
    dates = pa.array([0, days, None], pa.int32()).cast(pa.date32())
    column = dates if kind == pa.date32() else dates.cast(pa.timestamp("us")).view(kind)
    with pytest.raises(InvalidData, match=r"column at: has a date before the year 1 or after 9999"):
        objects(["at"], [column], "column ", skip_nulls=False)
    keyed = pa.MapArray.from_arrays(pa.array([0, 1]), dates[1:2], pa.array([True]))
    with pytest.raises(InvalidData, match=r"column by \(a key\): has a date"):
        objects(["by"], [keyed], "column ", skip_nulls=False)


def test_text_that_is_not_utf8_is_told() -> None:
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    with pytest.raises(InvalidData, match="column name: has a text that is not UTF-8"):
        objects(["name"], [broken], "column ", skip_nulls=False)


def blocks_of(schema: StructType, columns: dict[str, pa.Array], **options: str) -> None:
    plan: Any = batch_writer(schema, {"url": URL, "stream": "s", **options}, False).plan
    list(plan.blocks(pa.record_batch(columns), lambda name: name))


def test_a_row_that_cannot_be_an_entry_is_told() -> None:
    text = StructType().add("data", StringType())
    for bad in ("[1]", "{", "3", None):
        with pytest.raises(InvalidData, match="no JSON object"):
            blocks_of(text, {"data": pa.array([bad], pa.string())})
    with pytest.raises(PayloadTooLarge):
        blocks_of(text, {"data": pa.array(['{"a":"' + "x" * 100 + '"}'])}, maxPayload="50")
    typed = StructType().add("a", LongType()).add("type", StringType()).add("headers", StringType())
    with pytest.raises(InvalidName, match="type name"):
        blocks_of(typed, {"a": pa.array([1]), "type": pa.array(["a\n"]), "headers": pa.array(["{}"])})
    with pytest.raises(InvalidData, match="column headers"):
        blocks_of(typed, {"a": pa.array([1]), "type": pa.array(["a"]), "headers": pa.array(['{"a":1}'])})
    plan: Any = batch_writer(typed, {"url": URL, "streamColumn": "type", "typeColumn": ""}, False).plan
    columns = {"a": pa.array([1]), "type": pa.array([None], pa.string()), "headers": pa.array(["{}"])}
    with pytest.raises(InvalidName, match="column type has a null; every row needs a stream"):
        list(plan.blocks(pa.record_batch(columns), lambda name: name))


def items_of(columns: dict[str, Any], schema: StructType, **options: str) -> list[Any]:
    plan: Any = batch_writer(schema, {"url": URL, "jobType": "Mail", **options}, False).plan
    return list(plan.packer("seed").items(pa.record_batch(columns)))


def test_a_row_that_cannot_be_a_job_is_told_with_its_number() -> None:
    schema = StructType().add("user_id", StringType())
    known = {"jobType": TYPE, "jobModule": MODULE}
    with pytest.raises(InvalidPayload, match="user_id: Expected `int`") as caught:
        items_of({"user_id": pa.array(["seven"])}, schema, **known)
    assert caught.value.__notes__ == ["row 1 of its partition"]
    ids = StructType().add("key", StringType())
    with pytest.raises(InvalidData, match="every job needs an id"):
        items_of({"key": pa.array(["a", None])}, ids, idColumn="key")
    with pytest.raises(ValueError, match="not a priority"):
        items_of({"key": pa.array(["soonish"])}, ids, priorityColumn="key")
    with pytest.raises(InvalidName, match="brace"):
        items_of({"key": pa.array(["{q}"])}, ids, queueColumn="key")
    with pytest.raises(InvalidData, match="no JSON object"):
        items_of({"key": pa.array(["[]"])}, ids, payloadColumn="key")
    with pytest.raises(InvalidData, match="no list of texts"):
        items_of({"key": pa.array(["3"])}, ids, tagsColumn="key")
    with pytest.raises(InvalidData, match="no mapping of texts"):
        items_of({"key": pa.array(["3"])}, ids, headersColumn="key")
    with pytest.raises(PayloadTooLarge):
        items_of({"user_id": pa.array(["x" * 100])}, schema, maxPayload="50")
    numbers = StructType().add("wait", DoubleType())
    with pytest.raises(ValueError, match="delay"):
        items_of({"wait": pa.array([-1.0])}, numbers, delayColumn="wait")
    late = pa.array([2932897], pa.int32()).cast(pa.date32()).cast(pa.timestamp("us", "UTC"))  # 10000-01-01
    with pytest.raises(InvalidData, match="column wait: has a date before the year 1 or after 9999"):
        items_of({"wait": late}, StructType().add("wait", TimestampType()), delayColumn="wait")
    with pytest.raises(ConfigurationError, match="idColumn='wait'"):
        items_of({"wait": pa.array([b"a"])}, StructType().add("wait", BinaryType()), idColumn="wait")


def test_the_ids_of_jobs_are_the_same_in_every_attempt() -> None:
    schema = StructType().add("user_id", LongType())
    columns = {"user_id": pa.array([1, 2, 3])}
    first, second = items_of(columns, schema), items_of(columns, schema)
    assert [item.id for item in first] == [item.id for item in second]
    assert len({item.id for item in first}) == 3
