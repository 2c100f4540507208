"""The contract of what a write is staged in and published from, and the steps in which that is done.

    a task      stage ─ stage ─ … ─ seal                          every attempt into stages of its own
    the driver  hold ─ begin ─ publish ─ publish ─ … ─ finish     and everything but `hold` may be repeated

Why a row is published once, whoever crashes when:

* What is staged is invisible, and an attempt that fails, is killed or loses a race is not named to the
  driver.
* `begin` writes the list of stages into the *fence*, one record for the write (or for the query, with its
  batch). Only the first list for a batch counts. Whoever comes later, from a repeated batch or a restarted
  driver, is given that list and goes on with it; its own stages are thrown away.
* `publish` moves one block from a stage to its place, in one atomic step: a block is either staged or
  published, never both, never neither. So the stage itself tells how far the work is, a step whose reply was
  lost may be repeated, and two drivers that work on the same fence share the blocks.
* `finish` marks the fence as done before the empty stages go. Each stage ends with a mark that is not
  published: a stage without it was lost, which is an error, not the end of the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from millstream.drivers.base import PushItem
from millstream.errors import StagedDataLost


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """Where one task attempt put what goes to one place."""

    key: str
    group: str  # the stream, or the queue; where there are several streams, one of them
    blocks: int
    rows: int
    named: bool = False  # every block comes with the names of its streams


class Manifest(msgspec.Struct, frozen=True):
    """What one batch is made of."""

    batch: int
    stages: tuple[Stage, ...]


class Begun(msgspec.Struct, frozen=True):
    """What the fence said: the manifest that is to be published, or None where the batch is done."""

    manifest: Manifest | None


Block = tuple[bytes, int, Sequence[str]]  # its bytes, its rows, its streams


class Target(ABC):
    """A broker or a driver, as the sink uses it. Every method may be repeated after a failure."""

    @abstractmethod
    def group_of(self, name: str) -> str:
        """What distinguishes the stages of one task: names with the same group may share one."""

    @abstractmethod
    def new_stage(self, name: str) -> str:
        """The key of a stage that nobody else has, near to where ``name`` is kept."""

    @abstractmethod
    def stage(self, key: str, position: int, blocks: Sequence[Block], *, named: bool, last: bool) -> None:
        """Put blocks at the end of a stage that has ``position`` of them; ``last`` adds the final mark."""

    @abstractmethod
    def hold(self, stages: Sequence[Stage]) -> None:
        """Check that stages are whole, and keep them from expiring. Raises StagedDataLost."""

    @abstractmethod
    def begin(self, fence: str, batch: int, manifest: Manifest | None) -> Begun | None:
        """Ask the fence, and give it ``manifest`` if it has none for the batch. None: it has none, still."""

    @abstractmethod
    def publish(self, stage: Stage) -> int:
        """Publish all that is left of a stage, block by block; how many rows. Raises StagedDataLost."""

    @abstractmethod
    def finish(self, fence: str, manifest: Manifest) -> None:
        """Mark a batch as done, then remove its stages."""

    @abstractmethod
    def discard(self, stages: Sequence[Stage]) -> None:
        """Remove stages that nobody will publish."""

    @abstractmethod
    def close(self) -> None: ...


class JobTarget(Target):
    """A target of jobs: it also says how a block of them looks."""

    @abstractmethod
    def job_block(self, items: Sequence[PushItem]) -> bytes:
        """The block of jobs that all go to one queue."""


def publish_once(target: Target, fence: str, batch: int, stages: Sequence[Stage]) -> None:
    """Publish ``stages`` as ``batch``, or finish what an earlier attempt at it began.

    Returns only when everything of the batch is published and marked so. Raises what the server says; then
    a repetition, by anybody, goes on where this one stopped.
    """
    own = Manifest(batch, tuple(stages))
    begun = target.begin(fence, batch, None)
    while True:
        if begun is None:
            target.hold(own.stages)
            begun = target.begin(fence, batch, own)
        elif begun.manifest is not None:
            _publish(target, fence, begun.manifest)
            # Done; or, where an earlier batch had been left unfinished, this one comes now.
            begun = target.begin(fence, batch, None)
        else:
            break
    target.discard(own.stages)


def _publish(target: Target, fence: str, manifest: Manifest) -> None:
    try:
        for stage in manifest.stages:
            target.publish(stage)
    except StagedDataLost:
        # Unless another driver came to the end of it meanwhile, and has removed the empty stages.
        again = target.begin(fence, manifest.batch, None)
        if again is None or again.manifest is not None:
            raise
    else:
        target.finish(fence, manifest)


def give_up(target: Target, fence: str | None, batch: int, stages: Sequence[Stage]) -> None:
    """Remove stages after a failure, except where the fence has them: those are to be published still."""
    begun = None if fence is None else target.begin(fence, batch, None)
    kept = set() if begun is None or begun.manifest is None else {one.key for one in begun.manifest.stages}
    target.discard([stage for stage in stages if stage.key not in kept])
