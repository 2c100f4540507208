"""Capacity and flakiness, against cases whose answer is known by hand. No Spark is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.errors import InvalidInput

pytest.importorskip("pyspark")

from millstream.spark.busy import BusySeconds, peak
from millstream.spark.flaky import flaky_types, wilson_lower
from millstream.spark.forecast import Forecast, forecast, trend_of


def made(arrivals: list[int], **changes: Any) -> Forecast:
    given: dict[str, Any] = {
        "step_seconds": 10.0,
        "span_seconds": 10.0 * len(arrivals),
        "run_seconds": 0.5 * sum(arrivals),
        "finished": sum(arrivals),
        "backlog": 0,
        "peak_busy": 6.0,
    }
    found = forecast(arrivals, **(given | changes))
    assert found is not None
    return found


def test_littles_law_gives_the_busy_workers() -> None:
    steady = made([100] * 20, workers=8)  # 10 a second, half a second each
    assert steady.arrivals_per_second == pytest.approx(10)
    assert steady.busy == pytest.approx(5)
    assert steady.needed == 7  # 5 / 0.8 = 6.25
    assert steady.utilisation == pytest.approx(5 / 8)
    assert steady.trend_per_hour == 0
    assert (steady.saturated_in_seconds, steady.backlog_growth_per_second) == (None, 0.0)


def test_more_than_the_workers_can_do_makes_the_backlog_grow() -> None:
    over = made([100] * 20, workers=4, backlog=50)  # they do 8 a second
    assert over.saturated_in_seconds == 0
    assert over.backlog_growth_per_second == pytest.approx(2)
    assert over.drains_in_seconds is None
    assert made([100] * 20, workers=6, backlog=50).drains_in_seconds == pytest.approx(25)  # 12 - 10 a second


def test_a_certain_trend_says_when_the_workers_do_not_suffice_any_more() -> None:
    chance = random.Random(3)
    growing = made([50 + 5 * step + chance.randint(-3, 3) for step in range(40)], workers=20)
    assert growing.trend_per_hour == pytest.approx(0.05 * 3600, rel=0.05)  # 5 more per 10 s, per second
    assert growing.arrivals_per_second == pytest.approx(24, rel=0.05)
    assert growing.saturated_in_seconds == pytest.approx(
        (40 - 24) / 0.05, rel=0.1
    )  # 20 workers do 40 a second
    assert growing.needed_at_horizon > growing.needed
    falling = made([250 - 5 * step + chance.randint(-3, 3) for step in range(40)], horizon_seconds=1e6)
    assert (falling.arrivals_at_horizon, falling.needed_at_horizon) == (0, 0)  # never below zero


def test_noise_is_no_trend() -> None:
    chance = random.Random(5)
    taken = sum(trend_of([chance.gauss(100, 20) for _ in range(30)]).certain for _ in range(300))
    assert taken <= 6  # one in some hundred is expected
    assert not trend_of([1, 2, 3, 4, 5]).certain  # too few
    assert trend_of([]).level == 0
    assert not trend_of([7.0] * 50).certain


def test_the_time_after_the_last_arrival_is_no_lull() -> None:
    ended = made([100] * 20 + [0] * 10, workers=8)  # the last jobs took their time
    assert (ended.arrivals_per_second, ended.trend_per_hour) == (pytest.approx(10), 0)
    assert made([0, 0, 50, 100]).arrivals_per_second == pytest.approx(150 / 40)  # but one before it is


def test_a_history_shorter_than_a_window_is_no_overload() -> None:
    """850 jobs of 30 ms, all done within 5 s of a window of a minute."""
    spent = 850 * 0.03
    busy = peak({7: BusySeconds(spent, 0.0, spent)}, 60.0, 431.0, 436.0)
    assert busy == pytest.approx(spent / 5)
    given = {"span_seconds": 5.0, "run_seconds": spent, "peak_busy": busy}
    found = made([850], step_seconds=60.0, **given)
    assert found.utilisation == pytest.approx(1)
    assert (found.saturated_in_seconds, found.backlog_growth_per_second) == (None, 0.0)
    assert found.note == ""
    left = made([850], step_seconds=60.0, **given | {"finished": 425}, backlog=425, workers=2)
    assert (left.saturated_in_seconds, left.backlog_growth_per_second) == (None, 0.0)
    assert left.drains_in_seconds == pytest.approx(425 * 0.06 / 2)
    assert "too short to say whether the backlog grows" in left.note
    # All came in the first of five steps: that is a burst and no rate.
    assert made([850, 0, 0, 0, 0], step_seconds=1.0, **given).utilisation == pytest.approx(1)


def test_what_was_all_done_was_not_too_much_for_workers_that_nobody_counted() -> None:
    burst = [100, 100, 100, 100, *[0] * 16]  # 10 a second for 40 s, done in 200 s
    found = made(burst, peak_busy=1.0)
    assert (found.utilisation, found.saturated_in_seconds, found.backlog_growth_per_second) == (None, None, 0)
    assert made(burst, peak_busy=1.0, backlog=5).saturated_in_seconds == 0


def test_the_peak_counts_what_the_history_covers() -> None:
    whole, edge = BusySeconds(20.0, 0.0, 20.0), BusySeconds(8.0, 0.0, 2.0)
    assert peak({0: edge, 1: whole}, 10.0, 9.0, 20.0) == pytest.approx(2)
    assert peak({0: BusySeconds(5.0, 0.0, 0.0)}, 10.0, 9.0, 9.0) == 0, "one moment"
    assert peak({}, 10.0, 0.0, 9.0) == 0


def test_nothing_is_said_where_nothing_can_be_said() -> None:
    nothing: dict[str, Any] = {"step_seconds": 1, "run_seconds": 0, "backlog": 0, "peak_busy": 0}
    assert forecast([], span_seconds=0, finished=0, **nothing) is None
    assert forecast([1], span_seconds=0, finished=1, **nothing) is None  # one record has no rate
    instant = forecast([5, 5], span_seconds=2, finished=10, **nothing)
    assert instant is not None
    assert (instant.busy, instant.needed, instant.utilisation) == (0, 0, None)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [({"target": 0}, "target"), ({"target": 1.5}, "target"), ({"workers": 0}, "workers"),
     ({"workers": float("nan")}, "workers"), ({"horizon_seconds": -1}, "horizon")],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        made([1, 2, 3], **wrong)


@dataclass(frozen=True)
class Seen:
    finished: int
    recovered: int


def test_flaky_is_what_surely_fails_and_then_works() -> None:
    types = {
        "steady": Seen(1000, 0),
        "broken": Seen(500, 0),  # fails always: not flaky
        "unlucky": Seen(3, 1),  # too few to tell
        "flaky": Seen(1000, 250),
        "perhaps": Seen(20, 5),  # the same share, less sure
    }
    found = flaky_types(types)
    assert [each.type for each in found] == ["flaky", "perhaps"]
    assert found[0].share == found[1].share == 0.25
    assert 0.22 < found[0].score < 0.25
    assert found[1].score == pytest.approx(0.1119, abs=0.001)  # Wilson's interval for 5 of 20
    assert [each.type for each in flaky_types(types, min_sample=1)] == ["flaky", "perhaps", "unlucky"]


def test_the_lower_bound_is_within_its_range() -> None:
    assert wilson_lower(0, 0) == 0
    assert wilson_lower(0, 10) == 0
    assert 0.7 < wilson_lower(10, 10) < 1
    assert wilson_lower(1, 10) < wilson_lower(10, 100) < 0.1
