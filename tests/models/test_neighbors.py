"""Neighbours in feature space: brute force in extended precision, scikit-learn's, near and far rows, and ties."""

import itertools

import mpmath as mp
import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import KNeighborsClassifier

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.models.neighbors import KernelNeighborsClassifier

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
y = np.digitize(X[:, 0] + 0.3 * rng.normal(size=60), [-0.4, 0.6])
Z = rng.normal(size=(40, 3))


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("n_neighbors", [1, 4, 60])
def test_the_linear_kernel_is_scikit_learns(weights, n_neighbors):
    ours = KernelNeighborsClassifier(n_neighbors, k.Linear(), weights).fit(X, y)
    theirs = KNeighborsClassifier(n_neighbors, weights=weights).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(Z), theirs.predict_proba(Z), atol=1e-12)
    for a, b in zip(ours.kneighbors(Z), theirs.kneighbors(Z), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    clear = np.sort(theirs.predict_proba(Z), axis=1)[:, -1] > np.sort(theirs.predict_proba(Z), axis=1)[:, -2] + 1e-9
    assert (ours.predict(Z) == theirs.predict(Z))[clear].all()
    assert (ours.predict(Z) == ours.predict_proba(Z).argmax(axis=1)).all()


def test_the_default_is_euclid_on_inputs_of_unit_spread():
    units = [1e-8, 1.0, 1e8]
    ours = KernelNeighborsClassifier().fit(X * units, y)
    theirs = KNeighborsClassifier().fit(X / X.std(axis=0), y)
    np.testing.assert_array_equal(ours.kneighbors(Z * units)[1], theirs.kneighbors(Z / X.std(axis=0))[1])


@pytest.mark.parametrize("kernel", [k.Polynomial(2, 0.5), k.RBF(0.8) + 0.3 * k.Linear(), k.Matern(1.0)])
def test_any_kernel_by_brute_force(kernel):
    K, Kz, own, new = kernel(X), kernel(Z, X), kernel.diag(X), kernel.diag(Z)
    squared = new[:, None] + own - 2 * Kz
    np.testing.assert_allclose(gram.distances(kernel, Z, X), squared, atol=1e-9)
    nearest = np.argsort(squared, axis=1)[:, :4]
    model = KernelNeighborsClassifier(4, kernel).fit(X, y)
    distances, indices = model.kneighbors(Z)
    np.testing.assert_array_equal(indices, nearest)
    np.testing.assert_allclose(distances**2, np.take_along_axis(squared, nearest, axis=1), atol=1e-9)
    votes = np.stack([(y[nearest] == c).mean(axis=1) for c in range(3)], axis=1)
    np.testing.assert_allclose(model.predict_proba(Z), votes, atol=1e-12)
    assert K.shape == (60, 60)


def test_digits_of_near_rows_stay():
    centre = np.array([1e3, -2e3])
    steps = 1e-7 * np.arange(1, 7)
    rows = centre + np.column_stack([steps, np.zeros(6)])[[3, 0, 5, 1, 4, 2]]
    model = KernelNeighborsClassifier(6, k.RBF(10.0)).fit(rows, [0, 1, 0, 1, 0, 1])
    distances, indices = model.kneighbors(centre[None])
    assert indices[0].tolist() == [1, 3, 5, 0, 4, 2]
    with mp.workdps(50):
        exact = [mp.sqrt(-2 * mp.expm1(-((rows[i, 0] - mp.mpf(1e3)) ** 2) / 200)) for i in indices[0]]
    np.testing.assert_allclose(distances[0], [float(v) for v in exact], rtol=1e-9)


@pytest.mark.parametrize("d", [2, 20])
def test_a_gaussian_orders_rows_as_euclid_does(d):
    rows, near = rng.normal(size=(80, d)), rng.normal(size=(10, d))
    queries = np.concatenate([near, 3 * near, 12 * near / np.linalg.norm(near, axis=1)[:, None]])
    lengthscale = 0.4 if d == 2 else 1.0  # the last queries are tens of lengthscales away: k is 1e-200
    labels = np.arange(80) % 3
    ours = KernelNeighborsClassifier(7, k.RBF(lengthscale)).fit(rows, labels)
    euclid = KernelNeighborsClassifier(7, k.Linear()).fit(rows, labels)
    assert np.mean(ours.kneighbors(queries)[0][:, -1] == np.sqrt(2.0)) > 0.3  # all the same to rounding
    np.testing.assert_array_equal(ours.kneighbors(queries)[1], euclid.kneighbors(queries)[1])
    np.testing.assert_array_equal(ours.kneighbors(queries, 3)[1], euclid.kneighbors(queries, 3)[1])
    np.testing.assert_array_equal(ours.predict(queries), euclid.predict(queries))
    np.testing.assert_array_equal(ours.predict_proba(queries), euclid.predict_proba(queries))


def test_beyond_all_numbers_every_row_is_as_near():
    model = KernelNeighborsClassifier(5, k.RBF(0.1)).fit(X, y)
    shares = np.bincount(y) / len(y)
    np.testing.assert_allclose(model.predict_proba([[1e6, 0.0, 0.0]])[0], shares)
    assert model.predict([[1e6, 0.0, 0.0]])[0] == shares.argmax()


# -- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_the_order_of_rows_does_not_matter(weights):
    grid = np.array(list(itertools.product(range(5), range(5))), dtype=float)
    labels = rng.integers(3, size=25)
    queries = np.concatenate([grid, grid + 0.5])
    for kernel in (None, k.RBF(0.5), k.Linear()):
        plain = KernelNeighborsClassifier(3, kernel, weights).fit(grid, labels)
        for seed in range(4):
            order = np.random.default_rng(seed).permutation(25)
            mixed = KernelNeighborsClassifier(3, kernel, weights).fit(grid[order], labels[order])
            np.testing.assert_allclose(mixed.predict_proba(queries), plain.predict_proba(queries), atol=1e-12)
            np.testing.assert_array_equal(mixed.predict(queries), plain.predict(queries))
        np.testing.assert_allclose(plain.predict_proba(queries).sum(axis=1), 1, atol=1e-12)


def test_rows_equally_near_share_the_votes_left():
    rows, labels = [[0.0], [1.0], [-1.0], [5.0]], ["a", "b", "c", "a"]
    model = KernelNeighborsClassifier(2, k.Linear()).fit(rows, labels)
    np.testing.assert_allclose(model.predict_proba([[0.0]]), [[0.5, 0.25, 0.25]])
    two = KernelNeighborsClassifier(2, k.Linear()).fit([[0.0], [1.0], [3.0]], ["b", "a", "a"])
    assert two.predict([[0.2]]).tolist() == ["b"]  # one vote each: the nearer wins
    assert two.predict([[0.8]]).tolist() == ["a"]
    assert two.predict([[0.5]]).tolist() == ["a"]  # equally near: the first class
    np.testing.assert_allclose(two.predict_proba([[0.2]]), [[0.5, 0.5]])


def test_rows_at_distance_zero_vote_alone():
    rows, labels = [[0.0], [0.0], [0.1], [0.2]], [0, 1, 1, 1]
    model = KernelNeighborsClassifier(4, k.RBF(1.0), "distance").fit(rows, labels)
    np.testing.assert_allclose(model.predict_proba([[0.0]]), [[0.5, 0.5]])
    assert np.isfinite(model.predict_proba([[1e-300], [1e-9], [3.0]])).all()


# -- the shell -------------------------------------------------------------------------------------------------------


def test_memory_in_pieces_gives_the_same(monkeypatch):
    many = rng.normal(size=(1100, 3))
    model = KernelNeighborsClassifier(4).fit(X, y)
    whole = model.predict_proba(many)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)  # 504 rows at a time
    np.testing.assert_array_equal(model.predict_proba(many), whole)


