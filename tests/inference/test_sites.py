"""Approximate inference for labels: laws that hold for all of them, and brute force where there are few rows."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.gp.likelihood import Logistic, Probit
from mercer.inference.ep import ep
from mercer.inference.laplace import laplace
from mercer.inference.sites import Covariance, LatentPosterior
from mercer.inference.variational import gaussian, local
from reference.likelihoods import Gaussian

RNG = np.random.default_rng(0)
X = RNG.normal(size=(25, 2))
K = (2.0 * k.RBF(0.8))(X) + 1e-3 * np.eye(25)
T = np.where(X[:, 0] + 0.5 * RNG.normal(size=25) > 0, 1.0, -1.0)
CASES = [
    (laplace, Logistic()), (laplace, Probit()), (ep, Logistic()), (ep, Probit()), (gaussian, Logistic()),
    (gaussian, Probit()), (local, Logistic()),
]  # fmt: skip
IDS = [f"{infer.__name__} {likelihood.name}" for infer, likelihood in CASES]


def upper(K):
    return Covariance(np.triu(K))


def brute_force(K, t, likelihood, points=60):
    """ln p(t), mean and variance of f, by a product rule of Gauss and Hermite in three dimensions."""
    x, w = np.polynomial.hermite_e.hermegauss(points)
    n = len(t)
    grid = np.stack(np.meshgrid(*[x] * n, indexing="ij"), axis=-1).reshape(-1, n)
    weights = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * n, indexing="ij"), axis=-1).reshape(-1, n), axis=1)
    f = grid @ np.linalg.cholesky(K).T
    weights = weights * np.exp(likelihood.derivatives(f, t).value.sum(axis=1))
    total = weights.sum()
    mean = weights @ f / total
    return np.log(total), mean, weights @ (f - mean) ** 2 / total


@pytest.mark.parametrize("infer", [laplace, ep, gaussian], ids=lambda f: f.__name__)
def test_a_gaussian_likelihood_is_done_exactly(infer):
    y, noise = RNG.normal(size=25), 0.3
    L = np.linalg.cholesky(K + noise * np.eye(25))
    white = np.linalg.solve(L, y)
    found = infer(upper(K), y, Gaussian(noise))
    exact = -0.5 * white @ white - np.log(np.diag(L)).sum() - 12.5 * np.log(2 * np.pi)
    assert found.log_evidence == pytest.approx(exact, rel=1e-11)
    np.testing.assert_allclose(found.mean, K @ np.linalg.solve(K + noise * np.eye(25), y), atol=1e-10)
    exact = np.diag(K - K @ np.linalg.solve(K + noise * np.eye(25), K))
    np.testing.assert_allclose(found.factor.variance(), exact, rtol=1e-9)


def test_elsewhere_a_gaussian_likelihood_gives_the_process():
    kernel, y, Z = 2.0 * k.RBF(0.8), RNG.normal(size=25), RNG.normal(size=(7, 2))
    found = laplace(upper(kernel(X)), y, Gaussian(0.3), gradient=False)
    posterior = LatentPosterior(kernel, X, found.a, np.sqrt(found.S), np.tril(found.factor.lower))
    process = mc.GP(kernel).condition(X, y, noise=0.3)
    mean, variance = posterior.moments(Z)
    np.testing.assert_allclose(mean, process.mean(Z), atol=1e-10)
    np.testing.assert_allclose(posterior.mean(Z), mean)
    np.testing.assert_allclose(variance, process.variance(Z), atol=1e-10)


@pytest.mark.parametrize(("infer", "likelihood"), CASES, ids=IDS)
def test_the_gradient_is_that_of_the_evidence_itself(infer, likelihood):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        D = (rng.uniform(0.5, 2) * k.RBF(rng.uniform(0.3, 2)))(X)
        contract = lambda inverse, a, D=D: np.sum((np.outer(a, a) - _whole(inverse)) * D)
        slope = infer(upper(K), T, likelihood).slope([contract])
        h = 1e-4
        up, down = (infer(upper(K + sign * h * D), T, likelihood, gradient=False).log_evidence for sign in (1, -1))
        assert slope == pytest.approx((up - down) / (2 * h), rel=1e-6 if infer is laplace else 1e-4)


def _whole(inverse):
    return np.triu(inverse) + np.triu(inverse, 1).T


@pytest.mark.parametrize("likelihood", [Logistic(), Probit()], ids=lambda p: p.name)
def test_few_rows_by_brute_force(likelihood):
    few, t = K[:3, :3], T[:3]
    log_evidence, mean, variance = brute_force(few, t, likelihood)
    by_ep = ep(upper(few), t, likelihood)
    assert by_ep.log_evidence == pytest.approx(log_evidence, abs=2e-3)
    np.testing.assert_allclose(by_ep.mean, mean, atol=2e-3)
    np.testing.assert_allclose(by_ep.factor.variance(), variance, rtol=1e-2)
    bounds = [gaussian(upper(few), t, likelihood).log_evidence]
    if likelihood.name == "logistic":
        bounds.append(local(upper(few), t).log_evidence)
        assert bounds[1] < bounds[0]  # the best Gaussian is at least as good
    assert max(bounds) < log_evidence
    assert max(bounds) > log_evidence - 0.05
    assert laplace(upper(few), t, likelihood).log_evidence == pytest.approx(log_evidence, abs=0.1)


def test_one_row_has_exact_moments_by_ep():
    one = upper(np.array([[2.0]]))
    found = ep(one, np.ones(1), Probit())
    assert found.log_evidence == pytest.approx(np.log(0.5))
    exact = Probit().tilted(np.zeros(1), np.array([2.0]), np.ones(1))
    assert found.mean[0] == pytest.approx(2.0 * exact.first[0])


@pytest.mark.parametrize(("infer", "likelihood"), CASES, ids=IDS)
def test_flipped_labels_mirror_everything(infer, likelihood):
    found, flipped = (infer(upper(K), sign * T, likelihood) for sign in (1.0, -1.0))
    assert flipped.log_evidence == pytest.approx(found.log_evidence, rel=1e-9)
    np.testing.assert_allclose(flipped.mean, -found.mean, atol=1e-6)


@pytest.mark.parametrize(("infer", "likelihood"), CASES, ids=IDS)
def test_a_neighbouring_start_leads_to_the_same_place(infer, likelihood):
    nearby = infer(upper(1.3 * K), T, likelihood)
    fresh, warm = infer(upper(K), T, likelihood), infer(upper(K), T, likelihood, start=nearby)
    assert warm.log_evidence == pytest.approx(fresh.log_evidence, abs=1e-5)
    assert warm.iterations <= fresh.iterations


def test_the_mode_is_a_mode():
    found = laplace(upper(K), T, Logistic())
    slope = Logistic().derivatives(found.mean, T).first - np.linalg.solve(K, found.mean)
    assert np.abs(slope).max() < 1e-6
    # The evidence as PRML 6.90 writes it.
    W = -Logistic().derivatives(found.mean, T).second
    height = Logistic().derivatives(found.mean, T).value.sum() - 0.5 * found.mean @ np.linalg.solve(K, found.mean)
    log_det = np.linalg.slogdet(np.eye(25) + K * W)[1]
    assert found.log_evidence == pytest.approx(height - 0.5 * log_det, abs=1e-8)


@pytest.mark.parametrize("lengthscale", [0.03, 1.0, 30.0])
@pytest.mark.parametrize("likelihood", [Logistic(), Probit()], ids=lambda p: p.name)
def test_hard_cases_converge(lengthscale, likelihood):
    """Variance e^8, labels that a line separates, and lengthscales from too short to too long."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    t = np.where(X[:, 0] + 0.3 * X[:, 1] > 0, 1.0, -1.0)
    hard = (np.exp(8.0) * k.RBF(lengthscale))(X)
    for infer in (laplace, ep):
        found = infer(upper(hard), t, likelihood)
        assert found.converged
        assert np.isfinite(found.log_evidence)
        assert (found.mean * t > 0).mean() > 0.9


