"""Sampling latents: against exact posteriors, quadrature over few latents, and what chains promise."""

import itertools

import numpy as np
import pytest
from scipy.special import log_expit, log_ndtr, log_softmax

from mercer.core.errors import DataError, ParameterError
from mercer.gp.likelihood import Logistic, Probit
from mercer.inference.ep import ep
from mercer.inference.sampling.latents import log_likelihood_of, sample_latent, softmax_log_likelihood
from mercer.inference.sampling.reference import Reference
from mercer.inference.sampling.sites import laplace_sites, matched_sites, softmax_sites
from mercer.inference.sites import Covariance
from mercer.inference.variational import gaussian
from mercer.linalg.cholesky import root
from reference.annealing import annealed_evidence
from reference.latents import agree, by_quadrature, covariance, grid
from reference.likelihoods import Gaussian

CHAINS = 20  # they move together: as many draws in fewer moves
LINKS = {"logistic": (Logistic(), log_expit), "probit": (Probit(), log_ndtr)}


def without_slope(log_likelihood):
    return lambda f: log_likelihood(f)[0]


# -- latents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [None, "poor", "exact"])
@pytest.mark.parametrize("sloped", [True, False])
def test_gaussian_likelihood_gives_the_exact_posterior(sites, sloped):
    K, y, noise = covariance(), np.array([1.0, 0.5, -1.0, -1.2, 2.0]), 0.3
    log_likelihood = log_likelihood_of(Gaussian(noise), y)
    chosen = {
        None: None,
        "poor": (np.array([0.0, 1.0, -1.0, 2.0, 0.3]), np.array([0.0, 1.0, 0.2, 3.0, 0.1])),
        "exact": (y / noise, np.full(5, 1 / noise)),
    }[sites]
    f = log_likelihood if sloped else without_slope(log_likelihood)
    draws = sample_latent(
        np.linalg.cholesky(K), f, 4000, 100, sites=chosen, rng=np.random.default_rng(1), chains=CHAINS
    )
    C_inv_K = np.linalg.solve(K + noise * np.eye(5), K)
    agree(draws, C_inv_K.T @ y, np.diag(K - K @ C_inv_K))
    if sloped:  # slices go slowly: many short chains of them still differ
        assert draws.rhat.max() < 1.05
    if sites == "exact":  # nothing is left to kick or to reject: draws are independent
        assert draws.ess.min() > 2700


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("around", [None, laplace_sites, matched_sites])
def test_few_latents_by_quadrature(link, around):
    likelihood, log_link = LINKS[link]
    t, K = np.array([1.0, -1.0, 1.0]), covariance(np.array([0.0, 0.5, 2.0]), 9.0)
    R = np.linalg.cholesky(K)
    _, mean, variance = by_quadrature(R, lambda f: log_link(t * f).sum(axis=-1))
    sites = around and around(likelihood, t)(Covariance(K.copy()))
    for log_likelihood in (log_likelihood_of(likelihood, t), without_slope(log_likelihood_of(likelihood, t))):
        draws = sample_latent(R, log_likelihood, 4000, 100, sites=sites, rng=np.random.default_rng(2), chains=CHAINS)
        agree(draws, mean, variance)


def test_singular_covariance():
    x, t = np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, -1.0])
    R = root(covariance(x))
    assert R.shape == (3, 2)
    _, mean, variance = by_quadrature(R, lambda f: log_expit(t * f).sum(axis=-1))
    draws = sample_latent(R, log_likelihood_of(Logistic(), t), 4000, 100, rng=np.random.default_rng(0), chains=CHAINS)
    assert np.allclose(draws.latents[:, 1], draws.latents[:, 2], atol=1e-12)
    agree(draws, mean, variance)


