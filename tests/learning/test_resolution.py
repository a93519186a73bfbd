"""Rounded targets, and rows that are copies."""

import numpy as np
import pytest

from mercer.learning.resolution import originals, resolution


def test_the_lattice_of_a_target_is_seen():
    rng = np.random.default_rng(0)
    assert resolution(rng.integers(1, 6, 50)) == 1.0
    assert resolution(rng.integers(1, 11, 50) / 2) == 0.5
    assert resolution(np.round(rng.normal(size=200), 2)) == pytest.approx(0.01)
    assert resolution(rng.integers(10, 90, 300) * 1000.0) == 1000.0
    assert resolution(rng.normal(size=200)) == 0.0
    assert resolution(np.arange(20.0)) == 0.0  # nothing repeats: nothing tells
    assert resolution(np.full(5, 3.0)) == 0.0
    counts = rng.poisson(4, 200)
    assert 0 < resolution(np.log1p(counts)) <= 0.5


def test_copies_are_told_from_repeated_measurements():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    sample = rng.integers(0, 40, 40)
    kept, of = originals(X[sample], y[sample])
    assert len(kept) == len(np.unique(sample))
    np.testing.assert_array_equal(y[sample][kept][of], y[sample])
    # Measured twice, with different results: nothing is a copy.
    assert len(originals(np.r_[X, X], np.r_[y, y + 0.1 * rng.normal(size=40)])[0]) == 80
    # On a lattice some agree by themselves.
    rated = np.r_[np.round(y), np.round(y + 0.5 * rng.normal(size=40))]
    assert len(originals(np.r_[X, X], rated)[0]) == 80
    assert len(originals(np.r_[X, X[:10]], np.r_[np.round(y), np.round(y[:10])])[0]) == 40
    assert len(originals(np.r_[X, X * (1 + 1e-12)], np.r_[y, y])[0]) == 40
