"""Mixtures of Gaussians over the target: against SciPy component by component, and against their own samples."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import mercer as mc
from mercer.inference.mixtures import Mixtures

rng = np.random.default_rng(0)
S, C, Q = 4, 5, 2
W = rng.dirichlet(np.ones(C), S)
ROOTS = rng.normal(size=(C, Q, Q))
FULL = ROOTS @ ROOTS.transpose(0, 2, 1) + 0.1 * np.eye(Q)
VARIANCES = {"shared": rng.uniform(0.01, 1, Q), "own": rng.uniform(0.01, 1, (C, Q)), "full": FULL, "one": FULL[:1]}
MEANS = {"shared": 3 * rng.normal(size=(C, Q)), "of rows": 3 * rng.normal(size=(S, C, Q))}
ALL = [(means, variances) for means in MEANS for variances in VARIANCES]


def mixture(means, variances):
    return Mixtures(W, MEANS[means], VARIANCES[variances])


def component(m, i, c):
    """Mean and covariance of component c in row i."""
    mean = m.means[i, c] if m.means.ndim == 3 else m.means[c]
    v = m.variances
    V = v[min(c, len(v) - 1)] if v.ndim == 3 else np.diag(v if v.ndim == 1 else v[c])
    return mean, V


@pytest.mark.parametrize(("means", "variances"), ALL)
def test_densities_and_moments_are_sums_over_components(means, variances):
    m = mixture(means, variances)
    t = rng.normal(size=(S, 3, Q))
    for i in range(S):
        parts = [component(m, i, c) for c in range(C)]
        density = sum(w * multivariate_normal(a, V).pdf(t[i]) for w, (a, V) in zip(W[i], parts, strict=True))
        np.testing.assert_allclose(m.density(t)[i], density, rtol=1e-10)
        for j in range(Q):
            cdf = sum(w * norm(a[j], V[j, j] ** 0.5).cdf(t[i, :, j]) for w, (a, V) in zip(W[i], parts, strict=True))
            np.testing.assert_allclose(m.cdf(t)[i, :, j], cdf, rtol=1e-10, atol=1e-300)
        mean = sum(w * a for w, (a, _) in zip(W[i], parts, strict=True))
        second = sum(w * (V + np.outer(a, a)) for w, (a, V) in zip(W[i], parts, strict=True))
        np.testing.assert_allclose(m.mean()[i], mean, rtol=1e-12)
        np.testing.assert_allclose(m.covariance()[i], second - np.outer(mean, mean), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(m.variance()[i], np.diag(second - np.outer(mean, mean)), rtol=1e-10)
    common = m.log_density(t[:1])  # one grid for all rows
    np.testing.assert_allclose(common, m.log_density(np.repeat(t[:1], S, axis=0)), rtol=1e-13)


@pytest.mark.parametrize(("means", "variances"), ALL)
def test_quantiles_are_where_the_cdf_says(means, variances):
    m = mixture(means, variances)
    p = np.array([0.0, 1e-13, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0])
    x = m.quantile(p)
    assert np.isneginf(x[:, 0]).all()
    assert np.isposinf(x[:, -1]).all()
    assert (np.diff(x, axis=1) > 0).all()
    np.testing.assert_allclose(m.cdf(x[:, 1:-1]), np.broadcast_to(p[1:-1, None], (S, 6, Q)), rtol=1e-11)
    mirrored = Mixtures(W, -m.means, m.variances)  # the upper tail is as exact as the lower
    np.testing.assert_allclose(-mirrored.quantile([1e-12]), m.quantile([1 - 1e-12]), rtol=1e-5)
    np.testing.assert_allclose(-mirrored.quantile([0.25]), m.quantile([0.75]), rtol=1e-10)


def test_quantiles_between_far_peaks():
    narrow = Mixtures(np.array([[0.3, 0.7]]), np.array([[0.0], [1e6]]), np.array([1e-12]))
    p = np.array([0.1, 0.299999, 0.300001, 0.9])
    x = narrow.quantile(p)[0, :, 0]
    np.testing.assert_allclose(x[:2], 1e-6 * norm.ppf(p[:2] / 0.3), rtol=1e-6)
    np.testing.assert_allclose(x[2:] - 1e6, 1e-6 * norm.ppf((p[2:] - 0.3) / 0.7), atol=1e-9)
    with pytest.raises(mc.ParameterError, match="between 0 and 1"):
        narrow.quantile([1.5])


def test_nothing_cancels_and_nothing_underflows():
    far = Mixtures(np.array([[0.5, 0.5]]), np.array([[1e9], [1e9 + 1e-3]]), np.array([1e-8]))
    assert far.variance()[0, 0] == pytest.approx(1e-8 + 0.25e-6, rel=1e-3)  # the difference has three digits
    assert far.log_density(np.array([[[0.0]]]))[0, 0] == pytest.approx(-0.5 * 1e18 / 1e-8, rel=1e-6)
    # A weight too small for a number, which decides all the same.
    logs = np.array([[0.0, -800.0]])
    faint = Mixtures(np.exp(logs), np.array([[0.0], [100.0]]), np.array([1.0]), logs)
    assert faint.log_density(np.array([[[100.0]]]))[0, 0] == pytest.approx(-800 - 0.5 * np.log(2 * np.pi))


@pytest.mark.parametrize(("means", "variances"), ALL)
def test_samples_have_these_moments(means, variances):
    m = mixture(means, variances)
    draws = m.sample(40_000, np.random.default_rng(1))
    assert draws.shape == (S, 40_000, Q)
    scale = np.sqrt(m.variance())
    assert (np.abs(draws.mean(axis=1) - m.mean()) / scale < 0.03).all()
    for i in range(S):
        assert np.abs((np.cov(draws[i].T) - m.covariance()[i]) / np.outer(scale[i], scale[i])).max() < 0.05
    below = (draws < m.quantile([0.2])).mean(axis=1)
    np.testing.assert_allclose(below, 0.2, atol=0.01)


def test_pieces_put_together():
    m = mixture("of rows", "full")
    parts = [m._part(slice(0, 1)), m._part(slice(1, S))]
    t = np.zeros((1, 1, Q))
    np.testing.assert_array_equal(Mixtures.joined(parts).log_density(t), m.log_density(t))
