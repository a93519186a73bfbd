"""Periods of values: true ones between the grid and beside a trend, common ones where they do, none in noise."""

import numpy as np
import pytest

from mercer.learning.periodogram import periods_in

rng = np.random.default_rng(2)
T = np.arange(100.0)
NOISE = 0.2 * rng.normal(size=100)


@pytest.mark.parametrize("period", [2.7, 7.3, 4 * np.pi, 30.0])
@pytest.mark.parametrize("trend", [0.0 * T, 0.3 * T, np.cumsum(rng.normal(size=100)) / 5], ids=["none", "line", "walk"])
def test_a_period_is_found_to_a_part_of_the_resolution(period, trend):
    found, _ = periods_in(T, 3 * np.sin(2 * np.pi * T / period + 1) + trend + NOISE, 1.0)
    assert abs(1 / found[0].period - 1 / period) * 100 < 0.1
    assert found[0].deviation > 0


def test_a_common_period_is_taken_where_it_explains_as_well():
    shape = rng.normal(size=12)
    for y in (np.sin(2 * np.pi * T / 12) + NOISE, np.tile(shape, 9)[:100] + NOISE):
        (best, *_), _ = periods_in(T, y, 1.0)
        assert best.period == pytest.approx(12)
        assert best.deviation == 0


def test_two_periods_irregular_times_and_repeats():
    t = np.arange(400.0)
    noise = 0.2 * rng.normal(size=400)
    found, _ = periods_in(t, 2 * np.sin(2 * np.pi * t / 24) + np.sin(2 * np.pi * t / 168) + noise, 1.0)
    assert [each.period for each in found] == pytest.approx([24, 168], rel=0.01)
    t = np.sort(rng.uniform(0, 100, size=100))
    t[50] = t[51]
    found, _ = periods_in(t, np.sin(2 * np.pi * t / 7.3) + NOISE, float(np.median(np.diff(np.unique(t)))))
    assert [each.period for each in found] == pytest.approx([7.3], rel=0.01)


def test_nothing_is_found_in_noise_or_in_constants():
    draws = [periods_in(T, rng.normal(size=100), 1.0)[0] for _ in range(40)]
    assert sum(map(bool, draws)) <= 3
    assert periods_in(T, np.full(100, 3.0), 1.0) == ([], [])
    assert periods_in(T[:4], T[:4] ** 2, 1.0) == ([], [])
