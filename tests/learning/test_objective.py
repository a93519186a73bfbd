"""What an objective must say, and what it may: learning with one written here."""

from types import SimpleNamespace

import numpy as np
import pytest

from mercer import kernels as k
from mercer.inference.methods import Laplace
from mercer.learning.classification import LabelLearner
from mercer.learning.objective import Objective, Start, product_of_priors
from mercer.learning.optimise import Settings, learn
from mercer.solvers.base import Evaluation
from mercer.solvers.dense import Dense


class Bowl:
    """-1/2 n |theta - centre|^2, with n counted to depend on the rows."""

    jitter, diagonal = 0.0, 1.0

    def __init__(self, centre, n):
        self.centre, self.n, self.size = centre, n, len(centre)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __call__(self, theta, gradient=True, profiled=False):
        if theta[0] > 4.0:
            return None
        away = theta - self.centre
        return Evaluation(-0.5 * self.n * float(away @ away), -self.n * away if gradient else None, 1.0)


class Smallest(Objective):
    """Only what has no default."""

    n, size = 2000, 2
    centre = np.array([1.0, -2.0])

    def names(self):
        return ["a", "b"]

    def criterion(self, rows=None):
        return Bowl(self.centre, self.n if rows is None else len(rows))

    def starts(self):
        return [Start("here", np.zeros(2)), Start("there", np.full(2, 3.0)), Start("nowhere", np.full(2, 5.0))]


def test_the_least_an_objective_says_is_enough():
    objective = Smallest()
    learned = learn(objective, Settings(n_restarts=2), np.random.default_rng(0))
    np.testing.assert_allclose(learned.theta, objective.centre, atol=1e-3)
    assert learned.history[0].rows == 500
    assert learned.history[-1].rows == 2000
    assert learned.optima[0].start in ("here", "restart 1", "restart 2")
    assert learned.optima[0].times_found == 3
    assert learned.outcome is None
    with pytest.raises(TypeError, match="abstract"):
        Objective()


def test_bounds_directions_and_priors_are_kept():
    class Bounded(Smallest):
        def floor(self):
            return np.array([-np.inf, -1.5])

        def ceiling(self):
            return np.array([0.5, np.inf])

    np.testing.assert_allclose(learn(Bounded(), Settings()).theta, [0.5, -1.5], atol=1e-3)

    class Tied(Smallest):
        def directions(self):
            return np.ones((2, 1))

        def starts(self):
            return [Start("here", np.zeros(2))]

    np.testing.assert_allclose(learn(Tied(), Settings()).theta, [-0.5, -0.5], atol=1e-3)

    class Believed(Smallest):
        n = 100

        def prior(self):
            return product_of_priors(None, lambda theta: (-50.0 * float(theta @ theta), -100.0 * theta))

    np.testing.assert_allclose(learn(Believed(), Settings()).theta, Smallest.centre / 2, atol=1e-3)


def test_later_stages_start_where_the_objective_says():
    asked = []

    class Moving(Smallest):
        screens_starts = True

        def for_more_rows(self, theta, ratio):
            asked.append(ratio)
            return theta + 0.5

        def late_start(self, rows):
            return Start("late", np.full(2, 1.5)) if rows == 2000 else None

        def off_plateau(self, theta):
            return theta + 1.0

        def outcome(self, criterion):
            return criterion.n

    learned = learn(Moving(), Settings())
    assert asked == [4.0]
    assert learned.outcome == 2000
    assert learned.optima[0].times_found >= 3  # with the late one, and the one off its plateau
    np.testing.assert_allclose(learned.theta, Smallest.centre, atol=1e-3)


def test_nothing_is_found_where_there_is_no_value():
    class Nowhere(Smallest):
        def starts(self):
            return [Start("nowhere", np.full(2, 5.0))]

    assert learn(Nowhere(), Settings()).optima == []


class Wrapped(SimpleNamespace):
    """An approximation of another class."""


class WrappedLaplace(Laplace):
    """A method of one's own, whose approximations only keep the protocol."""

    def __call__(self, covariances, codes, start=None, gradient=True):
        found = super().__call__(covariances, codes, getattr(start, "inner", start), gradient)
        return found and Wrapped(
            inner=found, log_evidence=found.log_evidence, a=found.a, iterations=found.iterations,
            converged=found.converged, slope=found.slope, start=found.start,
        )  # fmt: skip

    def posterior(self, found, kernels, X, codes, jitter=0.0, draws=None):
        return super().posterior(found.inner, kernels, X, codes, jitter, draws)


def test_limits_on_variances_are_chosen_through_the_protocol_of_inference():
    X = np.random.default_rng(0).normal(size=(30, 1))
    codes = np.digitize(X[:, 0], [-0.5, 0.5])
    learned = [
        LabelLearner(method(3), Settings(), 0, default_kernel=False, use_priors=False)(
            [1.0 * k.RBF()], X, codes, Dense()
        )
        for method in (Laplace, WrappedLaplace)
    ]
    assert learned[0].theta == pytest.approx(learned[1].theta)
