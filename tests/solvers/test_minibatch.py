"""Stochastic variational inference: bounds and derivatives against formulas, and through the estimators."""

import warnings

import numpy as np
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.gp.likelihood import Logistic
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, LearnedNoise
from mercer.learning import batches
from mercer.learning.progress import Progress
from mercer.learning.state import Journal
from mercer.linalg.jitter import FIXED_JITTER
from mercer.solvers import Dense, LowRank, Minibatch

rng = np.random.default_rng(0)
N, M = 90, 12
X, Z = rng.uniform(-2, 2, size=(N, 2)), rng.uniform(-2.5, 2.5, size=(9, 2))
f = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1]
y = f + 0.1 * rng.normal(size=N)
CENTRES = X[:M] + 0.01
KERNEL = 1.2 * k.RBF([0.8, 1.3])
QUIET = Progress(shown=False)
SMALL = Minibatch(n_centers=M, batch=30, epochs=2)


def bound_of(sites, kernel=KERNEL, H=None):
    return batches.BatchBound(kernel, gram.Gram(kernel, X), CENTRES, sites, H)


def distribution(C, p=M):
    """Some q."""
    A = rng.normal(size=(C, p, p)) / 4
    return batches.Variational(np.eye(p) + A @ A.transpose(0, 2, 1), rng.normal(size=(C, p)), np.ones(p))


def naive(kernel, q, told):
    """The bound from whole matrices: told(mean, variance) is the sum of E ln p."""
    Kz = kernel(CENTRES) + FIXED_JITTER * np.mean(np.diag(kernel(CENTRES))) * np.eye(M)
    L, value, means, variances = np.linalg.cholesky(Kz), 0.0, [], []
    W = np.linalg.solve(L, kernel(CENTRES, X))
    for P, b in zip(q.precision, q.shift, strict=True):
        S = np.linalg.inv(P)
        u = S @ b
        means.append(W.T @ u)
        variances.append(np.diag(kernel(X)) - np.einsum("ij,ij->j", W, W) + np.einsum("ij,ik,kj->j", W, S, W))
        value -= 0.5 * (np.trace(S) + u @ u - M - np.linalg.slogdet(S)[1])
    return value + told(np.array(means), np.array(variances))


def of_two(mean, variance):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    at = mean[0][:, None] + np.sqrt(variance[0])[:, None] * nodes
    t = np.where(f > 0, 1.0, -1.0)[:, None]
    return float((-np.logaddexp(0, -t * at) @ weights).sum() / weights.sum())


@pytest.mark.parametrize("C", [1, 3])
def test_the_bound_and_its_slope_are_those_of_the_formula(C):
    codes = np.digitize(f, [0.0] if C == 1 else [-0.5, 0.5])
    sites = batches.LabelsOfTwo(codes, Logistic()) if C == 1 else batches.LabelsOfMore(codes, C)
    bound, q = bound_of(sites), distribution(C)
    u, _, factors = q.moments()

    def value(theta):
        told, *_ = bound(np.arange(N), theta, u, factors, gradient=False)
        return told.value - q.divergence(u, factors)

    theta = np.asarray(to_free(KERNEL))
    if C == 1:
        assert value(theta) == pytest.approx(naive(KERNEL, q, of_two), rel=1e-8)
    slope = bound(np.arange(N), theta, u, factors)[3]
    for i, step in enumerate(1e-5 * np.eye(len(theta))):
        rise = (value(theta + step) - value(theta - step)) / 2e-5
        assert slope[i] == pytest.approx(rise, rel=2e-5 if C == 1 else 2e-2, abs=1e-4)


