"""Restoring: what an archive knows to be pending is pushed again, under the same ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from millstream.archive.writing import unpack_body
from millstream.drivers.base import PushItem
from millstream.envelope import PRIORITIES
from millstream.errors import UnreadableEnvelope

if TYPE_CHECKING:
    from millstream.archive.jobs import PendingJob
    from millstream.queue import Queue

BATCH = 1000


class Restored(msgspec.Struct, frozen=True):
    """What `restore` did, or with ``dry_run`` would do.

    ``pushed`` were handed to the queue, which leaves alone those that it still has. ``unreadable`` lists jobs
    that cannot be pushed again: the archive has no body of theirs, or another codec wrote it.
    """

    pending: int
    pushed: int
    by_queue: dict[str, int]
    unreadable: list[str]
    dry_run: bool = False


def restore_jobs(
    queue: Queue,
    jobs: Iterable[PendingJob],
    *,
    dry_run: bool,
    on_progress: Callable[[int], None] | None,
) -> Restored:
    """Push ``jobs`` to ``queue``, a round trip per thousand and queue."""
    # Not noted once more: the archive has them as pending already.
    driver = getattr(queue.driver, "inner", queue.driver)
    seen = pushed = 0
    by_queue: dict[str, int] = {}
    unreadable: list[str] = []
    batch: list[PushItem] = []

    def send() -> None:
        nonlocal pushed
        if not dry_run and batch:
            driver.push(batch)
        pushed += len(batch)
        batch.clear()
        if on_progress is not None:
            on_progress(pushed)

    for job in jobs:
        seen += 1
        try:
            item = _item(job, queue, time.time())
        except UnreadableEnvelope:
            unreadable.append(job.job_id)
            continue
        by_queue[item.queue] = by_queue.get(item.queue, 0) + 1
        batch.append(item)
        if len(batch) >= BATCH:
            send()
    if batch:
        send()
    return Restored(seen, pushed, by_queue, unreadable, dry_run)


def _item(job: PendingJob, queue: Queue, now: float) -> PushItem:
    """The push of a job as it was: its id, options, attempts, priority, and what is left of its delay."""
    if job.body is None:
        raise UnreadableEnvelope("the archive has no body of it")
    if job.codec != queue.codec.name:
        raise UnreadableEnvelope(f"it was written by the codec {job.codec!r}")
    body = unpack_body(job.body, job.codec)
    envelope = queue.codec.decode(body)
    delay = 0.0 if envelope.due_at is None else max(0.0, envelope.due_at - now)
    key, hold = envelope.unique_key, 0.0
    if key is not None and job.unique_for:
        hold = envelope.pushed_at + job.unique_for - now
        if hold <= 0:  # its time is over: another one with this key may exist
            key, hold = None, 0.0
    priority = envelope.priority if envelope.priority in PRIORITIES else "default"
    return PushItem(envelope.id, job.queue, priority, body, delay, key, hold)
