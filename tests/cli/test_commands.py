"""The command line as a script sees it: what it prints, where, and its exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import millstream
from millstream import Bury, Job, Queue, connect
from millstream.cli import main
from tests.servers import RedisServer

MAIN = "from millstream.cli import main; main()"
PROGRAM = [sys.executable, "-c", MAIN]
# A shell's background job ignores Ctrl-C, and so does all that it starts: these tests, too.
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {MAIN}",
]


class Done(NamedTuple):
    stdout: str
    stderr: str


Run = Callable[..., Done]


class Charge(Job, queue="payments", name="clitest.Charge"):
    card: str

    def handle(self) -> None: ...


@pytest.fixture
def prefix() -> str:
    return f"cli-{uuid.uuid4().hex}"


@pytest.fixture
def environment(redis7: RedisServer, prefix: str) -> dict[str, str]:
    """A Redis and a prefix of the test's own, said by the environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    return clean | {
        "MILLSTREAM_CONNECTIONS__DEFAULT__URL": redis7.url,
        "MILLSTREAM_CONNECTIONS__DEFAULT__PREFIX": prefix,
        "PYTHONPATH": str(Path(millstream.__file__).parents[1]),
    }


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the program within this process, which is quick; standard output is no terminal."""

    def call(*arguments: str, code: int = 0, text: str = "") -> Done:
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["millstream", *arguments])
            patch.setattr(sys, "stdin", io.StringIO(text))
            stdout, stderr = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
            with stdout, stderr, pytest.raises(SystemExit) as ended:
                main()
        done = Done(out.getvalue(), err.getvalue())
        assert ended.value.code == code, (ended.value.code, done)
        return done

    return call


@pytest.fixture
def program(environment: dict[str, str], tmp_path: Path) -> Run:
    """Calls the program as a process of its own."""

    def call(*arguments: str, code: int = 0, **env: str) -> Done:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            capture_output=True,
            text=True,
            env=environment | env,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return Done(done.stdout, done.stderr)

    return call


@pytest.fixture
def queue(redis7: RedisServer, prefix: str) -> Iterator[Queue]:
    with connect(redis7.url, prefix=prefix) as opened:
        yield opened


def bury(queue: Queue, card: str, reason: str) -> str:
    job_id = queue.push(Charge(card))
    popped = queue.pop("payments")
    assert popped is not None
    try:
        raise Bury(reason) from ValueError(f"card {card}")
    except Bury as error:
        queue.fail(popped, error)
    return job_id


# -- the program -----------------------------------------------------------------------------------


def test_help_lists_every_command(run: Run) -> None:
    shown = run("--help").stdout
    for name in ("demo", "worker", "push", "status", "dlq", "schedule", "stream", "bench", "version"):
        assert f"\n  {name}" in shown
        assert "Usage:" in run(name, "--help").stdout
    assert run("--version").stdout == f"millstream {millstream.__version__}\n"
    assert run("version").stdout.startswith(f"millstream {millstream.__version__}")


def test_wrong_calls_end_with_two(run: Run) -> None:
    assert "No such command 'nope'" in run("nope", code=2).stderr
    assert "Missing argument" in run("push", code=2).stderr
    assert "not both" in run("status", "--url", "redis://x", "--connection", "y", code=2).stderr
    assert "no broker for the scheme 'ftp'" in run("status", "--url", "ftp://x", code=2).stderr
    assert "there is no connection 'nope'" in run("status", "--connection", "nope", code=2).stderr
    assert run("nope", code=2).stdout == ""
    # How the command is called, a hint at --help, an empty line, and what is wrong.
    lines = run("dlq", "list", "--nope", code=2).stderr.splitlines()
    assert lines[0].startswith("Usage: millstream dlq list")
    assert lines[-1].startswith("Error: No such option '--nope'.")


@pytest.mark.parametrize("since", ["999999999999d", "4000y", "9" * 400, "800000d", "yesterday"])
def test_a_time_that_cannot_be_is_a_wrong_call(run: Run, since: str) -> None:
    said = run("dlq", "list", "--since", since, code=2).stderr
    assert "is not a time; use how long ago (30m, 2h, 1d)" in said


def test_a_server_that_does_not_answer_ends_with_one(run: Run) -> None:
    failed = run("status", "--url", "redis://127.0.0.1:1/0", code=1)
    assert failed.stderr.startswith("Error: ")
    assert "127.0.0.1:1" in failed.stderr


def test_memory_is_refused_because_nobody_else_sees_it(run: Run) -> None:
    refused = run("push", "t", "--url", "memory://", code=2)
    assert "lives and ends with one process" in refused.stderr


def test_without_a_url_it_is_the_file_in_the_working_folder(
    environment: dict[str, str], run: Run, tmp_path: Path
) -> None:
    for name in [name for name in environment if name.startswith("MILLSTREAM_")]:
        del environment[name]
    job_id = run("push", "email.send", "{}", "--queue", "emails").stdout.strip()
    assert "emails" in run("status").stdout
    with connect(f"sqlite:///{tmp_path}/millstream.db") as opened:
        assert opened.find(job_id) is not None
    run("stream", "add", "events", '{"n": 1}')
    assert '{"n": 1}' in run("stream", "range", "events").stdout


def test_a_mistake_in_the_file_gives_the_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text('[connections.default]\nurl = "memory://"\nprefx = "x"\n')
    assert "millstream.toml:3: " in run("status", code=2).stderr


# -- push, status, schedule ------------------------------------------------------------------------


def test_push_prints_the_id(run: Run, queue: Queue) -> None:
    job_id = run(
        "push", "email.send", '{"to": "x"}', "--priority", "urgent", "--queue", "emails"
    ).stdout.strip()
    view = queue.find(job_id)
    assert view is not None
    assert (view.queue, view.priority, view.type, view.payload) == (
        "emails",
        "critical",
        "email.send",
        {"to": "x"},
    )
    delayed = run(
        "push", "t", "-", "--delay", "5m", "--tag", "a", "--tag", "b", text='{"n": 1}'
    ).stdout.strip()
    view = queue.find(delayed)
    assert view is not None
    assert view.envelope is not None
    assert (view.state, view.envelope.tags) == ("delayed", ["a", "b"])
    assert view.due_in == pytest.approx(300, abs=10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("t", "{"), "DATA is not JSON"),
        (("t", "[1]"), "must be a JSON object"),
        (("t", "--delay", "soon"), "'soon' is not a duration"),
        (("t", "--priority", "asap"), "'asap' is not a priority"),
        (("t", "--queue", "a{b}"), "brace"),
        (("t", "--max-attempts", "0"), "max_attempts"),
    ],
)
def test_push_refuses_what_is_wrong(run: Run, queue: Queue, arguments: tuple[str, ...], words: str) -> None:
    assert words in run("push", *arguments, code=2).stderr
    assert queue.queues() == []


def test_status(run: Run, queue: Queue) -> None:
    assert "no queue was ever pushed to" in run("status").stdout
    queue.push_many([Charge(str(number)) for number in range(3)])
    queue.push(Charge("later").delay(60))
    bury(queue, "x", "bad")
    queue.pop("payments")
    queue.pause("payments")
    shown = run("status").stdout
    assert "undelivered" in shown
    assert "paused" in shown
    assert "no worker is alive" in shown
    (row,) = json.loads(run("status", "--json").stdout)["queues"]
    assert {
        name: row[name] for name in ("queue", "undelivered", "in_flight", "delayed", "dead", "paused")
    } == {
        "queue": "payments",
        "undelivered": 2,
        "in_flight": 1,
        "delayed": 1,
        "dead": 1,
        "paused": True,
    }
    assert row["oldest_age"] >= 0
    assert json.loads(run("status", "other", "--json").stdout)["queues"][0]["undelivered"] == 0


def test_status_shows_workers(run: Run, queue: Queue) -> None:
    with queue.worker(["payments"], name="worker-of-the-test"):
        deadline = time.monotonic() + 60
        while not queue.workers():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "worker-of-the-test" in run("status").stdout
        (worker,) = json.loads(run("status", "--json").stdout)["workers"]
        assert worker["queues"] == ["payments"]


def test_status_watch_ends_with_ctrl_c(environment: dict[str, str], tmp_path: Path, queue: Queue) -> None:
    queue.push(Charge("1"))
    watching = subprocess.Popen(
        [*INTERRUPTIBLE, "status", "--watch", "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
        text=True,
    )
    assert watching.stdout is not None
    for _ in range(2):
        assert json.loads(watching.stdout.readline())["queues"][0]["undelivered"] == 1
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 0, errors
    assert "Traceback" not in errors


def test_schedule_list(run: Run, queue: Queue) -> None:
    assert "nothing is delayed" in run("schedule", "list").stdout
    late, soon = queue.push(Charge("a").delay(7200)), queue.push(Charge("b").delay(60).on_queue("other"))
    shown = run("schedule", "list").stdout
    assert shown.index(soon) < shown.index(late)
    assert "clitest.Charge" in shown
    listed = json.loads(run("schedule", "list", "--json").stdout)
    assert [each["id"] for each in listed] == [soon, late]
    assert listed[0]["due_in"] == pytest.approx(60, abs=10)
    assert len(json.loads(run("schedule", "list", "payments", "--json").stdout)) == 1


# -- dead letters ----------------------------------------------------------------------------------


def test_dlq_list_show_and_groups(run: Run, queue: Queue) -> None:
    assert "no dead letters" in run("dlq", "list").stdout
    first, second = bury(queue, "1", "declined"), bury(queue, "2", "stolen")
    shown = run("dlq", "list").stdout
    assert first in shown
    assert second in shown
    assert [each["id"] for each in json.loads(run("dlq", "list", "--reason", "stolen", "--json").stdout)] == [
        second
    ]
    assert json.loads(run("dlq", "list", "--since", "1h", "--type", "nope", "--json").stdout) == []
    groups = json.loads(run("dlq", "list", "--groups", "--json").stdout)
    assert sorted(group["reason"] for group in groups) == ["declined", "stolen"]
    assert "declined" in run("dlq", "list", "--groups").stdout
    shown = run("dlq", "show", first).stdout
    assert "{'card': '1'}" in shown
    assert "ValueError: card 1" in shown  # the traceback
    detail = json.loads(run("dlq", "show", first, "--queue", "payments", "--json").stdout)
    assert detail["payload"] == {"card": "1"}
    assert len(detail["history"]) == 1
    assert "there is no dead letter nope" in run("dlq", "show", "nope", code=1).stderr


def test_dlq_retry(run: Run, queue: Queue) -> None:
    first = bury(queue, "1", "declined")
    bury(queue, "2", "stolen")
    assert "say which" in run("dlq", "retry", code=2).stderr
    assert run("dlq", "retry", first).stdout == "1 retried\n"
    assert run("dlq", "retry", "nope", code=1).stdout == "0 retried\n"
    assert run("dlq", "retry", "--error", "STOLEN", "--rate", "5").stdout == "1 retried\n"
    assert queue.sizes("payments").dead == 0
    assert run("dlq", "retry", "--all").stdout == "0 retried\n"


def test_dead_letters_in_msgpack_need_no_more_than_the_address(
    run: Run, redis7: RedisServer, prefix: str
) -> None:
    with connect(redis7.url, prefix=prefix, codec="msgpack") as packed:
        popped = packed.push(Charge("1").with_priority("high")) and packed.pop("payments")
        assert popped is not None
        packed.fail(popped, Bury("declined"))
        packed.push(Charge("2").delay(60))
        assert "clitest.Charge" in run("dlq", "list").stdout
        assert "clitest.Charge" in run("schedule", "list").stdout
        assert run("dlq", "retry", "--all", "--type", "clitest.Charge").stdout == "1 retried\n"
        again = packed.pop("payments")
        assert again == Charge("1")
        assert again is not None
        assert again.reservation is not None
        assert (again.reservation.priority, again.attempt) == ("high", 1)


def test_dlq_edit_is_checked_with_the_application(program: Run, queue: Queue, app: Path) -> None:
    job_id = bury(queue, "1", "declined")
    assert "edited" in program("dlq", "edit", job_id, '{"card": "2"}').stdout
    wrong = program("dlq", "edit", job_id, '{"crad": "2"}', "--app", "cliapp:queue", code=2)
    assert "no field 'crad'; the fields are: card" in wrong.stderr
    assert (
        "edited and retried"
        in program("dlq", "edit", job_id, '{"card": "3"}', "--app", "cliapp:queue", "--retry").stdout
    )
    assert queue.pop("payments") == Charge("3")


def test_dlq_clear(run: Run, queue: Queue) -> None:
    first = bury(queue, "1", "declined")
    bury(queue, "2", "stolen")
    assert "say which" in run("dlq", "clear", code=2).stderr
    assert run("dlq", "clear", first).stdout == "1 cleared\n"
    run("dlq", "clear", "--all", code=130, text="n\n")
    assert queue.sizes("payments").dead == 1
    assert run("dlq", "clear", "--all", "--yes").stdout == "1 cleared\n"


# -- streams ---------------------------------------------------------------------------------------


def test_streams(run: Run, redis7: RedisServer, prefix: str) -> None:
    stream = f"{prefix}:events"
    ids = [
        run("stream", "add", stream, json.dumps({"n": number}), "--type", "order.paid").stdout.strip()
        for number in range(3)
    ]
    lines = run("stream", "range", stream).stdout.splitlines()
    assert lines[0] == f'{ids[0]} order.paid {{"n": 0}}'
    read = json.loads(run("stream", "range", stream, "--reverse", "-n", "1", "--json").stdout)
    assert read == [{"id": ids[2], "data": {"n": 2}, "type": "order.paid"}]
    assert run("stream", "tail", stream, "-n", "2", "--no-follow").stdout.splitlines() == lines[1:]
    with millstream.open_broker(redis7.url) as broker:
        broker.create_group(stream, "g", start_id="0")
        broker.xreadgroup("g", "me", stream, 1)
    shown = run("stream", "info", stream).stdout
    assert "3 entries" in shown
    assert "me" in shown
    (group,) = json.loads(run("stream", "info", stream, "--json").stdout)["groups"]
    assert (group["lag"], group["pending"]) == (2, 1)
    assert (
        run("stream", "trim", stream, "--max-len", "1").stdout == "0 removed\n"
    )  # the group still needs them
    assert run("stream", "trim", stream, "--max-len", "1", "--plain").stdout == "2 removed\n"
    assert "not both" in run("stream", "trim", stream, "--max-len", "1", "--min-id", "5-0", code=2).stderr
    assert "no stream" in run("stream", "info", stream + "x", code=1).stderr
    assert "one process" in run("stream", "info", stream, "--url", "memory://", code=2).stderr


def test_tail_follows(environment: dict[str, str], tmp_path: Path, redis7: RedisServer, prefix: str) -> None:
    stream = f"{prefix}:events"
    with millstream.open_broker(redis7.url) as broker:
        broker.xadd(stream, {"n": 1})
        following = subprocess.Popen(
            [*INTERRUPTIBLE, "stream", "tail", stream],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | {"PYTHONUNBUFFERED": "1"},
            cwd=tmp_path,
            text=True,
        )
        assert following.stdout is not None
        assert '{"n": 1}' in following.stdout.readline()
        broker.xadd(stream, {"n": 2})
        assert '{"n": 2}' in following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=60)
    assert following.returncode == 0, errors


# -- worker, demo, bench ---------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path, redis7: RedisServer, prefix: str) -> Path:
    """An application with a queue, a job class and a handler that writes a file."""
    path = tmp_path / "cliapp.py"
    path.write_text(
        textwrap.dedent(f"""
            from pathlib import Path
            from millstream import Job, connect

            queue = connect({redis7.url!r}, prefix={prefix!r})

            class Charge(Job, queue="payments", name="clitest.Charge"):
                card: str
                def handle(self): pass

            @queue.handler("touch")
            def touch(data):
                Path(data["path"]).touch()
        """)
    )
    return path


def test_worker_runs_jobs_until_sigterm(
    environment: dict[str, str], tmp_path: Path, app: Path, queue: Queue
) -> None:
    marker = tmp_path / "done"
    working = subprocess.Popen(
        [
            *PROGRAM,
            "worker",
            "cliapp:queue",
            "--queues",
            "default,payments",
            "--workers",
            "1",
            "--concurrency",
            "2",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
        text=True,
    )
    try:
        queue.enqueue("touch", {"path": str(marker)})
        deadline = time.monotonic() + 60
        while not marker.exists():
            assert working.poll() is None, working.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        working.send_signal(signal.SIGTERM)
        _, errors = working.communicate(timeout=60)
    assert working.returncode == 0, errors


def test_worker_refuses_what_is_wrong(program: Run, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("queue = 7\n")
    assert "no module 'nowhere'" in program("worker", "nowhere:queue", code=2).stderr
    assert "expected module:name" in program("worker", "nowhere", code=2).stderr
    assert "has no 'other'" in program("worker", "plain:other", code=2).stderr
    assert "not a Queue" in program("worker", "plain:queue", code=2).stderr
    assert (
        "'a{b' cannot be a queue name" in program("worker", "plain:queue", "--queues", "a{b", code=2).stderr
    )
    assert (
        "expected QUEUE=LIMIT/SECONDS" in program("worker", "plain:queue", "--rate-limit", "x", code=2).stderr
    )
    assert (
        "Invalid value for '--workers'" in program("worker", "plain:queue", "--workers", "0", code=2).stderr
    )


def test_a_module_that_does_not_import_shows_why(program: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere\n")
    done = program("worker", "broken:queue", code=2)
    assert "no_such_module_anywhere" in done.stderr  # with the place, because it is the user's own code


def test_a_factory_that_raises_is_one_line(program: Run, run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad_factory.py").write_text("def make():\n    raise ValueError('no shop today')\n")
    said = "the function 'bad_factory:make' made no queue: ValueError: no shop today ("
    done = program("worker", "bad_factory:make", code=2)
    assert said in done.stderr
    assert "bad_factory.py, line 2)" in done.stderr
    assert "Traceback" not in done.stderr
    pushed = run("push", "t", "--app", "bad_factory:make", code=2)
    assert pushed.stderr.startswith(f"Error: {said}")
    assert pushed.stderr.count("\n") == 1


def test_a_factory_whose_broker_is_away_may_work_later(run: Run, tmp_path: Path) -> None:
    (tmp_path / "away_factory.py").write_text(
        "import millstream\ndef make():\n    return millstream.connect('redis://127.0.0.1:1/0').size()\n"
    )
    assert "127.0.0.1:1" in run("push", "t", "--app", "away_factory:make", code=1).stderr


def test_demo_needs_no_server(program: Run) -> None:
    done = program("demo", "--no-spark", MILLSTREAM_CONNECTIONS__DEFAULT__URL="redis://127.0.0.1:1/0")
    assert "demo.ChargeCard" in done.stdout
    assert "welcome, user 99 (the first of 21" in done.stdout
    assert "shipping" in done.stdout
    assert done.stderr == ""


def test_bench_outside_a_checkout_says_so(program: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "jobs.py").write_text("import sys; print('ran', sys.argv[1:]); sys.exit(3)")
    done = program("bench", "jobs", "--quick", code=3)
    assert done.stdout == "ran ['--quick']\n"
    assert "there is no benchmark 'nope'; there are: jobs" in program("bench", "nope", code=2).stderr


def test_output_that_nobody_reads_any_more_is_no_error(environment: dict[str, str], tmp_path: Path) -> None:
    command = " ".join(f"'{part}'" for part in [*PROGRAM, "--help"]) + " | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert "Traceback" not in done.stderr


def test_migrate_schema_creates_the_tables_and_may_be_repeated(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for _ in range(2):
        assert "the tables are at version" in run("migrate", "schema", url).stdout
    with connect(url) as opened:
        assert opened.size("default") == 0


def test_migrate_schema_of_something_that_is_no_database_says_what_is(run: Run) -> None:
    assert "sqlite" in run("migrate", "schema", "redis://localhost", code=2).stderr