@pytest.mark.parametrize("kernel", [KERNEL, KERNEL + k.White(0.05)])
def test_of_a_gaussian_noise_one_pass_is_the_collapsed_bound_and_its_gradient(kernel):
    """Titsias' bound, at the optimal q of which the gradient is the whole one."""
    white = len(to_free(kernel)) > len(to_free(KERNEL))
    noise = CommonNoise(0.02) if white else LearnedNoise(0.02)
    mean = MeanFunction.of("linear").fit(X)
    sites = batches.Measurements(y, noise, gram.Gram(kernel, X))
    bound = bound_of(sites, kernel, mean.columns(X))
    x = np.r_[to_free(kernel), np.zeros(0) if white else noise.start(0.02)]
    q = batches.Variational.start(1, np.r_[np.ones(M), np.zeros(3)])
    found = batches.settle(bound, SMALL, x, q, QUIET)
    assert found.passes <= 3
    assert found.converged
    with LowRank(M, CENTRES).evidence(kernel, X, y, noise, mean) as evidence:
        expected = evidence(x)
    # The flat prior of three coefficients has no normaliser, and the restricted likelihood has.
    lift = 1.5 * (1 + np.log(2 * np.pi)) + 0.5 * np.linalg.slogdet(mean.columns(X).T @ mean.columns(X))[1]
    assert found.value + lift == pytest.approx(expected.value, abs=1e-2)
    u, _, factors = found.q.moments()
    slope = bound(np.arange(N), x, u, factors)[3]
    assert slope == pytest.approx(expected.gradient, rel=1e-3, abs=1e-2)


def test_with_all_rows_as_centres_the_posterior_is_exact_else_the_evidence_is_lower():
    exact = Dense().posterior(KERNEL, X, y, np.full(N, 0.02))
    whole, few = (Minibatch(m).posterior(KERNEL, X, y, np.full(N, 0.02)) for m in (N, 6))
    assert whole.log_evidence() == pytest.approx(exact.log_evidence(), rel=1e-6)
    assert whole.mean(Z) == pytest.approx(exact.mean(Z), abs=1e-4)
    assert few.log_evidence() < exact.log_evidence()


@pytest.mark.parametrize("classes", [2, 3])
def test_with_all_rows_as_centres_labels_are_told_as_by_the_whole_variational_method(classes):
    t = np.digitize(f, [0.0] if classes == 2 else [-0.5, 0.5])
    kernel = 6.0 * k.RBF([0.8, 1.3])
    settings = {"learning": None, "progress": False}
    own = mc.GaussianProcessClassifier(kernel, solver=Minibatch(N, batch=N), **settings).fit(X, t)
    whole = mc.GaussianProcessClassifier(kernel, inference="variational", solver="dense", **settings).fit(X, t)
    assert own.numerics_["converged"]
    assert own.numerics_["left"] < 1e-6
    limit = 2e-3 if classes == 2 else 0.03  # functions of several classes are independent here
    assert np.abs(own.predict_proba(Z) - whole.predict_proba(Z)).max() < limit
    if classes == 2:
        assert own.log_marginal_likelihood_ == pytest.approx(whole.log_marginal_likelihood_, abs=0.02)
        assert np.abs(own.loo().probability - whole.loo().probability).max() < 5e-3
    fewer = mc.GaussianProcessClassifier(kernel, solver=Minibatch(6, batch=N), **settings).fit(X, t)
    assert fewer.log_marginal_likelihood_ < own.log_marginal_likelihood_


def test_a_classifier_learns_in_batches_and_comes_back_from_a_file(tmp_path):
    t = np.where(f + 0.2 * rng.normal(size=N) > 0, "up", "down")
    start, solver = 0.3 * k.RBF(5.0), Minibatch(60, batch=30, epochs=2)
    before = mc.GaussianProcessClassifier(start, solver=solver, learning=None, progress=False).fit(X, t)
    model = mc.GaussianProcessClassifier(start, solver=solver, progress=False).fit(X, t)
    assert model.log_marginal_likelihood_ > before.log_marginal_likelihood_ + 5
    assert model.numerics_["steps"] == 6
    assert model.score(X, t) > 0.85
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert back.solver_ == solver
    assert np.array_equal(back.predict_proba(Z), model.predict_proba(Z))
    assert str(back) == str(model)


