"""Projections: event-sourced state. A fold of yours over an event stream becomes a table of current state
per key.

Incremental and rebuilt give the same table, because both run the same code (`folding.Folder` under Spark's
``transformWithState``) over the same events in the same order: that of the ids, per stream and key.

* **Incremental** (the default) reads what was added to the stream since the last run, in micro-batches.
  Each is one commit to the table, fenced by the query and the batch's number: a replayed batch adds nothing.
* **A rebuild** folds everything from the beginning in one batch job, from the archive and the stream or
  from the stream alone, and replaces the table in one commit. The next incremental run goes on from there.

When the fold raises, the batch has not happened: the table and the state are as before it, and the error
names the event and the key. Mend the fold and run again.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millstream.errors import ConfigurationError, InvalidInput, MissingExtra, ProjectionFailed
from millstream.spark.archiving.reading import read_archive
from millstream.spark.folding import INPUT, MARK, OUTPUT, Fold, Folder
from millstream.spark.statetable import COLUMNS, StateTable, arrow_type
from millstream.spark.urls import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Progress = Callable[..., None]
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTS = ("stream", "type")
_LOOK = 0.5  # seconds between two looks at whether to stop


class ProjectionResult(msgspec.Struct, frozen=True):
    """What a run did."""

    table: str
    version: int  # of the Delta table
    generation: int  # how often it was rebuilt
    rebuilt: bool
    batches: int
    events: int  # folded in this run
    without_key: int  # passed over: they have no such field
    repeated: int  # passed over: they had been folded before
    keys: int  # rows of the table that changed
    seconds: float


def project(
    spark: SparkSession,
    url: str,
    stream: str,
    *,
    key: str,
    fold: str | Fold,
    table: str,
    initial: Any = None,
    columns: str | None = None,
    rebuild: bool = False,
    rebuild_from: str | None = None,
    checkpoint: str | None = None,
    every: float | None = None,
    stop: Flag | None = None,
    max_rows: int = 100_000,
    partitions: int | None = None,
    fail_on_data_loss: bool = True,
    on_progress: Progress | None = None,
    after: Callable[[str, int], None] | None = None,
) -> ProjectionResult:
    """Bring the table at ``table`` up to date with ``stream`` (a name, several, or a pattern) at ``url``.

    ``key`` is a field of the event's data (``account``, ``order.customer``), or ``@stream``, ``@type``,
    ``@header.name``. ``fold`` is ``(state, event) -> state``, a function or its ``module:name``; the state
    is a JSON value that begins as ``initial``, and None ends the entity. ``columns`` (``"balance double,
    owner string"``) are taken out of the state into columns of their own.

    ``rebuild`` folds the whole stream anew; ``rebuild_from`` the archive at that path, then what the stream
    has beyond it. Both are needed after the fold has changed. ``every`` goes on until ``stop`` is set, with
    a batch in so many seconds; without it, the run ends when the stream is read to its end. ``after`` is for
    tests of crashes.

    Raises ProjectionFailed where the fold raises, ConfigurationError and InvalidInput for arguments that
    cannot be used.
    """
    begun = time.monotonic()
    _require_protobuf()
    _check_numbers(max_rows=max_rows, partitions=partitions, every=every)
    folder = Folder(load_fold(fold), _initial_text(initial))
    typed = _typed(columns)
    states = StateTable(
        table, f"{stream} by {key}", pa.schema([(f.name, arrow_type(f.dataType)) for f in typed])
    )
    own = spark.newSession()  # its settings are its own
    own.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    own.conf.set(
        "spark.sql.shuffle.partitions", str(partitions or max(2, spark.sparkContext.defaultParallelism))
    )
    own.conf.set("spark.sql.session.timeZone", "UTC")
    run = _Run(states, typed, on_progress or _silent, after or _silent)
    source = {"url": absolute_url(url), "stream": stream, "failOnDataLoss": str(fail_on_data_loss).lower()}
    with _fold_errors():
        if rebuild or rebuild_from is not None:
            states.open()
            run.rebuild(_events(_everything(own, source, stream, rebuild_from), key), folder)
        else:
            states.check_columns()
            place = f"{(checkpoint or states.uri + '.checkpoint').rstrip('/')}/{states.generation()}"
            reader = (
                own.readStream.format("millstream").options(**source).option("maxRowsPerTrigger", max_rows)
            )
            if known := states.positions():
                reader = reader.option("startingOffsets", _offsets(known))
            run.follow(_events(reader.load(), key), folder, states.read(own), place, every, stop)
    return ProjectionResult(
        table=states.uri,
        version=states.version(),
        generation=states.generation(),
        rebuilt=rebuild or rebuild_from is not None,
        batches=run.batches,
        events=run.events,
        without_key=run.without_key,
        repeated=run.repeated,
        keys=run.keys,
        seconds=time.monotonic() - begun,
    )


class _Run:
    """One run over the events, counting."""

    def __init__(
        self,
        states: StateTable,
        typed: StructType,
        on_progress: Progress,
        after: Callable[[str, int], None],
    ) -> None:
        self._states, self._typed, self._say, self._after = states, typed, on_progress, after
        self.batches = self.events = self.without_key = self.repeated = self.keys = 0

    def rebuild(self, events: DataFrame, folder: Folder) -> None:
        self._say("rebuilding")
        grouped = events.groupBy("stream", "key")
        rows = self._rows(grouped.transformWithState(folder, OUTPUT, "update", "none"))
        self._after("folded", 0)
        self._say("replacing the table")
        self._states.replace(rows)
        self._after("replaced", 0)

    def follow(
        self,
        events: DataFrame,
        folder: Folder,
        known: DataFrame,
        checkpoint: str,
        every: float | None,
        stop: Flag | None,
    ) -> None:
        self._say("reading the stream")
        states = events.groupBy("stream", "key").transformWithState(
            folder,
            OUTPUT,
            "update",
            "none",
            # Only the first batch of a checkpoint takes them.
            known.select("stream", "key", "state", "events", "last_id").groupBy("stream", "key"),
        )
        writer = states.writeStream.outputMode("update").foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", checkpoint).queryName("millstream-projection")
        writer = writer.trigger(availableNow=True) if every is None else writer.trigger(
            processingTime=f"{max(1, round(every * 1000))} milliseconds"
        )  # fmt: skip
        _wait(writer.start(), stop)

    def _batch(self, frame: DataFrame, number: int) -> None:
        rows = self._rows(frame)
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RuntimeError("Spark does not say which query this is")
        self._after("folded", number)
        self._states.merge(rows, f"projection-{query}", number)
        self._after("merged", number)  # Spark writes down that the batch is done when this returns
        self._say("folding events", self.events)

    def _rows(self, frame: DataFrame) -> pa.Table:
        """What the tasks made, as rows of the table; counted on the way."""
        made = frame.withColumns(
            {
                "position": _sortable(F.col("last_id")),
                "updated_at": F.timestamp_millis(
                    F.split_part("last_id", F.lit("-"), F.lit(1)).cast("bigint")
                ),
            }
        )
        if len(self._typed):
            made = made.withColumn("_typed", F.from_json("state", self._typed))
            made = made.select("*", *(F.col("_typed")[f.name].alias(f.name) for f in self._typed))
        table = made.toArrow()
        keyed = table.filter(pa.compute.is_valid(table["key"]))
        unkeyed = table.filter(pa.compute.is_null(table["key"]))
        self.batches += 1
        self.events += pa.compute.sum(keyed["folded"]).as_py() or 0
        self.repeated += pa.compute.sum(keyed["passed"]).as_py() or 0
        self.without_key += pa.compute.sum(unkeyed["passed"]).as_py() or 0
        changed = keyed.filter(pa.compute.greater(keyed["folded"], 0))
        self.keys += changed.num_rows
        return changed.select(self._states.schema.names)


def _wait(query: StreamingQuery, stop: Flag | None) -> None:
    """Until the query ends, or ``stop`` is set; whatever happens, it does not run on by itself.

    To stop in the middle of a batch does no harm: it comes again with the next run, and counts once.
    """
    try:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # Spark takes fractions, too
            if stop is not None and stop.is_set():
                break
    finally:
        query.stop()


# -- what is read ----------------------------------------------------------------------------------


def _everything(spark: SparkSession, source: dict[str, str], stream: str, archive: str | None) -> DataFrame:
    """All events there ever were: those of the archive, then those of the stream that it does not have."""
    reader = spark.read.format("millstream").options(**source)
    if archive is None:
        return reader.load()
    kept = read_archive(spark, archive)
    if not {"stream", "id", "data", "type", "headers"} <= set(kept.columns):
        raise InvalidInput(f"{archive!r} is no archive of streams: it has {', '.join(kept.columns)}")
    kept = kept.where(_of_stream(stream))
    known = _positions(kept.withColumn("position", _sortable(F.col("id"))))
    if not known:
        raise InvalidInput(
            f"the archive at {archive!r} has no entries of {stream!r}; look at its path, or rebuild from the "
            "stream alone with rebuild=True (--rebuild)"
        )
    rest = reader.option("startingOffsets", _offsets(known)).load()
    names = ["stream", "id", "type", "headers", "data"]
    return kept.select(*names).unionByName(rest.select(*names))


def _of_stream(stream: str) -> Column:
    names = (
        json.loads(stream)
        if stream.lstrip().startswith("[")
        else [part.strip() for part in stream.split(",")]
    )
    if len(names) == 1 and set("*?[") & set(stream) and not stream.lstrip().startswith('["'):
        return F.col("stream").rlike(_pattern(names[0]))
    return F.col("stream").isin(*names)


def _pattern(glob: str) -> str:
    """A pattern as Redis has it, as a regular expression."""
    out = []
    for piece in re.findall(r"\\.|\[\^?[^\]]*\]|.", glob, re.DOTALL):
        if piece == "*":
            out.append(".*")
        elif piece == "?":
            out.append(".")
        elif piece.startswith("[") and len(piece) > 1:
            out.append(piece)
        else:
            out.append(re.escape(piece.removeprefix("\\") or "\\"))
    return f"^{''.join(out)}$"


def _events(frame: DataFrame, key: str) -> DataFrame:
    """The columns that the fold needs, with the key."""
    wanted = [name.split()[0] for name in INPUT.split(", ")]
    keyed = frame.withColumns({"key": _key_column(key), "headers": F.to_json("headers")})
    return keyed.select(*wanted)


def _key_column(key: str) -> Column:
    if key.startswith("@"):
        name, _, header = key[1:].partition(".")
        if name == "header" and header:
            return F.col("headers")[header]
        if name in _PARTS and not header:
            return F.col(name)
        raise InvalidInput(
            f"key {key!r} is not known; use @stream, @type, @header.name, or a field of the data"
        )
    parts = key.split(".")
    if not all(parts) or "'" in key:
        raise InvalidInput(f"key {key!r} is no field of an event; write it as account, or order.customer")
    return F.get_json_object("data", "$" + "".join(f"['{part}']" for part in parts))


def _sortable(entry_id: Column) -> Column:
    """An id as a text that sorts as the id does."""
    ms, seq = (F.split_part(entry_id, F.lit("-"), F.lit(part)) for part in (1, 2))
    return F.concat(F.lpad(ms, 20, "0"), F.lit("-"), F.lpad(seq, 20, "0"))


def _positions(rows: DataFrame) -> dict[str, str]:
    """The last position of each stream."""
    last = rows.groupBy("stream").agg(F.max("position").alias("position")).collect()
    return {row["stream"]: row["position"] for row in last if row["position"]}


def _offsets(positions: dict[str, str]) -> str:
    """Where to read on, as the source takes it."""
    ids = {
        name: "-".join(str(int(part)) for part in position.split("-")) for name, position in positions.items()
    }
    return json.dumps({name: {"after": last} for name, last in ids.items()})


# -- arguments -------------------------------------------------------------------------------------


def load_fold(fold: str | Fold) -> Fold:
    """The function that ``fold`` means. Raises ConfigurationError.

    One that is named by ``module:name`` is sent to the tasks with its module, so that a cluster needs no
    copy of it.
    """
    if callable(fold):
        return fold
    module_name, colon, name = fold.partition(":")
    if not colon or not module_name or not name:
        raise ConfigurationError(
            f"the fold {fold!r} must be a function, or its place such as app.folds:account"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigurationError(
            f"the module {module_name!r} of the fold does not import: {error!r}"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        what = (
            "no such function" if found is None else f"{type(found).__name__} under that name, not a function"
        )
        raise ConfigurationError(f"the fold {fold!r} cannot be used: {module_name} has {what}")
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    checked: Fold = found
    return checked


def _initial_text(initial: Any) -> str | None:
    try:
        return None if initial is None else json.dumps(initial, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"initial must be a JSON value: {error}") from None


def _typed(columns: str | None) -> StructType:
    if columns is None:
        return StructType([])
    try:
        schema = StructType.fromDDL(columns)
    except Exception as error:
        raise InvalidInput(
            f"columns {columns!r} cannot be read; write them as 'balance double, owner string'"
        ) from error
    assert isinstance(schema, StructType)
    taken = [field.name for field in schema if field.name.lower() in COLUMNS.names]
    if taken:
        raise InvalidInput(f"the table has a column {taken[0]!r} already; name it otherwise in the state")
    return schema


def _check_numbers(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not value > 0:
            raise InvalidInput(f"{name} must be above 0, not {value!r}")


def _require_protobuf() -> None:
    """Spark's ``transformWithState`` speaks to its tasks by protobuf, and does not install it."""
    try:
        importlib.import_module("google.protobuf")
    except ModuleNotFoundError as error:
        raise MissingExtra("spark", "protobuf") from error


def _silent(*_: Any) -> None:
    return None


@contextmanager
def _fold_errors() -> Iterator[None]:
    """Raise ProjectionFailed where a task says that the fold raised."""
    try:
        yield
    except Exception as error:
        text = str(error)
        at = text.find(MARK)
        if at < 0:
            raise
        what, _ = json.JSONDecoder().raw_decode(text[at + len(MARK) :])
        raise ProjectionFailed(what["stream"], what["key"], what["event_id"], what["cause"]) from error
