"""Ridge regression and principal components through centres: exact with all rows, the features' own formulas else."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(2)
N = 70
X = rng.normal(size=(N, 2))
t = np.column_stack([np.sin(2 * X[:, 0]) + 4.0, X[:, 0] * X[:, 1]]) + 0.1 * rng.normal(size=(N, 2))
W = rng.uniform(0.5, 2.0, size=N)
Z = rng.normal(size=(8, 2))
KERNEL = 1.5 * k.Matern(0.9, nu=1.5)
ALL, FEW = mc.solvers.LowRank(N), mc.solvers.LowRank(15)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.3, [0.1, 2.0], "loo"])
def test_with_all_rows_as_centres_ridge_is_that_of_the_dual_form(alpha, intercept):
    settings = {"kernel": KERNEL, "alpha": alpha, "fit_intercept": intercept, "alphas": [0.01, 0.1, 1.0]}
    own, dual = (mc.KernelRidge(**settings, solver=solver).fit(X, t, W) for solver in (ALL, "dual"))
    assert own.predict(Z) == pytest.approx(dual.predict(Z), rel=1e-6, abs=1e-8)
    assert own.intercept_ == pytest.approx(dual.intercept_, rel=1e-6, abs=1e-8)
    assert own.alpha_ == pytest.approx(dual.alpha_)
    assert own.loo().residual == pytest.approx(dual.loo().residual, rel=1e-5, abs=1e-8)


def test_with_few_centres_it_minimises_the_objective_over_their_span():
    model = mc.KernelRidge(KERNEL, 0.2, solver=FEW).fit(X, t[:, 0])
    C, a, b = model.X_fit_, model.dual_coef_, model.intercept_
    assert len(C) == len(a) == 15
    K, Km = KERNEL(X, C), KERNEL(C, C.copy())
    residual = K @ a + b - t[:, 0]
    assert residual.sum() == pytest.approx(0.0, abs=1e-9)
    assert K.T @ residual + 0.2 * Km @ a == pytest.approx(np.zeros(15), abs=1e-9)
    i = 7  # leaving a row out, the centres held
    rest = np.arange(N) != i
    again = mc.KernelRidge(KERNEL, 0.2, solver=mc.solvers.LowRank(centers=C)).fit(X[rest], t[rest, 0])
    assert t[i, 0] - model.loo().residual[i] == pytest.approx(again.predict(X[i : i + 1])[0], rel=1e-8)
    assert "15 centres" in str(model)


def test_ridge_is_low_rank_where_the_dual_form_does_not_fit(tmp_path):
    assert mc.KernelRidge(KERNEL, max_seconds=1e-9).fit(X, t[:, 0]).solver_ == "lowrank"
    assert mc.KernelPCA(3, KERNEL, max_memory=1000).fit(X).solver_ == "lowrank"
    model = mc.KernelRidge(KERNEL, "loo", max_memory=1000).fit(X, t[:, 0])
    assert model.solver_ == "lowrank"
    mc.save(model, tmp_path / "model")
    assert np.array_equal(mc.load(tmp_path / "model").predict(Z), model.predict(Z))
    with pytest.raises(mc.ParameterError, match="does not keep"):
        model.path([1.0])


@pytest.mark.parametrize("of", [lambda **s: mc.KernelRidge(KERNEL, **s), lambda **s: mc.KernelPCA(3, KERNEL, **s)])
def test_what_auto_takes_is_planned_and_announced(of, capsys):
    exact, centres = of(), of(max_seconds=1e-9)
    for model in (exact, centres):
        plan = model.plan(X)
        model.fit(X, t[:, 0])
        assert (plan.method, plan.rows) == (model.solver_, len(X))
    assert exact.plan(X).memory >= 8 * len(X) ** 2
    assert "takes more time than it may" in str(centres.plan(X))
    assert "through the features of a few centres" in str(centres.plan(X))
    shown = capsys.readouterr().err
    assert shown.count("mercer: lowrank, since the") == 1
    named = of(solver=mc.solvers.LowRank(10))
    named.fit(X, t[:, 0])
    assert named.plan(X).features == 10
    assert named.plan(X).why == "it was asked for"
    assert capsys.readouterr().err == ""


def test_with_all_rows_as_centres_components_are_those_of_the_dense_solver():
    own, dense = (mc.KernelPCA(3, KERNEL, solver=solver).fit(X) for solver in (ALL, "dense"))
    assert own.eigenvalues_ == pytest.approx(dense.eigenvalues_, rel=1e-8)
    assert own.explained_variance_ratio_ == pytest.approx(dense.explained_variance_ratio_, rel=1e-8)
    one, other = own.transform(Z), dense.transform(Z)
    assert np.abs(one) == pytest.approx(np.abs(other), rel=1e-5, abs=1e-7)
    signs = np.sign(np.sum(one * other, axis=0))
    near = own.inverse_transform(one)
    assert near == pytest.approx(dense.inverse_transform(one * signs), abs=0.1)


def test_few_centres_leave_variance_and_never_add_any():
    dense = mc.KernelPCA(3, KERNEL, solver="dense").fit(X)
    few, more = (mc.KernelPCA(3, KERNEL, solver=mc.solvers.LowRank(m)).fit(X) for m in (8, 30))
    assert (few.eigenvalues_ <= more.eigenvalues_ + 1e-9).all()
    assert (more.eigenvalues_ <= dense.eigenvalues_ + 1e-9).all()
    assert few.numerics_["left"] > more.numerics_["left"] > 0
    coordinates = few.transform(X)
    assert coordinates.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-9)
    assert coordinates.T @ coordinates == pytest.approx(np.diag(few.eigenvalues_), abs=1e-8)
    words = ["".join(letters) for letters in rng.choice(list("abc"), size=(30, 6))]
    assert mc.KernelPCA(2, k.Spectrum(2), solver=mc.solvers.LowRank(10)).fit(words).transform(words).shape == (30, 2)
