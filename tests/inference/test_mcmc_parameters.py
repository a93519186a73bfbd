"""Sampling with the parameters of the kernel: against their marginals on a grid."""

import types

import numpy as np
import pytest
from reference.latents import X, agree, covariance
from scipy.special import log_expit, logsumexp
from scipy.stats import lognorm

from mercer import kernels as k
from mercer import priors
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, ParameterError
from mercer.gp.likelihood import Gaussian, Probit
from mercer.inference import mcmc_parameters
from mercer.inference.diagnostics import effective_size
from mercer.inference.mcmc import Draws, laplace_sites, matched_sites, rows, softmax_rows
from mercer.inference.mcmc_parameters import ThetaPrior, sample_jointly
from mercer.inference.sampled import SampledPosterior

KERNEL = (4.0 * k.RBF(1.0)).fix("variance")


@pytest.mark.parametrize(("prior", "sites"), [(None, True), (priors.LogNormal(0.5, 0.8), False)])
def test_the_marginal_of_a_parameter(prior, sites):
    """Three probits: their evidence is an orthant of three correlated numbers, in closed form."""
    x, t = np.array([0.0, 0.4, 0.8]), np.array([1.0, -1.0, 1.0])
    kernel = (100.0 * k.RBF(1.0)).fix("variance")
    kernel = kernel if prior is None else kernel.with_priors(lengthscale=prior)
    theta = np.linspace(-10, 10, 401)
    log_p = -0.5 * (theta / mcmc_parameters.SPREAD) ** 2 if prior is None else -0.5 * ((theta - 0.5) / 0.8) ** 2
    for i, value in enumerate(theta):
        rho = np.outer(t, t) * covariance(x, 100.0, np.exp(value)) / 101.0
        log_p[i] += np.log(1 / 8 + np.arcsin(rho[np.triu_indices(3, 1)]).sum() / (4 * np.pi))
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ theta
    draws = sample_jointly(
        kernel, x, rows(Probit(), t), 1600, 120, sites=laplace_sites(Probit(), t) if sites else None,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    assert draws.theta.shape == (1600, 1)
    assert draws.theta_ess[0] > 200
    assert draws.theta_rhat[0] < 1.05
    agree(Draws(draws.theta, None, draws.chains, draws.theta_ess, draws.theta_rhat), [mean], [p @ (theta - mean) ** 2])
    assert draws.n_factorisations > 1600


def test_joint_draws_with_a_gaussian_likelihood():
    """The evidence of K + noise is exact, so the marginals of theta and of f are, on a grid."""
    rng = np.random.default_rng(5)
    x, noise = np.linspace(0, 4, 12), 0.1
    y = np.sin(2 * x) * 2 + 0.3 * rng.normal(size=12)
    theta = np.linspace(-4, 4, 201)
    log_p, means = -0.5 * (theta / mcmc_parameters.SPREAD) ** 2, []
    for i, value in enumerate(theta):
        K = covariance(x, 4.0, np.exp(value))
        C = K + noise * np.eye(12)
        log_p[i] += -0.5 * y @ np.linalg.solve(C, y) - 0.5 * np.linalg.slogdet(C)[1]
        means.append(K @ np.linalg.solve(C, y))
    p = np.exp(log_p - logsumexp(log_p))
    draws = sample_jointly(KERNEL, x, rows(Gaussian(noise), y), 800, 100, sites=laplace_sites(Gaussian(noise), y))
    mean = p @ theta
    agree(Draws(draws.theta, None, draws.chains, draws.theta_ess, draws.theta_rhat), [mean], [p @ (theta - mean) ** 2])
    assert draws.theta_ess[0] > 300  # with the sites exact, moves of theta see its marginal
    error = draws.latents.std(axis=0) / np.sqrt(draws.ess)
    assert (np.abs(draws.latents.mean(axis=0) - p @ np.array(means)) < 4.5 * error).all()


def test_moves_of_parameters_leave_any_target_what_it_is():
    """Logistic in both coordinates, one scaled: heavier in the tails than what they are moved around."""
    rng = np.random.default_rng(0)
    reference = mcmc_parameters._ThetaReference(np.array([0.3, 0.0]), np.array([1.0, 1.5]))
    reference.root[1, 0] = 0.5
    scale = np.array([1.0, 0.5])

    def at(theta):
        value = np.sum(log_expit(theta / scale) + log_expit(-theta / scale))
        return types.SimpleNamespace(theta=theta, log_target=value)

    chains = [at(np.zeros(2)) for _ in range(4)]
    theta = np.empty((4, 4000, 2))
    for i in range(4000):
        chains = [reference.move(chain, at, rng) for chain in chains]
        theta[:, i] = [chain.theta for chain in chains]
    for power in (1, 2, 4):
        moment = theta**power
        exact = {1: 0.0, 2: np.pi**2 / 3, 4: 7 * np.pi**4 / 15}[power] * scale**power
        error = moment.std(axis=(0, 1)) / np.sqrt(effective_size(moment, ranked=False))
        assert (np.abs(moment.mean(axis=(0, 1)) - exact) < 4.5 * error).all()
    assert effective_size(theta).min() > 4000


def test_several_classes_share_sampled_parameters():
    draws = sample_jointly(KERNEL, X, several(np.array([0, 1, 1, 2, 0])), 16, 10, classes=3)
    assert draws.latents.shape == (16, 5, 3)
    assert draws.theta.shape == (16, 1)
    posterior = SampledPosterior.of(KERNEL, X, draws)
    assert np.allclose(posterior.probabilities(X).sum(axis=1), 1)


def test_priors_are_densities_of_theta():
    kernel = (2.0 * k.RBF(0.5)).with_priors(lengthscale=priors.LogNormal(0.3, 0.7))
    prior, theta = ThetaPrior(kernel), np.asarray(to_free(kernel))
    there = theta + [0.4, -0.9]
    lengthscales = np.exp([theta[1], there[1]])
    density = lognorm(0.7, scale=np.exp(0.3)).logpdf(lengthscales) + np.log(lengthscales)
    assert prior(there) - prior(theta) == pytest.approx(density[1] - density[0] - 0.5 * (0.4 / 2) ** 2)
