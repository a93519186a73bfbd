"""Leave-one-out criteria of kernel estimators, by differences and by brute force."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from mercer import kernels as k
from mercer.core.coordinates import to_free
from mercer.learning.leave_one_out import ConditionalLikelihood, DensityLikelihood, SquaredError

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(90, 2))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=90)
ELL, H = np.array([0.4, 0.9]), 0.25
KERNEL = k.RBF(ELL)


def bumps(Z, X=X, ell=ELL):
    return np.exp(-0.5 * (((Z[:, None] - X) / ell) ** 2).sum(-1))


def brute_force(K, T, c, h):
    """sum_n c_n ln p(t_n | x_n, others), one pair at a time; and the squared errors."""
    value, squares = 0.0, np.zeros(T.shape[1])
    for n in range(len(T)):
        m = np.arange(len(T)) != n
        logs = np.log(c[m] * K[n, m]) + norm.logpdf(T[n], T[m], h).sum(axis=1)
        value += c[n] * (logsumexp(logs) - np.log(c[m] @ K[n, m]))
        squares += c[n] * (T[n] - (c[m] * K[n, m]) @ T[m] / (c[m] @ K[n, m])) ** 2
    return value, squares


T = np.column_stack([y, np.cos(X[:, 1])])
WEIGHTS = rng.integers(1, 4, size=90).astype(float)
THETA = np.log(ELL)
CRITERIA = {
    "likelihood": (ConditionalLikelihood(KERNEL, X, T, WEIGHTS, least=[0.1, 0.2]), np.array([*THETA, -1.5, -1.0])),
    "likelihood, one target": (ConditionalLikelihood(KERNEL, X, T[:, :1], WEIGHTS), np.array([*THETA, -1.5])),
    "width given": (ConditionalLikelihood(KERNEL, X, T, WEIGHTS, width=np.array([H, H])), THETA),
    "least squares": (SquaredError(KERNEL, X, T, WEIGHTS), THETA),
    "density": (DensityLikelihood(KERNEL, X, WEIGHTS, least=np.array([0.1, 0.3])), THETA),
    "not stationary": (
        ConditionalLikelihood(k.Polynomial(2, offset=3.0), X, T, WEIGHTS, width=np.array([H, H])), np.log([3.0])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CRITERIA)
def test_gradients(name):
    criterion, theta = CRITERIA[name]
    with criterion:
        slope, step = criterion(theta).gradient, 1e-5
        assert criterion(theta, gradient=False).gradient is None
        for i, e in enumerate(step * np.eye(len(theta))):
            expected = (criterion(theta + e).value - criterion(theta - e).value) / (2 * step)
            assert slope[i] == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_criteria_are_those_of_brute_force():
    K = bumps(X)
    h = np.hypot([0.1, 0.2], np.exp([-1.5, -1.0]))
    criterion, theta = CRITERIA["likelihood"]
    value, squares = brute_force(K, T, WEIGHTS, h)
    with criterion:
        assert criterion(theta).value == pytest.approx(value, rel=1e-9)
    criterion, theta = CRITERIA["least squares"]
    with criterion:
        total = WEIGHTS.sum()
        assert criterion(theta).value == pytest.approx(-total / 2 * np.log(squares / total).sum(), rel=1e-9)
    criterion, theta = CRITERIA["density"]
    ell = np.hypot([0.1, 0.3], ELL)
    K = bumps(X, ell=ell)
    np.fill_diagonal(K, 0.0)
    expected = WEIGHTS @ np.log(K @ WEIGHTS / (WEIGHTS.sum() - WEIGHTS)) - WEIGHTS.sum() * np.log(ell).sum()
    with criterion:
        assert criterion(theta).value == pytest.approx(expected, rel=1e-9)


def test_isolated_rows_and_wild_targets_have_a_likelihood():
    away = X.copy()
    away[0] = 1e5
    wild = T.copy()
    wild[1] = 1e9
    with ConditionalLikelihood(KERNEL, away, wild, WEIGHTS) as criterion:
        found = criterion(np.array([*THETA, -1.0, -1.0]))
    assert np.isfinite(found.value)
    assert np.isfinite(found.gradient).all()


def test_the_free_parameters_are_the_kernels():
    np.testing.assert_allclose(to_free(KERNEL), THETA)  # what these tests call theta
