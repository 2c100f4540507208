"""The executor runs sync handlers on threads that pull from the buffer.

No job is handed from thread to thread. A thread takes the next job when it is done with the last one;
`popleft` is atomic, so that what waits can be taken by any. Only as many threads are awake as there is use
for: a thread that takes a job and sees more waiting wakes one other. Short jobs are then run by one or two
threads (the interpreter's lock lets a further one in every 5 ms), and as soon as a handler waits for
something, the next thread goes on.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from millstream.drivers.base import Reservation
from millstream.worker.intake import Intake
from millstream.worker.parts import Task, log
from millstream.worker.pipeline import STILL_RUNNING, Pipeline, within
from millstream.worker.watch import Interrupted, SoftTimeout, Watched, raise_in_thread


class Runner:
    """One thread, and the task that it is running."""

    __slots__ = ("inside", "interrupting", "replaced", "task", "thread")

    def __init__(self, target: Callable[[Runner], None], number: int) -> None:
        self.task: Task | None = None
        self.inside = False  # a handler: only there may it be interrupted
        self.interrupting = self.replaced = False
        name = f"millstream-runner-{number}"
        self.thread = threading.Thread(target=target, args=(self,), name=name, daemon=True)


class Executor:
    """Up to ``concurrency`` threads, started as they are needed."""

    def __init__(
        self,
        pipeline: Pipeline,
        intake: Intake,
        concurrency: int,
        on_idle: Callable[[], None],
        run_async: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._pipeline, self._ready, self._concurrency = pipeline, intake.for_threads, concurrency
        self._on_idle, self._run_async = on_idle, run_async
        self._rested = threading.Condition()
        self._interrupting = threading.Lock()
        self._idle = 0
        self._waking = False  # a thread was woken and has not come to run yet
        self._stopping = False
        self._started = 0
        self._runners: set[Runner] = set()
        self._replaced = 0  # threads that hang, and do not count any more

    # -- the core loop -----------------------------------------------------------------------------

    def _work(self, runner: Runner) -> None:
        take, ready = self._ready.popleft, self._ready
        try:
            while not self._stopping:
                try:
                    task = take()
                except IndexError:
                    self._rest()
                    continue
                if ready and not self._waking:
                    self.wake()
                runner.task = task
                self._perform(runner, task)
                runner.task = None
                if task.abandoned:
                    return  # it hung for so long that another thread has taken this one's place
        except Interrupted:
            pass  # the grace was over; the job was handed back
        finally:
            with self._rested:
                self._runners.discard(runner)
                if runner.replaced:
                    self._replaced -= 1

    def _perform(self, runner: Runner, task: Task) -> None:
        pipeline, job, started = self._pipeline, None, time.monotonic()
        try:
            if not pipeline.may_start(task, started):
                return
            job = pipeline.build(task)
            timeout = task.envelope.timeout
            if timeout is None:
                self._run(runner, job.handle)
            else:
                self._timed(runner, task, job.handle, timeout)
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler's sys.exit() ends the job, not the thread
            if not task.abandoned:
                self._fail(runner, task, job, error, started)
        else:
            pipeline.succeeded(task, started)

    def _run(self, runner: Runner, handle: Callable[[], object], timeout: float | None = None) -> None:
        runner.inside = True
        try:
            result = Context().run(handle)  # of its own: no job sees another one's context variables
            if result is not None and inspect.isawaitable(result):
                # A plain function around a coroutine, such as a decorator's.
                self._run_async(within(timeout, result))
        finally:
            runner.inside = False
            if runner.interrupting:
                # Wait until the exception is set, and take it back: from here on it would do damage.
                with self._interrupting:
                    raise_in_thread(threading.get_ident(), None)

    def _timed(self, runner: Runner, task: Task, handle: Callable[[], object], timeout: float) -> None:
        watch, watched = self._pipeline.watch, Watched(task, timeout, threading.get_ident())
        try:
            watch.arm(watched)
            self._run(runner, handle, timeout)
        finally:
            try:
                watch.disarm(watched)
            except SoftTimeout:  # too late: the handler has ended
                watch.disarm(watched)

    def _fail(self, runner: Runner, task: Task, job: Any, error: BaseException, started: float) -> None:
        settlement, finished, error = self._pipeline.failure(task, error, started)
        if finished and job is None:
            job = self._pipeline.build_late(task, error)
        if finished and job is not None:
            task.outcome, timeout = settlement, task.envelope.timeout
            call = partial(self._pipeline.call_failed, job, error, self._run_async)
            if timeout is None:
                self._run(runner, call)
            else:
                with suppress(SoftTimeout):  # just after it had ended
                    self._timed(runner, task, call, timeout)
            if task.abandoned:
                return
        self._pipeline.settler.put(settlement)

    # -- who is awake ------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is work: wake a thread that rests, or start one; nothing if all are busy."""
        with self._rested:
            if self._idle:
                self._waking = True
                self._rested.notify()
            elif len(self._runners) - self._replaced < self._concurrency and not self._stopping:
                self._waking = True
                self._started += 1
                runner = Runner(self._begin, self._started)
                self._runners.add(runner)
                runner.thread.start()

    def _begin(self, runner: Runner) -> None:
        self._waking = False
        self._work(runner)

    def _rest(self) -> None:
        self._on_idle()
        with self._rested:
            if self._ready or self._stopping:
                return
            self._idle += 1
            try:
                self._rested.wait()
            finally:
                self._idle -= 1
                self._waking = False

    # -- the end -----------------------------------------------------------------------------------

    def replace(self, task: Task) -> None:
        """The thread of ``task`` hangs: let another one take its place."""
        with self._rested:
            for runner in self._runners:
                if runner.task is task:
                    runner.replaced = True
                    self._replaced += 1
        if self._ready:
            self.wake()

    def stop(self) -> None:
        """Let threads end after the job that they are running."""
        with self._rested:
            self._stopping = True
            self._rested.notify_all()

    def is_inside(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` runs jobs here."""
        return any(runner.thread is thread for runner in tuple(self._runners))

    @property
    def busy(self) -> bool:
        """Whether a job is running that somebody should wait for."""
        return any(runner.task is not None and not runner.task.abandoned for runner in tuple(self._runners))

    @property
    def interrupted(self) -> bool:
        """Whether a handler that was given up has not ended yet."""
        return any(runner.task is not None for runner in tuple(self._runners))

    def interrupt(self) -> list[Reservation]:
        """Give up what still runs: the jobs to hand back. Their outcomes no longer count."""
        given_up = []
        for runner in tuple(self._runners):
            task = runner.task
            if task is None or task.abandoned:
                continue
            task.abandoned = True
            log.warning(STILL_RUNNING, task.reservation.id)
            given_up.append(task.reservation)
            with self._interrupting:
                runner.interrupting = True
                if runner.inside and runner.thread.ident is not None:
                    raise_in_thread(runner.thread.ident, Interrupted)
        return given_up
