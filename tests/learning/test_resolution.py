"""Rounded targets, and rows that are copies."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import mercer as mc
from mercer.learning.resolution import contradicting, originals, resolution


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


def six_digits(values):
    return np.vectorize(lambda value: float(f"{value:.6g}"))(values)


@pytest.mark.parametrize(
    "copied",
    [
        lambda X, y, rng: (X.astype(np.float32), y.astype(np.float32)),
        lambda X, y, rng: (six_digits(X), six_digits(y)),
        lambda X, y, rng: (np.round(X, 3), np.round(y, 3)),
        lambda X, y, rng: (X + 1e-5 * rng.normal(size=X.shape), y),
        lambda X, y, rng: (X + 1e-5 * rng.normal(size=X.shape), y + 1e-4 * rng.normal(size=len(y))),
    ],
    ids=["single precision", "six digits", "three decimals", "inputs moved", "both moved"],
)
def test_copies_in_other_precision_are_copies(copied):
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(150, 3)), rng.normal(size=150)
    which = rng.integers(0, 150, 60)
    more, again = copied(X[which], y[which], rng)
    kept, of = originals(np.r_[X, more], np.r_[y, again])
    np.testing.assert_array_equal(kept, np.arange(150))
    np.testing.assert_array_equal(of[150:], which)


@pytest.mark.parametrize("noise", [0.05, 0.01])
def test_repeated_measurements_of_little_noise_are_no_copies(noise):
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(100, 3)), rng.normal(size=100)
    near = np.r_[X, X + 1e-5 * rng.normal(size=X.shape)]
    assert len(originals(near, np.r_[y, y + noise * rng.normal(size=100)])[0]) == 200


@pytest.mark.parametrize("d", [1, 2, 4])
def test_dense_rows_are_no_copies(d):
    rng = np.random.default_rng(4)
    X = rng.uniform(size=(1000, d))
    assert len(originals(X, np.sin(3 * X[:, 0]))[0]) == 1000
    assert len(originals(X, np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=1000))[0]) == 1000
    steps = np.linspace(0, 1, 1000)[:, None]
    assert len(originals(steps, np.sin(3 * steps[:, 0]))[0]) == 1000


def test_copies_of_any_rows_are_seen():
    rng = np.random.default_rng(5)
    y, sample = rng.normal(size=60), rng.integers(0, 60, 60)
    distinct = len(np.unique(sample))
    numbers, letters = rng.normal(size=60), rng.choice(list("abc"), 60)
    frame = pd.DataFrame({"x": numbers, "kind": letters, "day": pd.date_range("2020-01-01", periods=60)})
    frame["kind"] = frame["kind"].astype("category")
    graphs = [nx.path_graph(3) for _ in y]
    words = ["".join(rng.choice(list("ab"), 12)) for _ in y]
    for rows in (graphs, words, [list(word) for word in words], [set(word) | {i} for i, word in enumerate(words)]):
        taken = [rows[i] for i in sample]
        assert len(originals(taken, y[sample])[0]) == distinct
        assert contradicting(taken, y[sample]) is None
    assert len(originals(frame.iloc[sample].reset_index(drop=True), y[sample])[0]) == distinct
    counts = sparse.csr_matrix(rng.poisson(1.0, size=(60, 30)))
    assert len(originals(counts[sample], y[sample])[0]) == distinct
    assert contradicting(["a", "b", "a"], np.array([1.0, 2.0, 3.0])) == (0, 2)


def test_a_bootstrap_sample_of_a_mixed_table_keeps_the_noise():
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"kind": rng.choice(list("abc"), 150), "x": rng.normal(size=150)})
    y = frame["x"].to_numpy() + (frame["kind"] == "b") + 0.3 * rng.normal(size=150)
    sample = rng.integers(0, 150, 150)
    model = mc.GaussianProcessRegressor(progress=False).fit(frame.iloc[sample].reset_index(drop=True), y[sample])
    assert 0.2**2 < model.noise_ < 0.4**2
    assert len(np.unique(model.copy_of_)) == len(np.unique(sample))
