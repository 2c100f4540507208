"""Relay: moves jobs from an outbox to the queue that they are for, each of them once.

The rows of a lane (a connection's queue) are moved in batches, in three steps:

    1  open    the batch is written down in the outbox's database: a new number, and the ids of its rows
    2  push    the target takes the jobs and the number in one atomic step, or knows the number already
    3  close   the rows are deleted and the batch is forgotten, in one transaction

A relay may be killed between any two of them. Before 2 nothing was pushed, and the next relay finds the batch
open; after 2 it finds the batch open as well, pushes it under the same number, and the target adds nothing,
however long the jobs have been done by then. What makes this hold is that a batch never changes once it has
its number, that a lane has one open batch at the most, and that numbers only grow: a relay that was paused
in the middle of step 2 and goes on after others have moved further is refused by the target. So the lease of
a lane is a courtesy that keeps two relays from doing the same work, and nothing depends on it.

A batch that the target refuses for what is in it is taken apart. First its number is spent on a push of
nothing: if the target takes that, the batch was never pushed and never will be, and its rows may be given
another number. If the target knows the number, the batch had been pushed after all.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
from types import TracebackType
from typing import Self

from sqlalchemy import Engine

from millstream.drivers import checks
from millstream.drivers.base import PushItem
from millstream.errors import (
    AccessDenied,
    BrokerClosed,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigurationError,
    InvalidInput,
    JobError,
    MillstreamError,
    UnreadableEnvelope,
)
from millstream.outbox import waking
from millstream.outbox.lanes import Batch, Lane, LaneStore
from millstream.outbox.source import open_source
from millstream.outbox.statements import MOST_ROWS
from millstream.packing import ENVELOPE_ROOM
from millstream.queue import Queue, QueueManager, connect
from millstream.sql.schema import DEFAULT_PREFIX

log = logging.getLogger("millstream.outbox")
FIRST_PAUSE = 0.02  # seconds: right after something came, more is likely to come
# What has nothing to do with the jobs of a batch: the same batch may be taken later.
_LATER = (BrokerUnavailable, BrokerFull, AccessDenied)


class Relay:
    """Moves jobs from the outbox in ``source`` to ``target``. Any number of relays may run at once.

    ``source`` is the URL of the database, or a SQLAlchemy engine that leads to it. ``target`` is a Queue, a
    QueueManager (for jobs that name a connection) or a URL. Run it in this program's background
    (``with Relay(url, queue): …``), in a program of its own (`run`, or ``millstream outbox relay``), or call
    `run_once` from wherever you like.

    ``poll`` is the longest pause between two looks where nothing comes; pauses grow up to it. ``lease`` is
    how long a lane waits for a relay that was killed. ``create`` makes the tables; the default for SQLite
    only.
    """

    def __init__(
        self,
        source: str | Engine,
        target: Queue | QueueManager | str,
        *,
        tables: str = DEFAULT_PREFIX,
        poll: float = 1.0,
        lease: float = 5.0,
        create: bool | None = None,
    ) -> None:
        checks.check_seconds("poll", poll, above=0)
        checks.check_seconds("lease", lease, above=0)
        self._own_target = isinstance(target, str)
        self._target = connect(target) if isinstance(target, str) else target
        if not isinstance(self._target, Queue | QueueManager):
            raise InvalidInput(f"a relay's target is a Queue, a QueueManager or a URL, not {target!r}")
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            self._database = open_source(source, tables, create)
        except BaseException:
            self._close_target()
            raise
        self._store = LaneStore(self._database, self.name, lease)
        self._poll, self._wake, self._stop = poll, threading.Event(), threading.Event()
        self._most: dict[
            bytes, int
        ] = {}  # lanes whose batches are being taken apart, and how large they may be
        self._thread: threading.Thread | None = None
        self.moved = 0  # jobs that this relay has pushed

    # -- running -----------------------------------------------------------------------------------

    def run_once(self) -> int:
        """Move everything that is there and that no other relay is busy with; how many jobs.

        Raises BrokerUnavailable where the outbox's database does not answer. What keeps a single lane from
        moving is logged, shown by `millstream outbox status`, and tried again at the next call.
        """
        before = self.moved
        for lane in self._store.lanes():
            if self._stop.is_set():
                break
            try:
                self._move(lane)
            except _LaneBlocked as blocked:
                log.warning("outbox: the jobs for queue %r wait: %s", lane.queue, blocked.__cause__)
        return self.moved - before

    def run(self) -> None:
        """Move jobs until `stop` is called. A database or a server that does not answer is waited for."""
        waking.listen(self._wake)
        pause, away = FIRST_PAUSE, False
        while not self._stop.is_set():
            self._wake.clear()  # before looking: what comes from here on ends the pause
            try:
                moved = self.run_once()
                if away:
                    log.warning("outbox: %s is back", self._database.target.address)
                away = False
            except BrokerClosed:
                return
            except BrokerError as error:
                if not away:
                    log.warning("outbox: trying again: %s", error)
                moved, away = 0, True
            pause = FIRST_PAUSE if moved else min(pause * 2, self._poll)
            self._wake.wait(pause * random.uniform(0.75, 1.0))  # spread: relays are often started together

    def request_stop(self) -> None:
        """Ask for the end of `run`, without waiting for it."""
        self._stop.set()
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the batch that is on its way, and wait for the background thread."""
        self.request_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def start(self) -> Self:
        """Run in the background of this program."""
        if self._thread is not None:
            raise RuntimeError("this relay is running already")
        self._stop.clear()
        self._thread = threading.Thread(target=self.run, name="millstream-relay", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and give back the connections. The target stays the caller's, unless it was a URL."""
        self.stop()
        self._database.close()
        self._close_target()

    def _close_target(self) -> None:
        if self._own_target:
            self._target.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one lane ----------------------------------------------------------------------------------

    def _move(self, lane: Lane) -> None:
        """Move the lane's rows, batch by batch, until none is left or another relay has it."""
        queue = self._queue_of(lane)
        while not self._stop.is_set():
            most = self._most.get(lane.key, MOST_ROWS)
            batch = self._store.open_batch(lane, lambda item: _check(queue, item), most)
            if batch is None:
                return
            if not batch.rows and not batch.reopened:
                continue  # all of them were set aside
            self._push(lane, batch, queue)
        self._store.hand_back(lane)

    def _push(self, lane: Lane, batch: Batch, queue: Queue | ConfigurationError) -> None:
        try:
            if isinstance(queue, ConfigurationError):
                raise queue
            if batch.items:
                _push(queue, lane, batch)
        except _LATER as error:
            self._store.note_failure(lane, batch, error)
            raise _LaneBlocked from error
        except BrokerClosed:
            raise
        except (InvalidInput, BrokerError, JobError) as error:
            self._take_apart(lane, batch, queue, error)
            return
        except ConfigurationError as error:  # a reopened batch whose connection is not known here
            self._store.note_failure(lane, batch, error)
            raise _LaneBlocked from error
        self._store.close_batch(lane, batch)
        self.moved += len(batch.rows)
        if lane.key in self._most:
            self._most[lane.key] *= 2
            if self._most[lane.key] >= MOST_ROWS:
                del self._most[lane.key]

    def _take_apart(
        self, lane: Lane, batch: Batch, queue: Queue | ConfigurationError, error: MillstreamError
    ) -> None:
        """Deal with a batch that the target refuses for what is in it."""
        assert isinstance(queue, Queue)
        try:
            unspent = queue.driver.push_numbered(lane.queue, batch.line, batch.number, [])
        except BrokerError as again:
            self._store.note_failure(lane, batch, again)
            raise _LaneBlocked from again
        if not unspent:
            self._store.close_batch(lane, batch)  # it had been pushed by an earlier relay
            self.moved += len(batch.rows)
        elif len(batch.rows) == 1:
            log.error("outbox: job %s is set aside: %s", batch.items[0].id, error)
            self._store.drop_batch(lane, batch, error)
        else:
            self._most[lane.key] = max(1, len(batch.rows) // 2)
            self._store.drop_batch(lane, batch)

    def _queue_of(self, lane: Lane) -> Queue | ConfigurationError:
        """The queue object that the lane's connection means, or why there is none."""
        try:
            if isinstance(self._target, QueueManager):
                return self._target.connection(lane.connection or None)
            return self._target._connection(lane.connection or None)
        except ConfigurationError as error:
            return error
        except BrokerError as error:
            raise _LaneBlocked from error


class _LaneBlocked(Exception):
    """A lane cannot be moved now; the cause says why."""


def _push(queue: Queue, lane: Lane, batch: Batch) -> None:
    if queue.driver.capabilities.numbered_push:
        queue.driver.push_numbered(lane.queue, batch.line, batch.number, batch.items)
    else:
        # Repeated after a crash, this adds a second copy of a job that was done in between: all that such a
        # driver can do. docs/outbox.md says so.
        queue.driver.push(batch.items)


def _check(queue: Queue | ConfigurationError, item: PushItem) -> None:
    """Raise what is wrong with a row that could never be pushed, or that no worker could read."""
    if isinstance(queue, ConfigurationError):
        raise queue
    checks.check_items([item], queue.max_payload + ENVELOPE_ROOM)
    if queue.codec.decode(item.body).id != item.id:
        raise UnreadableEnvelope(f"it is that of another job than {item.id}")
