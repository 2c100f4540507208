"""millstream outbox, as an operator calls it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream import connect
from millstream.cli import main
from millstream.outbox import Outbox, OutboxKeeper
from tests.contract.streams.helpers import until
from tests.outbox.conftest import Note, texts
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from millstream.cli import main; main()", "outbox"]
Run = Callable[..., str]


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def environment(redis7: RedisServer, prefix: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    return clean | {
        "MILLSTREAM_CONNECTIONS__DEFAULT__URL": redis7.url,
        "MILLSTREAM_CONNECTIONS__DEFAULT__PREFIX": prefix,
        "PYTHONPATH": str(ROOT / "src"),
    }


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the program within this process, which is quick; what it wrote."""

    def call(*arguments: str, code: int = 0) -> str:
        out = io.StringIO()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["millstream", "outbox", *arguments])
            both = contextlib.redirect_stdout(out), contextlib.redirect_stderr(out)
            with both[0], both[1], pytest.raises(SystemExit) as ended:
                main()
        assert ended.value.code == code, out.getvalue()
        return out.getvalue()

    return call


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An outbox with three jobs, one of which cannot be read."""
    found = f"sqlite:///{tmp_path}/own.db"
    OutboxKeeper(found).close()
    with sqlite3.connect(tmp_path / "own.db") as own:
        Outbox(own).push_many([Note(text="a"), Note(text="b"), Note(text="c")])
        own.execute("UPDATE millstream_outbox SET body = x'00' WHERE id = 2")
    own.close()
    return found


def test_relay_once_status_retry_and_drop(run: Run, url: str, redis7: RedisServer, prefix: str) -> None:
    assert "3" in run("status", url)
    assert "2 jobs moved" in run("relay", url, "--once")
    with connect(redis7.url, prefix=prefix) as queue:
        assert texts(queue) == ["a", "c"]
    found = json.loads(run("status", url, "--json"))
    assert (found["waiting"], found["aside"]) == (0, 1)
    assert found["set_aside"][0]["row"] == 2
    assert "UnreadableEnvelope" in run("status", url)
    assert "1 jobs wait again" in run("retry", url)
    assert "0 jobs moved" in run("relay", url, "--once")
    assert "0 jobs deleted" in run("drop", url, "77")
    assert "give --all" in run("drop", url, code=2)
    assert "1 jobs deleted" in run("drop", url, "--all")


def test_relay_runs_until_it_is_told_to_end(
    environment: dict[str, str], url: str, tmp_path: Path, redis7: RedisServer, prefix: str
) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "relay", url], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        with connect(redis7.url, prefix=prefix) as queue:
            until(lambda: queue.sizes("notes").waiting == 2, "both jobs", 60)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.wait()


def test_wrong_calls_are_told_so(run: Run, url: str, tmp_path: Path) -> None:
    assert "Missing argument" in run("status", code=2)
    assert "no broker for the scheme 'redis'" in run("status", "redis://localhost", code=2)
    assert "cannot begin a table's name" in run("status", url, "--tables", "1x", code=2)
    assert "one process" in run("relay", url, "--url", "memory://", "--once", code=2)
    assert "is empty" in run("status", f"sqlite:///{tmp_path}/new.db")
