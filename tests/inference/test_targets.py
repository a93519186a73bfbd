"""Inference for likelihoods of numbers: against dense grids, known limits, and finite differences."""

import numpy as np
import pytest
from scipy.optimize import minimize

import mercer as mc
from design import example
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.gp.likelihood import Logistic, Probit
from mercer.inference.ep import ep
from mercer.inference.laplace import laplace
from mercer.inference.sites import Covariance
from mercer.inference.targets import as_regression, automatic, method, names
from mercer.inference.variational import gaussian
from mercer.solvers.dense import Dense
from mercer.solvers.weights import Weights
from reference.targets import posterior_on_grid

L = mc.likelihoods
rng = np.random.default_rng(0)
N = 12
X = np.sort(rng.uniform(0, 5, N))[:, None]
KERNEL = 1.5 * k.RBF(0.8) + 0.5
GRADES = np.array([1, 2, 3, 4, 4, 3, 2, 1, 1, 2, 3, 3])
Y = rng.normal(size=N)
OUTLIERS = Y + np.where(np.arange(N) % 5 == 2, 6.0, 0.0)
TARGETS = {
    "student": (L.Student(0.4, 3.3), OUTLIERS, {}),
    "poisson": (L.Poisson(), rng.poisson(4, N), {"exposure": rng.uniform(0.5, 3, N)}),
    "negative_binomial": (L.NegativeBinomial(0.4), rng.poisson(4, N), {}),
    "binomial": (L.Binomial(), rng.binomial(5, 0.3, N), {"trials": 5}),
    "gamma": (L.Gamma(2.5), rng.gamma(2, 1, N), {}),
    "censored": (L.Censored(0.3), Y, {"lower": -0.5, "upper": 0.6}),
    "ordinal": (L.Ordinal().of_grades(GRADES), GRADES, {}),
}
cases = pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in TARGETS for how in names() if name != "student" or "ep" not in how]
)


def case(name, rows=slice(None)):
    likelihood, y, sides = TARGETS[name]
    return likelihood, likelihood.target(y, N, **sides).take(rows)


def covariance(rows=slice(None), kernel=KERNEL):
    return Covariance.of(kernel, X[rows], 1e-9)


@cases
def test_posteriors_are_close_to_a_grid(name, how):
    """Three rows, summed over a grid. Laplace's method and bounds are approximations, so tolerances are loose; that of
    expectation propagation is tight."""
    rows = slice(1, 4)
    likelihood, t = case(name, rows)
    K = covariance(rows)
    log_z, mean, variance = posterior_on_grid(
        KERNEL(X[rows]) + 1e-9 * np.eye(3), lambda F: likelihood.derivatives(F, t).value.sum(axis=-1), count=101
    )
    found = method(how, likelihood)(K, t, likelihood, None, False)
    near = 0.01 if how == "ep" else 0.5 if name == "student" else 0.25  # Student's t has several modes
    assert found.converged
    assert found.log_evidence == pytest.approx(log_z, abs=near)
    if how == "variational":
        assert found.log_evidence < log_z + 1e-6
    deviation = np.sqrt(variance)
    np.testing.assert_array_less(np.abs(found.mean - mean) / deviation, {"ep": 0.02}.get(how, 0.4))
    np.testing.assert_allclose(np.sqrt(K.factor(found.S).variance()), deviation, rtol={"ep": 0.02}.get(how, 0.45))


@cases
@pytest.mark.parametrize("solver", [Dense(), Weights()], ids=["dense", "weights"])
def test_gradients_of_the_evidence(name, how, solver):
    """In parameters of kernel and likelihood, by central differences."""
    likelihood, t = case(name)
    kernel = KERNEL if isinstance(solver, Dense) else 0.7 * k.Polynomial(2, offset=1.3)
    p, h = len(to_free(kernel)), 1e-4
    with solver.latent(kernel, X) as space:

        def evaluate(theta, gradient=False):
            own = from_free(likelihood, theta[p:])
            found = method(how, own)(space.at(theta[:p], accurate=True), t, own, None, gradient)
            if not gradient:
                return found.log_evidence
            return np.concatenate([found.slope([space.contraction(theta[:p])]), found.likelihood_slope])

        theta = np.concatenate([to_free(kernel), to_free(likelihood)])
        slope = evaluate(theta, gradient=True)
        differences = [(evaluate(theta + step) - evaluate(theta - step)) / (2 * h) for step in h * np.eye(len(theta))]
    np.testing.assert_allclose(slope, differences, rtol=1e-3, atol=1e-3)


def test_the_mode_of_a_student_posterior():
    """Newton's method with clipped curvatures ends where a general optimiser does."""
    likelihood, t = case("student")
    K = KERNEL(X) + 1e-9 * np.eye(N)
    root = np.linalg.cholesky(K)
    minus = lambda z: -likelihood.derivatives(root @ z, t).value.sum() + 0.5 * z @ z
    runs = [minimize(minus, start, options={"gtol": 1e-9}) for start in (np.zeros(N), np.linalg.solve(root, OUTLIERS))]
    best = min(runs, key=lambda run: run.fun)
    found = laplace(covariance(), t, likelihood)
    np.testing.assert_allclose(found.mean, root @ best.x, atol=1e-5)
    assert (likelihood.derivatives(found.mean, t).second > 0).any()  # there are outliers, with negative curvature


