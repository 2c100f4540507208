"""Worker processes under their launcher: signals, deaths, reloads, recycling, and targets that are none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers import RedisServer
from tests.worker.conftest import until
from tests.worker.fleet import Fleet

Launch = Callable[..., Fleet]


@pytest.fixture
def launch(redis7: RedisServer, tmp_path: Path) -> Iterator[Launch]:
    with ExitStack() as stack:

        def start(**options: Any) -> Fleet:
            return stack.enter_context(Fleet(redis7.url, tmp_path, **options))

        yield start


@pytest.fixture(autouse=True)
def _environment(redis7: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the application needs when a test imports it for its job classes."""
    monkeypatch.setenv("MILLSTREAM_TEST_URL", redis7.url)
    monkeypatch.setenv("MILLSTREAM_TEST_LOG", str(tmp_path / "unused"))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_processes_share_the_work_and_end_on_sigterm(launch: Launch) -> None:
    from tests.worker.app import Work, WorkAsync

    fleet = launch(workers=2, concurrency=2)
    until(lambda: len(fleet.working()) == 2, "both processes", 20)
    fleet.push_many([(Work if n % 2 else WorkAsync)(seconds=0.05) for n in range(40)])
    fleet.wait_for("done", 40)
    pids = fleet.pids()
    assert {line.pid for line in fleet.lines("done")} == set(pids)
    fleet.signal(signal.SIGTERM)
    assert fleet.wait() == 0
    assert not any(map(alive, pids))
    assert fleet.queue.size(fleet.name) == 0


def test_sigterm_finishes_what_runs_and_a_second_one_hands_back(launch: Launch) -> None:
    from tests.worker.app import Work

    fleet = launch(concurrency=1, grace=20.0)
    fleet.push_many([Work(seconds=0.6), Work(seconds=30.0)])
    fleet.wait_for("start")
    fleet.signal(signal.SIGTERM)
    fleet.wait()
    assert len(fleet.lines("done")) == 1  # the running one was finished
    assert fleet.queue.sizes(fleet.name).waiting == 1  # the other one never started
    fleet.start()
    fleet.wait_for("start", 2)
    fleet.signal(signal.SIGTERM)
    fleet.wait_for_log("stopping 1 processes", 2)
    assert fleet.queue.sizes(fleet.name).reserved == 1
    fleet.signal(signal.SIGTERM)
    assert fleet.wait(5) == 0
    assert len(fleet.lines("done")) == 1
    sizes = fleet.queue.sizes(fleet.name)
    assert (sizes.waiting, sizes.reserved) == (1, 0)


def test_a_killed_process_is_replaced_and_its_job_runs_again(launch: Launch) -> None:
    from tests.worker.app import Work

    fleet = launch(lease=1.0)
    fleet.push(Work(seconds=0.5))
    fleet.wait_for("start")
    (pid,) = fleet.pids()
    os.kill(pid, signal.SIGKILL)
    fleet.wait_for("done")
    first, second = fleet.lines("start")
    assert (first.pid, first.delivery) == (pid, 1)
    assert second.delivery == 2
    assert second.at - first.at < 1.0 + 2.0
    fleet.wait_for_log("SIGKILL")


def test_sighup_replaces_processes_one_by_one_with_the_new_code(launch: Launch, tmp_path: Path) -> None:
    module = tmp_path / "reloadable.py"
    module.write_text(_module("old"))
    fleet = launch(target="reloadable:queue", cwd=tmp_path, workers=2)
    until(lambda: len(fleet.pids()) == 2, "two processes")
    fleet.queue.enqueue("which", {}, queue=fleet.name)
    fleet.wait_for("old")
    before = set(fleet.pids())
    module.write_text(_module("new"))
    fleet.signal(signal.SIGHUP)
    until(lambda: len(fleet.pids()) == 2 and not before & set(fleet.pids()), "two new processes")
    for _ in range(10):
        fleet.queue.enqueue("which", {}, queue=fleet.name)
    fleet.wait_for("new", 10)
    assert len(fleet.lines("old")) == 1


def test_new_code_that_does_not_import_leaves_the_old_processes_at_work(
    launch: Launch, tmp_path: Path
) -> None:
    module = tmp_path / "reloadable.py"
    module.write_text(_module("old"))
    fleet = launch(target="reloadable:queue", cwd=tmp_path)
    fleet.queue.enqueue("which", {}, queue=fleet.name)
    fleet.wait_for("old")
    module.write_text("this is no Python")
    fleet.signal(signal.SIGHUP)
    fleet.wait_for_log("the old processes go on")
    fleet.queue.enqueue("which", {}, queue=fleet.name)
    fleet.wait_for("old", 2)


