"""The family of default kernels."""

import numpy as np
import pytest

import mercer as mc
from mercer.learning import family
from mercer.learning.heuristics import standard_kernel
from mercer.learning.regression import RegressionObjective
from mercer.solvers import Dense


def draw(seed, n, d, f, noise):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, f(X) + noise * rng.normal(size=n)


@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
def test_the_kernel_is_chosen_on_the_rows_where_learning_begins(kind, monkeypatch):
    X, y = draw(24, 510, 1, lambda X: np.sin(2 * X[:, 0]), 0.3)
    seen, part = [], RegressionObjective.criterion

    def looked(self, rows=None):
        seen.append(None if rows is None else tuple(rows))
        return part(self, rows)

    monkeypatch.setattr(RegressionObjective, "criterion", looked)
    mc.GaussianProcessRegressor(progress=False, random_state=kind(3)).fit(X, y)
    assert len({rows for rows in seen if rows is not None}) == 1


def test_the_weak_prior_is_gone_with_many_rows_and_has_the_right_gradient():
    X, y = draw(16, 30, 3, lambda X: X[:, 0], 0.1)
    few = RegressionObjective(standard_kernel(X, constant=False), X, y, None, Dense(), "unknown")
    prior = family.WeakPrior.of(few)
    theta = few.start_with_noise(0.3) + np.random.default_rng(0).normal(size=few.size)
    slope = prior(theta)[1]
    for i, step in enumerate(1e-6 * np.eye(few.size)):
        assert slope[i] == pytest.approx((prior(theta + step)[0] - prior(theta - step)[0]) / 2e-6, abs=1e-6)
    A, t = draw(17, 100, 3, lambda X: X[:, 0], 0.1)
    many = RegressionObjective(standard_kernel(A, constant=False), A, t, None, Dense(), "unknown")
    assert family.WeakPrior.of(many) is None


def test_members_that_the_solver_refuses_are_left_out():
    class Rough(Dense):
        def refusal(self, kernel, X, noise):
            return "is for rough functions" if np.isinf(kernel.nu) else None

    X, y = draw(24, 60, 1, lambda X: np.sin(2 * X[:, 0]), 0.05)
    found = mc.GaussianProcessRegressor(solver=Rough(), progress=False).fit(X, y)
    assert {tried.member.nu for tried in found.choice_.tried} == {0.5, 1.5, 2.5}
    assert mc.GaussianProcessRegressor(solver="dense", progress=False).fit(X, y).choice_.member.nu == np.inf


@pytest.mark.parametrize("size", [1e2, 1e3, 1e6])
def test_one_extreme_input_does_not_hide_the_function(size):
    X, y = draw(7, 150, 3, lambda X: np.sin(2 * X[:, 0]) + X[:, 1], 0.2)
    usual = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    X[0, 0] = size
    model = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    Z, t = draw(8, 300, 3, lambda X: np.sin(2 * X[:, 0]) + X[:, 1], 0.0)
    assert np.sqrt(np.mean((model.predict(Z) - t) ** 2)) < 1.5 * np.sqrt(np.mean((usual.predict(Z) - t) ** 2))


def test_an_additive_function_with_one_short_lengthscale_is_found():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 4))
    y = 0.3 * np.sin(40 * X[:, 0]) + 2 * X[:, 1] + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=200)
    model = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    assert model.choice_.member.each
    assert model.noise_ < 0.15**2
