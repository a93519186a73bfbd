"""Several targets: against the formula, and the laws that tie them to one target and to grids."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import mercer as mc
from mercer import kernels as k
from mercer.core.errors import InterruptedFitWarning
from mercer.learning.outputs import Targets
from mercer.models.correlations import Correlations
from mercer.solvers import Dense, Grid
from reference import outputs as reference

MultiOutput = mc.MultiOutputGaussianProcessRegressor
rng = np.random.default_rng(0)
N, P = 14, 3
X = rng.uniform(0, 5, size=(N, 2))
LATENT = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 1])])
Y = LATENT @ [[1.0, 2.0, -1.0], [0.5, -1.0, 0.3]] * [1.0, 30.0, 0.01] + [0.0, 500.0, -2.0]
Y += 0.1 * rng.normal(size=(N, P)) * [1.0, 30.0, 0.01]
GAPS = Y.copy()
GAPS[rng.permutation(N)[:5], 0] = GAPS[2:9, 2] = np.nan
NEW = rng.uniform(0, 5, size=(4, 2))
W = np.array([[0.9, 0.2], [1.1, -0.6], [-0.7, 0.4]])
KAPPA = np.array([0.2, 0.1, 0.3])
NOISE = np.array([0.02, 9.0, 2e-6])
WHOLE = k.Matern([1.3, 2.0], nu=1.5).on([0, 1]) * k.Coregionalization(P, 2, W=W, kappa=KAPPA).on(2)
SUM = WHOLE + k.RBF(2.5).on([0, 1]) * k.Coregionalization(P, 1, W=W[:, ::-1][:, :1], kappa=0.0).on(2)


def given(kernel=WHOLE, noise=NOISE, **settings):
    return MultiOutput(kernel, noise=noise, learning=None, progress=False, **settings)


def matern(x, z):
    r = np.sqrt(3 * np.sum(((x - z) / [1.3, 2.0]) ** 2))
    return (1 + r) * np.exp(-r)


def gaussian(x, z):
    return np.exp(-np.sum((x - z) ** 2) / (2 * 2.5**2))


@pytest.mark.parametrize("terms", [1, 2])
def test_it_is_the_formula(terms):
    kernel = (WHOLE, SUM)[terms - 1]
    model = given(kernel).fit(X, GAPS)
    Bs = [W @ W.T + np.diag(KAPPA), np.outer(W[:, 1], W[:, 1])][:terms]
    row, p = np.nonzero(np.isfinite(GAPS))
    unit, center = np.nanstd(GAPS, axis=0), np.nanmean(GAPS, axis=0)
    y = (GAPS[row, p] - center[p]) / unit[p]
    Z, q = np.repeat(NEW, P, axis=0), np.tile(np.arange(P), len(NEW))
    mean, V, value = reference.posterior([matern, gaussian][:terms], Bs, NOISE / unit**2, X[row], p, y, Z, q)
    found, covariance = model.predict(NEW, return_cov=True, include_noise=False)
    assert found == pytest.approx((mean * unit[q] + center[q]).reshape(-1, P), rel=1e-8)
    scale = np.outer(unit[q], unit[q])
    np.testing.assert_allclose(covariance.reshape(len(q), -1) / scale, V, rtol=1e-7, atol=1e-9)
    assert model.log_marginal_likelihood_ == pytest.approx(value, rel=1e-9)
    deviation = model.predict(NEW, return_std=True)[1]
    expected = np.sqrt(np.diag(V) + (NOISE / unit**2)[q]) * unit[q]
    assert deviation == pytest.approx(expected.reshape(-1, P), rel=1e-7)


def test_targets_without_shared_functions_are_separate_processes():
    independent = k.RBF(1.5).on([0, 1]) * k.Coregionalization(P, 0, kappa=1.0).on(2)
    model = given(independent).fit(X, GAPS)
    mean, deviation = model.predict(NEW, return_std=True)
    evidence = 0.0
    for p in range(P):
        own = mc.GaussianProcessRegressor(k.RBF(1.5), noise=NOISE[p], learning=None, progress=False).fit(X, GAPS[:, p])
        for one, other in zip((mean[:, p], deviation[:, p]), own.predict(NEW, return_std=True), strict=True):
            assert one == pytest.approx(other, rel=1e-8)
        evidence += own.log_marginal_likelihood_
    assert model.log_marginal_likelihood_ == pytest.approx(evidence, rel=1e-9)
    assert model.correlations().matrix == pytest.approx(np.eye(P))


def test_one_target_is_a_regression():
    y, kernel = Y[:, 0], 1.0 * k.RBF(1.5)
    one = MultiOutput(kernel, rank=0, progress=False, n_restarts=0).fit(X, y)
    other = mc.GaussianProcessRegressor(kernel, progress=False).fit(X, y)
    assert one.log_marginal_likelihood_ == pytest.approx(other.log_marginal_likelihood_, abs=0.02)
    assert one.predict(NEW).shape == (4,)
    for a, b in zip(one.predict(NEW, return_std=True), other.predict(NEW, return_std=True), strict=True):
        assert a == pytest.approx(b, rel=0.02)
    column = clone(one).fit(X, y[:, None])
    assert column.predict(NEW).shape == (4, 1)
    assert column.predict(NEW)[:, 0] == pytest.approx(one.predict(NEW))
    assert one.sample_y(NEW, 5).shape == (4, 5)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("mean", [None, "linear", [0.0, 490.0, -2.0]])
def test_grids_are_the_dense_solver(gaps, mean):
    target = np.where(np.arange(N * P).reshape(N, P) % 13 == 5, np.nan, Y) if gaps else Y
    grid, dense = (given(solver=solver, mean=mean).fit(X, target) for solver in ("grid", "dense"))
    assert isinstance(grid.solver_, Grid)
    assert type(grid.posterior_).__name__ == "OutputGridPosterior"
    assert grid.log_marginal_likelihood_ == pytest.approx(dense.log_marginal_likelihood_, rel=1e-10)
    known = np.full((4, P), np.nan)
    known[0, 1], known[2, 0] = 510.0, 0.3
    for one, other in [
        (grid.predict(NEW, return_cov=True), dense.predict(NEW, return_cov=True)),
        (grid.predict(NEW, known=known), dense.predict(NEW, known=known)),
        (tuple(grid.loo()), tuple(dense.loo())),
        (grid.sample_y(NEW, 2).mean(), dense.sample_y(NEW, 2).mean()),
    ]:
        for a, b in zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9 if np.ndim(a) else 1e-4)


def test_the_evidence_on_a_grid_has_the_slope_it_says():
    model = MultiOutput(WHOLE, noise=None, solver="grid", max_iterations=1, progress=False).fit(X, Y)
    theta = model.theta_ + 0.1 * np.cos(np.arange(model.theta_.size))
    value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
    dense = clone(model).set_params(solver="dense").fit(X, Y)
    assert dense.parameter_names_ == model.parameter_names_
    assert value == pytest.approx(dense.log_marginal_likelihood(theta), rel=1e-9)
    for i in (0, 2, 5, 9, theta.size - 3, theta.size - 1):
        step = 1e-5 * np.eye(theta.size)[i]
        high, low = (model.log_marginal_likelihood(theta + sign * step) for sign in (1, -1))
        assert slope[i] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-4)


def test_leaving_one_out_is_fitting_without_it():
    model = given().fit(X, GAPS)
    loo, unit = model.loo(), model.scale_
    assert np.array_equal(np.isnan(loo.mean), np.isnan(GAPS))
    for i, p in ((0, 1), (5, 1), (12, 2)):
        rows, target, noise = model.posterior_.data
        here = (rows == [*X[i], p]).all(axis=1)
        without = Dense().posterior(
            model.kernel_, rows[~here], target[~here], noise[~here], model.posterior_.prior_mean
        )
        mean, variance = without.moments(np.array([[*X[i], p]]))
        assert loo.mean[i, p] == pytest.approx(mean[0] * unit[p] + model.center_[p], rel=1e-7)
        assert loo.variance[i, p] == pytest.approx((variance[0] + NOISE[p] / unit[p] ** 2) * unit[p] ** 2, rel=1e-7)


def test_errors_of_known_targets_name_them():
    model = given().fit(X, GAPS)
    for wrong in (np.zeros((3, P)), np.zeros((4, P + 1)), [["a"] * P] * 4):
        with pytest.raises(mc.DataError, match="^known "):
            model.predict(NEW, known=wrong)


def test_correlations_near_one_have_an_interval_and_no_standard_error():
    matrix = np.array([[1.0, 0.9999, 0.5], [0.9999, 1.0, -1.0], [0.5, -1.0, 1.0]])
    shown = str(Correlations(["a", "b", "c"], matrix, 0.1 * np.ones((3, 3)), matrix - 0.3, np.minimum(matrix + 0.3, 1)))
    assert [line.split()[3] for line in shown.splitlines()[1:]] == ["-", "0.100", "-"]
    assert "0.700 to 1.000" in shown


def test_what_is_known_at_the_new_place_counts_as_a_measurement():
    model, known = given().fit(X, GAPS), np.full((4, P), np.nan)
    known[:, 1] = [480.0, 500.0, 520.0, 530.0]
    told = model.predict(NEW, return_std=True, known=known)
    alone = model.predict(NEW, return_std=True)
    assert (told[1][:, [0, 2]] < alone[1][:, [0, 2]]).all()
    assert np.abs(told[0] - alone[0])[:, 0].max() > 0.1
    updated = clone(model).fit(X, GAPS).update(NEW, known)
    for one, other in zip(told, updated.predict(NEW, return_std=True), strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    assert updated.loo().mean.shape == (N + 4, P)
    assert model.predict(NEW, known=np.full((4, P), np.nan)) == pytest.approx(alone[0])


def test_the_long_form_is_the_wide_one(tmp_path):
    row, p = np.nonzero(np.isfinite(GAPS))
    names = np.array(["cadmium", "nickel", "zinc"])
    frame = pd.DataFrame({"output": names[p], "east": X[row, 0], "north": X[row, 1]})
    # Kernels of a frame select columns by name.
    kernel = k.Matern([1.3, 2.0], nu=1.5).on(["east", "north"])
    kernel = kernel * k.Coregionalization(P, 2, W=W, kappa=KAPPA).on("output")
    wide, long = given().fit(X, GAPS), given(kernel).fit(frame, GAPS[row, p])
    assert long.outputs_ == names.tolist()
    new = pd.DataFrame(NEW, columns=["east", "north"])
    assert long.log_marginal_likelihood_ == pytest.approx(wide.log_marginal_likelihood_, rel=1e-9)
    assert long.predict(new) == pytest.approx(wide.predict(NEW), rel=1e-8)
    asked = long.predict(new.assign(output=["zinc", "cadmium", "zinc", "nickel"]))
    assert asked == pytest.approx(wide.predict(NEW)[np.arange(4), [2, 0, 2, 1]], rel=1e-8)
    assert long.loo().mean.shape == (len(p),)
    mc.save(long, tmp_path / "long")
    assert np.array_equal(mc.load(tmp_path / "long").predict(new), long.predict(new))
    with pytest.raises(mc.DataError, match="lead"):
        long.predict(new.assign(output="lead"))


@pytest.fixture(scope="module")
def learned():
    return MultiOutput(k.Matern(nu=2.5), progress=False).fit(X, GAPS)


def test_it_learns_and_says_what(learned, tmp_path):
    text, report = str(learned), learned.report(NEW, learned.predict(NEW) + 1e-3)
    found = learned.correlations()
    off = ~np.eye(P, dtype=bool)
    assert (found.low[off] <= found.matrix[off]).all()
    assert (found.matrix[off] <= found.high[off]).all()
    assert (found.error[off] >= 0).all()
    assert str(found) in text
    assert str(found) in str(report)
    assert "Held-out rows" in report.sections
    assert report.sections["Targets"].startswith(learned.target_table())
    value, slope = learned.log_marginal_likelihood(learned.theta_, eval_gradient=True)
    assert value == pytest.approx(learned.log_marginal_likelihood_, rel=1e-9)
    assert np.abs(slope).max() < 0.5
    assert learned.noise_ / learned.scale_**2 == pytest.approx(np.exp(learned.theta_[-P:]) / learned.scale_**2)
    mc.save(learned, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert np.array_equal(back.predict(NEW), learned.predict(NEW))
    assert str(back) == text
    predicted = learned.predict_distribution(NEW)
    low, high = predicted.interval(0.95)
    assert ((low < predicted.mean) & (predicted.mean < high)).all()
    assert learned.log_predictive_density(NEW, predicted.mean).shape == (4, P)
    assert learned.score(X, GAPS) > 0.5
    assert learned.plan(X, GAPS).method == "dense"


def test_units_do_not_matter(learned):
    other = clone(learned).fit(X * 1e4 + 7e5, GAPS * [1e-6, 1e5, 1.0] + [0.0, 1e7, 3.0])
    expected = learned.predict(NEW) * [1e-6, 1e5, 1.0] + [0.0, 1e7, 3.0]
    assert other.predict(NEW * 1e4 + 7e5) == pytest.approx(expected, rel=1e-3)
    assert other.log_marginal_likelihood_ == pytest.approx(learned.log_marginal_likelihood_, abs=1e-2)


def test_a_target_with_few_rows_learns_from_another():
    x = np.linspace(0, 10, 40)[:, None]
    f = np.sin(1.3 * x[:, 0]) + 0.3 * x[:, 0]
    both = np.column_stack([f + 0.05 * rng.normal(size=40), 20 - 7 * f])
    few = np.where(np.isin(np.arange(40), [2, 11, 17, 23, 38]), both[:, 1], np.nan)
    model = MultiOutput(k.RBF(), progress=False).fit(x, np.column_stack([both[:, 0], few]))
    alone = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(x, few)
    error = lambda found: np.sqrt(np.mean((found - both[:, 1]) ** 2))
    assert error(model.predict(x)[:, 1]) < 0.25 * error(alone.predict(x))
    found = model.correlations()
    assert found.matrix[0, 1] < -0.9
    assert "y0, y1" in str(found)


def test_the_default_kernel_grows_while_that_helps():
    x = np.linspace(0, 10, 24)[:, None]
    f = np.sin(x[:, 0])
    noisy = np.column_stack([f, 2 * f + 1, np.cos(3 * x[:, 0])]) + 0.05 * rng.normal(size=(24, 3))
    noisy[6:12, 1] = np.nan
    model = MultiOutput(progress=False).fit(x, noisy)
    scores = [tried.score for tried in model.choice_.tried]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) >= 5
    assert str(model.choice_.member) in str(model)
    assert model.calibration_ >= 1
    assert np.abs(model.predict(x[6:12])[:, 1] - 2 * f[6:12] - 1).max() < 0.3


def test_objects_are_inputs_too(tmp_path):
    words = ["".join(letters) for letters in rng.choice(list("ab"), size=(12, 5))]
    counts = np.array([[word.count("a"), 3.0 * word.count("a") - 1] for word in words])
    model = MultiOutput(k.Spectrum(1), noise=0.01, learning=None, progress=False).fit(words, counts)
    assert model.predict(["aabba"]) == pytest.approx(np.array([[3.0, 8.0]]), abs=0.5)
    mc.save(model, tmp_path / "words")
    assert np.array_equal(mc.load(tmp_path / "words").predict(["ab"]), model.predict(["ab"]))


def test_an_interrupted_fit_keeps_the_best(monkeypatch):
    from mercer.solvers.dense import FunctionSpace

    calls, evaluate = [], FunctionSpace.__call__

    def interrupting(self, *args, **settings):
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return evaluate(self, *args, **settings)

    monkeypatch.setattr(FunctionSpace, "__call__", interrupting)
    with pytest.warns(InterruptedFitWarning):
        model = MultiOutput(k.Matern(nu=2.5), progress=False).fit(X, GAPS)
    assert np.isfinite(model.predict(NEW)).all()


def test_hard_data_have_answers_or_clear_errors():
    constant = np.column_stack([Y[:, 0], np.full(N, 7.0)])
    assert MultiOutput(k.RBF(), progress=False).fit(X, constant).predict(NEW)[:, 1] == pytest.approx(7.0, rel=1e-3)
    twice = given().fit(np.concatenate([X, X]), np.concatenate([GAPS, GAPS]))
    assert np.isfinite(twice.predict(NEW)).all()
    single = GAPS.copy()
    single[1:, 2] = np.nan
    single[0, 2] = -2.0
    assert np.isfinite(given().fit(X, single).predict(NEW, return_std=True)).all()
    cases = [
        ("no finite value", {}, X, np.column_stack([Y[:, :2], np.full(N, np.nan)])),
        ("one row for each", {}, X, Y[:5]),
        ("infinite", {}, X, np.where(np.arange(P) == 1, np.inf, Y)),
        ("rank must be", {"rank": -1}, X, Y),
        ("rank=", {"rank": [1, 2]}, X, Y),
        ("noise must be", {"noise": [0.1, 0.2]}, X, Y),
        ("mean must be", {"mean": [1.0, 2.0]}, X, Y),
        ("learning must be one of", {"learning": "nuts"}, X, Y),
        ("of 3 targets; y has 2", {"kernel": WHOLE}, X, Y[:, :2]),
        (r"kernel=\[\]", {"kernel": []}, X, Y),
    ]
    for message, settings, inputs, target in cases:
        with pytest.raises((mc.ParameterError, mc.DataError), match=message):
            MultiOutput(**{"kernel": k.RBF(), "progress": False, **settings}).fit(inputs, target)
    with pytest.raises(mc.ParameterError, match="has shape"):
        k.Coregionalization(3, 1, W=np.ones((2, 1)))
    with pytest.raises(mc.DataError, match="from 0 to 2"):
        k.Coregionalization(3)([0, 5])
    with pytest.raises(mc.DataError, match="one column of integers"):
        k.Coregionalization(3)([0.5])


def test_correlations_to_begin_with_come_from_near_places_where_few_are_shared():
    places = np.linspace(0, 6, 60)[:, None]
    f = np.sin(places[:, 0])
    row, target = np.arange(60), np.arange(60) % 2
    values = np.where(target == 1, -f, f)
    found = Targets(places, row, target, values, 2).correlations()
    assert found[0, 1] < -0.9
