"""What happens to a job, step by step, whichever executor runs it:

    started → resolve → build → run (timeout) → normalise → settled

The intake has resolved the type already. `start` builds the job, or says why it must not run; the executor
runs its handler; `succeeded` and `failed` turn what happened into a settlement.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millstream import retry
from millstream.drivers.base import Settlement
from millstream.errors import JobError, JobTimeout
from millstream.history import Ended
from millstream.worker.heartbeat import Heartbeat
from millstream.worker.parts import Holdings, Task, log
from millstream.worker.settler import Settler
from millstream.worker.watch import SoftTimeout, Watch

if TYPE_CHECKING:
    from millstream.job import Job
    from millstream.queue import Queue

STILL_RUNNING = "job %s is still running at the end of the grace; it is handed back"


class Pipeline:
    """The steps around a handler. Stateless but for what it was given, and used by every thread at once."""

    def __init__(
        self,
        queue: Queue,
        holdings: Holdings,
        settler: Settler,
        heartbeat: Heartbeat,
        watch: Watch,
        worker: str,
    ) -> None:
        self.codec, self.worker = queue.codec, worker
        self.recording = queue.recorder is not None
        self.holdings, self.settler, self.heartbeat, self.watch = holdings, settler, heartbeat, watch

    def may_start(self, task: Task, now: float) -> bool:
        """Whether the job is still this worker's. Raises Expired for one that nobody wants any more."""
        holdings = self.holdings
        if now > holdings.safe_until:
            # The process was stopped, or the broker away, for longer than the lease: somebody else may
            # run this job already. Ask before starting it.
            self.heartbeat.confirm()
        if holdings.lost and task.reservation in holdings.lost:
            log.warning("job %s is not started: its lease was lost while it waited here", task.reservation.id)
            holdings.drop(task.reservation)
            return False
        if task.envelope.expires_at is not None and retry.is_expired(task.envelope, time.time()):
            raise retry.Expired("not started before its expires_in was over")
        return True

    def build(self, task: Task) -> Job:
        job: Job = task.kind.build(task.envelope, self.codec)
        job.attach(task.envelope, task.reservation)
        return job

    def build_late(self, task: Task, error: BaseException) -> Job | None:
        """The job of an attempt that never began, for its ``failed``; None where it cannot be built."""
        if isinstance(error, retry.Expired):
            with suppress(JobError):
                return self.build(task)
        return None

    def succeeded(self, task: Task, started: float) -> None:
        # Only now, after the effect: a crash before this line runs the job again.
        if task.abandoned:
            return
        if self.recording:
            self.settler.put(self._ended(task, started))
        else:
            self.settler.put(retry.settle_success(task.reservation))

    @staticmethod
    def _ended(task: Task, started: float, cancelled: BaseException | None = None) -> Ended:
        """The settlement of an attempt that did not fail, with what its record is to say."""
        return Ended(
            task.reservation,
            "complete",
            error="" if cancelled is None else str(cancelled),
            at=time.time(),
            seconds=round(time.monotonic() - started, 6),
            cancelled=cancelled is not None,
        )

    def failure(
        self, task: Task, error: BaseException, started: float
    ) -> tuple[Settlement, bool, BaseException]:
        """The settlement of a failed attempt, whether it was the last one, and the error to show for it."""
        if isinstance(error, SoftTimeout):
            error = timed_out(task, error)
        settlement, finished = retry.settle_failure(
            task.envelope,
            task.reservation,
            error,
            codec=self.codec,
            worker=self.worker,
            seconds=time.monotonic() - started,
            now=time.time(),
        )
        if self.recording and settlement.outcome == "complete":
            settlement = self._ended(task, started, error)
        if settlement.outcome == "bury":
            log.error("job %s (%s) failed for good: %r", task.envelope.id, task.envelope.type, error)
        else:
            log.info(
                "job %s (%s): %s after %r", task.envelope.id, task.envelope.type, settlement.outcome, error
            )
        return settlement, finished, error

    def call_failed(
        self, job: Job, error: BaseException, run_async: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        """Run the job's own ``failed``, from a thread. It is a courtesy: its errors change nothing."""
        try:
            result = job.failed(as_exception(error))
            if inspect.isawaitable(result):
                run_async(within(None, result))
        except Exception as raised:  # noqa: BLE001 - the user's code; the job is settled all the same
            _log_failed(job, raised)

    async def await_failed(self, job: Job, error: BaseException) -> None:
        """The same, on an event loop."""
        failed, shown = job.failed, as_exception(error)
        try:
            if inspect.iscoroutinefunction(failed):
                result = failed(shown)
            else:
                # It may block. The loop's threads are few: none is held while a coroutine runs, which may
                # need one itself.
                result = await asyncio.to_thread(failed, shown)
            if inspect.isawaitable(result):
                await result
        except Exception as raised:  # noqa: BLE001 - as above
            _log_failed(job, raised)


async def within(timeout: float | None, result: Awaitable[Any]) -> None:
    """Wait for ``result`` on the loop, for a thread that cannot be interrupted meanwhile."""
    try:
        async with asyncio.timeout(timeout) as limit:
            await result
    except TimeoutError as error:
        if limit.expired():
            raise SoftTimeout from error
        raise


def _log_failed(job: Job, raised: Exception) -> None:
    log.error("failed() of %s raised", type(job).__name__, exc_info=raised)


def timed_out(task: Task, cause: BaseException | None = None) -> JobTimeout:
    """The error for an attempt whose time is over."""
    error = JobTimeout(task.envelope.id, task.envelope.timeout or 0.0)
    error.__cause__ = cause
    if cause is not None:
        error.__traceback__ = cause.__traceback__  # where the handler was
    return error


def as_exception(error: BaseException) -> Exception:
    """``failed`` takes an Exception; SystemExit and its like are wrapped."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