@pytest.mark.parametrize("how", ["shared", "own", "sites"])
def test_several_classes_by_quadrature(how):
    t, own = np.array([2]), how == "own"
    roots = [np.array([[2.0]]), np.array([[3.0]]), np.array([[1.0]])] if own else [np.array([[2.0]])] * 3
    scales = np.array([R[0, 0] for R in roots])
    z, logs = grid(3)
    f = z * scales
    w = np.exp(logs + log_softmax(f, axis=1)[:, 2])
    evidence = np.log(w.sum())
    w /= w.sum()
    mean = w @ f
    R, classes = (roots, None) if own else (roots[0], 3)
    sites = softmax_sites(t, 3)(Covariance(np.array([[4.0]]))) if how == "sites" else None
    for log_likelihood in (softmax_log_likelihood(t, 3), without_slope(softmax_log_likelihood(t, 3))):
        draws = sample_latent(
            R, log_likelihood, 4000, 100, classes=classes, sites=sites, rng=np.random.default_rng(3), chains=CHAINS
        )
        assert draws.latents.shape == (4000, 1, 3)
        agree(draws, mean[None], (w @ (f - mean) ** 2)[None])
    found = annealed_evidence(R, log_likelihood, n_temperatures=30, classes=classes, sites=sites)
    assert abs(found.value - evidence) < 4 * found.error < 0.4


def test_softmax_of_rows():
    rng, t = np.random.default_rng(0), np.array([2, 0, 1, 1])
    f, h = rng.normal(size=(2, 4, 3)), 1e-6
    log_likelihood = softmax_log_likelihood(t, 3)
    value, slope = log_likelihood(f)
    assert np.allclose(value, [sum(log_softmax(row)[label] for row, label in zip(each, t, strict=True)) for each in f])
    for row, c in itertools.product(range(4), range(3)):
        away = np.zeros((4, 3))
        away[row, c] = h
        assert np.allclose((log_likelihood(f + away)[0] - value) / h, slope[:, row, c], atol=1e-5)


@pytest.mark.parametrize("own", [False, True])
def test_several_classes_mix(own):
    rng, t = np.random.default_rng(0), np.arange(60) % 3
    x = 2.0 * np.array([[0, 0], [1, 0], [0, 1]])[t] + rng.normal(size=(60, 2))
    K = 10.0 * np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1) / 1.5**2)
    R = [root(K * scale) for scale in (1.0, 0.5, 2.0)] if own else root(K.copy())
    draws = sample_latent(R, softmax_log_likelihood(t, 3), 240, 80, classes=None if own else 3, rng=rng)
    assert draws.latents.shape == (240, 60, 3)
    assert draws.ess.min() > 0.2 * 240
    assert draws.rhat.max() < 1.15
    assert (draws.latents.mean(axis=0).argmax(axis=1) == t).mean() > 0.7


def test_many_separable_rows_agree_with_expectation_propagation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    t = np.where(x + 0.05 * rng.normal(size=40) > 0, 1.0, -1.0)
    K = covariance(x, 30.0)
    found = ep(Covariance(K.copy()), t, Probit())
    sites = laplace_sites(Probit(), t)(Covariance(K.copy()))
    draws = sample_latent(root(K.copy()), log_likelihood_of(Probit(), t), 2000, sites=sites, rng=rng)
    assert draws.ess.min() > 300
    assert draws.rhat.max() < 1.05
    deviation = np.sqrt(found.factor.variance())
    # Expectation propagation is not exact, but close to a few hundredths of a deviation.
    assert np.abs((draws.latents.mean(axis=0) - found.mean) / deviation).max() < 0.2


def test_latents_of_several_classes_are_rotated_and_back():
    K, rng = covariance(), np.random.default_rng(0)
    for sites in (None, softmax_sites(np.array([0, 0, 1, 2, 0]), 3)(Covariance(K.copy()))):
        q = Reference(np.linalg.cholesky(K), lambda f: log_softmax(f, axis=-1)[..., 0].sum(axis=-1), sites, 3)
        f = rng.normal(size=(2, 5, 3))
        assert q.internal(f).shape == (2, 3, 5)
        assert np.allclose(q.external(q.internal(f)), f)


# -- chains ------------------------------------------------------------------------------------------------------------


