"""millstream archive, as a script sees it; and the archive in millstream.toml and the environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream import Queue, QueueManager, SqlArchive
from millstream.cli import main
from millstream.errors import ConfigurationError
from millstream.settings import load_settings
from tests.archive.conftest import OpenQueue
from tests.archive.jobs import Note
from tests.servers import RedisServer


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run_one(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["millstream", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run_one


@pytest.fixture
def queue(tmp_path: Path, redis7: RedisServer, open_queue: OpenQueue, prefix: str) -> Queue:
    """A queue on Redis that millstream.toml describes, with an archive in the file archive.db."""
    (tmp_path / "millstream.toml").write_text(
        f'[connections.main]\nurl = "{redis7.url}"\nprefix = "{prefix}"\n'
        f'archive = "sqlite:///{tmp_path}/archive.db"\n'
    )
    settings = load_settings(tmp_path / "millstream.toml", {})
    known = settings.connections["main"]
    return open_queue(known.url, **known.options)


def test_list_show_and_search(run: Run, queue: Queue) -> None:
    good, bad = queue.push(Note(number=1)), queue.push(Note(number=2, how="fail"))
    with queue.worker(["notes"], poll=0.05):
        assert queue.drain(["notes"], timeout=30)
    assert queue.flush()
    listed = run("archive", "list")
    assert listed.code == 0
    assert good in listed.out
    assert "completed" in listed.out
    found = json.loads(run("archive", "search", "--state", "failed", "--error", "NOTE: 2", "--json").out)
    assert [job["job_id"] for job in found] == [bad]
    assert run("archive", "search", "--tag", "nothing").out == "no jobs\n"
    page = run("archive", "list", "--limit", "1")
    cursor = page.err.strip().partition("--after ")[2]
    assert len(run("archive", "list", "--after", cursor, "--limit", "5").out.splitlines()) == 2
    shown = run("archive", "show", bad)
    assert shown.code == 0
    assert "retried" in shown.out
    assert "raise ValueError" in shown.out
    story = json.loads(run("archive", "show", bad, "--json").out)
    assert [record["state"] for record in story["history"]] == ["enqueued", "retried", "failed"]


def test_pending_restore_and_purge(run: Run, queue: Queue) -> None:
    ids = queue.push_many([Note(number=number) for number in range(3)])
    queue.push(Note(number=3).delay(600))
    assert queue.flush()
    listed = run("archive", "pending", "--limit", "2")
    assert listed.out.endswith("4 pending\n")
    lines = run("archive", "pending", "--json").out.splitlines()
    assert [json.loads(line)["job_id"] for line in lines][:3] == ids
    queue.driver.inner.clear("notes")  # type: ignore[attr-defined]  # behind the archive's back
    assert run("archive", "restore", "--dry-run").out == "notes: 4\n4 would be pushed\n"
    assert queue.size("notes") == 0
    done = run("archive", "restore", "--yes", "--json")
    assert done.code == 0
    assert json.loads(done.out)["pushed"] == 4
    assert queue.size("notes") == 4
    assert queue.sizes("notes").delayed == 1
    with queue.worker(["notes"], poll=0.05):
        queue.driver.cancel(queue.delayed("notes")[0].id, "notes")
        assert queue.drain(["notes"], timeout=30)
    assert queue.flush()
    assert run("archive", "pending").out == "0 pending\n"
    assert run("archive", "purge", "--older-than", "0s", "--yes").out == "8 records and 4 jobs deleted\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "nobody"), 1, "does not know a job nobody"),
        (("list", "--archive", "sqlite:///missing.db"), 2, "there is no archive"),
        (("list", "--archive", "redis://localhost"), 2, "no broker for the scheme 'redis'"),
        (("list", "--connection", "other"), 2, "there is no connection 'other'"),
        (("list", "--after", "x"), 2, "after must be the cursor"),
        (("list", "--tables", "Bad Name", "--archive", "sqlite:///x.db"), 2, "cannot begin a table's name"),
        (("search", "--state", "lost"), 2, "'lost' is not one of"),
        (("search", "--since", "soon"), 2, "is not a time"),
        (("purge",), 2, "older-than"),
        (("purge", "--older-than", "soon"), 2, "not a duration"),
    ],
)
def test_errors_are_one_readable_line(
    run: Run, queue: Queue, arguments: tuple[str, ...], code: int, says: str
) -> None:
    queue.push(Note())
    assert queue.flush()
    done = run("archive", *arguments)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_connection_without_an_archive_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text('[connections.main]\nurl = "memory://"\n')
    done = run("archive", "list")
    assert done.code == 2
    assert "has no archive; give --archive URL" in done.err


# -- settings ----------------------------------------------------------------------------------------------


def test_the_file_may_say_it_all(tmp_path: Path) -> None:
    file = tmp_path / "millstream.toml"
    file.write_text(
        "[connections.main]\n"
        'url = "memory://"\n'
        "history = true\n"
        f'archive = {{ url = "sqlite:///{tmp_path}/a.db", completed = false, retention = 60 }}\n'
    )
    with QueueManager(settings=load_settings(file, {})) as manager:
        queue = manager.connection()
        assert queue.recorder is not None
        assert set(queue.recorder.outlets) == {"archive", "history"}
        job_id = queue.push(Note())
        assert queue.flush()
        with SqlArchive(f"sqlite:///{tmp_path}/a.db") as archive:
            assert archive.find(job_id) is not None


def test_the_environment_may_say_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    base = "MILLSTREAM_CONNECTIONS__MAIN__"
    settings = load_settings(
        None, {f"{base}URL": "memory://", f"{base}ARCHIVE": url, f"{base}HISTORY": "true"}
    )
    assert settings.connections["main"].options == {"archive": url, "history": True}
    named = load_settings(None, {f"{base}URL": "memory://", f"{base}HISTORY": "story"})
    assert named.connections["main"].options == {"history": "story"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('archive = "kafka://x"', "no broker for the scheme 'kafka'"),
        ("archive = { completed = true }", "needs a url"),
        ('archive = { url = "sqlite:///a.db", complete = true }', "unknown archive option 'complete'"),
        ("archive = 7", "must be a SqlArchive"),
        ("history = 7", "history must be True"),
        ("history = { lenght = 7 }", "unknown history option 'lenght'"),
    ],
)
def test_a_mistake_in_the_file_is_shown_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "millstream.toml"
    file.write_text(f'[connections.main]\nurl = "memory://"\n{line}\n')
    with pytest.raises(ConfigurationError, match=f":3: .*{says}"):
        load_settings(file, {})
