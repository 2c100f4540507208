"""Turn a table or a query into jobs, each row once, however often the pipeline is run.

The rows go through the sink, which publishes them behind a *fence*: a record on the server that a write of
this name was done. Here the fence has the name of the enqueue. So:

* A task that is repeated, or a driver that crashes, adds nothing twice.
* A second run under the same name adds nothing, whatever the table holds by then. It does not even read it.
* A run that crashed while it published is finished by the next one under its name, from what it had staged.
* Without a name, one is made of the job type, the options and the content of all rows: the same table
  again adds nothing; a changed table is a new enqueue, of all its rows.

A fence is kept for ``fence_ttl`` seconds after its last use, 30 days by default.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from millstream.errors import InvalidInput
from millstream.spark.sink import batch_writer
from millstream.spark.sink.options import JobWriteOptions, read_options
from millstream.spark.sink.staging import publish_once
from millstream.spark.sink.targets import open_target
from millstream.spark.tables import plain_csv_errors, read_table
from millstream.spark.urls import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnProgress = Callable[[str, int, int | None], None]


class EnqueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an enqueue did."""

    name: str
    job_type: str
    # "pushed" by this run, "resumed" where an earlier one had staged them, "already done": nothing was added
    state: Literal["pushed", "resumed", "already done"]
    rows: int  # that this run published; one whose id or unique key is taken adds no job
    seconds: float


@plain_csv_errors()
def enqueue(
    spark: SparkSession,
    source: DataFrame | str,
    url: str,
    job_type: str | None = None,
    *,
    name: str | None = None,
    again: bool = False,
    fields: Mapping[str, str] | list[str] | None = None,
    reader_options: Mapping[str, str] | None = None,
    views: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
    **options: object,
) -> EnqueueSummary:
    """Push one job for each row of ``source`` to the queues at ``url``.

    ``source`` is a DataFrame, or a text such as ``parquet:/data/orders`` (see `read_table`, which also
    explains ``reader_options`` and ``views``). Every column is a field of the job, unless an option names it
    for something else: ``id_column, queue_column, priority_column, delay_column, unique_key_column,
    tenant_column, tags_column, headers_column, payload_column …``. ``fields`` picks columns, as a list, or
    renames them, as a mapping from field to column. The remaining ``options`` are the sink's in snake case:
    ``queue, priority, delay, unique_for, max_attempts, tags, prefix, job_module …``.

    ``name`` is what makes a second run add nothing; ``again`` makes this run one of its own. Raises
    ConfigurationError or InvalidInput before anything is read, and what Spark or the server say later;
    then nothing was added, or a run under the same name finishes what was begun.
    """
    started = time.monotonic()
    tell = on_progress or _silent
    checked = _agreed(url, job_type, name, again, options)
    if name is None:
        tell("reading", 0, None)
        frame = _rows(spark, source, fields, checked, reader_options, views)
        name = f"once-{secrets.token_hex(8)}" if again else f"content-{_digest(frame, checked)}"
    else:
        frame = None
    kind = checked["jobType"] if job_type else f"by column {checked['jobTypeColumn']}"
    fenced = {**checked, "writeId": f"enqueue-{name}"}

    def summary(state: Literal["pushed", "resumed", "already done"], rows: int) -> EnqueueSummary:
        took = round(time.monotonic() - started, 3)
        return EnqueueSummary(name=name, job_type=kind, state=state, rows=rows, seconds=took)

    earlier = _earlier(fenced, tell)
    if earlier is not None:
        return summary("resumed" if earlier else "already done", earlier)
    if frame is None:
        frame = _rows(spark, source, fields, checked, reader_options, views)
    tell("pushing", 0, None)
    return summary("pushed", _write(frame, fenced))


@plain_csv_errors()
def preview(
    spark: SparkSession,
    source: DataFrame | str,
    url: str | None = None,
    job_type: str | None = None,
    *,
    name: str | None = None,
    again: bool = False,
    fields: Mapping[str, str] | list[str] | None = None,
    reader_options: Mapping[str, str] | None = None,
    views: Mapping[str, str] | None = None,
    sample: int = 5,
    **options: object,
) -> tuple[int, list[dict[str, object]]]:
    """How many jobs an enqueue of ``source`` would push, and the first rows. Nothing is written.

    With a ``url`` the arguments are those of `enqueue`, and what that would refuse before it reads a row is
    refused: options, columns, the job's module and type. Nothing is sent there.
    """
    checked = {} if url is None else _agreed(url, job_type, name, again, options)
    frame = _rows(spark, source, fields, checked, reader_options, views)
    if checked:
        _check_columns(frame, checked)
    return frame.count(), [row.asDict(recursive=True) for row in frame.limit(sample).collect()]


