"""Factorisations against dense algebra: regular, singular, ill-conditioned, tiny."""

import numpy as np
import pytest

import mercer as mc
from mercer.linalg.cholesky import attempt, factor, root
from mercer.linalg.jitter import FACTOR, MAX_JITTER, REFINED, Ladder

rng = np.random.default_rng(0)


def spd(n, smallest=0.1):
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    values = np.geomspace(1.0, smallest, n)
    C = (Q * values) @ Q.T
    return (C + C.T) / 2


@pytest.mark.parametrize("n", [1, 2, 7, 60])
@pytest.mark.parametrize("order", ["C", "F"])
def test_factor_solve_and_determinant(n, order):
    C = spd(n)
    b, B = rng.normal(size=n), rng.normal(size=(n, 3))
    L = factor(np.array(C, order=order))
    assert L.jitter == 0
    np.testing.assert_allclose(L.lower @ L.lower.T, C, atol=1e-14)
    assert (np.triu(L.lower, 1) == 0).all()
    np.testing.assert_allclose(L.solve(b), np.linalg.solve(C, b), rtol=1e-10)
    np.testing.assert_allclose(L.solve(B), np.linalg.solve(C, B), rtol=1e-10)
    np.testing.assert_allclose(L.half_solve(B).T @ L.half_solve(B), B.T @ np.linalg.solve(C, B), rtol=1e-10, atol=1e-12)
    assert L.log_det() == pytest.approx(np.linalg.slogdet(C)[1], abs=1e-12)


def test_factor_works_in_place():
    C = spd(50)
    L = factor(C)
    assert np.shares_memory(L.lower, C)


@pytest.mark.parametrize(("n", "m"), [(5, 3), (1, 1), (20, 1), (3, 9)])
def test_extension_is_the_factor_of_the_whole(n, m):
    C = spd(n + m)
    grown = factor(C[:n, :n].copy()).extended(C[:n, n:], C[n:, n:].copy())
    np.testing.assert_allclose(grown.lower, factor(C.copy()).lower, atol=1e-12)


def test_jitter_grows_only_as_needed_and_is_reported():
    x = np.linspace(0, 1, 80)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    L = factor(K.copy())
    assert 0 < L.jitter < 1e-9
    np.testing.assert_allclose(L.lower @ L.lower.T, K + L.jitter * np.eye(80), atol=1e-12)
    huge = factor(1e12 * K)
    assert huge.jitter == pytest.approx(1e12 * L.jitter, rel=0.3e2)


def test_indefinite_matrices_are_refused_in_words():
    x = np.linspace(0, 1, 20)
    not_finite = [np.array([[np.nan]]), np.array([[np.inf, 0], [0, 1]])]
    for C in [np.array([[1.0, 2.0], [2.0, 1.0]]), -np.eye(3), -np.abs(x[:, None] - x), *not_finite]:
        with pytest.raises(mc.NotPositiveDefiniteError, match="covariance matrix"):
            factor(C.copy())
        with pytest.raises(mc.NotPositiveDefiniteError, match="covariance matrix"):
            root(C.copy())


@pytest.mark.parametrize("n", [1, 2, 30, 300])
@pytest.mark.parametrize("rank", [1, 5, None])
def test_roots_of_semidefinite_matrices(n, rank):
    F = rng.normal(size=(n, n if rank is None else min(rank, n)))
    K = F @ F.T
    K = (K + K.T) / 2
    R = root(K.copy())
    np.testing.assert_allclose(R @ R.T, K, atol=1e-11 * K.max())
    if rank is not None and rank < n:
        assert R.shape[1] <= rank + 2


def test_roots_of_zero_and_of_smooth_fields():
    assert (root(np.zeros((4, 4))) @ np.ones((root(np.zeros((4, 4))).shape[1], 1)) == 0).all()
    x = np.linspace(0, 1, 500)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    R = root(K.copy())
    assert R.shape[1] < 20
    np.testing.assert_allclose(R @ R.T, K, atol=1e-11)


def test_roots_of_rounding():
    noise = 1e-16 * rng.normal(size=(6, 6))
    noise += noise.T
    np.fill_diagonal(noise, [1e-20, -1e-16, 2e-16, 0.0, 0.0, 0.0])
    R = root(noise.copy(), scale=1.0)  # rounding of a difference of matrices of size one
    assert np.abs(R @ R.T).max(initial=0.0) < 1e-15
    K = np.full((6, 6), 0.1) + 0.1 * noise
    R = root(K.copy(), scale=1e-9)  # a larger part than the one that the scale is of
    np.testing.assert_allclose(R @ R.T, K, atol=1e-15)
    with pytest.raises(mc.NotPositiveDefiniteError, match="negative eigenvalues"):
        root(noise.copy(), scale=1e-9)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_a_factor_may_be_overwritten_by_its_inverse(n):
    C = spd(n)
    b, B = rng.normal(size=n), rng.normal(size=(n, 3))
    halved, inverted, both = (factor(C.copy()) for _ in range(3))
    halved.halve()
    inverted.invert()
    both.halve()
    both.invert()
    expected = np.linalg.inv(C)
    for found in (halved, inverted, both):
        assert found.solve(b) == pytest.approx(np.linalg.solve(C, b))
        assert found.solve(B) == pytest.approx(np.linalg.solve(C, B))
        assert found.log_det() == pytest.approx(np.linalg.slogdet(C)[1])
        assert found.inverse_diagonal() == pytest.approx(np.diag(expected))
    for found in (inverted, both):
        assert np.tril(found.lower) == pytest.approx(np.tril(expected))


def test_half_solves_go_both_ways():
    found = factor(spd(6))
    b = rng.normal(size=(6, 2))
    for right in (b, b[:, 0]):
        assert found.half_solve(right) == pytest.approx(np.linalg.solve(found.lower, right))
        assert found.half_solve(right, transposed=True) == pytest.approx(np.linalg.solve(found.lower.T, right))
    for many in (False, True):
        there = np.asfortranarray(b)
        found.half_solve_in_place(there, many)
        assert there == pytest.approx(np.linalg.solve(found.lower, b))


def test_one_ladder_of_jitter():
    steps = list(FACTOR(1000))
    assert steps[0] == pytest.approx(1000 * np.finfo(float).eps)
    assert np.diff(np.log10(steps))[:-1] == pytest.approx(2.0)
    assert steps[-1] == MAX_JITTER
    assert list(Ladder(first=1e-10, step=10.0, last=1e-8)(5)) == pytest.approx([1e-10, 1e-9, 1e-8])
    eps = np.finfo(float).eps
    assert list(REFINED(1000)) == pytest.approx([10 * eps, 100 * eps, 1e3 * eps, 1e4 * eps, 1e5 * eps])
    assert attempt(np.asfortranarray(np.diag([1.0, -1.0]))) is None
    assert attempt(np.asfortranarray([[np.nan]])) is None
