"""The broker restarts and replies are cut, under load: workers go on, nothing is lost or pushed twice."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from millstream.errors import BrokerUnavailable
from tests.faults.conftest import Database, sized
from tests.servers import RedisServer, TcpProxy
from tests.worker.conftest import until
from tests.worker.fleet import Fleet

LEASE = 5.0


class Load:
    """Pushes a job every few milliseconds, each again until the push has succeeded."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self.ids: list[str] = []
        self.repeated = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from tests.worker.app import Work

        while not self._stop.wait(0.002):
            job = Work(seconds=0.005)
            while True:
                try:
                    self.ids.append(self._fleet.push(job))
                    break
                except BrokerUnavailable:
                    self.repeated += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.timeout(sized(120, 900))
@pytest.mark.parametrize("own", ["redis", "postgres", "mariadb"], indirect=True)
def test_restarts_and_cut_replies_lose_nothing_and_push_nothing_twice(
    own: Database, tmp_path: Path, figures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_TEST_URL", own.url)
    monkeypatch.setenv("MILLSTREAM_TEST_LOG", str(tmp_path / "unused"))
    restarts = sized(3 if own.name == "redis" else 2, 10)
    dice = random.Random(5)
    request = b"EVALSHA" if own.name == "redis" else None  # prepared statements have no text to look for
    with TcpProxy(own.server.port) as proxy:
        fleet = Fleet(own.at_port(proxy.port), tmp_path, workers=2, lease=LEASE)
        with fleet:
            load = Load(fleet)
            fleet.wait_for("done", 20)
            until(lambda: len({line.pid for line in fleet.lines("done")}) == 2, "both processes to work")
            pids = set(fleet.pids())
            for number in range(restarts):
                for _ in range(3):
                    proxy.drop_next_reply(request)
                    assert proxy.fired.wait(10)
                    time.sleep(dice.uniform(0.05, 0.2))
                before = len(fleet.lines("done"))
                if number % 2:
                    own.server.kill()
                    own.server.start()
                else:
                    own.server.restart()
                fleet.wait_for("done", before + 20, timeout=40)  # they go on by themselves
            load.end()
            until(lambda: fleet.queue.size(fleet.name) == 0, "everything to be done", 4 * LEASE + 20)
            assert set(fleet.pids()) == pids, "a worker process was replaced"
            lines = fleet.lines()
    pushed = load.ids
    done = [line.job for line in lines if line.what == "done"]
    lost, unknown = set(pushed) - set(done), set(done) - set(pushed)
    cut = proxy.faults["cut_replies"] + proxy.faults["dropped_replies"]
    figures.append(
        f"[{own.name}] {restarts} restarts and {cut} cut replies under load: {len(pushed)} pushed "
        f"({load.repeated} pushes repeated), {len(lost)} lost, {len(unknown)} pushed twice, "
        f"{len(done) - len(set(done))} run twice"
    )
    assert cut >= 3 * restarts
    assert len(pushed) == len(set(pushed)) > 100
    assert lost == set()
    assert unknown == set()


def test_the_check_reports_a_server_that_forgets(
    tmp_path: Path, figures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the append-only file a crash loses what was pushed, and the same check says so."""
    with RedisServer("redis7") as server:
        monkeypatch.setenv("MILLSTREAM_TEST_URL", server.url)
        monkeypatch.setenv("MILLSTREAM_TEST_LOG", str(tmp_path / "unused"))
        from tests.worker.app import Work

        with Fleet(server.url, tmp_path, lease=1.0, concurrency=1) as fleet:
            pushed = set(fleet.push_many([Work(seconds=0.02) for _ in range(200)]))
            fleet.wait_for("done", 5)
            server.kill()
            server.start()
            pushed.add(fleet.push(Work()))
            until(lambda: fleet.queue.size(fleet.name) == 0, "the queue to be empty")
            lost = pushed - {line.job for line in fleet.lines("done")}
    figures.append(f"control, no append-only file: {len(lost)} of {len(pushed)} lost")
    assert lost
