"""Means of a regression: trends integrated out, known functions, functions with learned parameters."""

import os
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

import mercer as mc
from mercer import kernels as k
from mercer.basis import Gaussian, Polynomial
from mercer.gp.mean import MeanFunction
from reference import regression as reference

DATA = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[3] / "shared" / "data")) / "geostat"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="reference data are not on this machine")

rng = np.random.default_rng(0)
N = 40
X = np.column_stack([np.linspace(1950, 1989, N), rng.normal(size=N)])
y = 315 + 1.3 * (X[:, 0] - 1950) - 2.0 * X[:, 1] + np.sin(X[:, 0]) + 0.2 * rng.normal(size=N)
Z = np.column_stack([[1940.5, 1965.2, 2010.0], [0.0, -1.0, 2.0]])
KERNEL, NOISE = 2.0 * k.Matern(3.0, nu=1.5).on(0), 0.05
H, h = np.column_stack([np.ones(N), X]), np.column_stack([np.ones(3), Z])


def fixed(mean, **settings):
    settings = {"kernel": KERNEL, "noise": NOISE, "learning": None, "normalize": False, "progress": False} | settings
    return mc.GaussianProcessRegressor(mean=mean, **settings).fit(X, y)


def kriged(H, h, noise=NOISE, kernel=KERNEL, X=X, Z=Z, y=y):
    return reference.universal_kriging(kernel(X) + noise * np.eye(len(X)), kernel(X, Z), kernel(Z), H, h, y)


# -- universal kriging ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["dense", "weights"])
def test_a_linear_trend_is_the_textbook_system(solver):
    kernel = (
        KERNEL if solver == "dense" else 0.5 * k.Linear().on(1) + 0.3 * k.FeatureMap(Gaussian([[1960.0, 0.0]], 5.0))
    )
    found = fixed("linear", kernel=kernel, solver=solver)
    mean, covariance = kriged(H, h, kernel=kernel)
    np.testing.assert_allclose(found.predict(Z), mean, rtol=1e-8)
    np.testing.assert_allclose(found.predict(Z, return_cov=True, include_noise=False)[1], covariance, rtol=1e-6)
    C = kernel(X) + NOISE * np.eye(N)
    expected = reference.restricted_log_evidence(C, y, H)
    assert found.log_marginal_likelihood_ == pytest.approx(expected, rel=1e-8)
    # coefficients and their standard errors by generalised least squares
    covariance = np.linalg.inv(H.T @ np.linalg.solve(C, H))
    assert found.trend_.names == ["constant", "x0", "x1"]
    np.testing.assert_allclose(found.trend_.estimate, covariance @ H.T @ np.linalg.solve(C, y), rtol=1e-6)
    np.testing.assert_allclose(found.trend_.covariance, covariance, rtol=1e-5, atol=1e-9)


def test_a_basis_is_the_textbook_system():
    for basis in (Polynomial(2), Gaussian([[1955.0, 0.0], [1975.0, 0.5]], [10.0, 1.0])):
        # raw monomials of years are nearly dependent: the reference takes centred ones, which span the same
        shift = np.array([1970.0, 0.0]) if isinstance(basis, Polynomial) else 0.0
        mean, covariance = kriged(basis(X - shift), basis(Z - shift))
        found = fixed(basis)
        np.testing.assert_allclose(found.predict(Z), mean, rtol=1e-7)
        np.testing.assert_allclose(
            found.predict(Z, return_std=True, include_noise=False)[1], np.sqrt(np.diag(covariance)), rtol=1e-5
        )
        np.testing.assert_allclose(found.trend_.estimate @ basis(Z).T, found.decompose(Z)["mean"][0], rtol=1e-5)


