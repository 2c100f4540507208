"""The loop executor runs async handlers on one event loop, in a thread of its own.

As with threads, no job is handed over: up to ``concurrency`` runners, each an asyncio task that lives as
long as the worker, pull from the buffer. A runner that takes a job and sees more waiting wakes one other,
which comes to run when this one's handler awaits something, or after a turn of short jobs.
"""

from __future__ import annotations

import asyncio
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import Context
from typing import Any

from millstream.drivers.base import Reservation
from millstream.errors import JobTimeout
from millstream.worker.intake import Intake
from millstream.worker.parts import Task, log
from millstream.worker.pipeline import STILL_RUNNING, Pipeline, timed_out
from millstream.worker.watch import Watched

TURN = 50  # jobs that one runner may finish before it lets the loop look at the others


class LoopExecutor:
    """The loop's thread starts with the first async job: a program without any has none."""

    def __init__(
        self, pipeline: Pipeline, intake: Intake, concurrency: int, on_idle: Callable[[], None]
    ) -> None:
        self._pipeline, self._ready, self._concurrency = pipeline, intake.for_loop, concurrency
        self._on_idle = on_idle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._runners: dict[asyncio.Task[None], Task | None] = {}
        self._waking = False  # a runner was woken and has not come to run yet
        self._stopping = self._interrupting = False

    # -- the core loop -----------------------------------------------------------------------------

    async def _work(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        take, ready, running = self._ready.popleft, self._ready, self._runners
        self._waking, turn = False, 0
        while not self._stopping:
            try:
                task = take()
            except IndexError:
                await self._rest()
                turn = 0
                continue
            if ready and not self._waking:
                self._rouse()
            running[me] = task
            await self._perform(task, me)
            running[me] = None
            turn += 1
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)

    async def _perform(self, task: Task, me: asyncio.Task[None]) -> None:
        pipeline, job, started = self._pipeline, None, time.monotonic()
        try:
            if not pipeline.may_start(task, started):
                return
            job = pipeline.build(task)
            timeout = task.envelope.timeout
            if timeout is None:
                await _in_context(job.handle(), Context())
            else:
                await self._timed(task, job.handle(), timeout)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                if self._interrupting:
                    raise  # the grace was over; the job was handed back
                me.uncancel()  # the handler cancelled itself
            if not task.abandoned:
                await self._fail(task, job, error, started, me)
        else:
            pipeline.succeeded(task, started)

    async def _timed(self, task: Task, handler: Coroutine[Any, Any, Any], timeout: float) -> None:
        # The watch as well: a handler that blocks the loop, or swallows its cancellation, is hung.
        watched = Watched(task, timeout, None)
        self._pipeline.watch.arm(watched)
        try:
            async with asyncio.timeout(timeout) as limit:
                await _in_context(handler, Context())
        except TimeoutError as error:
            if limit.expired():
                raise timed_out(task, error) from error
            raise
        finally:
            self._pipeline.watch.disarm(watched)

    async def _fail(
        self, task: Task, job: Any, error: BaseException, started: float, me: asyncio.Task[None]
    ) -> None:
        settlement, finished, error = self._pipeline.failure(task, error, started)
        if finished and job is None:
            job = self._pipeline.build_late(task, error)
        if finished and job is not None:
            task.outcome, timeout = settlement, task.envelope.timeout
            call = self._pipeline.await_failed(job, error)
            try:
                await (_in_context(call, Context()) if timeout is None else self._timed(task, call, timeout))
            except JobTimeout:
                log.error("failed() of %s took longer than the job's timeout", type(job).__name__)
            except asyncio.CancelledError:
                if self._interrupting:
                    raise
                me.uncancel()  # it cancelled itself
            if task.abandoned:
                return
        self._pipeline.settler.put(settlement)

    # -- who is awake ------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is work; called by any thread."""
        if not self._waking:
            self._waking = True
            self._started().call_soon_threadsafe(self._rouse)

    def _rouse(self) -> None:
        while self._resting:
            future = self._resting.popleft()
            if not future.done():
                self._waking = True
                future.set_result(None)
                return
        self._waking = len(self._runners) < self._concurrency and not self._stopping
        if self._waking:
            runner = asyncio.get_running_loop().create_task(self._work())
            self._runners[runner] = None
            runner.add_done_callback(self._ended)

    async def _rest(self) -> None:
        self._on_idle()
        self._waking = False
        future = asyncio.get_running_loop().create_future()
        self._resting.append(future)
        if self._ready or self._stopping:  # came in before the fetcher could see this runner rest
            self._rouse()
        await future
        self._waking = False

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.pop(runner, None)
        if not runner.cancelled() and (error := runner.exception()) is not None:
            log.critical("a runner of async jobs died", exc_info=error)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, from another thread; its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._starting:
                if self._loop is None:
                    running: Future[asyncio.AbstractEventLoop] = Future()
                    self._thread = threading.Thread(
                        target=self._serve, args=(running,), name="millstream-loop", daemon=True
                    )
                    self._thread.start()
                    self._loop = running.result()
        return self._loop

    def _serve(self, running: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:  # on leaving it cancels what is left, and closes the loop
            loop = runner.get_loop()
            loop.call_soon(running.set_result, loop)
            loop.run_forever()

    # -- the end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let runners end after the job that they are running."""
        self._stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._release_resting)

    def _release_resting(self) -> None:
        while self._resting:
            future = self._resting.popleft()
            if not future.done():
                future.set_result(None)

    @property
    def busy(self) -> bool:
        """Whether a job is running that somebody should wait for."""
        return any(task is not None and not task.abandoned for task in tuple(self._runners.values()))

    @property
    def interrupted(self) -> bool:
        """Whether a handler that was given up has not ended yet."""
        return any(task is not None for task in tuple(self._runners.values()))

    def interrupt(self) -> list[Reservation]:
        """Give up what still runs: the jobs to hand back. Their outcomes no longer count."""
        self._interrupting = True
        given_up = []
        for runner, task in tuple(self._runners.items()):
            if task is not None and not task.abandoned:
                task.abandoned = True
                log.warning(STILL_RUNNING, task.reservation.id)
                given_up.append(task.reservation)
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(runner.cancel)
        return given_up

    def holds(self, task: Task) -> bool:
        """Whether ``task`` runs here."""
        return any(running is task for running in tuple(self._runners.values()))

    def is_inside(self, thread: threading.Thread) -> bool:
        """Whether ``thread`` is the loop's."""
        return thread is self._thread

    def close(self, timeout: float) -> None:
        """End the loop's thread; one that a handler blocks is left behind."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout)


class Loops:
    """The loop that async jobs run on; beside it, those before it, each of which a handler blocks."""

    def __init__(self, make: Callable[[], LoopExecutor]) -> None:
        self._make, self._all = make, [make()]

    @property
    def current(self) -> LoopExecutor:
        return self._all[-1]

    def wake(self) -> None:
        self.current.wake()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.current.run(coroutine)

    def replace(self, task: Task) -> None:
        """``task`` hangs on its loop: let what waits, and what comes, run on another one."""
        blocked = self.current
        if blocked.holds(task):
            blocked.stop()
            self._all.append(self._make())
            self.wake()

    def stop(self) -> None:
        for loop in self._all:
            loop.stop()

    @property
    def busy(self) -> bool:
        return any(loop.busy for loop in self._all)

    @property
    def interrupted(self) -> bool:
        return any(loop.interrupted for loop in self._all)

    def interrupt(self) -> list[Reservation]:
        return [given_up for loop in self._all for given_up in loop.interrupt()]

    def is_inside(self, thread: threading.Thread) -> bool:
        return any(loop.is_inside(thread) for loop in self._all)

    def close(self, timeout: float) -> None:
        for loop in self._all:
            loop.close(timeout)


@types.coroutine
def _in_context(handler: Coroutine[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    """``await handler``, each step of it in ``context``: no job sees another one's context variables.

    What asyncio does for a new task, without the cost of one per job.
    """
    step, value = handler.send, None
    try:
        while True:
            try:
                awaited = context.run(step, value)
            except StopIteration as done:
                return done.value
            try:
                value = yield awaited
                step = handler.send
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, say: the handler's to deal with
                value, step = error, handler.throw
    finally:
        handler.close()
