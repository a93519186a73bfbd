"""Sampling latents: against exact posteriors, quadrature over few latents, and what chains promise."""

import itertools

import numpy as np
import pytest
from reference.latents import agree, by_quadrature, covariance, grid
from scipy.special import log_expit, log_ndtr, log_softmax

from mercer.core.errors import DataError, ParameterError
from mercer.gp.likelihood import Gaussian, Logistic, Probit
from mercer.inference.annealing import annealed_evidence
from mercer.inference.ep import ep
from mercer.inference.latent import Covariance
from mercer.inference.mcmc import laplace_sites, matched_sites, rows, sample_latent, softmax_rows
from mercer.inference.variational import gaussian
from mercer.linalg.cholesky import root

LINKS = {"logistic": (Logistic(), log_expit), "probit": (Probit(), log_ndtr)}


def without_slope(log_likelihood):
    return lambda f: log_likelihood(f)[0]


# -- latents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [None, "poor", "exact"])
@pytest.mark.parametrize("sloped", [True, False])
def test_gaussian_likelihood_gives_the_exact_posterior(sites, sloped):
    K, y, noise = covariance(), np.array([1.0, 0.5, -1.0, -1.2, 2.0]), 0.3
    log_likelihood = rows(Gaussian(noise), y)
    chosen = {
        None: None,
        "poor": (np.array([0.0, 1.0, -1.0, 2.0, 0.3]), np.array([0.0, 1.0, 0.2, 3.0, 0.1])),
        "exact": (y / noise, np.full(5, 1 / noise)),
    }[sites]
    f = log_likelihood if sloped else without_slope(log_likelihood)
    draws = sample_latent(np.linalg.cholesky(K), f, 6000, sites=chosen, rng=np.random.default_rng(1))
    C_inv_K = np.linalg.solve(K + noise * np.eye(5), K)
    agree(draws, C_inv_K.T @ y, np.diag(K - K @ C_inv_K))
    assert draws.rhat.max() < 1.05
    if sites == "exact":  # nothing is left to kick or to reject: draws are independent
        assert draws.ess.min() > 4000


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("around", ["prior", "laplace"])
def test_few_latents_by_quadrature(link, around):
    likelihood, log_link = LINKS[link]
    t, K = np.array([1.0, -1.0, 1.0]), covariance(np.array([0.0, 0.5, 2.0]), 9.0)
    R = np.linalg.cholesky(K)
    _, mean, variance = by_quadrature(R, lambda f: log_link(t * f).sum(axis=-1))
    sites = laplace_sites(likelihood, t)(Covariance(K.copy())) if around == "laplace" else None
    for log_likelihood in (rows(likelihood, t), without_slope(rows(likelihood, t))):
        agree(sample_latent(R, log_likelihood, 8000, sites=sites, rng=np.random.default_rng(2)), mean, variance)


def test_singular_covariance():
    x, t = np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, -1.0])
    R = root(covariance(x))
    assert R.shape == (3, 2)
    _, mean, variance = by_quadrature(R, lambda f: log_expit(t * f).sum(axis=-1))
    draws = sample_latent(R, rows(Logistic(), t), 6000, rng=np.random.default_rng(0))
    assert np.allclose(draws.latents[:, 1], draws.latents[:, 2], atol=1e-12)
    agree(draws, mean, variance)


def several(t):
    """ln of the softmax of class t, and its slope."""

    def log_likelihood(f):
        found = log_softmax(f, axis=-1)[..., np.arange(len(t)), t].sum(axis=-1)
        return found, np.eye(f.shape[-1])[t] - softmax(f, axis=-1)

    return log_likelihood


@pytest.mark.parametrize("own", [False, True])
def test_several_classes_by_quadrature(own):
    t = np.array([2])
    roots = [np.array([[2.0]]), np.array([[3.0]]), np.array([[1.0]])] if own else [np.array([[2.0]])] * 3
    scales = np.array([R[0, 0] for R in roots])
    z, logs = grid(3)
    f = z * scales
    w = np.exp(logs + log_softmax(f, axis=1)[:, 2])
    w /= w.sum()
    mean = w @ f
    R, classes = (roots, None) if own else (roots[0], 3)
    for log_likelihood in (several(t), without_slope(several(t))):
        draws = sample_latent(R, log_likelihood, 6000, classes=classes, rng=np.random.default_rng(3))
        assert draws.latents.shape == (6000, 1, 3)
        agree(draws, mean[None], (w @ (f - mean) ** 2)[None])


def test_many_separable_rows_agree_with_expectation_propagation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    t = np.where(x + 0.05 * rng.normal(size=40) > 0, 1.0, -1.0)
    K = covariance(x, 30.0)
    found = ep(Covariance(K.copy()), t, Probit())
    sites = laplace_sites(Probit(), t)(Covariance(K.copy()))
    draws = sample_latent(root(K.copy()), rows(Probit(), t), 2000, sites=sites, rng=rng)
    assert draws.ess.min() > 300
    assert draws.rhat.max() < 1.05
    deviation = np.sqrt(found.factor.variance())
    # Expectation propagation is not exact, but close to a few hundredths of a deviation.
    assert np.abs((draws.latents.mean(axis=0) - found.mean) / deviation).max() < 0.2


