"""Sampling: against exact posteriors, quadrature over few latents, and what chains promise."""

import functools
import itertools
import types

import numpy as np
import pytest
from scipy.special import log_expit, log_ndtr, log_softmax, logsumexp, ndtr, softmax
from scipy.stats import lognorm

from mercer import gram, priors
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.errors import DataError, ParameterError
from mercer.gp.likelihood import Gaussian, Logistic, Probit
from mercer.inference import mcmc_parameters, sampled
from mercer.inference.annealing import annealed_evidence
from mercer.inference.diagnostics import effective_size, split_rhat
from mercer.inference.ep import ep
from mercer.inference.latent import Covariance
from mercer.inference.mcmc import Draws, laplace_sites, rows, sample_latent
from mercer.inference.mcmc_parameters import ThetaPrior, sample_jointly
from mercer.inference.sampled import SampledPosterior
from mercer.inference.variational import gaussian
from mercer.linalg.cholesky import root

X = np.array([0.0, 0.7, 1.5, 1.6, 3.0])
LINKS = {"logistic": (Logistic(), log_expit), "probit": (Probit(), log_ndtr)}


def covariance(x=X, variance=4.0, lengthscale=1.0):
    return variance * np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2)


def without_slope(log_likelihood):
    return lambda f: log_likelihood(f)[0]


def agree(draws, mean, variance, most=4.5):
    """Means and variances of draws within so many standard errors, as their effective number says."""
    error = np.sqrt(variance / draws.ess)
    assert (np.abs(draws.latents.mean(axis=0) - mean) < most * error).all()
    squares = (draws.latents - mean) ** 2
    ess = effective_size(squares.reshape(draws.chains, -1, *squares.shape[1:]), ranked=False)
    assert (np.abs(squares.mean(axis=0) - variance) < most * squares.std(axis=0) / np.sqrt(ess)).all()


@functools.cache
def grid(r):
    """Nodes of N(0, I) in r dimensions and logarithms of their weights, by brute force."""
    count = 100 if r < 3 else 36
    x, w = np.polynomial.hermite_e.hermegauss(count)
    w = np.log(w / w.sum())
    z = np.array(list(itertools.product(x, repeat=r)))
    return z, np.array(list(itertools.product(w, repeat=r))).sum(axis=1)


def by_quadrature(R, log_likelihood):
    """ln evidence, posterior mean and variance of f = R z."""
    z, logs = grid(R.shape[1])
    f = z @ R.T
    logs = logs + log_likelihood(f)
    w = np.exp(logs - logsumexp(logs))
    mean = w @ f
    return logsumexp(logs), mean, w @ (f - mean) ** 2


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


# -- with parameters ---------------------------------------------------------------------------------------------------


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


# -- chains ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
def test_effective_size_of_an_autoregression(rho):
    rng, chains, n = np.random.default_rng(0), 4, 5000
    x = np.empty((chains, n, 20))
    x[:, 0] = rng.normal(size=(chains, 20))
    for i in range(1, n):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(chains, 20))
    expected = chains * n * (1 - rho) / (1 + rho)
    for ranked in (True, False):
        ess = effective_size(x, ranked)
        assert ess.shape == (20,)
        assert np.mean(ess) == pytest.approx(expected, rel=0.1)
    assert np.allclose(effective_size(np.exp(x)), effective_size(x))  # ranks are what counts
    assert split_rhat(x).max() < 1.02


def test_chains_that_disagree():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 500, 3))
    x[0, :, 1] += 3  # in place
    x[1, :, 2] *= 8  # in scale alone
    rhat, ess = split_rhat(x), effective_size(x)
    assert rhat[0] < 1.01
    assert rhat[1] > 1.3
    assert rhat[2] > 1.1
    assert ess[1] < 20 < 1500 < ess[0]
    constant = np.ones((4, 10, 1))
    assert split_rhat(constant) == 1
    assert effective_size(constant) == 40
    with pytest.raises(DataError, match="at least 4"):
        effective_size(x[:, :3])


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


# -- prediction --------------------------------------------------------------------------------------------------------


def drawn(latents, theta=None):
    return Draws(latents, theta, 1, np.ones(1), np.ones(1))