def test_any_input():
    letters = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    model = KernelNeighborsClassifier(1, letters).fit(["tea", "coat", "sun"], ["x", "y", "z"])
    assert model.predict(["eat", "nuns"]).tolist() == ["x", "z"]
    frame = pd.DataFrame(X, columns=list("abc"))
    model = KernelNeighborsClassifier(3, k.RBF(0.5).on("a") + k.RBF(2.0).on(["b", "c"])).fit(frame, y)
    assert model.score(frame, y) > 0.7
    assert "3 neighbours" in str(model)


def test_settings_are_checked():
    with pytest.raises(mc.DataError, match="n_neighbors is 61, but there are only 60 rows"):
        KernelNeighborsClassifier(61).fit(X, y)
    with pytest.raises(mc.ParameterError, match="n_neighbors must be an integer"):
        KernelNeighborsClassifier(2.5).fit(X, y)
    with pytest.raises(mc.ParameterError, match="weights must be one of 'uniform', 'distance'"):
        KernelNeighborsClassifier(weights="gaussian").fit(X, y)
    with pytest.raises(mc.InvalidKernelError, match="distance in feature space needs"):
        KernelNeighborsClassifier(kernel=k.Sigmoid()).fit(X, y)
    with pytest.raises(mc.DataError, match="only 60 rows"):
        KernelNeighborsClassifier().fit(X, y).kneighbors(Z, 100)