def test_sites_of_the_student_bound_are_positive_and_outliers_count_less():
    likelihood, t = case("student")
    found = method("variational", likelihood)(covariance(), t, likelihood, None, False)
    assert (found.S > 0).all()
    assert found.S[2] < 0.2 * np.median(found.S)


def test_a_gaussian_regression_has_the_same_posterior():
    """Means at training rows are those of inference, by any method and with rows that say nothing."""
    for name, how in (("poisson", "ep"), ("student", "laplace"), ("ordinal", "variational")):
        likelihood, t = case(name)
        K = covariance()
        found = method(how, likelihood)(K, t, likelihood, None, False)
        y, noise = as_regression(found, K.diagonal)
        posterior = mc.GP(KERNEL).condition(X, y, noise)
        np.testing.assert_allclose(posterior.mean(X), found.mean, atol=1e-5)
        np.testing.assert_allclose(posterior.variance(X), K.factor(found.S).variance(), rtol=1e-3)


# -- limits ------------------------------------------------------------------------------------------------------------


def gaussian_evidence(y, noise):
    return mc.GP(KERNEL).log_likelihood(X, y, noise + 1e-9)


@pytest.mark.parametrize("how", names())
def test_censored_without_limits_is_gaussian(how):
    likelihood = L.Censored(0.3)
    found = method(how, likelihood)(covariance(), likelihood.target(Y, N), likelihood, None, False)
    assert found.log_evidence == pytest.approx(gaussian_evidence(Y, 0.3), abs=1e-6)


@pytest.mark.parametrize("how", ["laplace", "variational"])
def test_student_with_many_degrees_of_freedom_is_gaussian(how):
    likelihood = L.Student(0.5, 1e8)
    found = method(how, likelihood)(covariance(), likelihood.target(Y, N), likelihood, None, False)
    assert found.log_evidence == pytest.approx(gaussian_evidence(Y, 0.25), abs=1e-4)


@pytest.mark.parametrize("how", names())
def test_negative_binomial_without_dispersion_is_poisson(how):
    y, evidences = rng.poisson(4, N), []
    for likelihood in (L.Poisson(), L.NegativeBinomial(1e-6)):
        found = method(how, likelihood)(covariance(), likelihood.target(y, N), likelihood, None, False)
        evidences.append(found.log_evidence)
    assert evidences[0] == pytest.approx(evidences[1], abs=1e-3)


@pytest.mark.parametrize("infer", [laplace, ep, gaussian])
def test_one_trial_and_two_grades_are_two_classes(infer):
    labels = np.where(Y > 0, 1.0, -1.0)
    binomial, two = L.Binomial(), L.Ordinal().of_grades(labels).replace(first=0.0)
    for likelihood, y, same in ((binomial, (labels + 1) / 2, Logistic()), (two, labels, Probit())):
        ours = infer(covariance(), likelihood.target(y, N), likelihood, None, False)
        theirs = infer(covariance(), labels, same, None, False)
        assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-6)
        np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-5)


def test_censored_evidence_by_monte_carlo():
    """ln of the mean over prior functions of the likelihood, of five rows."""
    likelihood, t = case("censored", slice(0, 5))
    found = ep(covariance(slice(0, 5)), t, likelihood, None, False)
    f = mc.GP(KERNEL).sample(X[:5], size=200_000, seed=1)
    p = np.exp(likelihood.derivatives(f, t).value.sum(axis=1))
    assert found.log_evidence == pytest.approx(np.log(p.mean()), abs=0.02 + 4 * p.std() / p.mean() / np.sqrt(len(p)))


def test_methods_by_name():
    assert automatic(L.Student(), 10) == "variational"
    assert automatic(L.Poisson(), 1000) == "ep"
    assert automatic(L.Poisson(), 1001) == "laplace"
    with pytest.raises(mc.ParameterError, match="not log-concave. Use inference='laplace' or 'variational'"):
        method("ep", L.Student())


def test_a_registered_method_serves_both_labels_and_numbers():
    example("inference")
    y = rng.poisson(4, N)
    models = [
        mc.GaussianProcessRegressor(KERNEL, likelihood="poisson", inference=name, learning=None, progress=False)
        for name in ("ep", "ep from the mode")
    ]
    first, second = (model.fit(X, y).predict(X) for model in models)
    np.testing.assert_allclose(second, first, rtol=1e-4)
    with pytest.raises(mc.ParameterError, match="inference must be one of"):
        mc.GaussianProcessRegressor(KERNEL, likelihood="poisson", inference="mcmc").fit(X, y)
    with pytest.raises(mc.ParameterError, match="for labels of classes"):
        method("mcmc", L.Poisson())