def test_predictions_are_conditionals_averaged():
    rng, Z = np.random.default_rng(0), np.array([-1.0, 0.3, 2.0, 40.0])
    K, Ks = covariance(), 4.0 * np.exp(-0.5 * (Z[:, None] - X) ** 2)
    f = rng.normal(size=(30, 5)) @ np.linalg.cholesky(K).T
    means = f @ np.linalg.solve(K, Ks.T)
    variance = 4.0 - np.einsum("ij,ji->i", Ks, np.linalg.solve(K, Ks.T))
    posterior = SampledPosterior.of(KERNEL, X, drawn(f))
    mean, total = posterior.moments(Z)
    assert np.allclose(mean, means.mean(axis=0), atol=1e-6)
    assert np.allclose(total, variance + means.var(axis=0), atol=1e-6)
    assert total[-1] == pytest.approx(4.0)
    assert np.allclose(posterior.probability(Z, Probit()), ndtr(means / np.sqrt(1 + variance)).mean(axis=0), atol=1e-7)
    naive = Logistic().probability(means, np.broadcast_to(variance, means.shape)).mean(axis=0)
    assert np.allclose(posterior.probability(Z, Logistic()), naive, atol=1e-7)
    assert np.allclose(posterior.moments(X)[0], f.mean(axis=0), atol=1e-6)
    assert np.allclose(posterior.moments(X)[1], f.var(axis=0), atol=1e-6)


def test_predictions_with_sampled_parameters():
    rng, Z = np.random.default_rng(1), np.array([0.3, 2.0])
    theta = rng.normal(size=(300, 1)) * 0.3
    kernels = [from_free(KERNEL, value) for value in theta]
    f = np.stack([rng.normal(size=5) @ np.linalg.cholesky(gram.within(kernel, X)).T for kernel in kernels])
    posterior = SampledPosterior.of(KERNEL, X, drawn(f, theta))
    assert len(posterior.latents) == len(posterior.theta) == sampled.MOST_PARAMETERS
    few = SampledPosterior.of(KERNEL, X, drawn(f[:6], theta[:6]))
    means, variances, chances = [], [], []
    for kernel, values in zip(kernels[:6], f[:6], strict=True):
        mean, variance = SampledPosterior.of(kernel, X, drawn(values[None])).moments(Z)
        means.append(mean), variances.append(variance), chances.append(Probit().probability(mean, variance))
    mean, total = few.moments(Z)
    assert np.allclose(mean, np.mean(means, axis=0))
    assert np.allclose(total, np.mean(variances, axis=0) + np.var(means, axis=0))
    assert np.allclose(few.probability(Z, Probit()), np.mean(chances, axis=0))


def test_predictions_of_several_classes():
    rng, Z = np.random.default_rng(0), np.array([0.3, 2.0, 2.2])
    other = (1.0 * k.RBF(2.0)).fix("variance")
    roots = [np.linalg.cholesky(gram.within(kernel, X)) for kernel in (KERNEL, other)]
    f = np.stack([rng.normal(size=(200, 5)) @ R.T for R in roots], axis=2)
    posterior = SampledPosterior.of((KERNEL, other), X, drawn(f))
    mean, variance = posterior.moments(Z)
    for c, kernel in enumerate((KERNEL, other)):
        alone = SampledPosterior.of(kernel, X, drawn(f[..., c])).moments(Z)
        assert np.allclose(mean[:, c], alone[0])
        assert np.allclose(variance[:, c], alone[1])

    def pair(means, covariances):  # the softmax of two is a logistic of their difference
        p = Logistic().probability(means[:, 0] - means[:, 1], covariances[:, 0, 0] + covariances[:, 1, 1])
        return np.stack([p, 1 - p], axis=1)

    exact, quick = posterior.probabilities(Z, pair), posterior.probabilities(Z)
    assert np.allclose(exact, quick, atol=0.01)
    assert np.allclose(posterior.probabilities(Z[1:2]), quick[1:2])  # a row by itself as among others
    shared = SampledPosterior.of(KERNEL, X, drawn(f)).moments(Z)[0]
    assert np.allclose(shared[:, 0], mean[:, 0])


def test_a_logistic_is_a_mixture_of_probits():
    mean, variance = np.linspace(-30, 30, 41)[:, None], np.array([0.0, 0.1, 1.0, 30.0, 1e4])
    quick = sampled._probability(Logistic(), *np.broadcast_arrays(mean, variance))
    assert np.allclose(quick, Logistic().probability(mean, variance), atol=1e-8)