def test_a_process_is_recycled_after_max_jobs(launch: Launch) -> None:
    from tests.worker.app import Work

    fleet = launch(max_jobs=10)
    fleet.push_many([Work() for _ in range(25)])
    fleet.wait_for("done", 25)
    for _ in range(2):
        fleet.push_many([Work() for _ in range(12)])
        until(lambda: fleet.queue.size(fleet.name) == 0, "all to be done", 20)
        fleet.wait_for_log("is recycled")
    fleet.wait_for_log("is replaced (recycled)")
    assert len({line.pid for line in fleet.lines("done")}) >= 2


def test_a_process_is_recycled_by_its_memory(launch: Launch) -> None:
    from tests.worker.app import Leaking

    fleet = launch(max_memory_mb=150, concurrency=1)
    fleet.push_many([Leaking() for _ in range(6)])
    fleet.wait_for("start", 6)
    fleet.wait_for_log("is recycled")
    fleet.wait_for_log("is replaced (recycled)")


def test_a_process_whose_handler_hangs_is_replaced(launch: Launch) -> None:
    from tests.worker.app import Deaf, Work

    fleet = launch(hard_timeout_grace=0.3, concurrency=2)
    fleet.push(Deaf())
    fleet.wait_for("start")
    (pid,) = fleet.pids()
    fleet.wait_for_log("is replaced (hung)")
    fleet.push(Work())
    fleet.wait_for("done")
    assert fleet.lines("done")[0].pid != pid
    assert not alive(pid)
    (letter,) = fleet.driver.dead(fleet.name)
    assert letter.reason == "timeout"


def test_a_job_that_kills_its_process_is_buried_after_a_few_times(launch: Launch) -> None:
    from tests.worker.app import Deadly

    fleet = launch(lease=0.5, max_deliveries=2)
    fleet.push(Deadly())
    until(lambda: len(fleet.driver.dead(fleet.name)) == 1, "the pill to be buried", 30)
    assert [line.delivery for line in fleet.lines("start")] == [1, 2]
    assert fleet.driver.dead(fleet.name)[0].reason == "poison"


def test_processes_end_when_their_launcher_is_killed(launch: Launch) -> None:
    from tests.worker.app import Work

    fleet = launch(workers=2)
    until(lambda: len(fleet.working()) == 2, "both processes", 20)
    fleet.push_many([Work(seconds=0.01) for _ in range(4)])
    fleet.wait_for("done", 4)
    pids = fleet.pids()
    assert len(pids) == 2
    fleet.process.kill()
    fleet.process.wait()
    until(lambda: not any(map(alive, pids)), "the processes to end")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:queue", "there is no module 'no_such_module'"),
        ("tests.worker.app:no_such_name", "has no 'no_such_name'"),
        ("tests.worker.app:not_a_queue", "is int, not a Queue"),
        ("tests.worker.app:in_memory", "lives in the memory of one process"),
        ("tests.worker.app", "is not a target; expected module:name"),
        ("broken_module:queue", "does not import"),
    ],
)
def test_a_target_that_is_none_is_said_and_ends_the_launcher(
    launch: Launch, tmp_path: Path, target: str, message: str
) -> None:
    (tmp_path / "broken_module.py").write_text("import no_such_dependency\n")
    fleet = launch(target=target, cwd=tmp_path)
    assert fleet.wait() == 78
    assert message in fleet.log()
    if target.startswith("broken"):
        assert "No module named 'no_such_dependency'" in fleet.log()


def test_processes_that_die_at_once_are_started_again_ever_more_slowly(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "dying.py").write_text("import os\nos._exit(3)\n")
    fleet = launch(target="dying:queue", cwd=tmp_path)
    fleet.wait_for_log("keep dying at once; the next starts in 0.4 s")
    fleet.signal(signal.SIGTERM)
    assert fleet.wait(10) in (0, 1)


def test_a_broker_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    from tests.worker.app import Work

    with RedisServer("redis7") as server, Fleet(server.url, tmp_path) as fleet:
        fleet.signal(signal.SIGTERM)
        fleet.wait()
        server.kill()
        fleet.start()
        fleet.wait_for_log("cannot reach its broker")
        server.start()
        fleet.push(Work())
        fleet.wait_for("done")


def _module(what: str) -> str:
    return f"""
from tests.worker.app import queue, write

@queue.handler("which")
def which(data, job):
    write({what!r}, job)
"""
