"""The prior of theta: the log densities of parameters, with and without the Jacobian, and its gradient."""

import numpy as np
import pytest

from mercer import kernels as k
from mercer import priors
from mercer.core.coordinates import from_free, log_prior
from mercer.gp.model import Model
from mercer.gp.noise import LearnedNoise
from mercer.learning.objective import prior_of

KERNELS = {
    "normal in theta": (1.0 * k.RBF([1.0, 2.0])).with_priors(
        lengthscale=priors.Each([priors.LogNormal(0.3, 0.5), priors.LogNormal(-1.0, 2.0)]),
        variance=priors.LogNormal(0.1, 1.5),
    ),
    "others": (1.0 * k.RBF([1.0, 2.0])).with_priors(
        lengthscale=priors.Each([priors.Gamma(2.0, 1.0), priors.LogNormal(-1.0, 2.0)]),
        variance=priors.PenalisedVariance(1.0, 0.1),
    ),
    "some have none": (1.0 * k.RBF([1.0, 2.0])).with_priors(variance=priors.Normal(0.5, 2.0)),
}


@pytest.mark.parametrize("jacobian", [False, True])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_value_and_gradient(kernel, jacobian):
    model = Model((kernel,), noise=LearnedNoise().with_priors(noise=priors.HalfCauchy(0.3)))
    prior, theta = prior_of(model, jacobian), np.array([0.2, -0.4, 0.7, -1.0])
    value, gradient = prior(theta)
    counted = [i for i in range(4) if kernel is not KERNELS["some have none"] or i in (0, 3)]
    expected = float(log_prior(from_free(model, theta))) + jacobian * theta[counted].sum()
    assert value == pytest.approx(expected, abs=1e-5)  # log_prior may be in single precision
    for i, step in enumerate(1e-6 * np.eye(4)):
        assert gradient[i] == pytest.approx((prior(theta + step)[0] - prior(theta - step)[0]) / 2e-6, abs=1e-6)


def test_no_priors_are_no_prior():
    assert prior_of(Model((k.RBF(),), noise=LearnedNoise())) is None
