"""A standalone Spark cluster: a master and two workers, real processes on the loopback address."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import Server

ROOT = Path(__file__).parents[2]


def spark_program(
    name: str, *arguments: str, folder: Path, memory: str = "256m", python: str | None = None
) -> list[str]:
    """A script of the PySpark package. It ends in `exec java`: its pid is the JVM's.

    Its Python is this one, with Millstream and the tests on its path; or ``python``, with what that has.
    """
    import pyspark

    from millstream.spark.java import find_java

    settings = {
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",  # also for its web page, which would listen everywhere otherwise
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_NO_DAEMONIZE": "1",
        "PYTHONPATH": "" if python else os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYSPARK_PYTHON": python or sys.executable,
    }
    script = Path(pyspark.__file__).parent / "bin" / name
    return ["env", *(f"{name}={value}" for name, value in settings.items()), str(script), *arguments]


class SparkServer(Server):
    """A JVM of Spark: slow to start where cores are few."""

    start_timeout = 120.0


class Master(SparkServer):
    """The master; workers and drivers come to its URL."""

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return spark_program(
            "spark-class",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"),
            folder=self.folder,
        )

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True


class Worker(SparkServer):
    """A worker of one core, which starts an executor for each application."""

    def __init__(self, master: Master, python: str | None = None) -> None:
        super().__init__()
        self._master, self._python = master, python

    def command(self) -> list[str]:
        return spark_program(
            "spark-class",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"),
            *("--cores", "1", "--memory", "700M", "--work-dir", str(self.folder / "work")),
            self._master.url,
            folder=self.folder,
            python=self._python,
        )

    def answers(self) -> bool:
        return "Successfully registered with master" in self.log()

    def executors(self) -> list[int]:
        """The pids of the executors' JVMs: the children of the worker's."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                children = (task / "children").read_text().split()
            except OSError:  # that thread has just ended
                continue
            found += [int(pid) for pid in children if _is_executor(int(pid))]
        return found


def _is_executor(pid: int) -> bool:
    try:
        return b"ExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Cluster:
    """A master and its workers, started together."""

    def __init__(self, workers: int = 2, python: str | None = None) -> None:
        self.master = Master()
        self.workers = [Worker(self.master, python) for _ in range(workers)]

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        try:
            self.master.start()
            with ThreadPoolExecutor() as pool:  # each waits for its JVM
                list(pool.map(Worker.start, self.workers))
            yield self
        finally:
            for worker in self.workers:
                worker.stop()
            self.master.stop()


def wait_for_file(path: Path, timeout: float = 60.0) -> None:
    """Within a task: wait until the test says so. A task that waited in vain fails."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.02)
