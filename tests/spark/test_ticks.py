"""The marks of a time axis: round, few, and there for every history."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("matplotlib")

from millstream.spark.ticks import even_ticks, log_ticks


def test_marks_are_at_round_times() -> None:
    assert even_ticks(0, 80) == [0, 15, 30, 45, 60, 75]
    assert even_ticks(0, 330, most=8) == [0, 60, 120, 180, 240, 300]
    assert even_ticks(0, 0.05) == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])
    # From 20:26:40 for four hours: at full hours of the clock.
    assert [at % 3600 for at in even_ticks(1_780_000_000, 1_780_014_800)] == [0] * 4
    # Days begin at midnight, and no date stands there twice.
    assert [at % 86400 for at in even_ticks(1_780_000_000, 1_780_200_000, least_step=86400)] == [0] * 3


def test_a_logarithmic_axis_has_a_mark_however_narrow_its_data() -> None:
    assert log_ticks(0.002, 2000) == pytest.approx([0.002, 0.05, 1, 15, 300, 3600])
    assert log_ticks(0.21, 0.39) == pytest.approx([0.2, 0.5])
    assert log_ticks(1.0, 1.0) == [1.0]


@pytest.mark.parametrize("low", [1e-6, 0.003, 1, 70, 5000, 1e6])
@pytest.mark.parametrize("times", [1, 1.3, 10, 1e3, 1e6])
def test_there_are_never_more_than_can_be_read(low: float, times: float) -> None:
    high = low * times
    marks = log_ticks(low, high)
    assert 1 <= len(marks) <= 7
    assert marks[0] <= low
    assert all(one < other for one, other in itertools.pairwise(marks))
    assert len(even_ticks(0, high)) <= 8
