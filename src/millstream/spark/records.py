"""The history of jobs as a DataFrame of one form, wherever it is kept.

`read_records` knows four places: the history stream of a broker, the SQL archive, a Delta or Parquet table,
and a DataFrame. `normalise` gives the same typed columns for each, and says of a record that cannot be used
why: such records are counted by their reason, never dropped silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millstream.errors import InvalidInput, MissingExtra
from millstream.history import HISTORY, STATES
from millstream.spark.archiving.reading import read_archive
from millstream.spark.urls import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# What the metrics need of a record. The source reads only these: payloads and tracebacks stay where they are.
COLUMNS = (
    "job_id string, type string, state string, at double, queue string, priority string, attempt int, "
    "enqueued_at double, due_at double, started_at double, seconds double, error_type string, tenant string"
)
UNKNOWN = "(unknown)"  # the type of a job that nobody could read
REASON = "_unusable"  # the column that says why a record cannot be used; null for a good one
_TABLE_SCHEMES = ("file", "s3", "s3a", "gs", "abfs", "abfss", "az", "hdfs")
_DEFAULTS = {"queue": "default", "priority": "default", "attempt": 1, "tenant": "", "error_type": ""}


def read_records(
    spark: SparkSession, source: str | DataFrame, *, archive: bool = False, prefix: str | None = None
) -> DataFrame:
    """The records of ``source``, with `COLUMNS` and `REASON`.

    ``source`` is the URL of a broker (its history stream; with ``archive`` the table ``millstream_history``
    of a SQL database), the path of a Delta or Parquet table, or a DataFrame. Raises InvalidInput for a path
    that holds no table; what is wrong with a broker is raised when Spark reads from it.
    """
    if not isinstance(source, str):
        return normalise(source)
    if is_table(source):
        if archive:
            raise InvalidInput(f"archive=True means a SQL database, and {source!r} is the path of a table")
        return normalise(read_table(spark, source))
    reader = spark.read.format("millstream").option("url", absolute_url(source))
    reader = reader.option("archive" if archive else "history", "true")
    if prefix is not None and archive:
        raise InvalidInput(
            "prefix says whose history stream is read; the archive has no prefix: leave it out"
        )
    if prefix is not None:
        reader = reader.option("prefix", prefix)
    # With a place for them, the source keeps entries that are no records, and they are counted here.
    return normalise(reader.schema(f"{COLUMNS}, _corrupt string").load())


def is_table(source: str) -> bool:
    """Whether ``source`` is the path of a table, and not the URL of a broker."""
    return "://" not in source or urlsplit(source).scheme.lower() in _TABLE_SCHEMES


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """A Delta table as it is now, or a folder of Parquet files. Needs no jars: deltalake knows the files."""
    try:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("spark", "deltalake") from error
    if DeltaTable.is_deltatable(path):
        return read_archive(spark, path)
    local = path.removeprefix("file://")
    if "://" not in local and not (Path(local).is_dir() and any(Path(local).rglob("*.parquet"))):
        raise InvalidInput(
            f"there is no Delta table and no Parquet file at {path!r}; give the table's folder"
        )
    return spark.read.parquet(path)


def _wanted() -> StructType:
    schema = StructType.fromDDL(COLUMNS)
    assert isinstance(schema, StructType)
    return schema


def normalise(frame: DataFrame) -> DataFrame:
    """``frame`` with the typed columns of a record.

    Its rows may be records, or entries that hold one as JSON.
    """
    wanted = _wanted()
    if "job_id" not in frame.columns:
        if "data" not in frame.columns:
            raise InvalidInput(
                "this is no history of jobs: a table of records has the column job_id, one of stream entries "
                f"has data; this one has {', '.join(frame.columns) or 'no columns'}"
            )
        if "stream" in frame.columns:  # an archive of several streams
            frame = frame.where(F.col("stream").endswith(f":{HISTORY}"))
        frame = frame.select(F.from_json("data", wanted).alias("record")).select("record.*")
    columns = []
    for field in wanted:
        if field.name in frame.columns:
            value = F.col(field.name).try_cast(field.dataType)  # a bad value is null, and then a reason
        else:
            value = F.lit(None).cast(field.dataType)
        if field.name == "type":  # a job whose envelope could not be read has an empty one
            value = F.when(value == "", UNKNOWN).otherwise(value)
        default = _DEFAULTS.get(field.name)  # a record leaves out what has its default value
        columns.append((value if default is None else F.coalesce(value, F.lit(default))).alias(field.name))
    return frame.select(*columns).withColumn(REASON, _reason())


def _reason() -> Column:
    state, at, seconds = F.col("state"), F.col("at"), F.col("seconds")
    return (
        F.when(F.coalesce(F.col("job_id"), F.lit("")) == "", "it has no job_id, or is not a record at all")
        .when(F.col("type").isNull(), "it has no type")
        .when(state.isNull() | ~state.isin(*STATES), "its state is not known to this version")
        .when(at.isNull() | F.isnan(at) | (at <= 0), "its time is missing or impossible")
        .when(seconds.isNotNull() & (F.isnan(seconds) | (seconds < 0)), "its run time is impossible")
    )
