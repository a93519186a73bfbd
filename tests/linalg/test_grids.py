"""Covariances on grids, against dense matrices: random shapes, missing cells, cells with a noise of their own."""

import numpy as np
import pytest

from mercer.linalg.cells import Cells
from mercer.linalg.kronecker import Kronecker, products, row_dots, row_products
from mercer.linalg.toeplitz import Toeplitz, durbin
from mercer.linalg.toeplitz_blocks import ToeplitzBlocks

NOISE = 0.3


def kronecker(rng):
    factors = []
    for n in rng.integers(1, 6, size=rng.integers(1, 4)):
        A = rng.normal(size=(n, n + 1))
        factors.append(A @ A.T / n)
    K = np.eye(1)
    for factor in factors:
        K = np.kron(K, factor)
    return Kronecker.of(factors, NOISE), K


def toeplitz(rng):
    n = int(rng.integers(1, 40))
    row = np.exp(-0.5 * (np.arange(n) / rng.uniform(0.2, 5)) ** 2) + 0.2 * np.cos(np.arange(n))
    return Toeplitz.of(row, NOISE), row[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]


def blocks(rng):
    m, n = rng.integers(1, 5), rng.integers(1, 9)
    A, row = rng.normal(size=(m, m + 1)), np.exp(-np.arange(n) / rng.uniform(0.5, 5))
    T = row[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]
    return ToeplitzBlocks.of(A @ A.T / m, row, NOISE), np.kron(A @ A.T / m, T)


makers = pytest.mark.parametrize("make", [kronecker, toeplitz, blocks])


@makers
@pytest.mark.parametrize("seed", range(12))
def test_structured_covariances_are_the_dense_ones(make, seed):
    rng = np.random.default_rng(seed)
    base, K = make(rng)
    C, b = K + NOISE * np.eye(len(K)), rng.normal(size=(len(K), 3))
    assert base.size == len(K)
    assert base.times(b) == pytest.approx(C @ b, rel=1e-10, abs=1e-11)
    assert base.outward(base.divide(base.inward(b))) == pytest.approx(np.linalg.solve(C, b), rel=1e-9, abs=1e-10)
    assert base.quadratic(base.inward(b)) == pytest.approx(np.diag(b.T @ np.linalg.solve(C, b)), rel=1e-9)
    assert base.log_det() == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-10, abs=1e-10)
    assert base.inverse_diagonal() == pytest.approx(np.diag(np.linalg.inv(C)), rel=1e-9)
    assert base.condition() == pytest.approx(np.linalg.cond(C), rel=0.3)


@makers
@pytest.mark.parametrize("seed", range(12))
def test_cells_are_missing_or_have_a_noise_of_their_own(make, seed):
    rng = np.random.default_rng(seed)
    base, K = make(rng)
    n = len(K)
    noise = rng.choice([NOISE, NOISE, 0.1, 0.7, np.inf], size=n)
    noise[rng.integers(n)] = 0.5  # one cell at least is there
    other = np.flatnonzero(noise != NOISE)
    cells, there = Cells.of(base, other, noise[other] - NOISE), np.isfinite(noise)
    C = (K + np.diag(np.where(there, noise, 0.0)))[np.ix_(there, there)]
    P = np.zeros((n, n))
    P[np.ix_(there, there)] = np.linalg.inv(C)
    assert cells.solve(np.eye(n)) == pytest.approx(P, rel=1e-8, abs=1e-9)
    assert cells.inverse_diagonal() == pytest.approx(np.diag(P), rel=1e-8, abs=1e-9)
    assert cells.log_determinant == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-9, abs=1e-9)
    # What a change of the factors, or of the row, does to sum_c s_c b_c^T K b_c - tr(P K).
    b, signs = rng.normal(size=(n, 2)), np.array([1.0, -2.0])
    G = 0.5 * ((b * signs) @ b.T - P)
    if make is toeplitz:
        sums = [np.trace(G, k) * (2 if k else 1) for k in range(n)]
        assert cells.slopes(b, signs)[0] == pytest.approx(np.array(sums), rel=1e-8, abs=1e-8)
        return
    if make is blocks:
        slope, in_row = cells.slopes(b, signs)
        p, lags = len(in_row), np.abs(np.subtract.outer(np.arange(len(in_row)), np.arange(len(in_row))))
        change, row = rng.normal(size=slope.shape), rng.normal(size=p)
        dK = np.kron(change + change.T, base.row[lags]) + np.kron(base.factor, row[lags])
        assert np.sum(slope * (change + change.T)) + in_row @ row == pytest.approx(np.sum(G * dK), rel=1e-8, abs=1e-8)
        return
    for g, slope in enumerate(cells.slopes(b, signs)):
        change = rng.normal(size=slope.shape)
        change, dK = change + change.T, np.eye(1)
        for h, factor in enumerate(base.factors):
            dK = np.kron(dK, change if h == g else factor)
        assert np.sum(slope * change) == pytest.approx(np.sum(G * dK), rel=1e-8, abs=1e-8)


def test_products_along_axes_are_kronecker_products():
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=shape) for shape in ((2, 3), (4, 2), (3, 3))]
    whole, b = np.kron(np.kron(*factors[:2]), factors[2]), rng.normal(size=(18, 2))
    assert products(factors, b) == pytest.approx(whole @ b)
    rows = [rng.normal(size=(5, n)) for n in (3, 2, 3)]
    each = np.array([np.kron(np.kron(*r[:2]), r[2]) for r in zip(*rows, strict=True)])
    assert row_products(rows) == pytest.approx(each)
    assert row_dots(rows, b) == pytest.approx(each @ b)


def test_a_solution_of_an_ill_conditioned_series_is_accurate():
    row = np.exp(-0.5 * (np.arange(400) / 30) ** 2)
    base = Toeplitz.of(row, 1e-6)  # condition number 7e7
    b = np.random.default_rng(0).normal(size=(400, 2))
    assert base.times(base.divide(b)) == pytest.approx(b, abs=1e-8)


def test_what_is_not_positive_definite_or_not_finite_is_refused():
    assert Toeplitz.of(np.array([1.0, 1.5, 0.2]), 0.1) is None
    assert Toeplitz.of(np.array([1.0, np.nan]), 0.1) is None
    assert Toeplitz.of(np.array([-1.0, 0.0]), 0.1) is None
    assert np.isnan(durbin(np.array([1.0, -1.5]))[1])
    assert Kronecker.of([np.ones((2, 2)), np.eye(2)], 0.0) is None
    assert Kronecker.of([np.array([[1.0, 2.0], [2.0, 1.0]])], 5.0) is None  # a factor is no covariance
    assert ToeplitzBlocks.of(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1.0, 0.5]), 5.0) is None
    assert ToeplitzBlocks.of(np.eye(2), np.array([1.0, np.nan]), 0.1) is None
    assert Kronecker.of([np.full((2, 2), np.nan)], 0.1) is None
    assert Cells.of(Toeplitz.of(np.array([1.0, 0.5]), 0.1), np.array([0]), np.array([-2.0])) is None