def test_what_is_no_covariance_is_told():
    assert laplace(upper(-5.0 * np.eye(4)), np.ones(4), Logistic()) is None
    assert ep(upper(np.full((3, 3), np.nan)), np.ones(3), Probit()) is None


@pytest.mark.parametrize("infer", [gaussian, local], ids=lambda f: f.__name__)
def test_what_has_converged_cannot_be_far_below_its_maximum(infer):
    """Where variances are huge rounding ends a climb, hundreds of nats below what another start reaches: it says so."""
    rng = np.random.default_rng(0)
    n = 60 if infer is local else 25
    X = rng.normal(size=(n, 2))
    t = np.where(X[:, 0] + 0.7 * rng.normal(size=n) > 0, 1.0, -1.0)
    correlation, warm, gap = k.RBF(1.0)(X), None, {}
    for power in (6, 8, 11, 14)[: 4 if infer is local else 3]:
        found = infer(upper(10.0**power * correlation), t, Logistic(), gradient=False)
        warm = infer(upper(10.0**power * correlation), t, Logistic(), warm, gradient=False)
        gap[power] = warm.log_evidence - found.log_evidence
        assert gap[power] < 2 or not found.converged
        assert found.converged or power > 8
    if infer is local:
        assert gap[14] > 100  # so that this can fail
