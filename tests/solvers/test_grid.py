"""The grid solver: equal to the dense one on every kind of grid, and refusals that say why."""

import itertools

import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import as_noise
from mercer.solvers import Dense, Grid
from mercer.solvers.base import resolve
from mercer.solvers.grid import GridPosterior
from mercer.solvers.grid_rows import Lattice, find

rng = np.random.default_rng(1)
PLACES = rng.uniform(0, 3, size=(4, 2))
FLAT = rng.permutation(np.array(list(itertools.product([0.0, 0.5, 0.9, 2.0], np.arange(6.0)))))
SPACE_TIME = rng.permutation(np.array([(*place, t) for place in PLACES for t in 0.5 * np.arange(6)]))
SERIES = rng.permutation(0.3 * np.arange(24.0))[:, None]
ARD = 1.3 * k.RBF([0.8, 1.2])

CASES = {  # kernel and rows
    "complete": (ARD, FLAT),
    "white noise in the kernel": (ARD + 0.5 * k.White(0.2), FLAT),
    "places x times": (1.3 * k.Matern(0.8).on([0, 1]) * (k.RBF(2.0) + k.Periodic(3.0)).on(2), SPACE_TIME),
    "places x times, one lengthscale each": (1.3 * k.RBF([0.8, 1.0, 2.0]), SPACE_TIME),
    "not stationary": (1.3 * (k.Linear() + k.Constant(0.3)).on(0) * k.RBF(1.2).on(1), FLAT),
    "a power": ((k.RBF(1.0).on(0) * k.Matern(2.0).on(1)) ** 2, FLAT),
    "missing cells": (ARD, FLAT[:-3]),
    "repeated measurements": (ARD, np.concatenate([FLAT[:-3], FLAT[4:6]])),
    "every cell twice": (ARD, np.concatenate([FLAT, FLAT])),
    "coincident stations": (1.3 * k.Matern().on([0, 1]) * k.RBF().on(2), np.concatenate([SPACE_TIME, SPACE_TIME[:6]])),
    "a constant column": (k.RBF([0.8, 1.2, 1.0]), np.column_stack([FLAT, np.full(24, 7.0)])),
    "equal steps": (1.3 * k.RBF(0.8), SERIES),
    "equal steps with gaps": (1.3 * k.RBF(0.8) + k.White(0.1), SERIES[:20]),
    "equal steps, some twice": (1.3 * k.Matern(0.9) * k.Periodic(2.0), np.concatenate([SERIES, SERIES[3:5]])),
}
cases = pytest.mark.parametrize("case", CASES)
means = pytest.mark.parametrize("mean", [None, "linear", mc.means.Basis(mc.basis.Polynomial(1), variance=3.0)])


def data(case):
    """Kernel, rows, target, and rows to predict."""
    kernel, X = CASES[case]
    own = np.random.default_rng(2)
    y = np.sin(X.sum(axis=1)) + 0.2 * own.normal(size=len(X)) + 2.0
    Z = own.uniform(0, 3, size=(7, X.shape[1]))
    Z[0] = X[0]
    return kernel, X, y, Z


def both(case, noise, mean=None):
    kernel, X, y, _ = data(case)
    found = [solver.posterior(kernel, X, y, noise, made(mean)) for solver in (Grid(), Dense())]
    assert isinstance(found[0], GridPosterior)
    return found


def made(mean):
    return None if mean is None else MeanFunction.of(mean)


def noise_of(case, kind):
    n = len(CASES[case][1])
    return 0.07 if kind == "one" else np.random.default_rng(3).uniform(0.02, 0.1, size=n)


def close(one, other, tolerance=1e-9):
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=tolerance, abs=tolerance)


@means
@pytest.mark.parametrize("kind", ["one", "one per row"])
@cases
def test_a_posterior_is_the_dense_one(case, kind, mean):
    Z = data(case)[3]
    grid, dense = both(case, noise_of(case, kind), mean)
    assert grid.log_evidence() == pytest.approx(dense.log_evidence(), rel=1e-10)
    close(grid.moments(Z), dense.moments(Z))
    close([grid.mean(Z), grid.covariance(Z)], [dense.mean(Z), dense.covariance(Z)])
    close(grid.leave_one_out(), dense.leave_one_out())
    close((*grid.trend(Z), *grid.coefficients()), (*dense.trend(Z), *dense.coefficients()))
    for (part, *one), (other_part, *other) in zip(grid.terms(Z), dense.terms(Z), strict=True):
        assert part == other_part
        close(one, other)
    found = grid.numerics()
    assert found["jitter"] == 0
    assert found["residual"] < 1e-12
    close(grid.latent().moments(Z), dense.latent().moments(Z))


