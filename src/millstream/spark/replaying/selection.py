"""Which jobs are replayed: SQL over the records of an archive, one row per job.

A job is chosen if any of its records fits. Its newest fitting record stands for it; the payload comes from
there, or from another record of the same job where that one has none. What cannot be pushed again is kept,
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from millstream.brokers.payload import DEFAULT_MAX_PAYLOAD
from millstream.drivers.checks import check_queue
from millstream.envelope import PRIORITIES
from millstream.errors import InvalidInput, InvalidName
from millstream.history import HISTORY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_KINDS: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def _columns(text: str) -> StructType:
    """Columns by name and type. Spark's own parser of this form needs a session, and a module has none."""
    pairs = (column.split(" ", 1) for column in text.split(", "))
    return StructType([StructField(name, _KINDS[kind]) for name, kind in pairs])


VIEW = "millstream_records"  # what a subquery in ``where`` may select from
RECORD = _columns(
    "job_id string, type string, state string, at double, queue string, priority string, attempt int, "
    "max_attempts int, enqueued_at double, due_at double, started_at double, seconds double, worker string, "
    "error_type string, error string, traceback string, tags array<string>, tenant string, "
    "headers map<string,string>, payload string, version int, replay_of string"
)
# A record leaves out what has its default value.
_DEFAULTS: dict[str, Any] = {
    "queue": "default",
    "priority": "default",
    "attempt": 1,
    "max_attempts": 1,
    "enqueued_at": 0.0,
    "worker": "",
    "error_type": "",
    "error": "",
    "traceback": "",
    "tenant": "",
    "payload": "",
    "version": 1,
}
# What is needed to push a job again, and to say what it was.
CHOSEN = _columns(
    "job_id string, new_id string, type string, state string, at double, queue string, priority string, "
    "max_attempts int, error_type string, tags array<string>, headers map<string,string>, payload string, "
    "version int"
)
PROBLEM = "problem"
Transform = Callable[[dict[str, Any]], dict[str, Any]]


class Changes(msgspec.Struct, frozen=True):
    """What is to be different from the first time. ``transform`` gets a job's fields and returns new ones."""

    queue: str | None = None
    priority: str | None = None
    max_attempts: int | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_queue(self.queue)
        if self.priority is not None and self.priority not in PRIORITIES:
            raise InvalidInput(f"{self.priority!r} is not a priority; use one of {', '.join(PRIORITIES)}")
        if self.max_attempts is not None and not 1 <= self.max_attempts < 1 << 31:
            raise InvalidInput(f"max_attempts must be 1 or more, not {self.max_attempts!r}")


def records_of(frame: DataFrame) -> DataFrame:
    """The job records in an archive, with the defaults filled in. Raises InvalidInput without any."""
    if "job_id" not in frame.columns:
        if not {"stream", "data"} <= set(frame.columns):
            raise InvalidInput(
                "the table holds no job history: it needs the column job_id, or the entries of a history "
                "stream; archive one with: millstream pipeline archive --history …"
            )
        parsed = frame.where(F.col("stream").endswith(f":{HISTORY}")).withColumn(
            "record", F.from_json("data", RECORD)
        )
        kept = [name for name in ("day", "timestamp") if name in frame.columns]
        frame = parsed.select(*kept, "record.*")
    columns = [_column(frame, field.name) for field in RECORD]
    kept = [name for name in ("day", "timestamp") if name in frame.columns]
    return frame.select(*kept, *columns, F.timestamp_micros((F.col("at") * 1e6).cast("long")).alias("time"))


def _column(frame: DataFrame, name: str) -> Column:
    kind = RECORD[name].dataType
    if name not in frame.columns:
        found = F.lit(None).cast(kind)
    elif isinstance(frame.schema[name].dataType, StringType) and isinstance(kind, (ArrayType, MapType)):
        found = F.from_json(name, kind)  # JSON text, as in the SQL archive
    else:
        found = F.col(name).cast(kind)
    if name == "tags":
        found = F.coalesce(found, F.array().cast(kind))
    elif name == "headers":
        found = F.coalesce(found, F.create_map().cast(kind))
    elif name in _DEFAULTS:
        found = F.coalesce(found, F.lit(_DEFAULTS[name]).cast(kind))
    return found.alias(name)


