"""TaskStager: what one task attempt has staged so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.drivers.base import PushItem
from millstream.spark.sink.blocks import BYTES, ROWS
from millstream.spark.sink.staging import Block, Stage, Target

FLUSH_BLOCKS = 10  # in one round trip
FLUSH_BYTES = 2 * BYTES


@dataclass
class _Open:
    """A stage that is being filled."""

    key: str
    name: str
    named: bool
    waiting: list[Block] = field(default_factory=list)
    bytes: int = 0
    blocks: int = 0
    rows: int = 0
    items: list[PushItem] = field(default_factory=list)  # of jobs, until they are a block
    items_bytes: int = 0


class TaskStager:
    """Gathers blocks by where they go and sends several at a time. Memory: a few blocks for each place."""

    def __init__(self, target: Target, *, named: bool = False) -> None:
        self._target: Any = target
        self._named = named
        self._open: dict[str, _Open] = {}

    def add(self, name: str, block: Block) -> None:
        """Stage a block of entries for the stream ``name``, or for several that may share a stage with it."""
        self._put(self._stage(name), block)

    def add_job(self, item: PushItem) -> None:
        """Stage a job, with others of its queue."""
        stage = self._stage(item.queue)
        stage.items.append(item)
        stage.items_bytes += len(item.body)
        if len(stage.items) >= ROWS or stage.items_bytes >= BYTES:
            self._block_of_jobs(stage)

    def flush(self) -> None:
        """Send what is gathered."""
        for stage in self._open.values():
            if stage.waiting:
                self._send(stage, last=False)

    def seal(self) -> tuple[Stage, ...]:
        """Send the rest, with the mark that ends each stage."""
        for stage in self._open.values():
            if stage.items:
                self._block_of_jobs(stage)
            self._send(stage, last=True)
        return self._stages()

    def discard(self) -> None:
        """Remove everything."""
        self._target.discard(self._stages())

    def _stages(self) -> tuple[Stage, ...]:
        return tuple(Stage(one.key, one.name, one.blocks, one.rows, one.named) for one in self._open.values())

    def _stage(self, name: str) -> _Open:
        group = self._target.group_of(name)
        stage = self._open.get(group)
        if stage is None:
            key = self._target.new_stage(name)
            stage = self._open[group] = _Open(key, name, self._named)
        return stage

    def _block_of_jobs(self, stage: _Open) -> None:
        block = self._target.job_block(stage.items)
        self._put(stage, (block, len(stage.items), (stage.name,)))
        stage.items, stage.items_bytes = [], 0

    def _put(self, stage: _Open, block: Block) -> None:
        stage.waiting.append(block)
        stage.bytes += len(block[0])
        if len(stage.waiting) >= FLUSH_BLOCKS or stage.bytes >= FLUSH_BYTES:
            self._send(stage, last=False)

    def _send(self, stage: _Open, *, last: bool) -> None:
        self._target.stage(stage.key, stage.blocks, stage.waiting, named=stage.named, last=last)
        stage.blocks += len(stage.waiting)
        stage.rows += sum(rows for _, rows, _ in stage.waiting)
        stage.waiting, stage.bytes = [], 0