def test_same_seed_same_draws():
    R, t = np.linalg.cholesky(covariance()), np.array([1.0, 1.0, -1.0, -1.0, 1.0])
    one, two, other = (
        sample_latent(R, log_likelihood_of(Probit(), t), 40, 20, rng=np.random.default_rng(seed)).latents
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def after(steps):
    """Progress that is interrupted."""
    count = itertools.count()

    def progress(text):
        if next(count) == steps:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_keeps_its_draws():
    R, t = np.linalg.cholesky(covariance()), np.ones(5)
    draws = sample_latent(R, log_likelihood_of(Probit(), t), 4000, 20, progress=after(60), rng=np.random.default_rng(0))
    assert draws.interrupted
    assert len(draws.latents) == 4 * 41
    whole = sample_latent(R, log_likelihood_of(Probit(), t), 4 * 41, 20, rng=np.random.default_rng(0))
    assert np.array_equal(draws.latents, whole.latents)
    assert not whole.interrupted
    with pytest.raises(KeyboardInterrupt):
        sample_latent(R, log_likelihood_of(Probit(), t), 4000, 20, progress=after(10))


def test_what_cannot_be_sampled():
    R, t = np.linalg.cholesky(covariance()), np.ones(5)
    with pytest.raises(ParameterError, match="n_samples"):
        sample_latent(R, log_likelihood_of(Probit(), t), 0)
    with pytest.raises(DataError, match="no finite value"):
        sample_latent(R, lambda f: np.full(len(f), -np.inf))
    with pytest.raises(ParameterError, match="one latent"):
        sample_latent([R, R], softmax_log_likelihood(np.zeros(5, int), 2), sites=np.ones((2, 2, 5)))


# -- the evidence ------------------------------------------------------------------------------------------------------


def test_evidence_by_annealing():
    K, y, noise = covariance(), np.array([1.0, 0.5, -1.0, -1.2, 2.0]), 0.3
    C = K + noise * np.eye(5)
    exact = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2 * np.pi * C)[1])
    R = np.linalg.cholesky(K)
    found = annealed_evidence(R, log_likelihood_of(Gaussian(noise), y), np.random.default_rng(0), 60)
    assert abs(found.value - exact) < 4 * found.error < 2
    found = annealed_evidence(
        R, log_likelihood_of(Gaussian(noise), y), sites=(y / noise, np.full(5, 1 / noise)), n_temperatures=1
    )
    assert found.value == pytest.approx(exact, abs=1e-9)  # the sites are the likelihood but for a constant
    assert found.error < 1e-9


def test_evidence_of_two_probits_and_bounds_below_it():
    K, t = covariance(np.array([0.0, 0.8]), 6.0), np.ones(2)
    exact = np.log(0.25 + np.arcsin(K[0, 1] / 7.0) / (2 * np.pi))  # an orthant of a correlated pair
    bound = gaussian(Covariance(K.copy()), t, Probit())
    found = annealed_evidence(
        np.linalg.cholesky(K),
        log_likelihood_of(Probit(), t),
        np.random.default_rng(0),
        20,
        400,
        sites=(bound.nu, bound.S),
    )
    assert abs(found.value - exact) < 4 * found.error < 0.2
    assert bound.log_evidence <= exact
    assert by_quadrature(np.linalg.cholesky(K), lambda f: log_ndtr(f).sum(axis=-1))[0] == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("likelihood", [Logistic(), Probit()])
def test_evidence_lies_above_its_bound(likelihood):
    """Thirty rows, where no quadrature reaches: the error is borne out, and expectation propagation is close."""
    rng = np.random.default_rng(0)
    x = 2 * rng.normal(size=30)
    t = np.where(np.sin(2 * x) + 0.3 * rng.normal(size=30) > 0, 1.0, -1.0)
    K = covariance(x, 4.0)
    sites = matched_sites(likelihood, t)(Covariance(K.copy()))
    one, two = (
        annealed_evidence(root(K.copy()), log_likelihood_of(likelihood, t), rng, 30, sites=sites) for _ in range(2)
    )
    assert max(one.error, two.error) < 0.04
    assert abs(one.value - two.value) < 4 * np.hypot(one.error, two.error)
    assert gaussian(Covariance(K.copy()), t, likelihood).log_evidence <= one.value + 4 * one.error
    assert ep(Covariance(K.copy()), t, likelihood).log_evidence == pytest.approx(one.value, abs=0.2)
