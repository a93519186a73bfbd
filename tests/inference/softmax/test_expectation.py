"""The mean of softmax under a Gaussian: against quadrature, samples and symmetry."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from mercer.inference.softmax.expectation import mean_softmax


def independent(m, v):
    """E softmax for independent f_c: softmax is the chance that f_c plus a Gumbel variable is the largest."""
    z = np.linspace(-9, 9, 601)
    weights = np.exp(-0.5 * z**2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    x = np.linspace((m - 9 * np.sqrt(v)).max() - 6, (m + 9 * np.sqrt(v)).max() + 40, 3001)
    below, density = [], []
    for mean, variance in zip(m, v, strict=True):
        gap = np.exp(np.minimum(mean + np.sqrt(variance) * z - x[:, None], 700.0))
        below.append(np.exp(-gap) @ weights)
        density.append((gap * np.exp(-gap)) @ weights)
    others = [np.prod(below[:c] + below[c + 1 :], axis=0) for c in range(len(m))]
    return np.array([(d * o).sum() * (x[1] - x[0]) for d, o in zip(density, others, strict=True)])


@pytest.mark.parametrize(
    ("C", "variance", "tolerance"),
    [
        (3, 1.0, 1e-10),
        (3, 20.0, 1e-5),
        (3, 200.0, 1e-6),
        (4, 1.0, 1e-6),
        (4, 50.0, 1e-6),
        (6, 0.3, 1e-6),
        (10, 9.0, 1e-6),
    ],
)
def test_probabilities_of_independent_functions(C, variance, tolerance):
    rng = np.random.default_rng(C)
    for _ in range(3):
        m, v, common = rng.normal(size=C), variance * rng.gamma(4, 0.25, size=C), rng.normal(size=C)
        covariance = np.diag(v) + common + common[:, None] + 50.0  # softmax does not feel what is common
        found = mean_softmax(m[None] + 7.0, covariance[None])[0]
        np.testing.assert_allclose(found, independent(m, v), atol=tolerance)


def test_functions_that_are_alike_have_equal_probabilities():
    for variance in (1e-3, 1.0, 300.0):
        found = mean_softmax(np.zeros((1, 6)), variance * np.eye(6)[None] + 3.0)
        np.testing.assert_allclose(found, 1 / 6, atol=1e-8 if variance > 0.1 else 1e-5)


@pytest.mark.parametrize("C", [2, 3, 5])
def test_probabilities_of_correlated_functions_are_averages_of_samples(C):
    rng = np.random.default_rng(C)
    m, A = rng.normal(size=C), 1.5 * rng.normal(size=(C, C))
    drawn = softmax(m + rng.normal(size=(400_000, C)) @ A.T, axis=1)
    np.testing.assert_allclose(mean_softmax(m[None], (A @ A.T)[None])[0], drawn.mean(axis=0), atol=3e-3 / math.sqrt(C))


@pytest.mark.parametrize("C", [1, 2, 3, 4, 7])
def test_probabilities_are_probabilities(C):
    rng = np.random.default_rng(C)
    scales = 10.0 ** rng.uniform(-8, 8, size=(200, 1, 1))
    A = rng.normal(size=(200, C, C))
    means = scales[:, :, 0] * rng.normal(size=(200, C))
    found = mean_softmax(means, A @ A.transpose(0, 2, 1) * scales**2)
    assert ((found >= 0) & (found <= 1)).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(found, mean_softmax(means, A @ A.transpose(0, 2, 1) * scales**2))
    certain = mean_softmax(means, np.zeros((200, C, C)))
    np.testing.assert_allclose(certain, softmax(means, axis=1), atol=1e-12)
