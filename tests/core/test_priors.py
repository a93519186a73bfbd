"""Priors against scipy.stats, and their samples against their densities."""

import jax
import numpy as np
import pytest
import scipy.stats

import mercer as mc
from mercer import priors
from mercer.core.precision import double

PAIRS = [
    (priors.Normal(0.5, 2.0), scipy.stats.norm(0.5, 2.0)),
    (priors.LogNormal(0.3, 0.7), scipy.stats.lognorm(0.7, scale=np.exp(0.3))),
    (priors.HalfNormal(1.7), scipy.stats.halfnorm(scale=1.7)),
    (priors.HalfCauchy(1.7), scipy.stats.halfcauchy(scale=1.7)),
    (priors.Gamma(2.5, 1.3), scipy.stats.gamma(2.5, scale=1 / 1.3)),
    (priors.InverseGamma(2.5, 1.3), scipy.stats.invgamma(2.5, scale=1.3)),
    # The square of an exponential variable, and a power of one: Weibull and inverse Weibull.
    (priors.PenalisedVariance(2.0, 0.1), scipy.stats.weibull_min(0.5, scale=(2.0 / -np.log(0.1)) ** 2)),
    (priors.PenalisedLengthscale(0.5, 0.1, 3), scipy.stats.invweibull(1.5, scale=0.5 * (-np.log(0.1)) ** (2 / 3))),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda p: type(p).__name__)
def test_density_support_gradient_and_samples(ours, theirs):
    x = np.array([0.1, 0.9, 3.0, 20.0])
    with double():
        np.testing.assert_allclose(ours.log_density(x), theirs.logpdf(x), rtol=1e-12)
        if not isinstance(ours, priors.Normal):
            assert (np.asarray(ours.log_density(np.array([-1.0, 0.0]))) == -np.inf).all()
            assert np.isfinite(jax.grad(ours.log_density)(-1.0))
        slope = jax.vmap(jax.grad(ours.log_density))(x)
        np.testing.assert_allclose(ours.slope(x), slope, rtol=1e-10)
        np.testing.assert_allclose(priors.Prior.slope(ours, x), slope, rtol=1e-10)
    assert isinstance(ours.log_density(x), np.ndarray)  # without compiling anything
    q = np.array([0.0, 1e-3, 0.3, 0.5, 0.975])
    np.testing.assert_allclose(ours.quantile(q), theirs.ppf(q), rtol=1e-9)
    draws = ours.sample(2000, seed=1)
    assert draws.dtype == np.float64
    assert scipy.stats.kstest(draws, theirs.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(draws, ours.sample(2000, seed=1))


def test_every_prior_is_tested():
    there = {cls for cls in vars(priors).values() if isinstance(cls, type) and issubclass(cls, priors.Prior)}
    assert there - {priors.Prior, priors.Each} == {type(ours) for ours, _ in PAIRS}


def test_penalised_complexity_is_what_its_papers_say():
    """Exponential in the standard deviation; a lengthscale is below L with probability alpha."""
    variance = priors.PenalisedVariance(deviation=3.0, probability=0.01)
    np.testing.assert_allclose(variance.quantile(0.99), 9.0)
    s = np.linspace(0.1, 5, 7)
    exponential = scipy.stats.expon(scale=3.0 / -np.log(0.01))
    np.testing.assert_allclose(variance.log_density(s**2) + np.log(2 * s), exponential.logpdf(s))
    length = priors.PenalisedLengthscale(lengthscale=0.2, probability=0.3, dimensions=2)
    np.testing.assert_allclose(length.quantile(0.3), 0.2)
    # In two dimensions 1 / l is exponential (Fuglstad and others 2019, Theorem 2.6).
    inverse = scipy.stats.expon(scale=1 / (-np.log(0.3) * 0.2))
    np.testing.assert_allclose(length.log_density(s) + 2 * np.log(s), inverse.logpdf(1 / s))


def test_each_entry_has_its_own_prior():
    both = priors.Each([priors.LogNormal(0.0, 1.0), priors.Gamma(2.0, 3.0)])
    x = np.array([[0.5, 0.7], [1.5, 2.0]])
    for i, prior in enumerate(both.priors):
        np.testing.assert_allclose(both.log_density(x)[:, i], prior.log_density(x[:, i]))
        np.testing.assert_allclose(both.slope(x)[:, i], prior.slope(x[:, i]))
        np.testing.assert_allclose(both.quantile([0.1, 0.5])[:, i], prior.quantile([0.1, 0.5]))
        assert priors.by_entry(both, 2)[i] is prior
    draws = both.sample(2000, seed=3)
    assert scipy.stats.kstest(draws[:, 1], scipy.stats.gamma(2.0, scale=1 / 3).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(np.log(draws).T)[0, 1]) < 0.1
    with pytest.raises(mc.ParameterError, match="2 priors for a parameter of shape"):
        both.log_density(np.ones(3))
    for count in (1, 3):
        with pytest.raises(mc.ParameterError, match=f"2 priors for a parameter with {count} learned"):
            priors.by_entry(both, count)
    kernel = mc.kernels.RBF([1.0, 2.0]).with_priors(lengthscale=both)
    assert dict(kernel.priors)["lengthscale"] is both


@pytest.mark.parametrize(
    "build",
    [
        lambda: priors.Gamma(-1.0, 1.0),
        lambda: priors.Normal(0.0, 0.0),
        lambda: priors.LogNormal(float("nan")),
        lambda: priors.HalfNormal("wide"),
        lambda: priors.PenalisedVariance(1.0, 1.0),
        lambda: priors.PenalisedLengthscale(1.0, 0.1, 0),
        lambda: priors.Each([]),
        lambda: priors.Each([1.0]),
        lambda: priors.Gamma().quantile(1.2),
    ],
)
def test_bad_priors_are_refused(build):
    with pytest.raises(mc.ParameterError):
        build()
