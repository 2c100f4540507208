"""What Spark calls: `write` in every task, `commit` or `abort` on the driver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from millstream.errors import ConfigurationError, MillstreamError
from millstream.spark.sink.entries import EntryPlan
from millstream.spark.sink.jobs import JobPlan
from millstream.spark.sink.options import without_secrets
from millstream.spark.sink.staging import Stage, give_up, publish_once
from millstream.spark.sink.targets import open_target
from millstream.spark.sink.task import TaskStager

Plan = EntryPlan | JobPlan
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
# A batch of rows above this is cut before its texts are made: an Arrow array has two gigabytes at the most,
# and escaping may make six characters of one.
BATCH_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task staged, and for which fence."""

    fence: str
    batch: int
    stages: tuple[Stage, ...]


class BatchWriter(DataSourceArrowWriter):
    """One ``df.write``, fenced by ``write_id``."""

    def __init__(self, plan: Plan, write_id: str) -> None:
        self.plan = plan
        self.write_id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage_task(self.plan, self.write_id, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self.plan, self.write_id, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        clean_up(self.plan, self.write_id, 0, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's sink. The fence is the query's, and its batches come in their order."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if not query or batch is None:
            raise ConfigurationError("Spark did not say which query and batch this task belongs to")
        return stage_task(self.plan, self.plan.options.write_id or f"query-{query}", int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        fence = _fence_of(messages)
        if fence is not None:  # else the batch has no partition, and so no row
            publish(self.plan, fence, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        clean_up(self.plan, _fence_of(messages), batchId, messages)


def stage_task(
    plan: Plan, fence: str, batch: int, rows: Iterator[pa.RecordBatch], partition: int | None = None
) -> Staged:
    """Stage the rows of one task attempt. Where that fails, nothing stays behind if the server answers."""
    if partition is None:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
    with _without_secrets(plan), open_target(plan.options) as target:
        stager = TaskStager(target, named=isinstance(plan, EntryPlan) and plan.stream is not None)
        try:
            if isinstance(plan, EntryPlan):
                for piece in _pieces(rows):
                    for name, block in plan.blocks(piece, target.group_of):
                        stager.add(name, block)
                    stager.flush()
            else:
                seed = hashlib.blake2b(f"{fence}\n{batch}\n{partition}".encode(), digest_size=10).hexdigest()
                packer = plan.packer(seed)
                for piece in _pieces(rows):
                    for item in packer.items(piece):
                        stager.add_job(item)
            return Staged(fence, batch, stager.seal())
        except BaseException:
            with suppress(MillstreamError):  # else it expires
                stager.discard()
            raise


def publish(plan: Plan, fence: str, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks staged, once."""
    with _without_secrets(plan), open_target(plan.options) as target:
        publish_once(target, fence, batch, _stages(messages))


def clean_up(
    plan: Plan, fence: str | None, batch: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Remove what the tasks staged, unless its publication has begun. What cannot be removed now expires."""
    stages = _stages(messages)
    with suppress(MillstreamError):
        if stages:
            with open_target(plan.options) as target:
                give_up(target, fence, batch, stages)


def _pieces(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        if batch.num_rows == 0:
            continue
        parts = min(batch.num_rows, 1 + batch.nbytes // BATCH_BYTES)
        size = -(-batch.num_rows // parts)
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


def _fence_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((message.fence for message in messages if isinstance(message, Staged)), None)


def _stages(messages: Sequence[WriterCommitMessage | None]) -> list[Stage]:
    return [stage for message in messages if isinstance(message, Staged) for stage in message.stages]


@contextmanager
def _without_secrets(plan: Plan) -> Iterator[None]:
    """Errors go to logs and to the user's screen: without the password in the URL."""
    try:
        yield
    except MillstreamError as error:
        error.args = tuple(
            without_secrets(arg, plan.options.url) if isinstance(arg, str) else arg for arg in error.args
        )
        raise
