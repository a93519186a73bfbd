"""Sampling with the parameters of the kernel: against their marginals on a grid."""

import types

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp
from scipy.stats import lognorm

from mercer import kernels as k
from mercer import priors
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, ParameterError
from mercer.gp.likelihood import Probit
from mercer.inference.base import Labels, named
from mercer.inference.features import LatentFeatures, SampledWeights
from mercer.inference.sampling import parameters
from mercer.inference.sampling.diagnostics import effective_size
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.latents import log_likelihood_of, softmax_log_likelihood
from mercer.inference.sampling.parameters import ThetaPrior, sample_jointly
from mercer.inference.sampling.posterior import SampledPosterior
from mercer.inference.sampling.reference import Reference
from mercer.inference.sampling.sites import laplace_sites, matched_sites, softmax_sites
from mercer.inference.sites import Covariance, LatentMatrix
from reference.latents import X, agree, by_quadrature, covariance
from reference.likelihoods import Gaussian

KERNEL = (4.0 * k.RBF(1.0)).fix("variance")


@pytest.mark.parametrize(
    ("variance", "prior", "sites"), [(100.0, None, matched_sites), (9.0, priors.LogNormal(0.5, 0.8), None)]
)
def test_the_marginal_of_a_parameter(variance, prior, sites):
    """Three probits: their evidence is an orthant of three correlated numbers, in closed form."""
    x, t = np.array([0.0, 0.4, 0.8]), np.array([1.0, -1.0, 1.0])
    kernel = (variance * k.RBF(1.0)).fix("variance")
    kernel = kernel if prior is None else kernel.with_priors(lengthscale=prior)
    theta = np.linspace(-10, 10, 401)
    log_p = -0.5 * (theta / parameters.DEFAULT_PRIOR_SD) ** 2 if prior is None else -0.5 * ((theta - 0.5) / 0.8) ** 2
    for i, value in enumerate(theta):
        rho = np.outer(t, t) * covariance(x, variance, np.exp(value)) / (variance + 1)
        log_p[i] += np.log(1 / 8 + np.arcsin(rho[np.triu_indices(3, 1)]).sum() / (4 * np.pi))
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ theta
    draws = sample_jointly(
        kernel,
        x,
        log_likelihood_of(Probit(), t),
        300,
        40,
        sites=sites and sites(Probit(), t),
        rng=np.random.default_rng(0),
    )
    assert draws.theta.shape == (300, 1)
    assert draws.theta_ess[0] > 75
    assert draws.theta_rhat[0] < 1.1  # of 300 draws; rounding, which differs between machines, makes another chain
    agree(Draws(draws.theta, None, draws.chains, draws.theta_ess, draws.theta_rhat), [mean], [p @ (theta - mean) ** 2])


@pytest.mark.parametrize(("share", "moves"), [(1.0, parameters.LATENT_MOVES), (0.7, 0)])
def test_joint_draws_with_a_gaussian_likelihood(share, moves, monkeypatch):
    """The evidence of K + noise is exact, so the marginals of theta and of f are, on a grid: around exact sites; and
    around weaker ones, where draws of the reference differ in weight, with no other moves of f than from one to another
    of them."""
    monkeypatch.setattr(parameters, "LATENT_MOVES", moves)
    rng = np.random.default_rng(5)
    x, noise = np.linspace(0, 4, 12), 0.1
    y = np.sin(2 * x) * 2 + 0.3 * rng.normal(size=12)
    theta = np.linspace(-4, 4, 201)
    log_p, means, squares = -0.5 * (theta / parameters.DEFAULT_PRIOR_SD) ** 2, [], []
    for i, value in enumerate(theta):
        K = covariance(x, 4.0, np.exp(value))
        C = K + noise * np.eye(12)
        log_p[i] += -0.5 * y @ np.linalg.solve(C, y) - 0.5 * np.linalg.slogdet(C)[1]
        means.append(K @ np.linalg.solve(C, y))
        squares.append(means[-1] ** 2 + np.diag(K - K @ np.linalg.solve(C, K)))
    p = np.exp(log_p - logsumexp(log_p))
    nu, S = share * y / noise, np.full(12, share / noise)
    draws = sample_jointly(KERNEL, x, log_likelihood_of(Gaussian(noise), y), 500, 50, sites=lambda K: (nu, S))
    mean = p @ theta
    agree(Draws(draws.theta, None, draws.chains, draws.theta_ess, draws.theta_rhat), [mean], [p @ (theta - mean) ** 2])
    mean = p @ np.array(means)
    agree(draws, mean, p @ np.array(squares) - mean**2)
    if share == 1:  # moves of theta see its marginal
        assert draws.theta_ess[0] > 200
        assert np.allclose(laplace_sites(Gaussian(noise), y)(Covariance(K)), (nu, S))