def test_scaling_the_target_changes_nothing():
    """A trend with a constant takes any centre, and coefficients are in units of y."""
    scale = y.std()
    one = fixed("linear")
    other = fixed("linear", kernel=KERNEL.replace(variance=2.0 / scale**2), normalize=True)
    for a, b in zip(one.predict(Z, return_std=True), other.predict(Z, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    np.testing.assert_allclose(one.trend_.estimate, other.trend_.estimate, rtol=1e-7)
    np.testing.assert_allclose(one.trend_.error, other.trend_.error, rtol=1e-7)
    assert other.log_marginal_likelihood_ - (N - 3) * np.log(scale) == pytest.approx(one.log_marginal_likelihood_)


@needs_data
def test_meuse():
    """log(zinc) ~ sqrt(dist), the classical example of universal kriging, on the grid and for left-out rows."""
    meuse, grid = (pd.read_csv(DATA / f"{name}.csv.gz") for name in ("meuse", "meuse_grid"))
    meuse["root"], grid["root"] = np.sqrt(meuse["dist"]), np.sqrt(grid["dist"])
    target = np.log(meuse["zinc"]).to_numpy()
    kernel, columns = 0.15 * k.Exponential(300.0).on(["x", "y"]), ["x", "y", "root"]
    model = mc.GaussianProcessRegressor(kernel, noise=0.05, learning=None, normalize=False, mean=["root"])
    model.fit(meuse[columns], target)
    at = grid[columns].iloc[::40]
    H, h = (np.column_stack([np.ones(len(t)), t["root"]]) for t in (meuse, at))
    mean, covariance = reference.universal_kriging(
        kernel(meuse[columns]) + 0.05 * np.eye(len(meuse)), kernel(meuse[columns], at), kernel(at), H, h, target
    )
    found, deviation = model.predict(at, return_std=True, include_noise=False)
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    np.testing.assert_allclose(deviation, np.sqrt(np.diag(covariance)), rtol=1e-7)
    assert model.trend_.names == ["constant", "root"]
    # and with parameters learned: REML; the drift explains zinc, and helps
    learned = mc.GaussianProcessRegressor(kernel, mean=["root"], progress=False).fit(meuse[columns], target)
    plain = mc.GaussianProcessRegressor(kernel, progress=False).fit(meuse[columns], target)
    assert learned.trend_.estimate[1] < -5 * learned.trend_.error[1]
    assert np.mean((learned.loo().mean - target) ** 2) < np.mean((plain.loo().mean - target) ** 2)


@needs_data
def test_jura():
    """Cadmium with rock types as drift columns and a linear trend in space: the textbook system, leave-one-out."""
    frame = pd.read_csv(DATA / "jura.csv.gz")
    rocks = pd.get_dummies(frame["Rock"]).astype(float)
    frame = pd.concat([frame[["Xloc", "Yloc", "Cd", "set"]], rocks], axis=1)
    inside = frame["set"] == "prediction"
    columns, drift = ["Xloc", "Yloc", *rocks.columns], ["Xloc", "Yloc", *rocks.columns[1:]]
    train, test, target = frame.loc[inside, columns], frame.loc[~inside, columns], frame.loc[inside, "Cd"].to_numpy()
    kernel = 0.6 * k.Matern(0.4, nu=0.5).on(["Xloc", "Yloc"])
    model = mc.GaussianProcessRegressor(kernel, noise=0.2, learning=None, normalize=False, mean=drift).fit(
        train, target
    )
    H, h = (np.column_stack([np.ones(len(t)), t[drift]]) for t in (train, test))
    C = kernel(train) + 0.2 * np.eye(len(train))
    mean, covariance = reference.universal_kriging(C, kernel(train, test), kernel(test), H, h, target)
    found, deviation = model.predict(test, return_std=True, include_noise=False)
    np.testing.assert_allclose(found, mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(deviation, np.sqrt(np.diag(covariance)), rtol=1e-7)
    loo, i = model.loo(), 17
    rest = np.arange(len(train)) != i
    mean, covariance = reference.universal_kriging(
        C[np.ix_(rest, rest)], C[rest][:, [i]], C[[i]][:, [i]], H[rest], H[[i]], target[rest]
    )
    assert (loo.mean[i], loo.variance[i]) == pytest.approx((mean[0], covariance[0, 0]), rel=1e-8)


# -- priors on the coefficients ------------------------------------------------------------------------------------


def test_a_gaussian_prior_is_a_kernel_term():
    basis, variance = Polynomial(1), 3.0
    for solver, kernel in (("dense", 0.4 * k.RBF(1.0).on(1)), ("weights", 0.4 * k.Linear().on(1))):
        A, B = X - [1970.0, 0.0], Z - [1970.0, 0.0]
        settings = {"noise": NOISE, "learning": None, "normalize": False, "solver": solver}
        term = mc.GaussianProcessRegressor(kernel + k.FeatureMap(basis, 1 / variance), **settings).fit(A, y - 330)
        prior = mc.GaussianProcessRegressor(kernel, mean=mc.means.Basis(basis, variance=variance), **settings)
        prior.fit(A, y - 330)
        assert prior.log_marginal_likelihood_ == pytest.approx(term.log_marginal_likelihood_, rel=1e-9)
        for one, other in zip(prior.predict(B, return_cov=True), term.predict(B, return_cov=True), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(prior.loo().mean, term.loo().mean, rtol=1e-7)
        np.testing.assert_allclose(prior.loo().variance, term.loo().variance, rtol=1e-7)
        mean, deviation = prior.decompose(B)["mean"]
        *_, (part, part_deviation) = term.decompose(B).values()
        np.testing.assert_allclose(mean, part, rtol=1e-7)
        np.testing.assert_allclose(deviation, part_deviation, rtol=1e-6)


def test_a_prior_of_growing_variance_becomes_flat():
    A = X - [1970.0, 0.0]
    flat = mc.GP(KERNEL, mean="linear").condition(A, y, NOISE)
    distances = []
    for variance in (1e3, 1e5, 1e7):
        prior = mc.GP(KERNEL, mean=mc.means.Basis(Polynomial(1), variance=variance)).condition(A, y, NOISE)
        distances.append(np.abs(prior.mean(Z - [1970.0, 0.0]) - flat.mean(Z - [1970.0, 0.0])).max())
        # the density of y tends to that of the contrasts, times a factor that depends on the prior alone
        H = np.column_stack([np.ones(N), A])
        unit = 0.5 * np.linalg.slogdet(H.T @ H)[1] + 1.5 * np.log(2 * np.pi * variance)
        gap = prior.log_evidence() + unit - flat.log_evidence()
    assert distances[0] > 50 * distances[1] > 2500 * distances[2]
    assert abs(gap) < 1e-2


def test_units_of_a_prior_are_those_of_y():
    one = fixed(mc.means.Basis(Polynomial(1), variance=50.0, columns=[1]))
    scale = y.std()
    other = fixed(
        mc.means.Basis(Polynomial(1), variance=50.0, columns=[1]),
        kernel=KERNEL.replace(variance=2.0 / scale**2),
        normalize=True,
    )
    np.testing.assert_allclose(one.predict(Z), other.predict(Z), rtol=1e-8)
    np.testing.assert_allclose(one.trend_.estimate, other.trend_.estimate, rtol=1e-7)
    with pytest.raises(mc.ParameterError, match="Gaussian prior"):
        mc.GaussianProcessRegressor(mean=mc.means.Basis(Polynomial(1), variance=1.0), calibrate=True).fit(X, y)


# -- functions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
def test_a_known_mean_is_subtracted_and_added(normalize):
    def known(x):
        return 315 + 1.3 * (x[0] - 1950)

    def on_the_host(x):
        return float(f"{known(x)}")

    settings = {"kernel": KERNEL, "normalize": normalize, "progress": False}
    for mean in (known, on_the_host, 330.0):
        values = np.array([mean(x) if callable(mean) else mean for x in X])
        found = mc.GaussianProcessRegressor(mean=mean, **settings).fit(X, y)
        other = mc.GaussianProcessRegressor(mean=0.0, **settings).fit(X, y - values)
        at = np.array([mean(x) if callable(mean) else mean for x in Z])
        np.testing.assert_allclose(found.predict(Z), other.predict(Z) + at, rtol=1e-5)
        np.testing.assert_allclose(
            found.predict(Z, return_std=True)[1], other.predict(Z, return_std=True)[1], rtol=1e-3
        )
        np.testing.assert_allclose(found.loo().mean, other.loo().mean + values, rtol=1e-4)
        assert found.mean_ == pytest.approx(values.mean())
        assert found.trend_ is None


def growth(p, x):
    return p["level"] + p["size"] / (1 + jnp.exp(-p["rate"] * (x[0] - 1970)))


@pytest.mark.parametrize("solver", ["dense", "weights"])
def test_parameters_of_a_mean_are_learned_with_the_kernel(solver):
    curve = 300 + 40 / (1 + np.exp(-0.3 * (X[:, 0] - 1970)))
    target = curve + X[:, 1] + 0.3 * rng.normal(size=N)
    kernel = 1.0 * k.RBF().on(1) if solver == "dense" else 1.0 * k.Linear().on(1)
    mean = mc.means.Function(growth, {"level": 250.0, "size": 10.0, "rate": 0.1})
    model = mc.GaussianProcessRegressor(kernel, mean=mean, solver=solver, progress=False).fit(X, target)
    assert {"mean_level", "mean_rate", "mean_size", "noise"} < set(model.parameter_names_)
    found = dict(zip(model.parameter_names_, model.theta_, strict=True))
    assert found["mean_size"] == pytest.approx(40, abs=2)
    assert found["mean_rate"] == pytest.approx(0.3, abs=0.05)
    assert "mean_rate" in str(model)
    assert "mean_rate" in str(model.report())
    # a maximum of the evidence, whose gradient is that of finite differences
    value, slope = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_)
    for i, name in enumerate(model.parameter_names_):
        step = np.zeros(len(slope))
        step[i] = 1e-5 * max(1.0, abs(model.theta_[i]))
        shifted = model.theta_ + 3e3 * step * (name.startswith("mean"))
        rise = [model.log_marginal_likelihood(shifted + sign * step) for sign in (1, -1)]
        expected = (rise[0] - rise[1]) / (2 * step[i])
        own = model.log_marginal_likelihood(shifted, eval_gradient=True)[1][i]
        assert own == pytest.approx(expected, rel=1e-4, abs=1e-3)
    # extrapolation follows the curve
    np.testing.assert_allclose(model.predict([[2020.0, 0.0]]), found["mean_level"] + found["mean_size"], atol=2.0)
    # against another start, and with the same mean given
    other = mc.GaussianProcessRegressor(
        kernel,
        mean=mc.means.Function(growth, {"level": 300.0, "size": 30.0, "rate": 0.5}),
        solver=solver,
        progress=False,
    ).fit(X, target)
    assert other.log_marginal_likelihood_ == pytest.approx(model.log_marginal_likelihood_, abs=0.05)


def test_a_function_linear_in_its_parameters_is_maximum_likelihood_of_the_trend():
    """Coefficients that maximise the evidence are generalised least squares, at any kernel."""
    mean = mc.means.Function(lambda p, x: p[0] + p[1:] @ (x - jnp.array([1970.0, 0.0])), np.zeros(3))
    kernel = KERNEL.fix()
    model = mc.GaussianProcessRegressor(kernel, noise=NOISE, mean=mean, normalize=False, progress=False).fit(X, y)
    assert model.parameter_names_ == ["mean_params[0]", "mean_params[1]", "mean_params[2]"]
    C, A = kernel(X) + NOISE * np.eye(N), np.column_stack([np.ones(N), X - [1970.0, 0.0]])
    expected = np.linalg.solve(A.T @ np.linalg.solve(C, A), A.T @ np.linalg.solve(C, y))
    np.testing.assert_allclose(model.theta_, expected, rtol=1e-4)


def test_priors_and_fixing_reach_the_mean():
    mean = mc.means.Function(growth, {"level": 300.0, "size": 40.0, "rate": 0.3}).fix("rate")
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), mean=mean, progress=False).fit(X, y)
    assert "mean_rate" not in model.parameter_names_
    held = mc.means.Function(growth, {"level": 300.0, "size": 40.0, "rate": 0.3})
    held = held.with_priors(size=mc.priors.Normal(40.0, 1e-3))
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), mean=held, learning="map", progress=False).fit(X, y)
    assert dict(zip(model.parameter_names_, model.theta_, strict=True))["mean_size"] == pytest.approx(40.0, abs=0.01)


