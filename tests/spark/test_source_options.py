"""What a user may say to the source; and a plain answer to everything else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.types import ArrayType, CalendarIntervalType, IntegerType, MapType, StringType, StructType

from millstream.errors import ConfigurationError, MillstreamError, UnknownScheme
from millstream.spark.source import batch_reader, default_schema
from millstream.spark.source.offsets import EARLIEST, LATEST, Bound, load
from millstream.spark.source.options import parse_options
from tests.spark.sources import columns

GOOD = {"url": "redis://localhost:6379/0", "stream": "events:orders"}
SECRET = "redis://user:s3cr3t-w0rd@localhost:1/0"

BAD: list[tuple[dict[str, str], str]] = [
    ({"url": ""}, '"url" is missing; say where the streams are'),
    ({"url": "localhost:6379"}, "is not a broker URL"),
    ({"url": "memory://"}, "memory:// lives inside one process"),
    ({"url": "kafka://h"}, "no broker for the scheme 'kafka'"),
    ({"stream": ""}, '"stream" is missing; give a name'),
    ({"stream": "a,b:*"}, "mixes the pattern 'b:\\*' with other names"),
    ({"stream": "a,a"}, "names a stream twice"),
    ({"stream": "a,,b"}, "cannot be a stream name: it is empty"),
    ({"stream": '["a", 1]'}, "must be a list of names"),
    ({"path": "b"}, "the stream is given twice"),
    ({"streem": "a"}, "did you mean 'stream'"),
    ({"maxRowsPerTriger": "1"}, "did you mean 'maxRowsPerTrigger'"),
    ({"startingOffsets": "newest"}, "startingOffsets cannot be 'newest'; use earliest, latest, an id"),
    ({"startingOffsets": "5-x"}, "startingOffsets cannot be '5-x'"),
    ({"startingOffsets": "{"}, "looks like JSON and cannot be read"),
    ({"startingOffsets": '{"events:orders": 5}'}, "startingOffsets cannot be 5"),
    ({"startingOffsets": '{"other": "5-0"}'}, "name 'other', which is not among the streams"),
    ({"startingOffsets": "latest"}, "cannot be latest for spark.read"),
    ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
    ({"startingTimestamp": "yesterday"}, "use ISO 8601 such as"),
    ({"startingTimestamp": "-1"}, "use ISO 8601 such as"),
    ({"startingTimestamp": "1950-01-01"}, "no time before 1970"),
    ({"startingTimestamp": "1", "startingOffsets": "1"}, "both say where to start; give one of them"),
    ({"endingTimestamp": "1", "endingOffsets": "1"}, "both say where to end; give one of them"),
    ({"maxRowsPerTrigger": "10"}, "is for spark.readStream"),
    ({"maxBytesPerTrigger": "10"}, "is for spark.readStream"),
    ({"minPartitions": "0"}, "minPartitions must be a whole number, 1 or more, not '0'"),
    ({"minPartitions": "many"}, "minPartitions must be a whole number"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
    ({"mode": "DROPMALFORMED"}, "mode must be PERMISSIVE or FAILFAST"),
    ({"history": "yes"}, "history must be true or false"),
    ({"history": "true"}, 'the option "history" chooses what is read; leave out "stream"'),
    ({"history": "true", "archive": "true"}, "choose one of them"),
    ({"archive": "true", "stream": ""}, "the archive is a table of a SQL database, and redis:// is none"),
    ({"prefix": "app"}, "give it together with history=true"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[str(given) for given, _ in BAD])
def test_a_bad_option_says_what_to_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_options({**GOOD, **given}, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_streaming_query_has_no_end(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is for spark.read; a streaming query has no end"):
        parse_options({**GOOD, name: "1"}, streaming=True)


@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "maxBytesPerTrigger"])
def test_limits_are_numbers(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be a whole number, 1 or more, not '1.5'"):
        parse_options({**GOOD, name: "1.5"}, streaming=True)


def test_defaults_read_everything_and_forgive_nothing() -> None:
    options = parse_options(GOOD)
    assert (options.start.of("x"), options.end.of("x")) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.mode is None
    assert options.kind == "redis"


def test_names_and_patterns() -> None:
    assert parse_options({**GOOD, "stream": "a, b"}).streams == ("a", "b")
    assert parse_options({**GOOD, "stream": "events:*"}).pattern == "events:*"
    assert parse_options({**GOOD, "stream": "[ab]?"}).pattern == "[ab]?"
    assert parse_options({**GOOD, "stream": '["a,b", "c*"]'}).streams == ("a,b", "c*")
    assert parse_options({"url": GOOD["url"], "PATH": "a"}).streams == ("a",)
    assert parse_options({"url": GOOD["url"], "history": "true"}).streams == ("millstream:history",)
    assert parse_options({"url": GOOD["url"], "history": "true", "prefix": "app"}).streams == ("app:history",)


def test_positions() -> None:
    top = (1 << 64) - 1

    def start(text: str) -> object:
        return parse_options({**GOOD, "startingOffsets": text}).start.of("events:orders")

    assert start("5-3") == Bound((5, 3), (5, 3))
    assert start("(5-3") == Bound((5, 4), (5, 2))
    assert start("5") == Bound((5, 0), (5, top))
    assert start('{"events:orders": "latest"}') == LATEST
    # What a query's progress shows can be given back.
    assert start('{"events:orders": {"after": "5-3", "added": 7}}') == Bound((5, 4), (5, 3), 7)
    ms = int(datetime(2026, 1, 31, 8, tzinfo=UTC).timestamp() * 1000)
    for text in ("2026-01-31T08:00:00Z", "2026-01-31 08:00", "2026-01-31T09:00:00+01:00", str(ms)):
        found = parse_options({**GOOD, "startingTimestamp": text}).start.of("events:orders")
        assert found == Bound((ms, 0), (ms - 1, top)), text


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use another checkpoint location"):
        load({"events": {"0": 17}})
    with pytest.raises(ConfigurationError, match="use another checkpoint location"):
        load({"events": {"after": "x"}})


def test_a_schema_that_json_cannot_fill_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigurationError, match="the column gap has the type interval"):
        batch_reader(columns(gap=CalendarIntervalType()), GOOD)
    with pytest.raises(ConfigurationError, match=r"the column m has the type map<int,string>"):
        batch_reader(columns(m=MapType(IntegerType(), StringType())), GOOD)
    with pytest.raises(ConfigurationError, match="the column n is NOT NULL, but a record may lack it"):
        batch_reader(StructType().add("n", "long", False), GOOD)
    with pytest.raises(ConfigurationError, match=r"the column l\[\] is NOT NULL"):
        batch_reader(columns(l=ArrayType(StringType(), containsNull=False)), GOOD)
    with pytest.raises(ConfigurationError, match="_corrupt keeps text; declare it as string"):
        batch_reader(columns(n="long", _corrupt="long"), GOOD)
    with pytest.raises(ConfigurationError, match="_id is a part of the entry and has the type string"):
        batch_reader(columns(_id="long"), GOOD)


def test_a_password_is_in_no_text() -> None:
    options = parse_options({**GOOD, "url": SECRET})
    assert "s3cr3t" not in repr(options)
    with pytest.raises(MillstreamError) as failed:
        batch_reader(default_schema({**GOOD, "url": SECRET}), {**GOOD, "url": SECRET}).partitions()
    assert "localhost:1" in str(failed.value)
    chain: BaseException | None = failed.value
    while chain is not None:
        assert "s3cr3t" not in f"{chain!r}"
        chain = chain.__cause__ or chain.__context__


def test_an_unknown_scheme_lists_those_that_are_known() -> None:
    with pytest.raises(UnknownScheme) as failed:
        parse_options({**GOOD, "url": "ftp://h"})
    assert "postgresql://" in failed.value.known