def test_steps_go_on_from_a_checkpoint_to_the_same_answer():
    """The state after any step is all there is: parameters, moments of Adam, q, and the number of steps."""
    codes, theta = (f > 0).astype(int), np.array([0.0, 0.5, 0.5])
    bound, solver = bound_of(batches.LabelsOfTwo(codes, Logistic())), Minibatch(M, batch=30, epochs=3)
    run = lambda journal, bound=bound: batches.train(
        bound, solver, theta, None, np.full(3, -np.inf), 1, journal, QUIET
    )  # fmt: skip
    whole = run(Journal())
    for killed in (1, 4, 7):
        states, calls = [], []

        class Killed(batches.BatchBound):
            def __call__(self, *given, calls=calls, killed=killed, **settings):
                calls.append(1)
                if len(calls) > killed:
                    raise KeyboardInterrupt
                return super().__call__(*given, **settings)

        journal = Journal(None, states.append)
        first = run(journal, Killed(KERNEL, gram.Gram(KERNEL, X), CENTRES, bound.sites))
        assert first.interrupted
        assert first.steps == killed
        again = run(Journal(states[-1]))
        assert again.x == pytest.approx(whole.x, abs=1e-8)
        assert again.q.shift == pytest.approx(whole.q.shift, abs=1e-8)
        assert [step.value for step in again.history] == pytest.approx([step.value for step in whole.history])


def test_a_regression_learns_further_from_batches(monkeypatch):
    monkeypatch.setattr("mercer.solvers.minibatch.FIRST_ROWS", 300)
    many = rng.uniform(-2, 2, size=(700, 2))
    t = 50 * (np.sin(2 * many[:, 0]) + 0.4 * many[:, 1] + 0.1 * rng.normal(size=700)) + 7
    model = mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), solver=Minibatch(60, 200, 4), progress=False)
    model.fit(many, t)
    assert np.sqrt(np.mean((model.predict(Z) - 50 * (np.sin(2 * Z[:, 0]) + 0.4 * Z[:, 1]) - 7) ** 2)) < 4
    assert np.sqrt(model.noise_) == pytest.approx(5, rel=0.15)
    exact = mc.GaussianProcessRegressor(model.kernel_, noise=model.noise_, learning=None, progress=False)
    assert model.log_marginal_likelihood_ <= exact.fit(many, t).log_marginal_likelihood_ + 1.0


def test_counts_are_told_as_by_the_whole_variational_method():
    counts = rng.poisson(np.exp(0.5 + f))
    settings = {"likelihood": "poisson", "learning": None, "progress": False}
    own = mc.GaussianProcessRegressor(KERNEL, solver=Minibatch(N, batch=N), **settings).fit(X, counts)
    whole = mc.GaussianProcessRegressor(KERNEL, solver="dense", inference="variational", **settings).fit(X, counts)
    assert own.predict(Z) == pytest.approx(whole.predict(Z), rel=2e-2)
    assert own.log_marginal_likelihood_ == pytest.approx(whole.log_marginal_likelihood_, abs=0.05)


def test_settings_that_make_no_sense_are_refused():
    for settings in ({"n_centers": 0}, {"batch": 1.5}, {"epochs": 0}, {"centers": "best"}):
        with pytest.raises(mc.ParameterError):
            Minibatch(**settings)
    t = f > 0
    with pytest.raises(mc.ParameterError, match="variational bound"):
        mc.GaussianProcessClassifier(KERNEL, inference="laplace", solver=SMALL).fit(X, t)
    with warnings.catch_warnings(), pytest.raises(mc.ParameterError, match="one kernel for all"):
        mc.GaussianProcessClassifier([KERNEL] * 3, solver=SMALL).fit(X, np.digitize(f, [-0.5, 0.5]))


def test_parameters_keep_their_values_where_nothing_is_learned():
    model = mc.GaussianProcessClassifier(KERNEL, solver=SMALL, learning=None, progress=False).fit(X, f > 0)
    assert np.array_equal(model.theta_, to_free(KERNEL))
    assert model.kernel_ == from_free(KERNEL, to_free(KERNEL))