def test_companions_are_averaged():
    K, t, z = covariance(), np.array([1.0, 1.0, -1.0, -1.0, 1.0]), np.random.default_rng(0).normal(size=(3, 5))
    q = Reference(
        np.linalg.cholesky(K), log_likelihood_of(Probit(), t), matched_sites(Probit(), t)(Covariance(K.copy()))
    )
    chain = parameters._Chain(np.zeros(1), q, q.state(z[:1]), 0.5)
    assert chain.log_target == pytest.approx(0.5 + q.state(z[:1]).value[0])
    assert chain.with_companions(z[1:]).log_target == pytest.approx(0.5 + np.log(np.mean(np.exp(q.state(z).value))))


def test_moves_of_parameters_leave_any_target_what_it_is():
    """Logistic in both coordinates, one scaled: heavier in the tails than what they are moved around."""
    rng = np.random.default_rng(0)
    reference = parameters._ThetaReference(np.array([0.3, 0.0]), np.array([1.0, 1.5]))
    reference.root[1, 0] = 0.5
    scale = np.array([1.0, 0.5])

    def at(theta):
        value = np.sum(log_expit(theta / scale) + log_expit(-theta / scale))
        return types.SimpleNamespace(theta=theta, log_target=value)

    chains = [at(np.zeros(2)) for _ in range(4)]
    theta = np.empty((4, 2000, 2))
    for i in range(2000):
        chains = [reference.move(chain, at, rng) for chain in chains]
        theta[:, i] = [chain.theta for chain in chains]
    for power in (1, 2, 4):
        moment = theta**power
        exact = {1: 0.0, 2: np.pi**2 / 3, 4: 7 * np.pi**4 / 15}[power] * scale**power
        error = moment.std(axis=(0, 1)) / np.sqrt(effective_size(moment, ranked=False))
        assert (np.abs(moment.mean(axis=(0, 1)) - exact) < 4.5 * error).all()
    assert effective_size(theta).min() > 2000


def test_several_classes_share_sampled_parameters():
    labels = np.array([0, 1, 1, 2, 0])
    for sites in (None, softmax_sites(labels, 3)):
        draws = sample_jointly(KERNEL, X, softmax_log_likelihood(labels, 3), 16, 10, classes=3, sites=sites)
        assert draws.latents.shape == (16, 5, 3)
        assert draws.theta.shape == (16, 1)
    posterior = SampledPosterior.of(KERNEL, X, draws)
    assert np.allclose(posterior.class_probabilities(X, Probit()).sum(axis=1), 1)


def test_the_marginal_of_a_parameter_of_several_classes():
    """Two classes by softmax are one logistic function of their difference, of twice the variance."""
    x, labels = np.array([0.0, 0.6]), np.array([0, 1])
    theta, kernel = np.linspace(-10, 10, 81), (9.0 * k.RBF(1.0)).fix("variance")
    t, log_p = np.where(labels == 0, 1.0, -1.0), -0.5 * (theta / parameters.DEFAULT_PRIOR_SD) ** 2
    for i, value in enumerate(theta):
        R = np.linalg.cholesky(covariance(x, 18.0, np.exp(value)) + 1e-9 * np.eye(2))
        log_p[i] += by_quadrature(R, lambda f: log_expit(t * f).sum(axis=-1))[0]
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ theta
    draws = sample_jointly(
        kernel, x, softmax_log_likelihood(labels, 2), 300, 40, classes=2, sites=softmax_sites(labels, 2)
    )
    assert draws.theta_ess[0] > 100
    agree(Draws(draws.theta, None, draws.chains, draws.theta_ess, draws.theta_rhat), [mean], [p @ (theta - mean) ** 2])


