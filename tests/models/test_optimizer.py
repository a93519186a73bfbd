"""Bayesian optimisation."""

import numpy as np
import pytest
from scipy.stats import norm

import mercer as mc
from mercer import kernels as k
from mercer.models.optimizer import PosteriorSurface, improvement_with_slopes


def bowl(x):
    return float((x[0] - 0.7) ** 2 + 2 * (x[1] + 0.4) ** 2 + 3.0)


BOX = [(-2.0, 2.0), (-1.0, 3.0)]


def test_log_expected_improvement_is_stable_and_has_slopes():
    mean, variance = np.array([-1.0, 0.5, 3.0, 30.0]), np.array([0.5, 1.0, 0.04, 0.5])
    value, of_mean, of_variance = improvement_with_slopes(mean, variance, 0.2)
    s = np.sqrt(variance)
    z = (0.2 - mean) / s
    with np.errstate(divide="ignore"):
        plain = np.log(s * (norm.pdf(z) + z * norm.cdf(z)))
    np.testing.assert_allclose(value[:2], plain[:2], rtol=1e-10)
    # Far in the tail phi + z Phi is phi / z^2 (1 - 3/z^2 + 15/z^4 - ...).
    tail = norm.logpdf(z[2:]) - 2 * np.log(-z[2:]) + np.log(1 - 3 / z[2:] ** 2 + 15 / z[2:] ** 4 - 105 / z[2:] ** 6)
    np.testing.assert_allclose(value[2:] - np.log(s[2:]), tail, rtol=1e-4)
    h = 1e-6
    for slopes, step in ((of_mean, (h, 0.0)), (of_variance, (0.0, h))):
        up = improvement_with_slopes(mean + step[0], variance + step[1], 0.2)[0]
        down = improvement_with_slopes(mean - step[0], variance - step[1], 0.2)[0]
        np.testing.assert_allclose(slopes, (up - down) / (2 * h), rtol=1e-3)