@pytest.mark.parametrize("case", ["places x times", "missing cells", "equal steps with gaps", "repeated measurements"])
def test_derivatives_in_the_inputs_are_the_dense_ones(case):
    Z = data(case)[3]
    grid, dense = both(case, 0.07, "linear")
    close(grid.gradients(Z), dense.gradients(Z))


@pytest.mark.parametrize("mean", [None, "linear"])
@cases
def test_the_evidence_and_its_slope_are_the_dense_ones(case, mean):
    kernel, X, y, _ = data(case)
    for noise in (None, noise_of(case, "one per row")):
        with (
            Grid().evidence(kernel, X, y, noise, made(mean)) as grid,
            Dense().evidence(kernel, X, y, noise, made(mean)) as dense,
        ):
            assert type(grid) is not type(dense)
            theta = np.linspace(-0.4, 0.3, grid.size)
            for profiled in (False, True):
                one, other = (evidence(theta, profiled=profiled) for evidence in (grid, dense))
                assert one.value == pytest.approx(other.value, rel=1e-10)
                assert one.scale == pytest.approx(other.scale, rel=1e-9)
                assert one.gradient == pytest.approx(other.gradient, rel=1e-8, abs=1e-8)
            close(grid.left_out(theta), dense.left_out(theta))


@pytest.mark.parametrize("case", ["white noise in the kernel", "places x times", "missing cells", "equal steps"])
def test_the_slope_is_that_of_finite_differences(case):
    kernel, X, y, _ = data(case)
    with Grid().evidence(kernel, X, y, None, made("unknown")) as evidence:
        theta = np.linspace(-0.4, 0.3, evidence.size)
        found = evidence(theta).gradient
        for i, step in enumerate(1e-5 * np.eye(evidence.size)):
            high, low = (evidence(theta + sign * step, gradient=False).value for sign in (1, -1))
            assert found[i] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-5)
        assert evidence(np.full(evidence.size, 800.0)) is None  # a step to be rejected


@pytest.mark.parametrize("case", ["complete", "repeated measurements", "equal steps with gaps"])
def test_leaving_one_out_is_fitting_without_it(case):
    kernel, X, y, _ = data(case)
    noise = noise_of(case, "one per row")
    left_out, variance = Grid().posterior(kernel, X, y, noise, made("unknown")).leave_one_out()
    white = Grid().posterior(kernel, X, y, noise).added_noise(X, as_noise(0.0, len(X)), include_noise=False)
    assert white <= 0
    for i in (0, 5, len(y) - 1):
        rest = np.arange(len(y)) != i
        m, v = Grid().posterior(kernel, X[rest], y[rest], noise[rest], made("unknown")).moments(X[i : i + 1])
        assert left_out[i] == pytest.approx(m[0], rel=1e-8)
        assert variance[i] == pytest.approx(v[0] + noise[i], rel=1e-8)


def test_new_measurements_fill_the_grid_enlarge_it_or_leave_it():
    kernel, X, y, Z = data("complete")
    whole = Grid().posterior(kernel, X, y, 0.07)
    part = Grid().posterior(kernel, X[:20], y[:20], 0.07).condition(X[20:], y[20:], 0.07)
    assert isinstance(part, GridPosterior)
    close(part.moments(Z), whole.moments(Z))
    assert part.log_evidence() == pytest.approx(whole.log_evidence(), rel=1e-11)
    assert whole.condition(X[:0], y[:0], 0.07) is whole
    with pytest.warns(mc.NumericalWarning, match="dense solver, a matrix of 174 x 174: the grid solver"):
        off = whole.condition(np.random.default_rng(0).normal(size=(150, 2)), np.zeros(150), np.full(150, 0.07))
    assert not isinstance(off, GridPosterior)
    assert off.data[1].shape == (174,)


def test_variances_times_a_factor_and_samples():
    kernel, X, y, Z = data("missing cells")
    posterior = Grid().posterior(kernel, X, y, 0.07, made("unknown"))
    close(
        posterior.rescaled(1.7 * kernel, 1.7).moments(Z),
        Grid().posterior(1.7 * kernel, X, y, 1.7 * 0.07, made("unknown")).moments(Z),
    )
    draws, (mean, variance) = posterior.sample(Z, size=4000, seed=1), posterior.moments(Z)
    assert np.abs(draws.mean(axis=0) - mean).max() < 5 * np.sqrt(variance.max() / 4000)
    assert draws.var(axis=0) == pytest.approx(variance, rel=0.12)
    assert posterior.sample(Z[:0], size=2).shape == (2, 0)


