"""Scores of predictions, from standardised residuals."""

import numpy as np
import pytest

from mercer import scores
from mercer.distributions import Normal

Y = np.random.default_rng(0).normal(size=199)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_coverage_is_the_share_of_rows_inside_their_intervals(level):
    predicted = Normal(np.full(199, 0.1), np.full(199, 0.8))
    low, high = predicted.interval(level)
    inside = np.mean((low <= Y) & (high >= Y))
    assert scores.coverage(predicted.z(Y), level) == pytest.approx(inside)
    assert scores.calibration(Y, predicted).coverage[scores.LEVELS.index(level)] == pytest.approx(inside)


def test_widening_makes_intervals_cover_their_level():
    predicted = Normal(np.zeros(199), np.full(199, 0.5))
    factor = scores.widening(predicted.z(Y), 0.95)
    wider = Normal(predicted.mean, predicted.deviation * factor**0.5 * (1 + 1e-12))
    assert scores.coverage(wider.z(Y), 0.95) == pytest.approx(190 / 199)
    assert scores.widening(0.1 * Y, 0.95) == 1.0
