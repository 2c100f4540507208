"""The worker: builds its parts, starts them, and brings them to an end in an order that loses nothing."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from millstream.drivers.base import WorkerInfo
from millstream.errors import BrokerError, MillstreamError
from millstream.worker.doorbell import Doorbell, signals
from millstream.worker.executor import Executor
from millstream.worker.fetcher import Fetcher
from millstream.worker.heartbeat import Heartbeat
from millstream.worker.intake import Intake
from millstream.worker.loop import LoopExecutor, Loops
from millstream.worker.options import EXIT_CRASHED, EXIT_HUNG, EXIT_OK, EXIT_RECYCLED, WorkerOptions
from millstream.worker.parts import Holdings, SideThread, Task, log
from millstream.worker.pipeline import Pipeline, timed_out
from millstream.worker.reclaimer import Reclaimer
from millstream.worker.scheduler import Scheduler
from millstream.worker.settler import Settler
from millstream.worker.ticker import TickerPart
from millstream.worker.watch import Watch

if TYPE_CHECKING:
    from millstream.queue import Queue

INTERRUPT = 0.5  # seconds for an interrupted handler to end, before its job is handed back all the same
LAST_WORDS = 5.0  # seconds beyond the grace to tell the broker what became of the jobs
CHECK = 0.25  # seconds between looks at job count and memory


class WorkerCrashed(MillstreamError):
    """A part of the worker died of an error that nobody expected; it is the ``__cause__``."""


@dataclass(frozen=True)
class Counters:
    """What a worker has done, as the broker has accepted it. ``stale``: outcomes that were refused."""

    completed: int
    retried: int
    buried: int
    released: int
    stale: int
    recovered: int
    promoted: int
    running: int
    buffered: int
    fetches: int

    @property
    def finished(self) -> int:
        """Attempts that came to an end."""
        return self.completed + self.retried + self.buried


class Worker:
    """Runs the jobs of a queue: in the background between `start` and `stop`, or in `run`, which blocks."""

    def __init__(
        self, queue: Queue, options: WorkerOptions | None = None, *, supervisor: int | None = None
    ) -> None:
        """``supervisor``: a file descriptor that ends with the process that would replace this one."""
        self.options = options or WorkerOptions()
        self.id = self.options.name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._queue, self._supervised = queue, supervisor is not None
        self._lifeline: tuple[int, ...] = () if supervisor is None else (supervisor,)
        self._state = threading.Lock()
        self._running = False
        self._bell: Doorbell | None = None
        self._build()

    def _build(self) -> None:
        queue, options = self._queue, self.options
        driver = queue.driver
        self.exit_code = EXIT_OK
        self._crash: tuple[str, Exception] | None = None
        self._grace: float | None = None
        self._signalled = 0
        self._ending = threading.Event()  # somebody asked for the end
        self._hurry = threading.Event()  # and will not wait for what runs
        self._ended = threading.Event()
        self._started_at = time.time()
        self._holdings = Holdings()
        self._settler = Settler(driver, self._holdings)
        self._intake = Intake(queue, options, self._holdings, self._settler, self.id)
        self._fetcher = Fetcher(driver, self._intake, options, self.id)
        self._scheduler = Scheduler(driver, options.queues)
        self._ticker = TickerPart(queue)
        self._heartbeat = Heartbeat(driver, self._holdings, options.lease, self.info)
        self._reclaimer = Reclaimer(driver, self._intake, self._heartbeat, options, self.id)
        self._watch = Watch(options.hard_timeout_grace, self._on_hung)
        pipeline = Pipeline(queue, self._holdings, self._settler, self._heartbeat, self._watch, self.id)
        self._pipeline = pipeline
        self._loop = Loops(lambda: LoopExecutor(pipeline, self._intake, options.concurrency, self._on_idle))
        self._threads = Executor(pipeline, self._intake, options.concurrency, self._on_idle, self._loop.run)
        self._intake.wake_threads, self._intake.wake_loop = self._threads.wake, self._loop.wake
        parts = {
            "settler": self._settler.run,
            "heartbeat": self._heartbeat.run,
            "watch": self._watch.run,
            "reclaimer": self._reclaimer.run,
            "scheduler": self._scheduler.run,
            "ticker": self._ticker.run,
            "fetcher": self._fetcher.run,
            "limits": self._keep_limits,
            "end": self._end,
        }
        self._parts = {name: SideThread(name, target, self._on_crash) for name, target in parts.items()}

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to work, in the background. A worker that was stopped can be started again."""
        with self._state:
            if self._running:
                raise RuntimeError("this worker is running already")
            if self._ending.is_set():
                self._build()
            self._running = True
        for part in self._parts.values():
            part.start()
        log.info("worker %s serves %s", self.id, ", ".join(self.options.queues))
        return self

    def run(self) -> int:
        """Work until a signal, a limit or `stop` ends it; then drain. The exit code for a process.

        In the main thread SIGTERM and SIGINT stop it (a second one: at once). Raises WorkerCrashed.
        """
        self._bell = bell = Doorbell()
        try:
            with signals({signal.SIGTERM: self._on_signal, signal.SIGINT: self._on_signal}):
                self.start()
                while not self._ended.is_set():
                    if bell.wait(also=self._lifeline):
                        self._lifeline = ()
                        log.warning("the supervisor of this worker is gone; the worker ends")
                        self.request_stop()
                    if self._signalled:
                        self.request_stop(now=self._signalled > 1)
        finally:
            self._bell = None
            bell.close()
        self._raise_crash()
        return self.exit_code

    def stop(self, grace: float | None = None) -> None:
        """Take no more jobs, give back those that wait here, let the running ones finish within ``grace``.

        What still runs then is interrupted and handed back. Returns when everything is told to the broker.
        From inside a handler it only asks, as `request_stop` does: this cannot wait for its caller. Raises
        WorkerCrashed.
        """
        if self._running:
            self._grace = grace
            self.request_stop()
            if self.is_inside():
                return
            self._ended.wait()
        self._raise_crash()

    def is_inside(self) -> bool:
        """Whether the caller is a handler that this worker runs."""
        caller = threading.current_thread()
        return self._threads.is_inside(caller) or self._loop.is_inside(caller)

    def request_stop(self, *, now: bool = False) -> None:
        """Ask for the end without waiting for it; ``now``: without waiting for running jobs either."""
        if now:
            self._hurry.set()
        self._ending.set()

    def _raise_crash(self) -> None:
        if self._crash:
            name, error = self._crash
            raise WorkerCrashed(f"the worker's {name} died: {error!r}; its jobs were handed back") from error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- looking -----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._running

    @property
    def counters(self) -> Counters:
        counts = self._settler.counts
        buffered = self._intake.buffered
        return Counters(
            completed=counts["complete"],
            retried=counts["retry"],
            buried=counts["bury"],
            released=counts["release"],
            stale=self._settler.stale,
            recovered=self._reclaimer.recovered,
            promoted=self._scheduler.promoted,
            running=max(0, self._intake.outstanding - buffered),
            buffered=buffered,
            fetches=self._fetcher.fetches,
        )

    def info(self) -> WorkerInfo:
        """What other programs can know about this worker."""
        counters = self.counters
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=list(self.options.queues),
            concurrency=self.options.concurrency,
            started_at=self._started_at,
            running=counters.running,
            completed=counters.completed,
            failed=counters.retried + counters.buried,
        )

    # -- the end -----------------------------------------------------------------------------------

    def _end(self) -> None:
        """Wait until somebody asks for the end, and bring it about."""
        self._ending.wait()
        try:
            self._drain()
        finally:
            self._running = False
            self._ended.set()
            if self._bell is not None:
                self._bell.ring()

    def _drain(self) -> None:
        """The order matters: the leases are renewed until the very last outcome was accepted."""
        grace = self.options.grace if self._grace is None else self._grace
        deadline = time.monotonic() + grace
        for part in (self._fetcher, self._reclaimer, self._scheduler, self._ticker):
            part.stop()
        self._intake.close()
        self._threads.stop()
        self._loop.stop()
        while self._busy and time.monotonic() < deadline:
            if self._hurry.wait(0.01):
                break
        self._give_up_running()
        for reader in ("fetcher", "reclaimer"):  # what they still read is handed back
            self._parts[reader].join(self.options.poll + LAST_WORDS)
        self._settler.stop(max(deadline, time.monotonic()) + LAST_WORDS)
        told = self._parts["settler"].join(max(deadline - time.monotonic(), 0.0) + 2 * LAST_WORDS)
        self._loop.close(INTERRUPT)
        self._watch.stop()
        self._heartbeat.stop()
        self._parts["watch"].join(LAST_WORDS)
        if told and self._parts["heartbeat"].join(LAST_WORDS):
            self._retire()
        else:
            log.error(
                "the broker does not answer; what this worker held will be taken over when the leases end"
            )
        if not self._queue.flush(LAST_WORDS):
            log.error("not every record of what this worker did could be written in time")
        log.info("worker %s ended: %s", self.id, self.counters)

    @property
    def _busy(self) -> bool:
        """Whether a job was taken and has no outcome yet; a thread may be just about to run it."""
        return self._intake.outstanding > 0 or self._threads.busy or self._loop.busy

    def _give_up_running(self) -> None:
        given_up = self._threads.interrupt() + self._loop.interrupt()
        if not given_up:
            return
        # A moment for the interrupted handlers: whoever takes the job next should find them gone.
        limit = time.monotonic() + INTERRUPT
        while (self._threads.interrupted or self._loop.interrupted) and time.monotonic() < limit:
            time.sleep(0.005)
        self._intake.hand_back(given_up)

    def _retire(self) -> None:
        try:
            self._queue.driver.retire(self.id, self.options.queues)
        except BrokerError as error:
            log.warning("the worker could not sign off, and will be forgotten by itself: %s", error)

    # -- what can happen ---------------------------------------------------------------------------

    def _on_idle(self) -> None:
        self._settler.hurry()
        self._fetcher.nudge()

    def _on_signal(self) -> None:
        self._signalled += 1
        # Events are not touched here, see Doorbell: plain attributes and the pipe only.
        bell = self._bell
        if bell is not None:
            bell.ring()

    def _on_crash(self, part: str, error: Exception) -> None:
        self._crash = self._crash or (part, error)
        self.exit_code = EXIT_CRASHED
        self.request_stop()

    def _on_hung(self, task: Task) -> None:
        """A handler outlived its hard timeout. Its job has an outcome; its thread cannot be ended."""
        log.critical(
            "job %s (%s) hangs past its timeout of %s s and cannot be interrupted; %s",
            task.envelope.id,
            task.envelope.type,
            task.envelope.timeout,
            "this process hands back its jobs and is replaced"
            if self._supervised
            else "its thread is left behind and another one takes its place",
        )
        threading.Thread(target=self._settle_hung, args=(task,), name="millstream-hung", daemon=True).start()

    def _settle_hung(self, task: Task) -> None:
        settlement = task.outcome  # what hangs is its failed()
        if settlement is None:
            timeout = task.envelope.timeout or 0.0
            started = time.monotonic() - timeout - self.options.hard_timeout_grace
            settlement, finished, error = self._pipeline.failure(task, timed_out(task), started)
            if finished:
                self._call_failed_of_hung(task, error)
        self._settler.put(settlement)
        self._settler.hurry()
        self._threads.replace(task)
        self._loop.replace(task)
        if self._supervised:
            self.exit_code = EXIT_HUNG
            self.request_stop()

    def _call_failed_of_hung(self, task: Task, error: BaseException) -> None:
        """For so long as the handler had beyond its timeout: nothing may keep the job from its end."""
        # An async handler hangs on the loop, so a coroutine gets one of its own.
        run = asyncio.run if task.kind.is_async else self._loop.run
        call = threading.Thread(
            target=lambda: self._pipeline.call_failed(self._pipeline.build(task), error, run),
            name="millstream-failed",
            daemon=True,
        )
        call.start()
        call.join(self.options.hard_timeout_grace)

    def _keep_limits(self) -> None:
        """End when enough was done, or too much memory is in use."""
        most, memory = self.options.max_jobs, self.options.max_memory_mb
        if most is None and memory is None:
            return
        while not self._ending.wait(CHECK):
            used = resident_mb()
            if most is not None and self._has_done(most):
                log.info("worker %s has run %d jobs and is recycled", self.id, self.counters.finished)
            elif memory is not None and used > memory:
                log.warning("worker %s uses %d MB of the %d it may, and is recycled", self.id, used, memory)
            else:
                continue
            self.exit_code = EXIT_RECYCLED
            self.request_stop()

    def _has_done(self, most: int) -> bool:
        # The fetcher takes no more than that; of what it took some may have been lost, or handed back.
        return self.counters.finished >= most or (
            self._intake.admitted >= most and not self._intake.outstanding and not self._settler.unsettled
        )


def resident_mb() -> int:
    """The memory that this process holds now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    except OSError:  # no /proc: the highest value so far has to do
        import resource  # noqa: PLC0415 - not on every platform

        scale = 1_000_000 if os.uname().sysname == "Darwin" else 1_000
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // scale