def test_samples_at_many_rows_are_those_of_the_posterior(monkeypatch):
    from mercer.solvers import grid

    kernel, X, y, Z = data("missing cells")
    posterior = Grid().posterior(kernel, X, y, 0.07, made("linear"))
    monkeypatch.setattr(grid, "MAX_DENSE_SAMPLES", 3)
    draws, (mean, variance) = posterior.sample(Z, size=4000, seed=1), posterior.moments(Z)
    assert np.abs(draws.mean(axis=0) - mean).max() < 5 * np.sqrt(variance.max() / 4000)
    assert draws.var(axis=0) == pytest.approx(variance, rel=0.12)


@pytest.mark.parametrize("missing", [0, 3])
def test_long_series_at_places_are_solved_by_their_steps(missing, monkeypatch):
    from mercer.solvers import grid_evidence, grid_rows

    monkeypatch.setattr(grid_rows, "MIN_STEPS", 5)
    monkeypatch.setattr(grid_rows, "STEPS_PER_PLACE", 1)
    kernel, X, y, Z = data("places x times, one lengthscale each")
    X, y = X[missing:], y[missing:]
    assert isinstance(grid_evidence.lattices(find(kernel, X)), grid_evidence.SliceAndSteps)
    kernel = kernel + 0.1 * k.White()
    grid, dense = (solver.posterior(kernel, X, y, 0.07, made("linear")) for solver in (Grid(), Dense()))
    assert grid.log_evidence() == pytest.approx(dense.log_evidence(), rel=1e-10)
    close((*grid.moments(Z), *grid.gradients(Z)), (*dense.moments(Z), *dense.gradients(Z)))
    close((*grid.leave_one_out(), grid.covariance(Z)), (*dense.leave_one_out(), dense.covariance(Z)))
    assert grid.numerics()["residual"] < 1e-12
    with Grid().evidence(kernel, X, y, 0.07) as one, Dense().evidence(kernel, X, y, 0.07) as other:
        theta = np.linspace(-0.4, 0.3, one.size)
        assert one(theta).value == pytest.approx(other(theta).value, rel=1e-10)
        assert one(theta).gradient == pytest.approx(other(theta).gradient, rel=1e-8, abs=1e-8)


# -- estimators --------------------------------------------------------------------------------------------------------


def test_a_regressor_learns_predicts_is_updated_and_comes_back_from_a_file(tmp_path):
    frame = pd.DataFrame(SPACE_TIME, columns=["lon", "lat", "t"]).assign(remark=1.0)
    kernel = 1.0 * k.Matern(0.8).on(["lon", "lat"]) * k.RBF(2.0).on("t")
    y = data("places x times")[2]
    grid, dense = (
        mc.GaussianProcessRegressor(kernel, solver=solver, progress=False).fit(frame, y) for solver in ("grid", "dense")
    )
    assert grid.plan_.method == "grid"
    assert isinstance(grid.posterior_, GridPosterior)
    assert grid.log_marginal_likelihood_ == pytest.approx(dense.log_marginal_likelihood_, rel=1e-6)
    new = frame[["t", "remark", "lat", "lon"]].iloc[:5]  # columns by name, in any order
    for one, other in zip(grid.predict(new, return_std=True), dense.predict(new, return_std=True), strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    mc.save(grid, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert back.solver_ == Grid()
    for one, other in zip(grid.predict(new, return_std=True), back.predict(new, return_std=True), strict=True):
        assert np.array_equal(one, other)
    assert str(back) == str(grid)
    grid.update(frame.iloc[:2].assign(t=9.0), [2.0, 2.5])  # a new time, at two of the places
    assert isinstance(grid.posterior_, GridPosterior)
    assert grid.loo().mean.shape == (26,)


def test_learning_starts_on_few_rows_that_form_no_grid_and_ends_on_all():
    X = np.array(list(itertools.product(np.linspace(0, 3, 30), np.linspace(0, 2, 40))))
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * np.random.default_rng(0).normal(size=1200)
    model = mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), progress=False)
    plan = model.plan(X)
    assert plan.method == "grid"
    assert "grid of 30 x 40 cells" in str(plan)
    model.fit(X, y)
    assert model.solver_ == Grid()
    assert model.noise_ == pytest.approx(0.01, rel=0.15)
    dense = Dense().posterior(model.kernel_, *model.posterior_.data, model.posterior_.prior_mean)
    assert model.log_marginal_likelihood_ == pytest.approx(dense.log_evidence(), rel=1e-9)
    assert len(model.relevance().names) == 2  # by parts of the rows


