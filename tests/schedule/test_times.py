"""When schedules tick: expressions, time zones, the two nights of the year, and what is wrong."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from millstream import Job, QueueManager, connect, job
from millstream.errors import ConfigurationError, InvalidInput
from millstream.schedule import Schedule, make_schedule

BERLIN = ZoneInfo("Europe/Berlin")


class Tick(Job, name="scheduletest.Tick"):
    n: int = 0

    def handle(self) -> None: ...


def schedule(when: Any, **options: Any) -> Schedule:
    return make_schedule("test", when, Tick, **options)


def local(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def shown(moments: list[float], zone: ZoneInfo = BERLIN) -> list[str]:
    return [datetime.fromtimestamp(moment, zone).strftime("%m-%d %H:%M%z") for moment in moments]


def ticks(made: Schedule, start: float, count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = made.next(start)
        found.append(start)
    return found


def test_an_expression_ticks_in_its_time_zone() -> None:
    nine = schedule("0 9 * * 1-5", tz="Europe/Berlin")
    friday = local("2026-01-02 08:59")
    assert shown(ticks(nine, friday, 2)) == ["01-02 09:00+0100", "01-05 09:00+0100"]
    utc = schedule("0 9 * * *")
    assert datetime.fromtimestamp(utc.next(friday), UTC).hour == 9
    assert nine.next(nine.next(friday)) > nine.next(friday), "a tick is after the one before"


def test_clocks_set_forward() -> None:
    """02:30 does not exist that night: its tick comes when the clocks were set. Hourly ones lose none."""
    start = local("2026-03-28 12:00")
    nightly = schedule("30 2 * * *", tz="Europe/Berlin")
    assert shown(ticks(nightly, start, 2)) == ["03-29 03:00+0200", "03-30 02:30+0200"]
    hourly = schedule("0 * * * *", tz="Europe/Berlin")
    found = ticks(hourly, local("2026-03-29 00:30"), 3)
    assert shown(found) == ["03-29 01:00+0100", "03-29 03:00+0200", "03-29 04:00+0200"]
    assert [b - a for a, b in itertools.pairwise(found)] == [3600, 3600]


def test_clocks_set_back() -> None:
    """02:30 comes twice that night, a nightly tick once. Hourly ticks lose none."""
    start = local("2026-10-24 12:00")
    nightly = schedule("30 2 * * *", tz="Europe/Berlin")
    assert shown(ticks(nightly, start, 2)) == ["10-25 02:30+0200", "10-26 02:30+0100"]
    second = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1).timestamp()
    assert nightly.missed(nightly.next(start), second + 60) == [], "not a second time"
    hourly = schedule("0 * * * *", tz="Europe/Berlin")
    found = ticks(hourly, local("2026-10-25 01:30"), 3)
    assert shown(found) == ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]
    assert [b - a for a, b in itertools.pairwise(found)] == [3600, 3600]


def test_every_tick_is_missed_once_over_both_nights() -> None:
    """Looking back finds what looking forward finds, all year, whatever the gap."""
    for expression in ("30 2 * * *", "0 * * * *", "*/20 1-3 * * *", "15 3 * * 0"):
        made = schedule(expression, tz="Europe/Berlin", catch_up="all")
        for begin in ("2026-03-27 00:00", "2026-10-23 00:00"):
            start, end = local(begin), local(begin) + 5 * 86400
            forward = [tick for tick in ticks(made, start, 130) if tick <= end]
            seen: list[float] = []
            last, now = start, start
            while now < end:
                now += 5400
                for tick in made.missed(last, min(now, end)):
                    seen.append(tick)
                    last = tick
            assert seen == forward, expression


def test_every_so_many_seconds() -> None:
    made = schedule(90)
    assert made.next(1_000_000.0) % 90 == 0
    assert made.next(made.next(1_000_000.0)) == made.next(1_000_000.0) + 90
    assert schedule(timedelta(minutes=2)).every == 120
    for every in (0.1, 0.3, 1.7, 7.0):
        quick = schedule(every)
        found = ticks(quick, 1_700_000_000.0, 50)
        assert all(0.99 < (b - a) / every < 1.01 for a, b in itertools.pairwise(found))
        # As the queue gives them back: in milliseconds.
        assert all(quick.next(round(tick * 1000) / 1000) > tick for tick in found)


def test_what_was_missed() -> None:
    made = schedule("*/10 * * * *")
    start = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert made.missed(start, start + 599) == []
    assert made.missed(start, start + 600) == [start + 600], "the moment itself belongs to it"
    assert made.missed(start, start + 1900) == [start + 600, start + 1200, start + 1800]
    assert made.missed(start, start + 1900, most=1) == [start + 1800]
    years = made.missed(start, start + 3 * 365 * 86400)
    assert len(years) == 1000
    assert years[-1] == start + 3 * 365 * 86400
    quick = schedule(2.0)
    assert quick.missed(1000.0, 1007.0) == [1002.0, 1004.0, 1006.0]
    assert quick.missed(1000.0, 1007.0, most=2) == [1004.0, 1006.0]


@pytest.mark.parametrize(
    ("when", "options", "why"),
    [
        ("x", {}, "no cron expression: Wrong number of fields"),
        ("61 * * * *", {}, "Bad minute"),
        ("0 0 30 2 *", {}, "no cron expression"),
        ("", {}, "no cron expression"),
        ("0 9 * * *", {"tz": "Mars/Olympus"}, "no time zone"),
        ("0 9 * * *", {"tz": ""}, "no time zone"),
        ("0 9 * * *", {"tz": "../etc/passwd"}, "no time zone"),
        ("0 9 * * *", {"tz": 7}, "no time zone"),
        ("0 9 * * *", {"catch_up": "some"}, "catch_up must be 'none', 'last' or 'all'"),
        (0, {}, "every must be at least 0.1"),
        (-5, {}, "every must be"),
        (float("nan"), {}, "every must be"),
        (True, {}, "every must be"),
        (None, {}, "expected a cron expression"),
        ([1], {}, "expected a cron expression"),
    ],
)
def test_what_is_no_schedule_is_refused(when: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises((ConfigurationError, InvalidInput), match=why):
        schedule(when, **options)
    if isinstance(when, str):
        with pytest.raises((ConfigurationError, InvalidInput), match=why):
            job(cron=when, name="scheduletest.wrong", **options)(lambda: None)


def test_what_is_no_job_is_refused() -> None:
    class Needs(Job, name="scheduletest.Needs"):
        n: int

        def handle(self) -> None: ...

    for wrong in (7, None, Job, "Tick"):
        with pytest.raises(InvalidInput, match="expected a job"):
            make_schedule("test", 5, wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs a default for each field"):
        make_schedule("test", 5, Needs)
    assert make_schedule("test", 5, Needs(n=1)).make() == Needs(n=1)
    with pytest.raises(InvalidInput, match="schedule"):
        make_schedule("", 5, Tick)


# -- declaring -------------------------------------------------------------------------------------


def test_schedules_are_declared_by_types_and_by_queues() -> None:
    class Nightly(Job, name="scheduletest.Nightly", cron="0 3 * * *", tz="Europe/Berlin", catch_up="none"):
        def handle(self) -> None: ...

    class Child(Nightly, name="scheduletest.Child"):
        """Does not inherit the schedule: it would run twice."""

    @job(name="scheduletest.hourly", cron="0 * * * *")
    def hourly(full: bool = True) -> None: ...

    with connect("memory://") as queue:
        queue.register_job_classes([Nightly, Child])
        declared = {each.name: each for each in queue.schedules()}
        assert "scheduletest.Child" not in declared
        nightly = declared["scheduletest.Nightly"]
        assert (nightly.when, nightly.catch_up) == ("0 3 * * * (Europe/Berlin)", "none")
        assert declared["scheduletest.hourly"].make() == hourly()
        queue.schedule("mine", 30, Tick(n=7).with_priority("high").delay(5))
        made = {each.name: each for each in queue.schedules()}["mine"].make()
        assert (made, made.options.priority, made._delay) == (Tick(n=7), "high", 5)
        queue.schedule("mine", 60, hourly)
        assert {each.name: each.when for each in queue.schedules()}["mine"] == "every 60 s"
        assert queue.unschedule("mine")
        assert not queue.unschedule("mine")
        assert queue.unschedule("scheduletest.Nightly")
        left = {each.name for each in queue.schedules()}
        assert not left & {"mine", "scheduletest.Nightly"}
        queue.schedule("mine", 60, hourly)
        assert "mine" in {each.name for each in queue.schedules()}
        with pytest.raises(InvalidInput, match="cron is said where the type is defined"):
            queue.enqueue("scheduletest.hourly", {}, cron="* * * * *")
    for kind in (Nightly._type, hourly.job_class._type):
        object.__setattr__(kind, "options", Tick._type.options)  # other tests' workers must not push them


def test_a_manager_schedules_on_its_default_connection() -> None:
    with QueueManager({"a": "memory://", "b": "memory://"}, default="a") as manager:
        manager.schedule("mine", 30, Tick)
        assert "mine" in {each.name for each in manager.connection("a").schedules()}
        assert "mine" not in {each.name for each in manager.connection("b").schedules()}
        assert manager.unschedule("mine")


def test_fields_may_be_called_as_the_options_of_schedules() -> None:
    class Named(Job, name="scheduletest.Named"):
        tz: str
        cron: str

        def handle(self) -> None: ...

    assert Named(tz="x", cron="y").tz == "x"