def test_a_start_is_where_chains_begin():
    K, t = covariance(), np.ones(5)
    f = np.linspace(-3, 3, 5)
    seen = []

    def watched(f):
        seen.append(f.copy())
        return log_expit(t * f).sum(axis=-1)

    sample_latent(np.linalg.cholesky(K), watched, 4, 0, start=f, chains=2)
    assert np.allclose(seen[0], [f, f])
    sample_latent(np.linalg.cholesky(K), lambda f: log_softmax(f, -1)[..., 0].sum(-1), 4, 0, classes=2,
                  start=np.stack([f, -f], axis=1))  # fmt: skip


# -- chains -------------------------------------------------------------------------------------------------------------


def test_same_seed_same_draws():
    R, t = np.linalg.cholesky(covariance()), np.array([1.0, 1.0, -1.0, -1.0, 1.0])
    one, two, other = (
        sample_latent(R, rows(Probit(), t), 40, 20, rng=np.random.default_rng(seed)).latents for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    one, two = (sample_jointly(KERNEL, X, rows(Probit(), t), 16, 8, sites=laplace_sites(Probit(), t)) for _ in range(2))
    assert np.array_equal(one.theta, two.theta)
    assert np.array_equal(one.latents, two.latents)


def test_an_interrupted_run_keeps_its_draws():
    R, t = np.linalg.cholesky(covariance()), np.ones(5)

    def after(steps):
        count = itertools.count()

        def progress(text):
            if next(count) == steps:
                raise KeyboardInterrupt

        return progress

    draws = sample_latent(R, rows(Probit(), t), 4000, 20, progress=after(60), rng=np.random.default_rng(0))
    assert draws.interrupted
    assert len(draws.latents) == 4 * 41
    whole = sample_latent(R, rows(Probit(), t), 4 * 41, 20, rng=np.random.default_rng(0))
    assert np.array_equal(draws.latents, whole.latents)
    assert not whole.interrupted
    assert "interrupted" in str(draws)
    with pytest.raises(KeyboardInterrupt):
        sample_latent(R, rows(Probit(), t), 4000, 20, progress=after(10))
    draws = sample_jointly(KERNEL, X, rows(Probit(), t), 4000, 5, progress=after(12))
    assert draws.interrupted
    assert len(draws.latents) == len(draws.theta) == 4 * 8


def test_what_cannot_be_sampled():
    R, t = np.linalg.cholesky(covariance()), np.ones(5)
    with pytest.raises(ParameterError, match="n_samples"):
        sample_latent(R, rows(Probit(), t), 0)
    with pytest.raises(ParameterError, match="no free parameter"):
        sample_jointly(KERNEL.fix(), X, rows(Probit(), t))
    with pytest.raises(DataError, match="no finite value"):
        sample_latent(R, lambda f: np.full(len(f), -np.inf))
    with pytest.raises(DataError, match="no finite value"):
        sample_jointly(KERNEL, X, lambda f: np.full(len(f), np.nan))
    with pytest.raises(ParameterError, match="one latent"):
        sample_latent(R, several(np.zeros(5, int)), sites=(np.ones(5), np.ones(5)), classes=3)


def test_summary():
    draws = sample_latent(np.eye(2), rows(Probit(), np.ones(2)), 40, 10, thin=2)
    assert str(draws).startswith("40 draws of 4 chains in")
    assert "R-hat at most" in str(draws)
    assert draws.n_evaluations >= 4 * 30


# -- the evidence ------------------------------------------------------------------------------------------------------


def test_evidence_by_annealing():
    K, y, noise = covariance(), np.array([1.0, 0.5, -1.0, -1.2, 2.0]), 0.3
    C = K + noise * np.eye(5)
    exact = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2 * np.pi * C)[1])
    R = np.linalg.cholesky(K)
    found = annealed_evidence(R, rows(Gaussian(noise), y), np.random.default_rng(0), 60)
    assert abs(found.value - exact) < 4 * found.error < 2
    found = annealed_evidence(R, rows(Gaussian(noise), y), sites=(y / noise, np.full(5, 1 / noise)), n_temperatures=1)
    assert found.value == pytest.approx(exact, abs=1e-9)  # the sites are the likelihood but for a constant
    assert found.error < 1e-9


def test_evidence_of_two_probits_and_bounds_below_it():
    K, t = covariance(np.array([0.0, 0.8]), 6.0), np.ones(2)
    exact = np.log(0.25 + np.arcsin(K[0, 1] / 7.0) / (2 * np.pi))  # an orthant of a correlated pair
    bound = gaussian(Covariance(K.copy()), t, Probit())
    found = annealed_evidence(
        np.linalg.cholesky(K), rows(Probit(), t), np.random.default_rng(0), 20, 400, sites=(bound.nu, bound.S)
    )
    assert abs(found.value - exact) < 4 * found.error < 0.2
    assert bound.log_evidence <= exact
    assert by_quadrature(np.linalg.cholesky(K), lambda f: log_ndtr(f).sum(axis=-1))[0] == pytest.approx(exact, abs=1e-5)
