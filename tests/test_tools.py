"""Integrals, extremes and zeros: what they refuse; and models of several targets where one function is meant."""

import matplotlib as mpl
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.models.estimator import NotFittedError
from mercer.operators import Linear

mpl.use("Agg")

X = np.linspace(0.0, 3.0, 12)[:, None]
f = mc.GP(k.RBF()).condition(X, np.sin(X[:, 0]), noise=0.01)


@pytest.fixture(scope="module")
def several():
    Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])])
    return mc.MultiOutputGaussianProcessRegressor(1.0 * k.RBF(), learning=None, progress=False).fit(X, Y)


@pytest.mark.parametrize("call", [
    lambda m: mc.plot.posterior(m, X), lambda m: mc.plot.samples(m, X), lambda m: mc.plot.field(m, [0, 1], [0, 1]),
    lambda m: mc.plot.map(m), lambda m: mc.plot.variogram(m), lambda m: mc.plot.relevance(m),
    lambda m: mc.plot.calibration(m), lambda m: mc.plot.predictions(m), lambda m: mc.tools.integral(m, 0.0, 1.0),
    lambda m: mc.tools.maximum(m, [(0, 1)]), lambda m: mc.tools.zeros(m, [(0, 1)]),
])  # fmt: skip
def test_one_function_of_a_model_of_several_targets_is_refused(several, call):
    with pytest.raises(mc.ParameterError, match="one function.*each target"):
        call(several)


def test_models_that_are_not_fitted_or_of_another_kind():
    for call in (lambda m: mc.tools.integral(m, 0.0, 1.0), lambda m: mc.tools.maximum(m, [(0, 1)])):
        with pytest.raises(NotFittedError):
            call(mc.GaussianProcessRegressor())
    with pytest.raises(mc.ParameterError, match="GaussianProcessRegressor; got KernelRidge"):
        mc.tools.integral(mc.KernelRidge().fit(X, X[:, 0]), 0.0, 1.0)
    with pytest.raises(mc.DataError, match="result of mercer.forecast"):
        mc.plot.forecast(mc.GaussianProcessRegressor())


def test_settings_that_have_no_meaning():
    for size in (0, -1, 1.5, "a", True):
        with pytest.raises(mc.ParameterError, match="positive number of draws"):
            mc.tools.maximum(f, [(0, 1)], size=size)
    found = mc.tools.Extreme(np.zeros((3, 1)), np.arange(3.0))
    for level in (2.0, -0.5, "a", None, np.nan):
        with pytest.raises(mc.ParameterError, match="between 0 and 1"):
            found.interval(level)
    for level in (np.nan, np.inf, "a", None):
        with pytest.raises(mc.ParameterError, match="finite number"):
            mc.tools.zeros(f, [(0, 1)], level=level, size=3)


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda g: lambda x: np.sin(float(x[0])) * g(x), "cannot be traced.*jnp.where"),
        (lambda g: lambda x: g(x) if x[0] > 0 else 2 * g(x), "cannot be traced.*jnp.where"),
        (lambda g: lambda x: None, "returns one number"),
    ],
)
def test_operators_that_jax_cannot_trace(transform, says):
    with pytest.raises(mc.ParameterError, match=says):
        f.apply(Linear(transform))