def choose(
    spark: SparkSession, records: DataFrame, where: str, name: str, changes: Changes, limit: int | None
) -> DataFrame:
    """The chosen jobs, oldest first within each partition: `CHOSEN` and `PROBLEM` (null where there is none).

    Raises InvalidInput for SQL that does not fit the records.
    """
    matching = _matching(spark, records, where)
    newest = F.struct("at", "attempt", "state")
    jobs = (
        matching.withColumn("job_id", F.coalesce("job_id", F.lit("")))
        .groupBy("job_id")
        .agg(
            F.max_by(F.struct(*[field.name for field in RECORD if field.name != "job_id"]), newest).alias("r")
        )
        .select("job_id", "r.*")
    )
    # Only where it is needed: one more look at the archive, for the payloads that the chosen records lack.
    bare = jobs.where(F.col("payload") == "").select("job_id")
    found = (
        records.where(F.col("payload") != "")
        .join(bare, "job_id", "left_semi")
        .groupBy("job_id")
        .agg(F.max_by("payload", newest).alias("other"), F.max_by("version", newest).alias("other_version"))
    )
    jobs = jobs.join(found, "job_id", "left").withColumns(
        {
            "payload": F.when(F.col("payload") == "", F.coalesce("other", F.lit(""))).otherwise(
                F.col("payload")
            ),
            "version": F.when(F.col("other").isNotNull(), F.col("other_version")).otherwise(F.col("version")),
        }
    )
    if limit is not None:
        jobs = jobs.orderBy("at", "job_id").limit(limit)
    new_id = F.substring(F.sha2(F.concat(F.lit(f"{name}\0"), F.col("job_id")), 256), 1, 32)
    shaped = jobs.withColumn("new_id", new_id).select(
        *[F.col(field.name).cast(field.dataType) for field in CHOSEN]
    )
    schema = StructType([*CHOSEN.fields, StructField(PROBLEM, StringType())])
    return shaped.mapInArrow(Judge(changes), schema)


def _matching(spark: SparkSession, records: DataFrame, where: str) -> DataFrame:
    if not isinstance(where, str) or not where.strip():
        raise InvalidInput(
            "where is empty; say which jobs, such as \"state = 'failed' AND type = 'send_email'\""
        )
    records.createOrReplaceTempView(VIEW)
    try:
        matching = records.where(where)
        assert (
            matching.schema is not None
        )  # Spark Connect looks at the SQL only when it is asked for something
    except (ParseException, AnalysisException) as error:
        raise InvalidInput(
            f"the SQL {where!r} cannot be used: {_first_line(error)}. "
            f"The columns are {', '.join(records.columns)}"
        ) from error
    finally:
        spark.catalog.dropTempView(VIEW)  # the plan holds on to what it means
    return matching


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


class Judge:
    """Runs in tasks: applies the changes, and says of each job whether it can be pushed."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [self.judge(row) for row in batch.to_pylist()]
            schema = batch.schema.append(pa.field(PROBLEM, pa.string()))
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def judge(self, row: dict[str, Any]) -> dict[str, Any]:
        changes = self._changes
        row["queue"] = changes.queue or row["queue"]
        row["priority"] = changes.priority or row["priority"]
        row["max_attempts"] = changes.max_attempts or max(1, row["max_attempts"])
        row[PROBLEM] = problem = self._problem(row)
        if problem is None and changes.transform is not None:
            try:
                made = changes.transform(msgspec.json.decode(row["payload"]))
                if not isinstance(made, dict):
                    raise TypeError(f"it returned {type(made).__name__}, not a dict")
                row["payload"] = msgspec.json.encode(made).decode()
            except Exception as error:  # noqa: BLE001 - whatever the caller's function raises concerns this job
                row[PROBLEM] = f"transform failed: {type(error).__name__}: {error}"[:300]
            else:
                row[PROBLEM] = self._problem(row)
        return row

    def _problem(self, row: dict[str, Any]) -> str | None:
        if not row["job_id"]:
            return "entries that are no job records"
        if not row["type"]:
            return "its record has no type"
        if not row["payload"]:
            return "none of its records in the archive has a payload"
        if len(row["payload"].encode()) > DEFAULT_MAX_PAYLOAD:
            return f"its payload is larger than {DEFAULT_MAX_PAYLOAD:,} bytes"
        if row["priority"] not in PRIORITIES:
            return "its priority is not known to this version"
        try:
            check_queue(row["queue"])
        except InvalidName:
            return "its queue has a name that is not allowed"
        try:
            _object.decode(row["payload"])
        except (msgspec.DecodeError, UnicodeError):
            return "its payload is not a JSON object"
        return None


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
