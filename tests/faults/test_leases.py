"""Leases under faults: long jobs, and workers that were stopped and come back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import EVERYWHERE, LONG, Database
from tests.servers import RedisServer
from tests.worker.conftest import until
from tests.worker.fleet import Fleet

SECONDS, LEASE = (180.0, 10.0) if LONG else (5.0, 1.0)
SOME = EVERYWHERE if LONG else ["redis", "postgres"]  # the contract's tests of leases run everywhere anyway


@pytest.fixture
def _environment(shared: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_TEST_URL", shared.url)
    monkeypatch.setenv("MILLSTREAM_TEST_LOG", str(tmp_path / "unused"))


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("shared", SOME, indirect=True)
def test_a_job_many_leases_long_runs_once(shared: Database, tmp_path: Path, figures: list[str]) -> None:
    """Beside it runs the control: where leases are not renewed, the same job is run again."""
    from tests.worker.app import Work, WorkAsync

    careless = "tests.faults.careless:never_renews"
    with (
        Fleet(shared.url, tmp_path, workers=2, lease=LEASE) as fleet,
        Fleet(shared.url, tmp_path, workers=2, lease=1.0, target=careless, max_deliveries=99) as control,
    ):
        fleet.push_many([Work(seconds=SECONDS), WorkAsync(seconds=SECONDS)])
        control.push(Work(seconds=4.0))
        fleet.wait_for("done", 2, timeout=SECONDS + 30)
        until(lambda: fleet.queue.size(fleet.name) == 0, "the acks")
        starts, again = len(fleet.lines("start")), len(control.lines("start"))
        refused = fleet.log().count("was not this worker's any more")
    figures.append(
        f"[{shared.name}] jobs of {SECONDS:g} s with a lease of {LEASE:g} s: 2 jobs, {starts} runs, "
        f"{refused} acks refused; "
        f"control without renewal: 1 job, {again} runs"
    )
    assert (starts, refused) == (2, 0)
    assert again > 1


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("shared", SOME, indirect=True)
def test_a_worker_stopped_past_its_lease_has_its_ack_refused(
    shared: Database, tmp_path: Path, figures: list[str]
) -> None:
    from tests.worker.app import Work

    with Fleet(shared.url, tmp_path, lease=1.0) as zombie:
        zombie.push(Work(seconds=4.0))
        zombie.wait_for("start")
        (pid,) = zombie.pids()
        os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        # Then the heir has all of its four seconds before it while the zombie finds its own over.
        until(lambda: time.monotonic() - stopped > 4.0, "the end of the zombie's time")
        with Fleet(shared.url, tmp_path, lease=1.0, queues=(zombie.name,)) as heir:
            heir.wait_for("start")
            assert time.monotonic() - stopped > 1.0
            # The zombie's handler finds its time over and is done at once, while the heir is at work.
            os.kill(pid, signal.SIGCONT)
            zombie.wait_for("done")
            zombie.wait_for_log("was not this worker's any more")
            assert not heir.lines("done"), "the heir must still be at work for this to prove anything"
            assert zombie.queue.sizes(zombie.name).reserved == 1
            heir.wait_for("done")
            until(lambda: zombie.queue.size(zombie.name) == 0, "the heir's ack")
            (line,) = heir.lines("start")
            assert line.delivery == 2
            assert "was not this worker's any more" not in heir.log()
    figures.append(
        f"[{shared.name}] SIGSTOP past the lease, then SIGCONT: the ack was refused, the heir's was accepted"
    )


def test_plain_xack_would_have_been_accepted(redis7: RedisServer) -> None:
    """The control for the fence: Redis itself lets anybody ack anybody's entry."""
    with redis7.client(decode_responses=True) as client:
        key = f"control-{time.time_ns()}"
        client.execute_command("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
        entry = client.execute_command("XADD", key, "*", "data", "1")
        client.execute_command("XREADGROUP", "GROUP", "g", "zombie", "STREAMS", key, ">")
        client.execute_command("XCLAIM", key, "g", "heir", "0", entry)
        assert client.execute_command("XACK", key, "g", entry) == 1  # the zombie's: the heir has lost its job
        client.delete(key)
