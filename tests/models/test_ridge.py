"""Kernel ridge regression: against the saddle system it solves, scikit-learn, a Gaussian process, and refits."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge as TheirRidge

import mercer as mc
from mercer import kernels as k

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=40)
Z = RNG.normal(size=(9, 3))
WEIGHTS = RNG.uniform(0.2, 3.0, size=40)
KERNELS = [k.RBF(1.3), k.Polynomial(2, 1.0), k.RBF(1.3) + k.White(0.2)]


def naive(kernel, X, t, alpha, intercept=True, w=None):
    """(K + alpha W^-1) a + b = t and sum a = 0, as one linear system."""
    n = len(t)
    A = np.zeros((n + 1, n + 1))
    A[:n, :n] = kernel(X) + alpha * np.diag(1 / (np.ones(n) if w is None else w))
    A[:n, n] = A[n, :n] = float(intercept)
    A[n, n] = float(not intercept)
    solution = np.linalg.solve(A, np.concatenate([t, [0.0]]))
    return solution[:n], solution[n]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("w", [None, WEIGHTS], ids=["plain", "weighted"])
def test_it_solves_its_equations_and_leaves_rows_out_exactly(kernel, intercept, w):
    model = mc.KernelRidge(kernel, alpha=0.3, fit_intercept=intercept).fit(X, y, w)
    a, b = naive(kernel, X, y, 0.3, intercept, w)
    np.testing.assert_allclose(model.dual_coef_, a, atol=1e-11)
    assert model.intercept_ == pytest.approx(b, abs=1e-11)
    np.testing.assert_allclose(model.predict(Z), kernel(Z, X) @ a + b, atol=1e-11)
    left = model.loo()
    for i in (0, 17, 39):
        rest = np.arange(40) != i
        a, b = naive(kernel, X[rest], y[rest], 0.3, intercept, None if w is None else w[rest])
        expected = (kernel(X[i : i + 1], X[rest]) @ a + b)[0]
        assert left.prediction[i] == pytest.approx(expected, abs=1e-10)
    np.testing.assert_allclose(left.residual, y - left.prediction)
    # The path passes through this solution.
    path = model.path([0.01, 0.3])
    np.testing.assert_allclose(path.dual_coef[1], model.dual_coef_, atol=1e-10)
    assert path.intercept[1] == pytest.approx(model.intercept_, abs=1e-10)
    weights = np.ones(40) if w is None else w
    assert path.loo_error[1] == pytest.approx(np.average(left.residual**2, weights=weights))


def test_scikit_learn_agrees():
    ours = mc.KernelRidge(k.RBF(lengthscale=1.0), alpha=0.5, fit_intercept=False)
    theirs = TheirRidge(alpha=0.5, kernel="rbf", gamma=0.5)
    np.testing.assert_allclose(ours.fit(X, y).predict(Z), theirs.fit(X, y).predict(Z), atol=1e-12)
    np.testing.assert_allclose(
        ours.fit(X, y, WEIGHTS).predict(Z), theirs.fit(X, y, sample_weight=WEIGHTS).predict(Z), atol=1e-12
    )
    Y = np.column_stack([y, y**2, -y])
    per_target = [0.1, 1.0, 10.0]
    ours, theirs = mc.KernelRidge(k.RBF(), per_target, False), TheirRidge(alpha=per_target, kernel="rbf", gamma=0.5)
    np.testing.assert_allclose(ours.fit(X, Y).predict(Z), theirs.fit(X, Y).predict(Z), atol=1e-12)


def test_dual_and_primal_are_one():
    kernel = k.Polynomial(2, 0.7)
    for alpha in (1e-3, 1.0, "loo"):
        dual, primal = (mc.KernelRidge(kernel, alpha, solver=route).fit(X, y, WEIGHTS) for route in ("dual", "primal"))
        assert (dual.solver_, primal.solver_) == ("dual", "primal")
        assert primal.alpha_ == pytest.approx(dual.alpha_, rel=1e-2)
        np.testing.assert_allclose(primal.predict(Z), dual.predict(Z), atol=1e-3 if alpha == "loo" else 1e-9)
    assert mc.KernelRidge(kernel).fit(X, y).solver_ == "primal"  # ten features, forty rows
    assert mc.KernelRidge(kernel).fit(X[:8], y[:8]).solver_ == "dual"


def test_the_mean_of_a_gaussian_process_is_ridge_regression():
    kernel = 2.0 * k.Matern(1.5)
    process = mc.GaussianProcessRegressor(kernel, noise=0.2, learning=None, normalize=False).fit(X, y)
    ridge = mc.KernelRidge(kernel, alpha=0.2, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(ridge.predict(Z), process.predict(Z), atol=1e-12)
    np.testing.assert_allclose(ridge.loo().prediction, process.loo().mean, atol=1e-10)


def test_leave_one_out_chooses_the_least_error():
    alphas = np.geomspace(1e-4, 10, 30)
    model = mc.KernelRidge(k.RBF(1.3), "loo", alphas=alphas).fit(X, y)
    errors = [np.mean(mc.KernelRidge(k.RBF(1.3), a).fit(X, y).loo().residual ** 2) for a in alphas]
    np.testing.assert_allclose(model.path_.loo_error, errors, rtol=1e-8)
    assert model.alpha_ == alphas[np.argmin(errors)]
    free = mc.KernelRidge(k.RBF(1.3), "loo").fit(X, y)  # between the values of a grid of its own
    assert np.mean(free.loo().residual ** 2) <= min(errors) * (1 + 1e-6)
    smoother = k.RBF(1.3)(X) @ np.linalg.inv(k.RBF(1.3)(X) + alphas[7] * np.eye(40))
    plain = mc.KernelRidge(k.RBF(1.3), fit_intercept=False).fit(X, y).path(alphas)
    assert plain.effective_parameters[7] == pytest.approx(np.trace(smoother))
    assert "by leave-one-out" in str(model)


def test_several_targets_have_a_penalty_each():
    Y = np.column_stack([y, RNG.normal(size=40)])
    together = mc.KernelRidge(k.RBF(1.3), "loo").fit(X, Y)
    for i in range(2):
        alone = mc.KernelRidge(k.RBF(1.3), "loo").fit(X, Y[:, i])
        assert together.alpha_[i] == pytest.approx(alone.alpha_)
        np.testing.assert_allclose(together.predict(Z)[:, i], alone.predict(Z), atol=1e-10)
        np.testing.assert_allclose(together.path_.loo_error[:, i], alone.path_.loo_error)
        np.testing.assert_allclose(together.loo().prediction[:, i], alone.loo().prediction, atol=1e-10)
    assert together.dual_coef_.shape == (40, 2)
    assert together.score(X, Y) == pytest.approx(
        np.mean([1 - np.sum((Y - together.predict(X)) ** 2, 0) / 40 / Y.var(0)])
    )


def test_a_weight_is_a_number_of_copies():
    copies = np.arange(40) % 4  # some rows not at all
    weighted = mc.KernelRidge(alpha=0.5).fit(X, y, copies)
    repeated = mc.KernelRidge(alpha=0.5).fit(np.repeat(X, copies, axis=0), np.repeat(y, copies))
    np.testing.assert_allclose(weighted.predict(Z), repeated.predict(Z), atol=1e-10)


def test_any_input():
    words = ["ball", "bell", "cat", "cats", "dog", "dogs"]
    same_letters = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    model = mc.KernelRidge(same_letters, 0.1, allow_invalid=True).fit(words, [0, 0, 1, 1, 2, 2.0])
    assert model.predict(["cat"])[0] == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"alpha": -1.0}, "alpha must be 'loo'"),
        ({"alpha": "gcv"}, "alpha must be 'loo'"),
        ({"alpha": [1.0, 2.0]}, "one for each of 1 targets"),
        ({"alpha": "loo", "alphas": [0.0, 1.0]}, "alphas must be positive"),
        ({"solver": "magic"}, "solver must be one of"),
        ({"solver": "primal", "kernel": k.RBF()}, "finitely many features"),
        ({"kernel": k.Sigmoid(1.0, 1.0)}, "positive semidefinite"),
    ],
)
def test_errors_say_what_to_do(settings, told):
    with pytest.raises(mc.MercerError, match=told):
        mc.KernelRidge(**settings).fit(X, y)


@pytest.mark.parametrize("alpha", [1.0, "loo", 0.0])
def test_hard_data_gives_finite_answers(alpha):
    for rows, target in [
        (X[:1], y[:1]),  # one row
        (X[:2], y[:2]),
        (X, np.full(40, 3.0)),  # a constant
        (np.repeat(X[:10], 4, axis=0), y),  # duplicates
        (X * [1e8, 1e-8, 0.0], y * 1e9),  # scales, and a column that says nothing
        (RNG.normal(size=(12, 300)), y[:12]),
    ]:
        model = mc.KernelRidge(alpha=alpha).fit(rows, target)
        found = model.predict(rows)
        assert np.isfinite(found).all()
        assert np.abs(found - target.mean()).max() <= 3 * np.ptp(target) + 1e-9 * abs(target).max()
        if np.ptp(target) == 0:
            np.testing.assert_allclose(found, target)


def test_errors_name_the_row_of_the_caller_where_weights_are_zero():
    rows, target = ["abc", "abd", "bcd", "xyz", 7.0, "acd"], np.arange(6.0)
    with pytest.raises(mc.DataError, match="row 4: "):
        mc.KernelRidge(k.Spectrum(2)).fit(rows, target)
    with pytest.raises(mc.DataError, match="row 4: "):
        mc.KernelRidge(k.Spectrum(2)).fit(rows, target, sample_weight=[0.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    left_out = mc.KernelRidge(k.Spectrum(2)).fit(rows, target, sample_weight=[1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    assert left_out.predict(["abc"]).shape == (1,)
