"""A contender from outside: a producer process that is waited for, worker processes that are stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs import environments
from benchmarks.jobs.inside.meter import GATE, Sheet, now

INSIDE = Path(__file__).parent / "inside"
PRODUCER_LIMIT = 300.0  # seconds
GRACE = 2.0  # seconds between SIGTERM and SIGKILL


class Failed(Exception):
    """A contender could not do what was measured; the message is its last words."""


@dataclass(frozen=True)
class Contender:
    """One peer with one way of running its worker."""

    name: str
    variant: str
    python: Path
    settings: str
    kinds: tuple[str, ...]
    bulk: str
    spawns: bool  # one command makes all the processes
    version: str
    tasks: bool = False  # it has a push for asyncio beside the other
    peers: Path = environments.PEERS  # the folder of its adapter's folder

    @property
    def label(self) -> str:
        return f"{self.name} ({self.variant})" if self.variant else self.name

    @property
    def folder(self) -> Path:
        return self.peers / self.name

    @property
    def ours(self) -> bool:
        return self.name == "millstream"

    @property
    def is_limit(self) -> bool:
        return self.name == "bare"

    @property
    def is_peer(self) -> bool:
        return self.name not in environments.OWN

    def kind(self, wanted: str) -> str | None:
        """``wanted`` if there is such a handler. The limit has no handler at all, so it serves for both."""
        return wanted if wanted in self.kinds else None

    def environment(self, url: str, kind: str, processes: int, sheet: Measurement | None) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        keep |= {
            "PYTHONPATH": f"{INSIDE}{os.pathsep}{self.folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "BENCH_URL": url,
            "BENCH_KIND": kind,
            "BENCH_VARIANT": self.variant,
            "BENCH_PROCESSES": str(processes),
        }
        if sheet is not None:
            keep |= {"BENCH_SHEET": str(sheet.path), "BENCH_CAPACITY": str(sheet.capacity)}
        return keep

    def produce(
        self, action: str, count: int, kind: str, url: str, sheet: Measurement | None = None
    ) -> tuple[float, float]:
        """Push ``count`` jobs in a process of its own: the rate, and µs of its processor time for each."""
        done = _run(self, ("produce", action, str(count)), self.environment(url, kind, 1, sheet))
        return done["count"] / done["seconds"], done["processor"] / done["count"] * 1e6

    @contextmanager
    def producer(self, kind: str, url: str) -> Iterator[Producer]:
        """A process that pushes whenever it is told to, for the duration of the block."""
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = _start(self, ("turns",), self.environment(url, kind, 1, None), **pipes)
        try:
            yield Producer(process)
        finally:
            _end(process)

    @contextmanager
    def workers(self, kind: str, processes: int, url: str, sheet: Measurement) -> Iterator[Workers]:
        """So many worker processes, for the duration of the block."""
        environment = self.environment(url, kind, processes, sheet)
        workers = Workers(self, sheet)
        try:
            for _ in range(1 if self.spawns else processes):
                workers.start(environment)
            yield workers
        finally:
            workers.stop()


class Producer:
    """A contender's process that waits for its next turn."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said("ready")

    def push(self, action: str, count: int) -> tuple[float, float]:
        """Push so many, "one" by one or in "bulk": seconds, and seconds of processor time, for each."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{action} {count}\n")
        self._process.stdin.flush()
        done = json.loads(self._said("{"))
        return done["seconds"] / count, done["processor"] / count

    def _said(self, beginning: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # a library may have something to say as well
            if line.startswith(beginning):
                return line
        raise Failed("the producer ended")


def describe(
    name: str, url: str, *, make: bool, peers: Path = environments.PEERS
) -> tuple[list[Contender], str]:
    """The contenders that an adapter stands for, or none and the reason."""
    python, reason = environments.find(name, make=make, peers=peers)
    if python is None:
        return [], reason
    blank = Contender(name, "", python, "", (), "", False, "", peers=peers)
    try:
        about = _run(blank, ("describe",), blank.environment(url, "sync", 1, None))
    except Failed as error:
        return [], str(error)
    return [
        Contender(
            name,
            variant,
            python,
            settings,
            tuple(about["kinds"]),
            about["bulk"],
            variant in about["spawns"],
            about["version"],
            about["tasks"],
            peers,
        )
        for variant, settings in about["settings"].items()
    ], ""


def _start(
    contender: Contender, words: tuple[str, ...], environment: dict[str, str], *, stdin: int, stderr: int
) -> subprocess.Popen[str]:
    """A process of the contender's own Python, in a session of its own, whose output is read here."""
    return subprocess.Popen(
        [str(contender.python), "-m", "contender", *words],
        cwd=contender.folder,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def _run(contender: Contender, action: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
    words = action[1:] if action[0] == "produce" else action
    process = _start(contender, words, environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=PRODUCER_LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(action)} took more than {PRODUCER_LIMIT:.0f} s") from None
    finally:
        _end(process)
    if process.returncode:
        raise Failed(f"{' '.join(action)} failed: {_last_words(errors or out)}")
    try:
        return dict(json.loads(out.splitlines()[-1]))
    except (IndexError, ValueError):
        raise Failed(f"{' '.join(action)} printed no result: {_last_words(out + errors)}") from None


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _end(process: subprocess.Popen[Any], grace: float = 0.0) -> None:
    """Stop a process that was started with a session of its own, and whatever it started in it."""
    if process.poll() is None and grace:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class Measurement:
    """The sheet of one measurement (see inside/meter.py), and the gate's key."""

    capacity: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="millstream-bench-")))

    def __post_init__(self) -> None:
        self.path = self.folder / "sheet"
        self.sheet = Sheet(self.path, self.capacity)
        self._done = 0

    def open_gate(self) -> int:
        self.sheet.header[GATE] = moment = now()
        return moment

    def progress(self, wanted: int) -> int:
        """How many of the first ``wanted`` jobs have started without a gap; each slot is looked at once."""
        started, done = self.sheet.started, self._done
        while done < wanted and started[done] > 1:
            done += 1
        self._done = done
        return done

    def __enter__(self) -> Measurement:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Workers:
    """Worker processes; `stop` leaves none behind."""

    def __init__(self, contender: Contender, measurement: Measurement) -> None:
        self._contender, self._measurement = contender, measurement
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = measurement.folder / "worker.log"

    def start(self, environment: dict[str, str]) -> None:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [str(self._contender.python), "-m", "contender", "work"],
                cwd=self._contender.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def check(self) -> None:
        """Raise if one has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise Failed(f"a worker ended with {process.returncode}: {_last_words(self.log())}")

    def wait_at_gate(self, processes: int, patience: float) -> bool:
        """Wait until a handler was called in so many processes; False if some did not come in time."""
        deadline = time.monotonic() + patience
        while len(self._measurement.sheet.processes()) < processes:
            self.check()
            if time.monotonic() > deadline:
                if not self._measurement.sheet.processes():
                    raise Failed(f"no job started within {patience:.0f} s: {_last_words(self.log())}")
                return False
            time.sleep(0.01)
        return True

    def processor_time(self) -> float:
        """Seconds of processor time that the workers have used so far, those above the handlers too."""
        return sum(map(_processor_time, {*self._measurement.sheet.processes(), *self._pids()}))

    def _pids(self) -> set[int]:
        return {process.pid for process in self._processes}

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        for process in self._processes:
            _end(process, GRACE)
        mine = self._pids()
        for pid in self._measurement.sheet.processes():
            if pid not in mine and _runs_our_sheet(pid, self._measurement.path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._processes.clear()


def _processor_time(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _runs_our_sheet(pid: int, path: Path) -> bool:
    """Whether ``pid`` is still a worker of this measurement, and no process that got its number since."""
    try:
        return str(path).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
