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
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda p: type(p).__name__)
def test_density_support_gradient_and_samples(ours, theirs):
    x = np.array([0.1, 0.9, 3.0, 20.0])
    with double():
        np.testing.assert_allclose(ours.log_density(x), theirs.logpdf(x), rtol=1e-12)
        if not isinstance(ours, priors.Normal):
            assert (np.asarray(ours.log_density(np.array([-1.0, 0.0]))) == -np.inf).all()
            assert np.isfinite(jax.grad(ours.log_density)(-1.0))
    draws = ours.sample(2000, seed=1)
    assert draws.dtype == np.float64
    assert scipy.stats.kstest(draws, theirs.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(draws, ours.sample(2000, seed=1))


def test_every_prior_is_tested():
    there = {cls for cls in vars(priors).values() if isinstance(cls, type) and issubclass(cls, priors.Prior)}
    assert there - {priors.Prior} == {type(ours) for ours, _ in PAIRS}


@pytest.mark.parametrize(
    "build",
    [
        lambda: priors.Gamma(-1.0, 1.0),
        lambda: priors.Normal(0.0, 0.0),
        lambda: priors.LogNormal(float("nan")),
        lambda: priors.HalfNormal("wide"),
    ],
)
def test_bad_priors_are_refused(build):
    with pytest.raises(mc.ParameterError):
        build()
