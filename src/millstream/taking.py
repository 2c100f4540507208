"""The part of a queue that takes jobs, for programs that hold the loop in their own hands."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from millstream.drivers.base import Driver, Reservation, Settlement
from millstream.envelope import Codec, Envelope
from millstream.errors import InvalidInput, JobError, StaleReservation
from millstream.job import Job
from millstream.keeping import QueueKeeper
from millstream.options import Seconds, seconds
from millstream.registry import Registry
from millstream.retry import Expired, is_expired, settle_failure, settle_poison, settle_success

log = logging.getLogger("millstream")
DEFAULT_LEASE = 30.0
MAX_DELIVERIES = 3  # a job that was lost so often is taken for the cause, as by a worker
LOOK = 1.0  # seconds between looks at delayed and lost jobs while pop() waits


class QueueTaker(QueueKeeper):
    """Takes jobs one by one, and settles them. A worker does the same for many at a time."""

    def __init__(self, driver: Driver, codec: Codec, registry: Registry, max_payload: int) -> None:
        super().__init__(driver, codec, registry, max_payload)
        # Who takes jobs by pop(). Another process gets another name, so a fork has to make its own queue.
        self.owner = f"pop-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"

    def pop(
        self, queue: str | None = None, lease: Seconds | None = DEFAULT_LEASE, *, wait: float = 0.0
    ) -> Job | None:
        """Take one job, or None where there is none; waits up to ``wait`` seconds for one.

        The caller runs it and calls `complete` or `fail` within the lease, or `extend` before it ends. If
        nothing is waiting, delayed jobs that are due are made available, and then a job is taken over
        whose owner let its ``lease`` pass (None: take nothing over).

        Raises UnknownJobType, InvalidPayload or UnreadableEnvelope for a job that cannot be built; it has
        then been handed back, or buried after a few times.
        """
        name = self._queue(queue)
        patience = None if lease is None else seconds("lease", lease, above=True)
        deadline = time.monotonic() + seconds("wait", wait)
        while True:
            found = self._take(name, patience)
            remaining = deadline - time.monotonic()
            if not found and remaining > 0:
                due = self.driver.next_due([name])  # a delayed job's time may come while we wait
                limit = min(remaining, LOOK if due is None else max(due, 0.001), LOOK)
                found = self.driver.reserve([name], self.owner, 1, wait=limit)
            if found:
                job = self._build(found[0])
                if job is not None:
                    return job
            elif time.monotonic() >= deadline:
                return None

    def _take(self, name: str, lease: float | None) -> list[Reservation]:
        found = self.driver.reserve([name], self.owner, 1)
        if not found and self.driver.promote_due([name]):
            found = self.driver.reserve([name], self.owner, 1)
        if not found and lease is not None:
            # Twice, because the first may have come to the end of what the last call began to look through.
            found = self.driver.recover([name], self.owner, lease, 1)
            found = found or self.driver.recover([name], self.owner, lease, 1)
        return found

    def recover(
        self, queues: str | Sequence[str] | None = None, *, lease: Seconds = DEFAULT_LEASE, count: int = 100
    ) -> list[Job]:
        """Take over jobs whose owner let the lease pass; they are the caller's to run now.

        One that cannot be built is handed back, or buried after a few times, and logged.
        """
        jobs: list[Job] = []
        names, patience = self._queues(queues), seconds("lease", lease)
        if not names and queues is None:  # nothing was ever pushed
            return jobs
        for reservation in self.driver.recover(names, self.owner, patience, count):
            try:
                job = self._build(reservation)
            except JobError as error:
                log.warning("job %s was taken over and cannot be built: %s", reservation.id, error)
                continue
            if job is not None:
                jobs.append(job)
        return jobs

    def complete(self, job: Job) -> None:
        """The job is done. Raises StaleReservation if somebody else owns it by now."""
        self._settle(settle_success(reservation_of(job)))

    def fail(self, job: Job, error: BaseException) -> None:
        """The attempt failed: the job is retried by its rule, or buried after its last attempt.

        In that case its ``failed`` is called. Raises StaleReservation if somebody else owns it by now.
        """
        reservation = reservation_of(job)
        settlement, finished = settle_failure(
            job.envelope,
            reservation,
            error,
            codec=self.codec,
            worker=self.owner,
            seconds=0.0,
            now=time.time(),
        )
        self._settle(settlement)
        if finished:
            _call_failed(job, error)

    def extend(self, job: Job) -> None:
        """Begin the job's lease anew. Raises StaleReservation if somebody else owns it by now."""
        reservation = reservation_of(job)
        if not self.driver.extend([reservation])[0]:
            raise StaleReservation(reservation.id)

    def _settle(self, settlement: Settlement) -> None:
        if not self.driver.settle([settlement])[0]:
            raise StaleReservation(settlement.reservation.id)

    def _build(self, reservation: Reservation) -> Job | None:
        """The job that was taken; None for one that is not to be run any more, and is buried now."""
        envelope: Envelope | None = None
        try:
            envelope = self.codec.decode(reservation.body)
            if reservation.delivery_count > MAX_DELIVERIES:
                poison = settle_poison(
                    envelope, reservation, codec=self.codec, limit=MAX_DELIVERIES, now=time.time()
                )
                self.driver.settle([poison])
                return None
            job = self.registry.resolve(envelope.type).build(envelope, self.codec)
        except JobError as error:
            self._fail(envelope, reservation, error)
            raise
        job.attach(envelope, reservation)
        job._home = self
        if is_expired(envelope, time.time()):
            late = Expired()
            self._fail(envelope, reservation, late)
            _call_failed(job, late)
            return None
        return job

    def _fail(self, envelope: Envelope | None, reservation: Reservation, error: BaseException) -> None:
        settlement, _ = settle_failure(
            envelope, reservation, error, codec=self.codec, worker=self.owner, seconds=0.0, now=time.time()
        )
        self.driver.settle([settlement])


def reservation_of(job: Job) -> Reservation:
    """The lease under which ``job`` was taken. Raises InvalidInput for one that was not."""
    if not isinstance(job, Job) or job.reservation is None:
        raise InvalidInput(f"{job!r} was not taken from a queue; only a job that pop() gave can be settled")
    return job.reservation


def _call_failed(job: Job, error: BaseException) -> None:
    """Call the job's ``failed``; what it raises is logged, because the job is settled already."""
    try:
        result = job.failed(error)  # type: ignore[arg-type]  # the caller's own exception
        if inspect.iscoroutine(result):
            # A loop may be running in this thread, and a coroutine cannot be awaited from here.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, result).result()
    except Exception:
        log.exception("failed() of job %s raised", job.id)
