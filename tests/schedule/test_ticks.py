"""Each tick is pushed once, by however many; what was missed is caught up as the schedule says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream import Job, Queue
from millstream.errors import BrokerUnavailable, ConfigurationError
from millstream.schedule import Schedule, Ticker
from tests.contract.streams.helpers import until

HOUR = 3600.0
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()


class Report(Job, queue="reports", name="scheduletest.Report"):
    kind: str = "daily"

    def handle(self) -> None: ...


def taken(queue: Queue, name: str = "reports") -> list[Job]:
    """The jobs that wait; they are done then."""
    found = []
    while (job := queue.pop(name)) is not None:
        found.append(job)
        queue.complete(job)
    return found


def moments(jobs: list[Job]) -> list[str]:
    return [job.envelope.headers["tick"][11:16] for job in jobs if job.envelope is not None]


def test_a_tick_is_one_job_however_many_push_it(opened: Callable[[], Queue]) -> None:
    queues = [opened() for _ in range(3)]
    for queue in queues:
        queue.schedule("hourly", "0 * * * *", Report(kind="hourly"))
    tickers = [Ticker(queue) for queue in queues]
    for ticker in tickers:
        assert ticker.tick(NOON - 60) == NOON
    assert taken(queues[0]) == []
    threads = [threading.Thread(target=ticker.tick, args=(NOON + 0.2,)) for ticker in tickers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (job,) = taken(queues[0])
    assert job == Report(kind="hourly")
    assert job.envelope is not None
    assert job.envelope.headers == {"schedule": "hourly", "tick": "2026-05-01T12:00:00+00:00"}
    # A worker that was killed, started again or slow pushes it again when the job is long done.
    late = Ticker(queues[1])
    late._last[queues[1].schedules()[0].line] = NOON - 60
    late.tick(NOON + 1)
    tickers[0].tick(NOON + 30)
    assert taken(queues[0]) == []
    assert sum(ticker.pushed for ticker in (*tickers, late)) == 1


def test_the_control_pushes_twice(opened: Callable[[], Queue]) -> None:
    """A ticker that trusts in the job's id alone, which the queue forgets when the job is done."""

    class Careless(Ticker):
        def _push(self, schedule: Schedule, tick: float, *, only_note: bool) -> None:
            self._queue.push(schedule.job(tick))

    queues = [opened(), opened()]
    done = []
    for queue in queues:
        queue.schedule("hourly", "0 * * * *", Report)
    tickers = [Careless(queue) for queue in queues]
    for now in (NOON - 60, NOON + 1):
        for ticker in tickers:
            ticker.tick(now)
            done += taken(queues[0])
    assert len(done) == 2


@pytest.mark.parametrize(
    ("catch_up", "found"), [("none", []), ("last", ["15:00"]), ("all", ["13:00", "14:00", "15:00"])]
)
def test_what_was_missed_while_nobody_ran(
    opened: Callable[[], Queue], catch_up: Any, found: list[str]
) -> None:
    first, second = opened(), opened()
    for queue in (first, second):
        queue.schedule("hourly", "0 * * * *", Report, catch_up=catch_up)
    Ticker(first).tick(NOON - 60)
    Ticker(first).tick(NOON + 1)
    assert moments(taken(first)) == ["12:00"]
    # Nobody runs for more than three hours.
    back = Ticker(second)
    assert back.tick(NOON + 3 * HOUR + 1800) == NOON + 4 * HOUR
    assert moments(taken(second)) == found
    Ticker(first).tick(NOON + 3 * HOUR + 1801)
    assert taken(first) == [], "caught up once"
    back.tick(NOON + 4 * HOUR)
    assert moments(taken(second)) == ["16:00"]


def test_a_tick_that_is_a_little_late_is_not_missed(queue: Queue) -> None:
    queue.schedule("hourly", "0 * * * *", Report, catch_up="none")
    ticker = Ticker(queue)
    ticker.tick(NOON - 60)
    ticker.tick(NOON + 30)
    assert moments(taken(queue)) == ["12:00"]


