"""Learning from streams: against exact posteriors of all rows, and within a budget."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.gp.mean import MeanFunction
from mercer.gp.process import GP
from mercer.inference.centers import label_sites
from mercer.inference.methods import ExpectationPropagation
from mercer.inference.sites import Covariance
from mercer.linalg.retained import worth_keeping
from mercer.solvers.online import CenterPosterior

rng = np.random.default_rng(0)
N = 230
X, Z = rng.uniform(-2, 2, size=(N, 2)), rng.uniform(-2.5, 2.5, size=(9, 2))
f = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 3.0
y = f + 0.1 * rng.normal(size=N)
NOISE = rng.uniform(0.01, 0.03, size=N)
KERNEL = 1.2 * k.Matern([0.8, 1.3], nu=1.5) + 0.3 * k.Linear() + k.White(0.01)
CHUNKS = np.split(np.arange(N), [40, 130, 131])


@pytest.mark.parametrize("mean", [0.0, "linear", mc.means.Basis(mc.basis.Polynomial(1), variance=3.0)])
def test_with_an_unlimited_budget_it_is_the_exact_posterior(mean):
    mean = MeanFunction.of(mean)
    exact = GP(KERNEL, mean).condition(X, y, NOISE)
    own = CenterPosterior.given(KERNEL, X[:130], y[:130], NOISE[:130], exact.prior_mean, None)
    own = own.condition(X[130:], y[130:], NOISE[130:])
    assert own.log_evidence() == pytest.approx(exact.log_evidence(), rel=1e-9)
    pairs = [
        *zip(own.moments(Z), exact.moments(Z), strict=True),
        *zip(own.coefficients(), exact.coefficients(), strict=True),
        *zip(own.trend(Z), exact.trend(Z), strict=True),
        *zip(own.gradients(Z), exact.gradients(Z), strict=True),
        (own.covariance(Z), exact.covariance(Z)),
        *((one, other) for a, b in zip(own.terms(Z), exact.terms(Z), strict=True)
          for one, other in zip(a[1:], b[1:], strict=True)),
    ]  # fmt: skip
    for one, other in pairs:
        assert one == pytest.approx(other, rel=1e-6, abs=1e-7)
    assert own.numerics()["rows"] == N
    draws = own.sample(Z, size=4000, seed=1)
    assert draws.var(axis=0) == pytest.approx(own.moments(Z)[1], rel=0.12)


def test_what_leaving_out_a_point_costs_is_the_divergence_of_the_two_joint_distributions():
    K = k.RBF(0.7)(X[:6]) + 0.01 * np.eye(6)
    L = np.linalg.cholesky(K)
    A = rng.normal(size=(6, 6))
    S, m = np.linalg.inv(np.eye(6) + A @ A.T), rng.normal(size=6)
    V, center = L @ S @ L.T, L @ m

    def divergence(rest, i):
        """KL(q(f) || q(f_rest) p(f_i | f_rest)) of two Gaussians."""
        b = np.linalg.solve(K[np.ix_(rest, rest)], K[rest, i])
        M = np.zeros((6, 6))
        M[np.ix_(rest, rest)] = V[np.ix_(rest, rest)]
        M[i, rest] = M[rest, i] = b @ V[np.ix_(rest, rest)]
        M[i, i] = K[i, i] - b @ K[rest, i] + b @ V[np.ix_(rest, rest)] @ b
        d = np.where(np.arange(6) == i, center[i] - b @ center[rest], 0.0)
        inverse = np.linalg.inv(M)
        return 0.5 * (np.trace(inverse @ V) - 6 + d @ inverse @ d + np.linalg.slogdet(M)[1] - np.linalg.slogdet(V)[1])

    costs = [divergence([j for j in range(6) if j != i], i) for i in range(6)]
    kept, cost = worth_keeping(L, m[None], S[None], 5)
    assert cost == pytest.approx(min(costs), rel=1e-6)
    assert set(range(6)) - set(kept) == {int(np.argmin(costs))}


def test_a_budget_bounds_what_is_kept_and_more_of_it_is_better():
    exact = GP(KERNEL, "unknown").condition(X, y, NOISE)
    errors = []
    for budget in (10, 40, 160):
        own = CenterPosterior.given(KERNEL, X, y, NOISE, MeanFunction.of("unknown"), budget)
        assert len(own.data[1]) == own.numerics()["centers"] == budget
        errors.append(np.abs(own.mean(Z) - exact.mean(Z)).mean())
        assert own.numerics()["lost_nats"] >= 0
    assert errors[2] < 0.3 * errors[0]
    assert errors[2] < 0.05


def test_chunks_one_after_the_other_are_the_fit_of_the_first_and_an_update():
    settings = {"noise": 0.01, "learning": None, "progress": False}
    model = mc.GaussianProcessRegressor(KERNEL.parts[0], budget=None, **settings)
    for chunk in CHUNKS:
        model.partial_fit(X[chunk], y[chunk])
    exact = mc.GaussianProcessRegressor(KERNEL.parts[0], **settings).fit(X[:40], y[:40]).update(X[40:], y[40:])
    for one, other in zip(model.predict(Z, return_std=True), exact.predict(Z, return_std=True), strict=True):
        assert one == pytest.approx(other, rel=1e-7)
    assert model.log_marginal_likelihood_ == pytest.approx(exact.log_marginal_likelihood_, rel=1e-9)
    after = mc.GaussianProcessRegressor(KERNEL.parts[0], budget=None, **settings).fit(X[:40], y[:40])
    assert after.partial_fit(X[40:], y[40:]).predict(Z) == pytest.approx(exact.predict(Z), rel=1e-7)


def test_a_regressor_is_of_use_from_its_first_rows_and_comes_back_from_a_file(tmp_path):
    model = mc.GaussianProcessRegressor(budget=30, progress=False)
    for chunk in CHUNKS[:2]:
        model.partial_fit(1000 * X[chunk], np.where(chunk == 7, np.nan, 50 * y[chunk]))
    assert np.sqrt(np.mean((model.predict(1000 * X) - 50 * f) ** 2)) < 8
    mean, deviation = model.predict(1000 * X[131:], return_std=True)
    assert np.mean(np.abs(50 * y[131:] - mean) < 1.96 * deviation) > 0.85
    assert "129 rows" in str(model)
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model").partial_fit(1000 * X[131:], 50 * y[131:])
    model.partial_fit(1000 * X[131:], 50 * y[131:])
    assert np.array_equal(model.predict(1000 * Z), back.predict(1000 * Z))
    for refused in (model.loo, model.report, model.relevance, lambda: model.log_marginal_likelihood(model.theta_)):
        with pytest.raises(mc.ParameterError, match="rows of a stream are not kept"):
            refused()


def test_labels_of_one_block_are_inferred_as_by_expectation_propagation():
    from mercer.gp.likelihood import Logistic

    K, codes = 4.0 * k.RBF(0.9)(X[:60]) + 1e-9 * np.eye(60), (X[:60, 0] > 0.3).astype(int)
    target, noise = label_sites(np.zeros((1, 60)), K[None], codes, Logistic())
    found = ExpectationPropagation()([Covariance(K.copy())], codes, gradient=False)
    assert 1 / noise[0] == pytest.approx(found.S, rel=1e-3, abs=1e-5)
    assert target[0] / noise[0] == pytest.approx(found.nu, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_learns_labels_in_chunks(classes, tmp_path):
    edges = [3.0] if classes == 2 else [2.6, 3.4]
    labels = np.array(["low", "middle", "top"] if classes == 3 else ["low", "top"])
    t, names = labels[np.digitize(f, edges)], np.unique(labels)
    kernel = 20.0 * k.RBF([0.8, 1.5]) + 1.0
    model = mc.GaussianProcessClassifier(kernel, learning=None, budget=40, progress=False)
    for chunk in CHUNKS:
        model.partial_fit(X[chunk], t[chunk], classes=names)
    exact = mc.GaussianProcessClassifier(kernel, learning=None, progress=False).fit(X, t)
    assert np.abs(model.predict_proba(Z) - exact.predict_proba(Z)).mean() < 0.05
    assert model.score(X, t) > 0.93
    assert "230 rows" in str(model)
    mc.save(model, tmp_path / "model")
    assert np.array_equal(mc.load(tmp_path / "model").predict_proba(Z), model.predict_proba(Z))
    with pytest.raises(mc.ParameterError, match="rows of a stream are not kept"):
        model.loo()


def test_a_class_that_comes_late_is_known_when_it_is_named():
    order = np.argsort(f)
    model = mc.GaussianProcessClassifier(20.0 * k.RBF([0.8, 1.5]), progress=False, budget=40, learning=None)
    model.partial_fit(X[order[:60]], np.zeros(60), classes=[0, 1])
    assert model.predict_proba(Z).shape == (9, 2)
    model.partial_fit(X[order[60:]], (f > 3.0)[order[60:]].astype(float))
    assert model.score(X, (f > 3.0).astype(float)) > 0.93


def test_what_cannot_be_taken_in_is_refused():
    for budget in (0, 2.5, True):
        with pytest.raises(mc.ParameterError, match="budget must be"):
            mc.GaussianProcessRegressor(budget=budget).partial_fit(X, y)
    with pytest.raises(mc.ParameterError, match="averages over them"):
        mc.GaussianProcessRegressor(learning="laplace").partial_fit(X, y)
    with pytest.raises(mc.ParameterError, match="partial_fit is for likelihood"):
        mc.GaussianProcessRegressor(likelihood="poisson").partial_fit(X, y)
    with pytest.raises(mc.ParameterError, match="one kernel for all classes"):
        mc.GaussianProcessClassifier([k.RBF(), k.RBF()]).partial_fit(X, y > 3)
    model = mc.GaussianProcessClassifier(k.RBF(), learning=None, progress=False).partial_fit(X[:40], y[:40] > 3)
    with pytest.raises(mc.DataError, match="classes must be those"):
        model.partial_fit(X[40:], y[40:] > 3, classes=[1, 2, 3])
