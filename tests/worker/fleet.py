"""Worker processes under a launcher, as a test's tool: started, watched, signalled, never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Self

import msgspec

from millstream.job import Job
from millstream.queue import connect
from millstream.worker import LaunchOptions, WorkerOptions
from tests.worker.app_lines import Line, read_lines
from tests.worker.conftest import until

RUN = """
import logging, sys, msgspec
from millstream.worker.launcher import launch
from millstream.worker.options import LaunchOptions
logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")
sys.exit(launch(sys.argv[1], msgspec.json.decode(sys.argv[2], type=LaunchOptions)))
"""
ROOT = Path(__file__).parents[2]


class Fleet:
    """A launcher with its processes, on a queue of its own."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        target: str = "tests.worker.app:queue",
        workers: int = 1,
        queues: tuple[str, ...] = (),
        cwd: Path = ROOT,
        queue_url: str | None = None,
        **options: Any,
    ) -> None:
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.url, self.folder, self.target, self.cwd = url, folder, target, cwd
        self.record, self.output = folder / f"{self.name}.record", folder / f"{self.name}.log"
        worker = WorkerOptions(queues=queues or (self.name,), **{"poll": 0.1, "grace": 5.0, **options})
        self.options = LaunchOptions(worker=worker, workers=workers)
        self.queue = connect(queue_url or url)
        self.driver = self.queue.driver
        self._process: subprocess.Popen[bytes] | None = None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> Self:
        environment = {
            **os.environ,
            "MILLSTREAM_TEST_URL": self.url,
            "MILLSTREAM_TEST_LOG": str(self.record),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        command = [sys.executable, "-c", RUN, self.target, msgspec.json.encode(self.options).decode()]
        with open(self.output, "ab") as output:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self.cwd, stdout=output, stderr=output, start_new_session=True
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def end(self) -> None:
        """SIGTERM, and the end of whatever is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.options.worker.grace + 10)
        if self._process is not None and self._process.poll() is None:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self.queue.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    # -- looking -----------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """The worker processes that live now, oldest first."""
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in text.split()]

    def working(self) -> list[int]:
        """The worker processes that have reported to the queue: they have imported the application."""
        return [info.pid for info in self.driver.workers() if self.name in info.queues]

    def lines(self, what: str | None = None) -> list[Line]:
        return [line for line in read_lines(self.record) if what is None or line.what == what]

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def push(self, job: Job) -> str:
        return self.queue.push(job.on_queue(self.name))

    def push_many(self, jobs: list[Job]) -> list[str]:
        return self.queue.push_many([job.on_queue(self.name) for job in jobs])

    def wait_for(self, what: str, count: int = 1, timeout: float = 60.0) -> None:
        try:
            until(lambda: len(self.lines(what)) >= count, f"{count} × {what}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; the fleet said:\n{self.log()[-4000:]}") from None

    def wait_for_log(self, text: str, count: int = 1, timeout: float = 60.0) -> None:
        try:
            until(lambda: self.log().count(text) >= count, f"{text!r} in the log", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; the fleet said:\n{self.log()[-4000:]}") from None