def test_auto_takes_the_grid_from_a_thousand_rows_on_and_never_for_latent_functions():
    noise, kernel = as_noise(None, 1200), 1.0 * k.RBF([1.0, 1.0])
    X = np.array(list(itertools.product(np.arange(30.0), np.arange(40.0))))
    assert resolve("auto", kernel, X, noise) == Grid()
    assert resolve("auto", kernel, X, noise, latent=True) == Dense()
    assert resolve("auto", kernel, X[:900], noise) == Dense()
    assert resolve("auto", kernel, rng.normal(size=(1200, 2)), noise) == Dense()
    assert resolve("auto", 1.0 * k.RBF(1.0), 0.1 * np.arange(1200.0)[:, None], noise) == Grid()
    assert resolve("auto", kernel, X, as_noise(rng.uniform(0.1, 1.0, 1200), 1200)) == Dense()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "rows", "noise", "says"),
    [
        (k.Matern(), FLAT, 0.1, r"product over groups of columns.*Matern\(lengthscale=1.0, nu=2.5\) is none"),
        (k.RBF() + k.Linear(), FLAT, 0.1, r"one product.*a sum, of which RBF\(lengthscale=1.0\) and Linear\(\) are"),
        (k.RBF() * k.White(), FLAT, 0.1, r"White\(variance=1.0\) is white noise inside a product"),
        (k.White(), FLAT, 0.1, "more than white noise"),
        (k.RBF(), FLAT, 0.0, "positive noise variance"),
        (k.RBF(), FLAT[:1], 0.1, "rows that differ"),
        (k.RBF().on(0), np.ones((5, 2)), 0.1, "rows that differ"),
        (k.RBF(), rng.normal(size=(300, 2)), 0.1, r"form a grid.*\[0\], \[1\] make 300 x 300 cells for 300 rows"),
        (k.RBF(), rng.normal(size=(300, 1)), 0.1, "equal steps; the shortest of 300 distinct values"),
        (k.RBF(), np.array([0.0, 1.0, 2.0, 3.4])[:, None], 0.1, "equal steps, to 1e-09 of a step"),
        (k.Linear(), SERIES, 0.1, r"stationary kernel for a single input; got Linear\(\)"),
        (k.Spectrum(1), ["ab", "ba"], 0.1, "columns of numbers"),
    ],
)
def test_refusals_say_why(kernel, rows, noise, says):
    with pytest.raises(mc.ParameterError, match=rf"solver='grid' .*{says}.*\. Use solver='auto'"):
        resolve("grid", kernel, rows, as_noise(noise, len(rows)))


def test_too_many_missing_cells_or_noise_variances_are_refused_with_their_numbers():
    X = np.array(list(itertools.product(np.arange(20.0), np.arange(25.0))))
    kept = rng.permutation(500)
    assert Grid().refusal(ARD, X[kept[:400]], as_noise(0.1, 400)) is None
    with pytest.raises(mc.ParameterError, match=r"at most 100 missing cells here; a grid of 20 x 25 cells has 101"):
        resolve(Grid(max_missing=5), ARD, X[kept[:399]], as_noise(0.1, 399))
    with pytest.raises(mc.ParameterError, match=r"of 500 cells, 499 are missing.*at most 125 may"):
        resolve("grid", ARD, X, as_noise(rng.uniform(0.1, 1.0, size=500), 500))
    with pytest.raises(mc.ParameterError, match="max_missing must be"):
        Grid(max_missing=-1)


def test_groups_of_columns_are_found_in_any_order_of_rows_and_columns():
    one = find(k.RBF(), SPACE_TIME[:, [2, 0, 1]])
    assert isinstance(one, Lattice)
    assert one.columns == ((0,), (1, 2))
    assert one.shape == (6, 4)
    inputs = one.inputs()[one.cell]
    assert np.array_equal(inputs, SPACE_TIME[:, [2, 0, 1]])
    sea = np.array([(x, y, t) for x in range(7) for y in range(9) if (x - 3) ** 2 + y > 6 for t in range(20)], float)
    masked = find(k.RBF(), rng.permutation(sea))  # complete in places and times
    assert (masked.columns, masked.missing) == (((0, 1), (2,)), 0)
    four = np.array(list(itertools.product(range(3), range(2), range(2), range(4))), dtype=float)
    assert find(k.RBF(), rng.permutation(four)).shape == (3, 2, 2, 4)


def test_the_default_kernel_is_no_product():
    with pytest.raises(mc.ParameterError, match="product over groups of columns"):
        mc.GaussianProcessRegressor(solver="grid", progress=False).fit(FLAT, np.arange(24.0))