def test_the_surface_is_the_posterior():
    optimizer = mc.Optimizer([(0, 1)] * 2, random_state=0)
    rng = np.random.default_rng(0)
    X, U = rng.uniform(size=(20, 2)), rng.uniform(size=(8, 2))
    optimizer.tell(X, np.sin(5 * X[:, 0]) + X[:, 1] ** 2)
    posterior = optimizer._posterior()
    for mine, theirs in zip(
        PosteriorSurface(posterior)(U), [*posterior.moments(U), *posterior.gradients(U)], strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_the_minimum_of_a_bowl():
    found = mc.minimize(bowl, BOX, 22, random_state=0)
    np.testing.assert_allclose(found.x, [0.7, -0.4], atol=0.05)
    assert found.fun < 3.005
    X, y = found.history
    assert X.shape == (22, 2)
    assert found.fun == y.min()
    assert "after 22 evaluations" in repr(found)
    again = mc.minimize(bowl, BOX, 22, random_state=0)
    np.testing.assert_array_equal(again.history[0], X)


def test_thompson_sampling_and_batches():
    found = mc.minimize(lambda A: [bowl(x) for x in A], BOX, 24, batch=4, acquisition="thompson", random_state=1)
    assert found.fun < 3.2
    optimizer = mc.Optimizer(BOX, random_state=2)
    start = optimizer.ask(8)
    optimizer.tell(start, [bowl(x) for x in start])
    batch = optimizer.ask(4)  # points being evaluated are taken into account
    assert len(optimizer.pending) == 4
    apart = np.abs(batch[:, None] - batch[None]).max(axis=2)[np.triu_indices(4, 1)]
    assert apart.min() > 1e-3
    optimizer.tell(batch[:2], [bowl(x) for x in batch[:2]])
    assert len(optimizer.pending) == 2


def test_noise_failures_constants_and_interruptions():
    rng = np.random.default_rng(0)
    noisy = mc.minimize(lambda x: bowl(x) + 0.3 * rng.normal(), BOX, 24, random_state=0, noise=0.09)
    assert bowl(noisy.x) < 3.6
    assert 0 < noisy.deviation < 0.3

    def fails(x):
        return np.nan if x[0] < 0 else bowl(x)

    found = mc.minimize(fails, BOX, 20, random_state=0)
    assert found.fun < 3.1
    assert "failed" in repr(found)
    constant = mc.minimize(lambda x: 5.0, [(0, 1)], 8, random_state=0)
    assert constant.fun == 5.0
    assert len(np.unique(constant.history[0])) == 8

    def interrupted(x, calls=[]):  # noqa: B006
        calls.append(x)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return bowl(x)

    with pytest.warns(mc.InterruptedFitWarning, match="8 evaluations"):
        found = mc.minimize(interrupted, BOX, 20, random_state=0)
    assert found.interrupted
    assert len(found.history[1]) == 8


def test_points_that_were_told_before_are_not_asked_again():
    optimizer = mc.Optimizer([(0.0, 1.0)], random_state=0, noise=0.0)
    optimizer.tell([[0.0], [0.5], [1.0], [0.5]], [0.0, 1.0, 2.0, 1.0])  # the minimum is at the edge
    asked = optimizer.ask()[0, 0]
    assert abs(asked - np.array([0.0, 0.5, 1.0])).min() > 1e-7


def test_points_and_values_may_come_in_any_shape_that_is_clear():
    optimizer = mc.Optimizer(BOX, random_state=0)
    optimizer.tell([0.1, 0.2], 3.0)
    optimizer.tell(np.array([[0.3, 0.4], [0.5, 0.6]]), np.array([[1.0], [np.inf]]))
    assert optimizer.X.shape == (3, 2)
    np.testing.assert_array_equal(optimizer.y, [3.0, 1.0, np.nan])


def test_wrong_arguments():
    for bounds in ([(1.0, 0.0)], [0.0, 1.0], [(0.0, np.inf)], []):
        with pytest.raises(mc.ParameterError, match="bounds must be pairs"):
            mc.Optimizer(bounds)
    optimizer = mc.Optimizer([(0.0, 1.0)])
    with pytest.raises(mc.DataError, match="outside"):
        optimizer.tell([[2.0]], [1.0])
    with pytest.raises(mc.DataError, match="one value for each"):
        optimizer.tell([[0.5]], [1.0, 2.0])
    with pytest.raises(mc.DataError, match="2 inputs"):
        mc.Optimizer(BOX).tell([[0.1], [0.2]], [1.0, 2.0])  # not one point of two inputs
    for y, says in ((None, "one value"), ([None], "one value"), (["a"], "text"), ([[1.0, 2.0]], "one value")):
        with pytest.raises(mc.DataError, match=says):
            optimizer.tell([[0.5]], y)
    for X in (None, [["a"]], [[0.1, 0.2]]):
        with pytest.raises(mc.DataError):
            optimizer.tell(X, [1.0])
    assert len(optimizer.y) == 0
    for returned in (None, "a", [1.0, 2.0], 1j):
        with pytest.raises(mc.DataError, match="one number for a point"):
            mc.minimize(lambda x, returned=returned: returned, BOX, 3)
    with pytest.raises(mc.DataError, match=r"f\(X\)"):
        mc.minimize(lambda X: None, BOX, 4, batch=2)
    for noise in ("x", True, -1.0, [0.1]):
        with pytest.raises(mc.ParameterError, match="noise"):
            mc.Optimizer(BOX, noise=noise)
    with pytest.raises(mc.ParameterError, match="vectors of 2 numbers"):
        mc.Optimizer(BOX, kernel=k.Spectrum(2))
    with pytest.raises(mc.MercerError, match="3"):
        mc.Optimizer(BOX, kernel=k.RBF([1.0, 1.0, 1.0]))
    with pytest.raises(mc.InvalidKernelError):
        mc.Optimizer(BOX, kernel="rbf")
    with pytest.raises(mc.ParameterError, match="no setting 'tries'"):
        mc.minimize(bowl, BOX, 3, tries=4)
    with pytest.raises(mc.DataError, match="no evaluation"):
        optimizer.best()
    with pytest.raises(mc.ParameterError, match="acquisition"):
        mc.Optimizer([(0.0, 1.0)], acquisition="ucb")
    with pytest.raises(mc.ParameterError, match="n_evaluations"):
        mc.minimize(bowl, BOX, 0)