# -- what a model does ---------------------------------------------------------------------------------------------

MEANS = {
    "linear": "linear", "column": [1], "basis": Polynomial(2),
    "prior": mc.means.Basis(Polynomial(1), variance=9.0),
    "function": lambda x: 315 + 1.3 * (x[0] - 1950) + 0.1 * x[1] ** 2,
    "learned": mc.means.Function(growth, {"level": 300.0, "size": 60.0, "rate": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("mean", MEANS)
def test_gradients_are_those_of_predictions(mean, normalize):
    for kernel in (KERNEL, 1.0 * k.Linear().on(1)):
        model = fixed(MEANS[mean], kernel=kernel, normalize=normalize)
        dmean, dvariance = model.predict_gradient(Z)
        for j, step in enumerate(1e-4 * np.eye(2)):
            ends = [model.predict(Z + sign * step, return_std=True, include_noise=False) for sign in (1, -1)]
            np.testing.assert_allclose(dmean[:, j], (ends[0][0] - ends[1][0]) / 2e-4, rtol=1e-4, atol=1e-5)
            rise = (ends[0][1] ** 2 - ends[1][1] ** 2) / 2e-4
            np.testing.assert_allclose(dvariance[:, j], rise, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mean", MEANS)
def test_terms_samples_updates_and_copies(mean):
    model = fixed(MEANS[mean], kernel=KERNEL + 0.3 * k.Linear().on(1))
    terms = model.decompose(Z)
    np.testing.assert_allclose(sum(part for part, _ in terms.values()), model.predict(Z), rtol=1e-9)
    average, deviation = model.predict(Z, return_std=True)
    draws = model.sample_y(Z, 20000, random_state=1)
    np.testing.assert_allclose(draws.mean(axis=1), average, atol=5 * deviation.max() / np.sqrt(20000))
    np.testing.assert_allclose(draws.std(axis=1), deviation, rtol=0.05)
    part = mc.GaussianProcessRegressor(**model.get_params(deep=False)).fit(X[:30], y[:30])
    for rows in (slice(30, 31), slice(31, None)):
        part.update(X[rows], y[rows])
    np.testing.assert_allclose(part.predict(Z), model.predict(Z), rtol=1e-6)
    assert part.log_marginal_likelihood_ == pytest.approx(model.log_marginal_likelihood_, rel=1e-6)
    np.testing.assert_allclose(part.loo().mean, model.loo().mean, rtol=1e-6)
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.predict(Z), model.predict(Z))
    assert model.relevance().effect.shape == (2,)
    assert "Mean" in model.report().sections or mean in ("function", "learned")


@pytest.mark.parametrize("mean", ["linear", "column", "basis", "prior"])
def test_files_hold_a_trend(mean, tmp_path):
    model = mc.GaussianProcessRegressor(KERNEL, mean=MEANS[mean], progress=False).fit(X, y)
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    np.testing.assert_array_equal(back.predict(Z), model.predict(Z))
    np.testing.assert_array_equal(back.trend_.covariance, model.trend_.covariance)
    assert back.loo().mean.tolist() == model.loo().mean.tolist()
    assert str(back.report()) == str(model.report())


def test_files_do_not_hold_functions(tmp_path):
    for mean in (MEANS["function"], MEANS["learned"]):
        model = mc.GaussianProcessRegressor(KERNEL, mean=mean, progress=False).fit(X, y)
        with pytest.raises(mc.ParameterError, match="function of your own"):
            mc.save(model, tmp_path / "model")


def test_a_model_stored_before_there_were_trends_is_read():
    made = MeanFunction.restored(unknown=True, constant=np.float64(0.0), function=None)
    assert made.centred
    assert made.columns(np.zeros((3, 2))).tolist() == [[1.0]] * 3
    assert MeanFunction.restored(unknown=False, constant=np.float64(2.0), function=None) == MeanFunction(2.0)


def test_columns_by_name_in_frames_of_both_libraries():
    table = {"year": X[:, 0], "depth": X[:, 1], "site": np.where(X[:, 1] > 0, "a", "b")}
    new = {"site": ["a", "b", "a"], "depth": Z[:, 1], "year": Z[:, 0]}
    expected = fixed("linear", kernel=2.0 * k.Matern(3.0, nu=1.5).on(0)).predict(Z)
    for frame in (pd.DataFrame, pl.DataFrame):
        for mean in ("linear", ["year", "depth"]):  # a column of text has no line
            kernel = 2.0 * k.Matern(3.0, nu=1.5).on("year")
            model = mc.GaussianProcessRegressor(kernel, noise=NOISE, learning=None, normalize=False, mean=mean)
            model.fit(frame(table), y)
            assert model.trend_.names == ["constant", "year", "depth"]
            np.testing.assert_allclose(model.predict(frame(new)), expected, rtol=1e-9)
    with pytest.raises(mc.DataError, match="no column 'width'"):
        mc.GaussianProcessRegressor(kernel, mean=["width"]).fit(pd.DataFrame(table), y)
    with pytest.raises(mc.DataError, match="reads numbers, and X has none"):
        mc.GaussianProcessRegressor(1.0 * k.Categorical().on("site"), mean="linear").fit(
            pd.DataFrame(table)[["site"]], y
        )


def test_predictions_far_away_follow_the_trend():
    model = mc.GaussianProcessRegressor(mean="linear", progress=False).fit(X, y)
    slope = model.trend_.estimate[1]
    far = model.predict([[2100.0, 0.0], [2200.0, 0.0]])
    assert (far[1] - far[0]) / 100 == pytest.approx(slope, rel=1e-6)
    assert slope == pytest.approx(1.3, abs=4 * model.trend_.error[1] + 0.02)
    assert "linear" not in str(model.choice_.member)
    assert all("theta3" not in name for name in model.parameter_names_)
    # beside a trend in one column the default kernel keeps its line in the others
    other = mc.GaussianProcessRegressor(mean=[0], progress=False).fit(X, y)
    assert any(tried.member.linear for tried in other.choice_.tried)


def test_columns_that_follow_from_others_are_left_out():
    A = np.column_stack([X, 2 * X[:, 0] + 3, np.full(N, 0.1)])
    B = np.column_stack([Z, 2 * Z[:, 0] + 3, np.full(3, 0.1)])
    with pytest.warns(mc.ModelWarning, match="x2, x3 of the mean 'linear' follow from the others"):
        model = mc.GaussianProcessRegressor(KERNEL, noise=NOISE, learning=None, normalize=False, mean="linear").fit(
            A, y
        )
    assert model.trend_.names == ["constant", "x0", "x1"]
    np.testing.assert_allclose(model.predict(B), fixed("linear").predict(Z), rtol=1e-8)
    np.testing.assert_allclose(model.trend_.estimate, fixed("linear").trend_.estimate, rtol=1e-6)


def test_a_column_that_few_rows_have_is_learned_from_parts_of_the_rows():
    """Stages of learning see a part of the rows, on which an indicator may be zero throughout."""
    n = 1500
    A = np.column_stack([rng.uniform(0, 10, n), np.zeros(n)])
    A[7, 1] = A[9, 1] = 1.0
    target = np.sin(A[:, 0]) + 5 * A[:, 1] + 0.1 * rng.normal(size=n)
    model = mc.GaussianProcessRegressor(1.0 * k.RBF().on(0), mean=[1], progress=False).fit(A, target)
    assert model.trend_.estimate[1] == pytest.approx(5.0, abs=0.3)


def test_too_few_rows():
    with pytest.raises(mc.DataError, match="3 unknown coefficients, and there are 2 rows"):
        mc.GaussianProcessRegressor(KERNEL, mean="linear").fit(X[:2], y[:2])
    with pytest.raises(mc.DataError, match="3 unknown coefficients, and there are 2 rows"):
        mc.GP(KERNEL, mean="linear").condition(X[:2], y[:2])
    with pytest.warns(mc.ModelWarning, match="as many unknown coefficients as there are rows"):
        exact = mc.GaussianProcessRegressor(KERNEL, mean="linear", progress=False).fit(X[:3], y[:3])
    np.testing.assert_allclose(exact.predict(X[:3]), y[:3], rtol=1e-6)  # as many rows as coefficients
    prior = mc.GaussianProcessRegressor(
        KERNEL, mean=mc.means.Basis(Polynomial(1), variance=1e4), noise=0.1, learning=None
    )
    assert np.isfinite(prior.fit(X[:2], y[:2]).predict(Z)).all()


@pytest.mark.parametrize("learning", ["mle", "map", "laplace"])
@pytest.mark.parametrize("kernel", [None, 1.0 * k.RBF()])
def test_a_mean_through_all_rows_leaves_deviations_on_the_scale_of_the_target(kernel, learning):
    rows, target = [[1.0], [2.0], [4.0]], [3.0, 8.0, 4.0]
    line = mc.means.Function(lambda p, x: p[0] + p[1] * x[0] + p[2] * x[0] ** 2, np.zeros(3))
    for mean in (Polynomial(2), line):
        model = mc.GaussianProcessRegressor(kernel, mean=mean, learning=learning, progress=False)
        with pytest.warns(mc.ModelWarning, match="as many unknown coefficients as there are rows"):
            model.fit(rows, target)
        if mean is not line or learning != "mle":  # which takes a function that fits as certain
            assert model.predict([[3.0], [9.0]], return_std=True)[1].min() > 0.1
    prior = mc.means.Basis(Polynomial(2), variance=100.0)
    model = mc.GaussianProcessRegressor(kernel, mean=prior, learning=learning, progress=False).fit(rows, target)
    assert model.predict([[3.0]], return_std=True)[1] > 0.1


def test_a_target_that_is_the_trend():
    line = 3.0 + 2.0 * X[:, 0] - X[:, 1]
    for normalize in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = mc.GaussianProcessRegressor(1.0 * k.RBF(), mean="linear", normalize=normalize, progress=False)
            model.fit(X, line)
        np.testing.assert_allclose(model.predict(Z), 3.0 + 2.0 * Z[:, 0] - Z[:, 1], rtol=1e-4)


def test_inputs_that_are_no_numbers_have_a_constant_or_a_function():
    words = ["".join(w) for w in rng.choice(list("ab"), size=(20, 5))]
    target = np.array([w.count("a") for w in words]) + 0.1 * rng.normal(size=20)
    model = mc.GaussianProcessRegressor(1.0 * k.Spectrum(2), mean="unknown", progress=False).fit(words, target)
    assert np.isfinite(model.predict(words)).all()
    counted = mc.GaussianProcessRegressor(
        1.0 * k.Spectrum(2), mean=mc.means.Basis(lambda w: [1.0, w.count("a")]), progress=False
    )
    assert counted.fit(words, target).trend_.estimate[1] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("mean", ["square", object(), np.nan, [], ["a", 1.5], k.RBF()])
def test_other_means_are_refused(mean):
    with pytest.raises(mc.ParameterError, match="mean must be"):
        mc.GaussianProcessRegressor(KERNEL, mean=mean).fit(X, y)


def test_functions_that_cannot_be_learned_are_refused():
    with pytest.raises(mc.ParameterError, match="cannot be traced by JAX"):
        mc.GaussianProcessRegressor(KERNEL, mean=mc.means.Function(lambda p, x: float(p[0]), [1.0])).fit(X, y)
    with pytest.raises(mc.ParameterError, match="without parameters"):
        mc.means.Function(growth, {})
    with pytest.raises(mc.ParameterError, match="function f"):
        mc.means.Function(3.0, [1.0])
    with pytest.raises(mc.ParameterError, match="variance of coefficients"):
        mc.means.Basis(Polynomial(1), variance=-1.0)
    with pytest.raises(mc.ParameterError, match="names or indices"):
        mc.means.Basis(Polynomial(1), columns=[])


# -- the process ---------------------------------------------------------------------------------------------------


def test_a_process_with_a_trend_predicts_the_next_rows():
    """ln p(second | first) is the difference of two evidences, and that of the conditioned process."""
    f = mc.GP(KERNEL, mean="linear")
    first = f.condition(X[:25], y[:25], NOISE)
    joint = first.log_likelihood(X[25:], y[25:], NOISE)
    C = first.covariance(X[25:]) + NOISE * np.eye(N - 25)
    assert joint == pytest.approx(reference.log_evidence(C, y[25:] - first.mean(X[25:])), rel=1e-7)
    both = first.condition(X[25:], y[25:], NOISE)
    whole = f.condition(X, y, NOISE)
    np.testing.assert_allclose(both.mean(Z), whole.mean(Z), rtol=1e-9)
    np.testing.assert_allclose(both.covariance(Z), whole.covariance(Z), rtol=1e-7)
    assert repr(f) == f"GP({KERNEL!r}, mean='linear')"
    with pytest.raises(mc.ParameterError, match="condition it first"):
        f.mean(Z)


def test_many_samples_of_a_process_with_a_trend(monkeypatch):
    from mercer.gp import process

    g = mc.GP(KERNEL, mean="linear").condition(X, y, NOISE)
    monkeypatch.setattr(process, "MAX_DENSE_SAMPLES", 2)
    draws, (mean, variance) = g.sample(Z, size=5000, seed=3), g.moments(Z)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5 * np.sqrt(variance.max() / 5000))
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.1)


def test_a_known_mean_is_printed_in_units_of_y_and_a_truth_value_is_none():
    X = np.linspace(0, 3, 12)[:, None]
    model = mc.GaussianProcessRegressor(mean=5.0, progress=False).fit(X, 5 + np.sin(X[:, 0]))
    assert "mean: 5.0" in str(model)
    with pytest.raises(mc.ParameterError, match="mean must be a finite number"):
        mc.GaussianProcessRegressor(mean=True).fit(X, X[:, 0])


def test_a_mean_that_is_not_finite_is_named():
    def logarithm(p, x):
        return p * jnp.log(x[0] - 1960.0)

    for kernel in (None, KERNEL):
        model = mc.GaussianProcessRegressor(kernel, mean=mc.means.Function(logarithm, 1.0), progress=False)
        with pytest.raises(mc.DataError, match="mean function logarithm.*not finite"):
            model.fit(X, y)
