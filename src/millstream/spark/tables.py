"""A table or a query by a short text: ``parquet:/path``, ``csv:/path``, ``jdbc:…``, ``delta:…``, ``sql:…``.

For pipelines that take any data as their input. Delta tables need no jar: deltalake knows their files, and
Spark reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.errors import ConfigurationError, InvalidInput, MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = ("parquet", "csv", "json", "orc", "text")
KINDS = (*FILES, "delta", "jdbc", "table", "sql")
CSV_DEFAULTS = {
    "header": "true",  # without one there are no field names, and a job needs them
    "inferSchema": "true",
    "escape": '"',  # a quote within quotes is doubled, as in any CSV but Spark's own
    # Spark would drop the values that a line has too many, fill up those that are missing, and guess where a
    # value ends: jobs with wrong fields, without a word.
    "mode": "FAILFAST",
    "unescapedQuoteHandling": "RAISE_ERROR",
    "columnPruning": "false",  # lines are checked whole, also where some columns are picked
}
_MALFORMED_LINE = re.compile(r"Malformed CSV record: (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_STRAY_QUOTE = re.compile(r"Unescaped quote character")
_FILE = re.compile(r"error while reading file (.+?)\.\s+SQLSTATE")
# What changes which rows of its files belong to a Delta table, or what their columns are called.
UNREADABLE = frozenset(("deletionVectors", "columnMapping"))


def read_table(
    spark: SparkSession,
    source: str,
    *,
    options: Mapping[str, str] | None = None,
    views: Mapping[str, str] | None = None,
) -> DataFrame:
    """The DataFrame that ``source`` means.

    ``options`` are those of Spark's reader. ``views`` are names for other sources that a ``sql:`` text
    uses. Raises InvalidInput for a source that is none, and ConfigurationError for one that cannot be read
    here; what Spark finds wrong with the data it says itself.
    """
    kind, place = split_source(source)
    given = dict(options or {})
    if views and kind != "sql":
        raise InvalidInput(f"views are for a sql: source, and this one is {kind}:")
    if kind == "sql":
        if given:
            raise InvalidInput("a sql: source takes no reader options; give them in the views or in the text")
        for name, text in (views or {}).items():
            read_table(spark, text).createOrReplaceTempView(name)
        return spark.sql(place)
    if kind == "table":
        return spark.read.options(**given).table(place)
    if kind == "jdbc":
        return _jdbc(spark, source, given)
    if kind == "delta":
        return _delta(spark, place, given)
    defaults = CSV_DEFAULTS if kind == "csv" else {}
    return spark.read.format(kind).options(**{**defaults, **given}).load(place)


@contextmanager
def plain_csv_errors() -> Iterator[None]:
    """What Spark finds wrong with the lines of a CSV file, in our words, wherever they are read."""
    try:
        yield
    except Exception as error:
        text = str(error)  # the whole of Java's, with all causes: which class it is depends on the place
        line, quote = _MALFORMED_LINE.search(text), _STRAY_QUOTE.search(text)
        if line is None and quote is None:
            raise
        what = "has a quote within quotes that is not doubled"
        if line is not None:
            what = f"has not as many values as there are columns: {line[1][:200]}"
        file = _FILE.search(text)
        raise InvalidInput(
            f"a line of {file[1] if file else 'the CSV file'} {what}; correct it, or say how the file is "
            "written with reader options: sep, quote, escape (a backslash, where Spark wrote it), "
            "multiLine=true for values with line breaks; mode=PERMISSIVE cuts such lines off or fills them up"
        ) from error


def split_source(source: str) -> tuple[str, str]:
    """The kind of a source, and where it is. Raises InvalidInput, which lists the kinds."""
    kind, colon, place = source.partition(":")
    if not colon or kind not in KINDS or not place.strip():
        raise InvalidInput(
            f"{source[:80]!r} is no source; use KIND:WHERE, such as parquet:/data/orders or "
            f"sql:SELECT …, where KIND is one of: {', '.join(KINDS)}"
        )
    return kind, place.strip()


def _jdbc(spark: SparkSession, url: str, options: dict[str, str]) -> DataFrame:
    lower = {name.lower() for name in options}
    if not lower & {"dbtable", "query"}:
        raise InvalidInput(
            "a jdbc: source needs a reader option that says what to read: dbtable=orders, or query=SELECT …"
        )
    return spark.read.format("jdbc").options(**options).option("url", url).load()


def _delta(spark: SparkSession, place: str, options: dict[str, str]) -> DataFrame:
    unknown = sorted(set(options) - {"version"})
    if unknown:
        raise InvalidInput(f"a delta: source knows the reader option version, and no {unknown[0]!r}")
    try:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("spark", error.name or "deltalake") from error
    from millstream.spark.archiving.reading import read_files  # noqa: PLC0415 - imports PySpark

    version = options.get("version")
    if version is not None and not version.isdecimal():
        raise InvalidInput(f"the version of a Delta table is a whole number, not {version!r}")
    try:
        table = DeltaTable(place, version=None if version is None else int(version))
    except TableNotFoundError as error:
        raise ConfigurationError(f"there is no Delta table at {place}") from error
    missing = UNREADABLE.intersection(table.protocol().reader_features or ())
    if missing:
        raise ConfigurationError(
            f"the Delta table at {place} uses {', '.join(sorted(missing))}, which cannot be read without "
            "Delta's own jar; start Spark with it and use sql:SELECT * FROM delta.`…`, or purge the table"
        )
    return read_files(spark, table)