def _silent(what: str, done: int, total: int | None) -> None:
    """Where nobody looks."""


def _agreed(
    url: str, job_type: str | None, name: str | None, again: bool, options: Mapping[str, object]
) -> dict[str, str]:
    """The sink's options as texts, with a name that can be used."""
    if again and name is not None:
        raise InvalidInput("again=True makes a name of its own for this run; leave out name")
    if name is not None and not name.strip():
        raise InvalidInput("the name of an enqueue cannot be empty; leave it out to name it by its content")
    if name is not None:
        _checked(url, job_type, {**options, "write_id": f"enqueue-{name}"})
    return _checked(url, job_type, options)


def _check_columns(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Raise what the sink would: for columns that are not there or do not fit, and for the job's type."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # where Spark's own Python looks for the job's module, too
    batch_writer(frame.schema, options, overwrite=False)


def _checked(url: str, job_type: str | None, options: Mapping[str, object]) -> dict[str, str]:
    """The sink's options as texts. Raises what the sink would, before a table is read or a JVM is busy."""
    # This program's folder, which need not be the one in which Spark was started.
    given = {"url": absolute_url(url), **({} if job_type is None else {"jobType": job_type})}
    for name, value in options.items():
        if value is not None:
            given[_camel(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    if "jobType" not in given and "jobTypeColumn" not in given:
        raise InvalidInput("an enqueue needs job_type, the name of the job, or job_type_column")
    read_options(given)
    return given


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _rows(
    spark: SparkSession,
    source: DataFrame | str,
    fields: Mapping[str, str] | list[str] | None,
    options: Mapping[str, str],
    reader_options: Mapping[str, str] | None,
    views: Mapping[str, str] | None,
) -> DataFrame:
    """The rows with the columns that become jobs: the fields, and those that an option names."""
    if not isinstance(source, str):
        frame = source
    else:
        frame = read_table(spark, source, options=reader_options, views=views)
    if fields is None:
        return frame
    picked = dict(fields) if isinstance(fields, Mapping) else {field: field for field in fields}
    for option, column in options.items():
        if option.endswith("Column"):
            picked.setdefault(column, column)
    for field, column in picked.items():
        if column not in frame.columns:
            raise InvalidInput(
                f"there is no column {column!r} for the field {field!r}; "
                f"the columns are: {', '.join(frame.columns)}"
            )
    return frame.select(*(frame[f"`{column}`"].alias(field) for field, column in picked.items()))


def _digest(frame: DataFrame, options: Mapping[str, str]) -> str:
    """A name for these rows under these options: in any order, the same rows give the same name.

    The sum and the exclusive or of 64-bit hashes of all rows, and their number. A difference that all
    three miss is no matter of chance in practice; whoever could make one on purpose can also give a name.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - an extra; the name that everybody knows

    text = F.to_json(F.struct(*(F.col(f"`{column}`") for column in sorted(frame.columns))))
    hashed = frame.select(F.xxhash64(text).alias("hash"))
    total = F.sum(F.col("hash").cast("decimal(20,0)"))
    found = hashed.agg(F.count("*"), total, F.bit_xor("hash")).collect()[0]
    said = sorted((name, value) for name, value in options.items() if name != "url")
    return hashlib.blake2b(f"{said}\n{tuple(map(str, found))}".encode(), digest_size=12).hexdigest()


def _earlier(options: Mapping[str, str], tell: OnProgress) -> int | None:
    """What an earlier run of this name left to do: None, it never came so far; else it is done after this.

    The number is that of the rows of a run that had begun to publish and is finished here, without reading
    the table again; 0 where all was done before.
    """
    checked = read_options(dict(options))
    assert isinstance(checked, JobWriteOptions)
    assert checked.write_id is not None
    with open_target(checked) as target:
        begun = target.begin(checked.write_id, 0, None)
        if begun is None:
            return None
        if begun.manifest is None:
            return 0
        rows = sum(stage.rows for stage in begun.manifest.stages)
        tell("finishing what an earlier run began", 0, rows)
        publish_once(target, checked.write_id, 0, ())
        return rows


def _write(frame: DataFrame, options: Mapping[str, str]) -> int:
    """Push the rows, and count them on their way: a second pass might see another table."""
    from pyspark.sql import Observation  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as F  # noqa: PLC0415

    counted = Observation()
    watched = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
    watched.write.format("millstream").mode("append").options(**options).save()
    return int(counted.get["rows"])
