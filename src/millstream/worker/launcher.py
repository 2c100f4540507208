"""The launcher: a supervisor that keeps N worker processes running.

Each process is a fresh interpreter, not a fork: it shares no connection, lock or thread with anybody, and
after SIGHUP it runs the code as it is then. What the supervisor does:

    SIGTERM, SIGINT    every process finishes or hands back within its grace; a second one: hands back now
    SIGHUP             one process after the other is replaced; the old one ends when the new one is ready
    a process died     it is started again, at once or, where it keeps dying at once, after a growing delay
    the launcher dies  its processes see the end of their socket, and end in good order
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from millstream.worker.doorbell import Doorbell, signals
from millstream.worker.options import (
    EXIT_CONFIG,
    EXIT_CRASHED,
    EXIT_HUNG,
    EXIT_OK,
    EXIT_RECYCLED,
    LaunchOptions,
)
from millstream.worker.process import READY, Orders, configure_logging

log = logging.getLogger("millstream.launcher")
QUICK = 0.5  # seconds; a process that was ready for less than this died at once
KILL_AFTER = 10.0  # seconds beyond the grace, and its last words, until SIGKILL
# The last two: asked to end before it was ready.
IN_ORDER = (EXIT_OK, EXIT_RECYCLED, EXIT_HUNG, -signal.SIGTERM, -signal.SIGINT)
LOOK = 0.2  # seconds between looks; signals and processes that get ready ring at once


class Child:
    """One worker process, and this side of its socket."""

    def __init__(self, target: str, options: LaunchOptions) -> None:
        ours, theirs = socket.socketpair()
        orders = Orders(target, options.worker, theirs.fileno(), options.connection, options.log_level)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millstream.worker.process", msgspec.json.encode(orders).decode()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on
            )
        ours.setblocking(False)
        self.socket = ours
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.asked_at: float | None = None  # when it was asked to end

    def look(self) -> None:
        """Note that it got ready."""
        if not self.ready:
            with contextlib.suppress(OSError):  # nothing to read yet; or it died, which poll() says
                if self.socket.recv(64).startswith(READY):
                    self.ready_at = time.monotonic()

    @property
    def ready(self) -> bool:
        return self.ready_at is not None

    def ask(self, number: int) -> None:
        if self.process.poll() is None:
            self.asked_at = self.asked_at or time.monotonic()
            self.process.send_signal(number)

    def close(self) -> None:
        self.socket.close()


class Launcher:
    """Runs until a signal; `run` returns the exit code."""

    def __init__(self, target: str, options: LaunchOptions) -> None:
        self._target, self._options = target, options
        self._children: list[Child] = []
        self._retired: list[Child] = []  # replaced by a newer one, and ending
        self._stale: list[Child] = []  # to be replaced, one by one
        self._replacement: Child | None = None
        self._stops = self._reloads = 0
        self._told = 0  # stops that were passed on
        self._ever_ready = False
        self._quick_deaths = 0
        self._next_start = 0.0
        self._code = EXIT_OK
        self._bell = Doorbell()

    def run(self) -> int:
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGHUP: self._on_hup,
        }
        handlers[signal.SIGCHLD] = self._bell.ring
        try:
            with signals(handlers):
                while not self._stops and self._code == EXIT_OK:
                    self._reap()
                    self._fill()
                    self._reload()
                    self._bell.wait(LOOK, [each.socket.fileno() for each in self._all() if not each.ready])
                self._end()
        finally:
            for child in self._all():
                child.process.kill()
                child.process.wait()
                child.close()
            self._bell.close()
        return self._code

    def _all(self) -> list[Child]:
        return [*self._children, *self._retired, *([self._replacement] if self._replacement else [])]

    def _on_stop(self) -> None:
        self._stops += 1
        self._bell.ring()

    def _on_hup(self) -> None:
        self._reloads += 1
        self._bell.ring()

    # -- keeping N alive ---------------------------------------------------------------------------

    def _fill(self) -> None:
        if self._code != EXIT_OK or time.monotonic() < self._next_start:
            return
        while len(self._children) < self._options.workers:
            self._children.append(Child(self._target, self._options))

    def _reap(self) -> None:
        now = time.monotonic()
        for child in self._all():
            child.look()
            self._ever_ready = self._ever_ready or child.ready
            code = child.process.poll()
            if code is None:
                self._kill_if_overdue(child, now)
                continue
            child.close()
            if child is self._replacement:
                self._replacement = None
                self._stale = []
                log.error("the new code does not start (exit code %d); the old processes go on", code)
            elif child in self._retired:
                self._retired.remove(child)
            else:
                self._children.remove(child)
                if child in self._stale:
                    self._stale.remove(child)
                self._note_death(child, code, now)

    def _kill_if_overdue(self, child: Child, now: float) -> None:
        allowed = self._options.worker.grace + KILL_AFTER
        if (
            not child.ready
            and child.asked_at is None
            and now - child.started_at > self._options.start_timeout
        ):
            log.error("process %d was not ready within %g s", child.process.pid, self._options.start_timeout)
            child.process.kill()
        elif child.asked_at is not None and now - child.asked_at > allowed:
            log.error("process %d did not end within its grace and is killed", child.process.pid)
            child.process.kill()

    def _note_death(self, child: Child, code: int, now: float) -> None:
        lived = now - child.started_at
        if code == EXIT_CONFIG and not self._ever_ready:
            self._code = EXIT_CONFIG  # it said why; starting it again cannot help
            return
        if code in (EXIT_RECYCLED, EXIT_HUNG) and child.ready:
            log.info("process %d is replaced (%s)", child.process.pid, _ending(code))
        else:
            log.error(
                "process %d ended (%s) after %.1f s; starting another",
                child.process.pid,
                _ending(code),
                lived,
            )
        if (child.ready_at is None or now - child.ready_at < QUICK) and code != EXIT_RECYCLED:
            self._quick_deaths += 1
            delay = min(self._options.max_backoff, 0.1 * 2 ** min(self._quick_deaths, 20))
            self._next_start = now + delay
            log.error("processes keep dying at once; the next starts in %.1f s", delay)
        else:
            self._quick_deaths = 0

    # -- reload ------------------------------------------------------------------------------------

    def _reload(self) -> None:
        if self._reloads:
            self._reloads = 0
            self._stale = list(self._children)
            log.info("reloading: %d processes are replaced, one by one", len(self._stale))
        if self._replacement is not None and self._replacement.ready:
            old = self._stale.pop(0) if self._stale else None
            self._children.append(self._replacement)
            self._replacement = None
            if old is not None:
                self._children.remove(old)
                self._retired.append(old)
                old.ask(signal.SIGTERM)
        if self._stale and self._replacement is None and not self._retired:
            self._replacement = Child(self._target, self._options)

    # -- the end -----------------------------------------------------------------------------------

    def _end(self) -> None:
        log.info("stopping %d processes; a second signal hands back what still runs", len(self._all()))
        while self._all():
            while self._told < max(1, self._stops):
                # Not the same signal twice: the second one could be swallowed while the first is pending.
                number = signal.SIGINT if self._told else signal.SIGTERM
                self._told += 1
                for child in self._all():
                    child.ask(number)
            for child in self._all():
                child.look()
                if (code := child.process.poll()) is not None:
                    self._forget(child)
                    if code not in IN_ORDER and self._code == EXIT_OK:
                        self._code = EXIT_CRASHED
                else:
                    self._kill_if_overdue(child, time.monotonic())
            self._bell.wait(LOOK)

    def _forget(self, child: Child) -> None:
        child.close()
        for children in (self._children, self._retired):
            if child in children:
                children.remove(child)
        if child is self._replacement:
            self._replacement = None


def _ending(code: int) -> str:
    names = {EXIT_OK: "in good order", EXIT_CRASHED: "crashed", EXIT_RECYCLED: "recycled", EXIT_HUNG: "hung"}
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return names.get(code, f"exit code {code}")


def launch(target: str, options: LaunchOptions | None = None) -> int:
    """Run workers for ``target`` (``module:name``) until a signal ends them; the exit code.

    0 after a stop, 78 when the target does not import or is no queue (it is said on stderr), 1 when a process
    crashed while ending. Call it in the main thread, because it handles signals.
    """
    options = options or LaunchOptions()
    configure_logging(options.log_level)
    return Launcher(target, options).run()
