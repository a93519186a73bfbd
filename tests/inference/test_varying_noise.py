"""Noise whose logarithm is a Gaussian process: the bound, its maximum and its gradient."""

import numpy as np
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import VaryingNoise
from mercer.inference.sites import Covariance
from mercer.inference.varying_noise import NoisyTarget, infer_noise
from mercer.learning.varying_noise import VaryingNoiseObjective
from reference import varying_noise as reference


def problem(n: int, seed: int = 0):
    """Inputs, a target whose noise varies, and covariances of the function and of the log noise."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 10, n))[:, None]
    y = np.sin(X[:, 0]) + rng.normal(size=n) * np.exp(-2 + 1.5 * np.sin(X[:, 0] / 2))
    K, G = (1.0 * k.RBF(1.0))(X), (0.7 * k.RBF(1.5))(X) + 1e-6 * np.eye(n)
    return X, y, K, G


@pytest.mark.parametrize(("n", "q"), [(12, 0), (40, 1), (300, 2)])
def test_bound_is_that_of_the_formula(n, q):
    X, y, K, G = problem(n)
    H = np.column_stack([np.ones(n), X[:, 0]])[:, :q]
    found = infer_noise(Covariance(G.copy()), NoisyTarget(K, y, H, -2.0, 1e-3))
    Sigma = np.linalg.inv(np.linalg.inv(G) + np.diag(found.sites.S))
    assert found.sites.converged
    assert found.sites.variance == pytest.approx(np.diag(Sigma), rel=1e-5)
    expected = reference.bound(K, G, y, -2.0, 1e-3, found.sites.mean, Sigma, H if q else None)
    assert found.log_evidence == pytest.approx(expected, rel=1e-7)


def test_no_other_gaussian_has_a_higher_bound():
    _, y, K, G = problem(20)
    found = infer_noise(Covariance(G.copy()), NoisyTarget(K, y, np.zeros((20, 0)), -2.0, 1e-3))
    Sigma = np.linalg.inv(np.linalg.inv(G) + np.diag(found.sites.S))
    rng, root = np.random.default_rng(1), np.linalg.cholesky(Sigma)
    for size in (0.01, 0.1, 0.5):
        for _ in range(5):
            shift, twist = rng.normal(size=20), np.eye(20) + size * np.tril(rng.normal(size=(20, 20))) / 20
            other = reference.bound(
                K, G, y, -2.0, 1e-3, found.sites.mean + size * root @ shift, root @ twist @ twist.T @ root.T
            )
            assert other < found.log_evidence


def test_bound_is_below_the_evidence_and_close_to_it():
    _, y, K, G = problem(6)
    found = infer_noise(Covariance(G.copy()), NoisyTarget(K, y, np.zeros((6, 0)), -2.0, 1e-3))
    value, error = reference.log_evidence(K, G, y, -2.0, 1e-3, 20_000, np.random.default_rng(0))
    assert found.log_evidence < value + 3 * error
    assert found.log_evidence > value - 1.0


def test_without_variance_of_the_log_noise_it_is_the_evidence_of_constant_noise():
    X, y, K, G = problem(30)
    found = infer_noise(Covariance(1e-10 * G), NoisyTarget(K, y, np.zeros((30, 0)), -2.0, 1e-3))
    plain = mc.GP(1.0 * k.RBF(1.0)).log_likelihood(X, y, np.exp(-2.0) + 1e-3)
    assert found.log_evidence == pytest.approx(plain, abs=1e-6)
    assert pytest.approx(np.exp(-2.0) + 1e-3, rel=1e-6) == found.R


@pytest.mark.parametrize("n", [25, 300])
@pytest.mark.parametrize("level", ["learned", "fixed"])
def test_gradient_is_that_of_finite_differences(n, level):
    X, y, _, _ = problem(n)
    kernel = 1.3 * k.RBF(1.2) + 0.2 * k.Linear()
    noise = VaryingNoise(0.1, 0.8 * k.RBF(2.0), min_variance=1e-4, name="log_noise")
    noise = noise.fix("log_noise_level") if level == "fixed" else noise
    objective = VaryingNoiseObjective(kernel, gram.Gram(kernel, X), y, noise, MeanFunction.of("unknown"))
    theta = objective.start()
    with objective.criterion() as bound:
        slope = bound(theta).gradient
        assert len(slope) == len(theta) == (5 if level == "fixed" else 6)
        for i, step in enumerate(1e-4 * np.eye(len(theta))):
            high, low = (bound(theta + sign * step, gradient=False).value for sign in (1, -1))
            assert slope[i] == pytest.approx((high - low) / 2e-4, rel=1e-3, abs=1e-3)


def test_gradient_of_the_likelihood_for_samplers():
    _, y, K, _ = problem(15)
    target, g = NoisyTarget(K, y, np.ones((15, 1)), -2.0, 1e-3), np.random.default_rng(2).normal(size=(3, 15))
    values, slopes = target.log_likelihood(g)
    assert values.shape == (3,)
    step = 1e-5 * np.eye(15)
    for i in range(15):
        high, low = target.log_likelihood(g + step[i])[0], target.log_likelihood(g - step[i])[0]
        assert slopes[:, i] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-6)
