"""The end of the demo: Spark over what its workers just did; and what happens where that cannot be."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import millstream
from millstream.cli import demo_spark
from millstream.cli.demo import say
from tests.spark.conftest import require_spark


@pytest.mark.timeout(400)
def test_the_demo_ends_with_a_table_and_a_report_that_say_something(tmp_path: Path) -> None:
    require_spark()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    path = os.pathsep.join(
        [str(Path(millstream.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from millstream.cli import main; main()",
            "demo",
            "--out",
            str(tmp_path / "demo"),
        ],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "510 finished jobs" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("shop.ChargeCard"))
    assert row.split()[1] == "170"
    assert row.split()[2] == "11.2%"  # every ninth card is declined: 19 of 170
    assert "Flaky: shop.SyncStock" in done.stdout
    assert "Little's law" in done.stdout
    assert str(tmp_path / "demo" / "report.html") in done.stdout
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == 10  # five, each for a wide and for a narrow screen
    assert "shop.ResizeImage" in report
    assert (tmp_path / "demo" / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "demo" / "metrics.parquet").glob("*.parquet"))


@pytest.fixture
def closed_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shop takes four seconds; these tests are about what comes after it."""
    monkeypatch.setattr(demo_spark, "open_shop", lambda queue: (0, True))


def shown(tmp_path: Path) -> tuple[bool, str]:
    out = Console(file=io.StringIO(), width=300)
    well = demo_spark.show_spark(f"sqlite:///{tmp_path}/jobs.db", str(tmp_path / "demo"), out, say)
    assert isinstance(out.file, io.StringIO)
    return well, out.file.getvalue()


@pytest.mark.usefixtures("closed_shop")
def test_without_pyspark_it_says_so_and_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_spark, "find_spec", lambda name: None)
    well, text = shown(tmp_path)
    assert well
    assert "Left out: PySpark is not installed; run: pip install 'millstream[spark]'" in text


@pytest.mark.usefixtures("closed_shop")
def test_without_java_it_says_so_and_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_spark, "run_bounded", lambda program, timeout: (2, "Error: no Java was found\n"))
    well, text = shown(tmp_path)
    assert well
    assert "Left out: no Java was found" in text
    assert "Look at it" not in text


@pytest.mark.usefixtures("closed_shop")
def test_any_other_failure_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_spark, "run_bounded", lambda program, timeout: (1, "Error: disk full\n"))
    well, _ = shown(tmp_path)
    assert not well
    assert "The metrics failed: Error: disk full" in capsys.readouterr().err


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    code, words = demo_spark.run_bounded([sys.executable, "-c", script, str(pid_file)], timeout=5.0)
    assert (code, words) == (None, "it took more than 5 seconds")
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(child)


def running(pid: int) -> bool:
    """Whether the process lives; one that ended and nobody has asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_ends_gives_its_code_and_words() -> None:
    assert demo_spark.run_bounded([sys.executable, "-c", "print('well')"], 60.0) == (0, "well\n")
    failing = "import sys; print('lost'); sys.exit('no Java')"
    assert demo_spark.run_bounded([sys.executable, "-c", failing], 60.0) == (1, "no Java\n")