def test_priors_are_densities_of_theta():
    kernel = (2.0 * k.RBF(0.5)).with_priors(lengthscale=priors.LogNormal(0.3, 0.7))
    prior, theta = ThetaPrior(kernel), np.asarray(to_free(kernel))
    there = theta + [0.4, -0.9]
    lengthscales = np.exp([theta[1], there[1]])
    density = lognorm(0.7, scale=np.exp(0.3)).logpdf(lengthscales) + np.log(lengthscales)
    assert prior(there) - prior(theta) == pytest.approx(density[1] - density[0] - 0.5 * (0.4 / 2) ** 2)


def test_same_seed_same_draws():
    t = np.array([1.0, 1.0, -1.0, -1.0, 1.0])
    one, two = (
        sample_jointly(KERNEL, X, log_likelihood_of(Probit(), t), 16, 8, sites=laplace_sites(Probit(), t))
        for _ in range(2)
    )
    assert np.array_equal(one.theta, two.theta)
    assert np.array_equal(one.latents, two.latents)


def test_an_interrupted_run_keeps_its_draws():
    def progress(text):
        if text == "sampling, 13 of 1005":
            raise KeyboardInterrupt

    draws = sample_jointly(KERNEL, X, log_likelihood_of(Probit(), np.ones(5)), 4000, 5, progress=progress)
    assert draws.interrupted
    assert len(draws.latents) == len(draws.theta) == 4 * 8


def test_what_cannot_be_sampled():
    with pytest.raises(ParameterError, match="no free parameter"):
        sample_jointly(KERNEL.fix(), X, log_likelihood_of(Probit(), np.ones(5)))
    with pytest.raises(DataError, match="no finite value"):
        sample_jointly(KERNEL, X, lambda f: np.full(len(f), np.nan))


def test_in_weight_space_the_posterior_is_the_same():
    rows = np.random.default_rng(3).uniform(-2, 2, size=(16, 1))
    Z = np.linspace(-2.5, 2.5, 5)[:, None]
    kernel = 2.0 * k.Polynomial(2) + k.Linear().fix()
    codes = np.digitize(rows[:, 0], [0.3])
    t = 2.0 * codes - 1
    posteriors = []
    for space, cls in ((LatentMatrix, SampledPosterior), (LatentFeatures, SampledWeights)):
        target, sites = log_likelihood_of(Probit(), t), matched_sites(Probit(), t)
        draws = sample_jointly(kernel, space(kernel, rows), target, 600, 60, sites=sites)
        assert draws.theta_rhat.max() < 1.1
        posteriors.append(cls.of(kernel, rows, draws, Labels(codes, named("mcmc", link="probit"))))
    one, other = posteriors
    assert other.theta.mean() == pytest.approx(one.theta.mean(), abs=0.4 * one.theta.std())
    assert other.theta.std() == pytest.approx(one.theta.std(), rel=0.35)
    assert one.class_probabilities(Z, Probit()) == pytest.approx(other.class_probabilities(Z, Probit()), abs=0.05)
    assert one.leave_one_out() == pytest.approx(other.leave_one_out(), abs=0.1)
    for posterior in posteriors:
        mean, variance = posterior.moments(Z)
        assert posterior.mean(Z) == pytest.approx(mean)
        assert np.diag(posterior.covariance(Z)) == pytest.approx(variance, rel=1e-5)
        high, low = posterior.moments(Z + 1e-5), posterior.moments(Z - 1e-5)
        for slope, up, down in zip(posterior.gradients(Z), high, low, strict=True):
            assert slope[:, 0] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-3)
        assert [part for part, *_ in posterior.terms(Z)] == list(kernel.parts)
        assert sum(m for _, m, _ in posterior.terms(Z)) == pytest.approx(mean, rel=1e-5, abs=1e-5)
        paths = posterior.sample(Z, 20_000, seed=1)
        assert np.abs(paths.mean(axis=0) - mean).max() < 5 * np.sqrt(variance.max() / 20_000)
        assert paths.var(axis=0) == pytest.approx(variance, rel=0.1)
        with pytest.raises(ParameterError, match="draws of the parameters too"):
            posterior.condition(Z[:2], np.array([0, 1]))