def test_a_new_schedule_begins_now_and_remembers_it(opened: Callable[[], Queue]) -> None:
    """Declared at half past; everybody dies; the next worker comes two hours later."""
    first, second = opened(), opened()
    for queue in (first, second):
        queue.schedule("hourly", "0 * * * *", Report)
    Ticker(first).tick(NOON + 1800)
    assert taken(first) == []
    Ticker(second).tick(NOON + 3 * HOUR - 60)
    assert moments(taken(second)) == ["14:00"]


def test_a_changed_time_table_begins_anew(opened: Callable[[], Queue]) -> None:
    old, new = opened(), opened()
    old.schedule("report", "0 6 * * *", Report)
    Ticker(old).tick(NOON - 12 * HOUR)
    Ticker(old).tick(NOON)
    assert moments(taken(old)) == ["06:00"]
    new.schedule("report", "30 * * * *", Report)
    Ticker(new).tick(NOON + HOUR)
    assert taken(new) == [], "the half hours before were never promised"


def test_seconds(queue: Queue) -> None:
    queue.schedule("often", 20, Report)
    ticker = Ticker(queue)
    ticker.tick(NOON + 1)
    for after in (5, 19.9, 20, 21, 40, 41, 61):
        ticker.tick(NOON + after)
    assert len(taken(queue)) == 3


def test_one_schedule_that_cannot_push_does_not_stop_the_others(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.schedule("a-wrong", "0 * * * *", Report(kind=7))  # type: ignore[arg-type]
    queue.schedule("b-elsewhere", "0 * * * *", Report().on_connection("nowhere"))
    queue.schedule("c-fine", "0 * * * *", Report)
    ticker = Ticker(queue)
    for now in (NOON - 60, NOON + 1, NOON + 2):
        ticker.tick(now)
    assert len(taken(queue)) == 1
    assert caplog.text.count("schedule a-wrong cannot push its job") == 1
    assert caplog.text.count("schedule b-elsewhere cannot push its job") == 1


# -- in a worker -----------------------------------------------------------------------------------


def test_workers_tick(opened: Callable[[], Queue]) -> None:
    """Three workers, a schedule that ticks five times a second: every tick once, none left out."""
    done: list[str] = []
    queues = [opened() for _ in range(3)]

    class Quick(Job, queue="quick", name="scheduletest.Quick"):
        def handle(self) -> None:
            assert self.envelope is not None
            done.append(self.envelope.headers["tick"])

    for queue in queues:
        queue.schedule("quick", 0.2, Quick, catch_up="all")
    workers = [queue.worker(["quick"], concurrency=1).start() for queue in queues]
    until(lambda: len(done) >= 8, "eight ticks", 30)
    workers[0].stop()
    until(lambda: len(done) >= 12, "four more, from the others", 30)
    for worker in workers[1:]:
        worker.stop()
    found = sorted(datetime.fromisoformat(text).timestamp() for text in done)
    assert len(set(found)) == len(found), "a tick ran twice"
    assert all(0.15 < b - a < 0.25 for a, b in itertools.pairwise(found)), "a tick was left out"


def test_a_worker_waits_for_a_broker_that_is_away(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    class Once(Job, queue="quick", name="scheduletest.Once"):
        def handle(self) -> None:
            done.set()

    failures = [3]
    real = queue.driver.last_number

    def flaky(name: str, line: str) -> int:
        if failures[0]:
            failures[0] -= 1
            raise BrokerUnavailable("away")
        return real(name, line)

    monkeypatch.setattr(queue.driver, "last_number", flaky)
    queue.schedule("quick", 0.2, Once)
    with queue.worker(["quick"], concurrency=1):
        assert done.wait(30)
    assert failures == [0]


def test_a_worker_says_at_once_that_a_schedule_cannot_work(queue: Queue) -> None:
    class Needs(Job, name="scheduletest.CronNeeds", cron="0 9 * * *"):
        n: int

        def handle(self) -> None: ...

    try:
        with pytest.raises(ConfigurationError, match="needs a default for each field"):
            queue.worker()
    finally:
        Needs._type.options = Report._type.options
