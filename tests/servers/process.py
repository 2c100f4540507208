"""A server process with a folder and a port: started, waited for, stopped by its pid, never leaked."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NoReturn, Self

import pytest

LACKS = "this machine lacks: "  # how the summary in conftest.py recognises these skips
START_TIMEOUT = 30.0
STOP_GRACE = 5.0
_POLL = 0.004


def requirement_missing(reason: str) -> NoReturn:
    """Skip the test because of the machine, or fail where the machine was promised to be complete."""
    if os.environ.get("MILLSTREAM_REQUIRE_ALL") == "1":
        pytest.fail(f"MILLSTREAM_REQUIRE_ALL=1, but {LACKS}{reason}", pytrace=False)
    pytest.skip(LACKS + reason)


def free_port(*, below: int = 32768) -> int:
    """A port that nothing listens on.

    Taken from below the range that the system hands out to outgoing connections, so that no client
    socket slips in between this call and the server's bind.
    """
    for _ in range(200):
        port = random.randrange(15000, below)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("found no free port in 200 attempts")


class _Janitor:
    """A tiny process that outlives this one by a moment and ends what it left behind.

    `atexit` does not run when a test run is killed; end-of-file on a pipe always arrives.
    """

    SCRIPT = """
import os, shutil, signal, sys
left = {}
for line in sys.stdin:
    sign, pid, folder = line.rstrip("\\n").split(" ", 2)
    if sign == "+": left[int(pid)] = folder
    else: left.pop(int(pid), None)
for pid, folder in left.items():
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
    shutil.rmtree(folder, ignore_errors=True)
"""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def note(self, sign: str, pid: int, folder: Path) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-E", "-c", self.SCRIPT],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                atexit.register(self._end)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{sign} {pid} {folder}\n")
            self._process.stdin.flush()

    def _end(self) -> None:
        assert self._process is not None
        self._process.communicate()


_janitor = _Janitor()


class Server(ABC):
    """One server process. `start()` returns when it answers; `stop()` when it is gone."""

    start_timeout = START_TIMEOUT  # a JVM on a busy machine needs more

    def __init__(self) -> None:
        self.port = 0
        self.folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line, with self.port and self.folder in it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server is ready; False or an OSError while it is not."""

    def choose_port(self) -> int:
        return free_port()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        if self.running:
            return self
        fresh = not self.port
        if fresh:
            self.folder = Path(tempfile.mkdtemp(prefix=f"millstream-{type(self).__name__.lower()}-"))
        for _ in range(5 if fresh else 40):
            if fresh:
                self.port = self.choose_port()
            said = len(self.log())
            if self._start_once():
                return self
            if "in use" not in self.log()[said:].lower():
                break
            if not fresh:
                time.sleep(0.25)  # the children of a killed PostgreSQL hold its memory until they notice
        raise RuntimeError(f"{type(self).__name__} did not start:\n{self.log()[-4000:]}")

    def _start_once(self) -> bool:
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # a Ctrl-C is for the tests, which then stop the server
            )
        _janitor.note("+", self._process.pid, self.folder)
        deadline = time.monotonic() + self.start_timeout
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._forget()
                return False
            try:
                if self.answers():
                    return True
            except OSError:
                pass
            time.sleep(_POLL)
        self.kill()
        return False

    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL after a grace. The folder and the port stay this server's."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def kill(self) -> None:
        """SIGKILL: what a crash looks like from outside."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop in order and start again on the same port with the same folder."""
        self.terminate()
        self.start()

    def stop(self) -> None:
        """Stop and remove the folder; the object can start afresh on another port."""
        self.terminate()
        if self.port:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.port = 0

    def _forget(self) -> None:
        assert self._process is not None
        _janitor.note("-", self._process.pid, self.folder)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_until(condition: object, what: str, timeout: float = 60.0) -> None:
    """Poll ``condition`` until it is true; for state that only a server's own commands can show."""
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout} s in vain for: {what}")
        time.sleep(_POLL)
