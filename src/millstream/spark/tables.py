"""A table or a query by a short text: ``parquet:/path``, ``csv:/path``, ``jdbc:…``, ``delta:…``, ``sql:…``.

For pipelines that take any data as their input. Delta tables need no jar: deltalake knows their files, and
Spark reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.errors import ConfigurationError, InvalidInput, MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = ("parquet", "csv", "json", "orc", "text")
KINDS = (*FILES, "delta", "jdbc", "table", "sql")
# A CSV without a header has no field names, and a job needs them.
CSV_DEFAULTS = {"header": "true", "inferSchema": "true"}
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
