"""Steps and drifts in a series of runs: found where they are, and nothing where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.advisor.history.shifts import find_shifts

_SMALLEST = 0.03


def runs(seed: int, count: int, noise: float = 0.012) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, noise, count)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_found_in_noise(seed: int) -> None:
    assert find_shifts(np.exp(runs(seed, 60)), _SMALLEST).shifts == ()


@pytest.mark.parametrize("seed", range(10))
def test_disturbed_runs_are_no_step(seed: int) -> None:
    x = runs(seed, 60)
    x[[11, 12, 30, 31, 50]] += 0.5

    assert find_shifts(np.exp(x), _SMALLEST).shifts == ()


@pytest.mark.parametrize("size", [0.06, -0.06, 0.5])
@pytest.mark.parametrize("place", [12, 30, 56])
def test_a_step_is_found_where_it_is(size: float, place: int) -> None:
    x = runs(place, 60)
    x[place:] += np.log1p(size)

    (found,) = find_shifts(np.exp(x), _SMALLEST).shifts

    assert found.kind == "jump"
    assert abs(found.start - place) <= 1
    assert found.change == pytest.approx(size, abs=0.02)


def test_two_steps_are_two_and_no_drift() -> None:
    x = runs(1, 90)
    x[30:] += 0.1
    x[60:] -= 0.15

    found = find_shifts(np.exp(x), _SMALLEST).shifts

    assert [(shift.kind, shift.start, shift.change > 0) for shift in found] == [
        ("jump", 30, True),
        ("jump", 60, False),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_four_percent_a_month_are_a_drift(seed: int) -> None:
    x = runs(seed, 90) + np.arange(90) * np.log1p(0.04) / 30

    (found,) = find_shifts(np.exp(x), _SMALLEST).shifts

    assert found.kind == "drift"
    assert found.change == pytest.approx(1.04**3 - 1, abs=0.04)


def test_a_drift_after_a_step_is_both() -> None:
    x = runs(2, 120)
    x[:40] += 0.3
    x[40:] += np.arange(80) * 0.002

    found = find_shifts(np.exp(x), _SMALLEST).shifts

    assert {shift.kind for shift in found} == {"jump", "drift"}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-3, 1e9), min_size=8, max_size=40))
def test_any_series_is_taken_apart(values: list[float]) -> None:
    trend = find_shifts(values, _SMALLEST)

    assert len(trend.levels) == len(values)
    assert all(np.isfinite(trend.levels))
    assert all(0 <= shift.start <= shift.end < len(values) for shift in trend.shifts)


@pytest.mark.parametrize("seed", range(10))
def test_the_luck_of_a_day_is_no_step(seed: int) -> None:
    days = np.repeat(np.arange(24), 5)
    x = runs(seed, 120, 0.005)
    x[50:55] += 0.04  # a day
    x[80:85] -= 0.04
    assert find_shifts(np.exp(x), _SMALLEST, days).shifts == ()
    assert find_shifts(np.exp(x), _SMALLEST).shifts
    x[105:] += 0.06
    (found,) = find_shifts(np.exp(x), _SMALLEST, days).shifts
    assert abs(found.start - 105) <= 1


def test_a_step_within_a_day_is_not_that_days_luck() -> None:
    x = runs(3, 40)
    x[20:] += 0.06
    (found,) = find_shifts(np.exp(x), _SMALLEST, np.repeat([0, 1], [5, 35])).shifts
    assert abs(found.start - 20) <= 1
