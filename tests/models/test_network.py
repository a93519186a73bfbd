"""Networks of radial basis functions: searches by brute force, least squares written out, and fits without one row."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.random import generator
from mercer.models import network
from mercer.models.centers import LINEAR_PENALTY, sizes_up_to
from mercer.models.network import RBFNetwork

rng = generator(0)
X = rng.normal(size=(40, 2))
Y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], 100 * X[:, 0] * X[:, 1]]) + 0.1 * rng.normal(size=(40, 2))
y = Y[:, 0]
Z = rng.normal(size=(20, 2))
KERNEL = k.RBF(0.8)
REGRESSION = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[3] / "shared" / "data")) / "regression"


def least_squares(columns, t):
    """Residuals and leverages of explicit least squares."""
    A = np.column_stack(columns)
    U = np.linalg.svd(A, full_matrices=False)[0]
    return t - U @ (U.T @ t), np.sum(U**2, axis=1)


# -- centres -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("targets", [y, Y])
def test_orthogonal_least_squares_takes_the_best_column_at_every_step(targets, intercept):
    found = RBFNetwork(12, kernel=KERNEL, fit_intercept=intercept).fit(X, targets)
    Phi, path = KERNEL(X), found.path_
    T = targets.reshape(40, -1)
    T = (T - T.mean(axis=0)) / T.std(axis=0) if intercept else T / np.sqrt(np.mean(T**2, axis=0))
    unit = 1.0 if targets.ndim == 2 else (y.std() if intercept else np.sqrt(np.mean(y**2)))
    chosen = [np.ones(40)] if intercept else []
    for step, index in enumerate(path.indices):
        left = [j for j in range(40) if j not in path.indices[:step]]
        errors = {j: np.sum(least_squares([*chosen, Phi[:, j]], T)[0] ** 2) for j in left}
        assert errors[index] == pytest.approx(min(errors.values()), rel=1e-9)
        chosen.append(Phi[:, index])
        r, h = least_squares(chosen, T)
        assert path.training_error[step] == pytest.approx(unit * np.sqrt(np.mean(r**2)), rel=1e-8)
        assert path.loo_error[step] == pytest.approx(unit * np.sqrt(np.mean((r / (1 - h)[:, None]) ** 2)), rel=1e-8)
        assert path.error_reduction[: step + 1].sum() == pytest.approx(1 - np.sum(r**2) / np.sum(T**2), abs=1e-10)
    np.testing.assert_array_equal(found.centers_, X[path.indices])
    np.testing.assert_array_equal(found.center_indices_, path.indices)


def test_leave_one_out_errors_along_the_path_are_those_of_fitting_again():
    path = RBFNetwork(6, kernel=KERNEL).fit(X, y).path_
    for m in (1, 6):
        A = np.column_stack([np.ones(40), KERNEL(X, X[path.indices[:m]])])
        missed = [y[i] - A[i] @ np.linalg.lstsq(np.delete(A, i, 0), np.delete(y, i), rcond=None)[0] for i in range(40)]
        assert path.loo_error[m - 1] == pytest.approx(np.sqrt(np.mean(np.square(missed))), rel=1e-7)


def test_the_number_of_centres_has_the_least_leave_one_out_error():
    for how in ("ols", "random"):
        found = RBFNetwork("loo", centers=how, kernel=KERNEL).fit(X, y)
        assert len(found.centers_) == np.argmin(found.path_.loo_error) + 1
        assert len(found.path_.loo_error) > len(found.centers_)
    charged = RBFNetwork(kernel=KERNEL).fit(X, y)
    m = np.arange(1, len(charged.path_.loo_error) + 1)
    error = charged.path_.loo_error * (1 - (1 + m) / 40) / np.maximum(1 - (1 + 2.5 * m) / 40, 1e-3**0.5)
    assert len(charged.centers_) == np.argmin(error) + 1


def test_noise_is_not_taken_for_signal():
    """A search among all rows finds functions that fit noise; leaving one out does not see that, the charge does."""
    local = generator(5)
    A, B = local.normal(size=(2, 200, 8))
    f = lambda C: C @ np.arange(1.0, 9.0) / 8
    t = f(A) + local.normal(size=200)
    misses = [np.sqrt(np.mean((RBFNetwork(count).fit(A, t).predict(B) - f(B)) ** 2)) for count in (None, "loo")]
    assert misses[0] < 0.5
    assert misses[0] < misses[1]


def test_columns_that_are_others_to_rounding_are_not_taken():
    twice, t = np.r_[X, X], np.r_[y, y + 0.1]
    found = RBFNetwork(80, kernel=k.RBF(20.0)).fit(twice, t)  # a dozen functions span them all
    assert len(found.centers_) < 40
    assert len(np.unique(found.center_indices_ % 40)) == len(found.centers_)
    assert np.isfinite(found.predict(Z)).all()
    assert (np.diff(found.path_.training_error) < 0).all()


def test_a_row_that_fits_itself_does_not_end_the_search():
    lonely, t = np.r_[X, [[1e3, 1e3]]], np.r_[y, 50.0]
    path = RBFNetwork(30, kernel=KERNEL).fit(lonely, t).path_
    assert 40 in path.indices  # far from all others, its own function explains it, and nothing else
    assert np.isfinite(path.loo_error).all()
    with_dummy = np.c_[X, np.arange(40) == 7]
    assert np.sqrt(np.mean(RBFNetwork().fit(with_dummy, y).loo().residual ** 2)) < 0.8 * y.std()


def test_random_rows_are_nested_least_squares():
    found = RBFNetwork(8, "random", kernel=KERNEL, random_state=3).fit(X, y)
    r, _ = least_squares([np.ones(40), KERNEL(X, found.centers_)], y)
    assert found.path_.training_error[-1] == pytest.approx(np.sqrt(np.mean(r**2)), rel=1e-8)
    again = RBFNetwork(8, "random", kernel=KERNEL, random_state=3).fit(X, y)
    np.testing.assert_array_equal(found.center_indices_, again.center_indices_)
    other = RBFNetwork(8, "random", kernel=KERNEL, random_state=4).fit(X, y)
    assert (found.center_indices_ != other.center_indices_).any()


def test_clusters_are_those_of_scaled_inputs():
    from sklearn.cluster import KMeans

    units = np.array([1e6, 1e-3])
    found = RBFNetwork(5, "kmeans", width=0.5).fit(X * units, y)
    assert found.center_indices_ is None
    shares = KMeans(5, init=found.centers_ / units / X.std(axis=0), n_init=1).fit(X / X.std(axis=0)).cluster_centers_
    np.testing.assert_allclose(shares * X.std(axis=0) * units, found.centers_, rtol=1e-3)
    assert len(RBFNetwork(centers="kmeans", kernel=KERNEL).fit(X, y).centers_) in sizes_up_to(20)
    few = np.repeat(X[:3], 5, axis=0)
    assert len(RBFNetwork(5, "kmeans").fit(few, y[:15]).centers_) == 3


def test_candidates_can_be_limited():
    found = RBFNetwork(10, kernel=KERNEL, n_candidates=15).fit(X, y)
    everything = RBFNetwork(10, kernel=KERNEL).fit(X, y)
    assert found.path_.training_error[0] >= everything.path_.training_error[0]
    assert len(found.centers_) == 10


def test_many_rows_choose_on_some(monkeypatch):
    monkeypatch.setattr(network, "MAX_CENTER_ROWS", 25)
    found = RBFNetwork(5, kernel=KERNEL).fit(X, y)
    np.testing.assert_array_equal(found.centers_, X[found.center_indices_])


# -- weights -----------------------------------------------------------------------------------------------------------


def written_out(Phi, t, alpha, inputs=None, n=40):
    """Ridge regression with a constant, and linear terms all but unpenalised: coefficients (constant, linear, Phi)."""
    linear = np.zeros((len(Phi), 0)) if inputs is None else inputs
    A = np.column_stack([np.ones(len(Phi)), linear, Phi])
    penalty = np.r_[0.0, np.full(linear.shape[1], LINEAR_PENALTY * n), np.full(Phi.shape[1], alpha)]
    return A, np.linalg.solve(A.T @ A + np.diag(penalty), A.T @ t)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
def test_weights_and_leaving_one_out(normalized, linear):
    centers, alpha = X[:7] + 0.1, 0.03
    found = RBFNetwork(centers=centers, normalized=normalized, kernel=KERNEL, alpha=alpha, linear=linear).fit(X, Y)
    basis = lambda A: KERNEL(A, centers) / (KERNEL(A, centers).sum(axis=1)[:, None] if normalized else 1.0)
    scaled = lambda A: (A - X.mean(axis=0)) / X.std(axis=0) if linear else None
    A, w = written_out(basis(X), Y, alpha, scaled(X))
    np.testing.assert_allclose(found.coef_, w[-7:], atol=1e-8)
    parts = [np.ones((20, 1)), basis(Z)] if not linear else [np.ones((20, 1)), scaled(Z), basis(Z)]
    np.testing.assert_allclose(found.predict(Z), np.hstack(parts) @ w, atol=1e-8)
    np.testing.assert_array_equal(found.centers_, centers)
    left_out = found.loo()
    for i in range(0, 40, 7):  # without row i, all else the same
        rest = np.arange(40) != i
        again = written_out(basis(X)[rest], Y[rest], alpha, None if scaled(X) is None else scaled(X)[rest])[1]
        np.testing.assert_allclose(left_out.prediction[i], A[i] @ again, atol=1e-7)
    np.testing.assert_allclose(left_out.prediction + left_out.residual, Y)
    alone = RBFNetwork(centers=centers, normalized=normalized, kernel=KERNEL, alpha=alpha, linear=linear).fit(X, y)
    np.testing.assert_allclose(alone.predict(Z), found.predict(Z)[:, 0], atol=1e-8)


def test_the_penalty_by_leave_one_out():
    error = lambda model: np.mean(model.loo().residual ** 2)
    chosen = RBFNetwork(20, kernel=KERNEL).fit(X, y)
    others = [error(RBFNetwork(20, kernel=KERNEL, alpha=alpha).fit(X, y)) for alpha in np.geomspace(1e-8, 10, 19)]
    assert error(chosen) <= 1.03 * min(others)
    assert max(others) > 1.5 * min(others)
    plain = RBFNetwork(5, kernel=KERNEL, alpha=0).fit(X, y)
    A = np.column_stack([np.ones(40), KERNEL(X, plain.centers_)])
    w = np.linalg.lstsq(A, y, rcond=None)[0]
    np.testing.assert_allclose(np.r_[plain.intercept_, plain.coef_], w, atol=1e-8)


def test_normalised_functions_cover_everything():
    """PRML Figure 6.2: with equal weights their sum is constant, near and far."""
    found = RBFNetwork(centers=X[:5], normalized=True, kernel=k.RBF(0.5), alpha=1e-6, fit_intercept=False).fit(X, y)
    far = np.array([[1e3, 0.0], [-1e4, 1e3], [0.0, 1e160], [3.0, 3.0]])
    basis = found.basis(far)
    np.testing.assert_allclose(basis.sum(axis=1), 1.0)
    nearest = [np.argmin([np.hypot(*(row - c)) for c in X[:5]]) for row in far[:2]]
    np.testing.assert_array_equal(basis[:2].argmax(axis=1), nearest)
    np.testing.assert_allclose(found.predict(far[:2]), found.coef_[nearest])
    equal = RBFNetwork(centers=X[:5], normalized=True, kernel=2.0 * k.RBF(0.5)).fit(X, y)
    np.testing.assert_allclose(equal.basis(far[:2]), 0.2)
    with pytest.raises(mc.DataError, match="must not be"):
        RBFNetwork(normalized=True, kernel=k.ThinPlate()).fit(X, y)
    found = RBFNetwork(normalized=True, kernel=KERNEL).fit(X, y)
    assert len(found.centers_) in sizes_up_to(len(found.path_.indices))


# -- widths --------------------------------------------------------------------------------------------------------


def test_widths():
    base = RBFNetwork(10, width=1.0).fit(X, y)
    np.testing.assert_allclose(base.kernel_.lengthscale, np.sqrt(2) * X.std(axis=0))
    np.testing.assert_allclose(RBFNetwork(10, width=0.3).fit(X, y).kernel_.lengthscale, 0.3 * base.kernel_.lengthscale)
    np.testing.assert_allclose(RBFNetwork(5, kernel=KERNEL).fit(X, y).kernel_.lengthscale, 0.8)
    np.testing.assert_allclose(RBFNetwork(5, kernel=KERNEL, width=3).fit(X, y).kernel_.lengthscale, 2.4)
    with pytest.raises(mc.ParameterError, match="has none"):
        RBFNetwork(5, kernel=k.ThinPlate(), width=3).fit(X, y)
    # Among neighbours, the best.
    found = RBFNetwork(centers="random").fit(X, y)
    factor = found.kernel_.lengthscale[0] / base.kernel_.lengthscale[0]
    errors = [RBFNetwork("loo", "random", width=factor * step).fit(X, y).path_.loo_error.min() for step in (0.5, 1, 2)]
    assert errors[1] == min(errors)


def test_learned_lengthscales_tell_which_input_matters():
    A = generator(1).normal(size=(150, 2))
    t = np.sin(3 * A[:, 0])
    found = RBFNetwork(width="learned").fit(A, t)
    assert found.kernel_.lengthscale[1] > 10 * found.kernel_.lengthscale[0]
    errors = [np.mean(RBFNetwork(width=w).fit(A, t).loo().residual ** 2) for w in (None, "learned")]
    assert errors[1] < 0.1 * errors[0]
    with pytest.raises(mc.ParameterError, match="not written in JAX"):
        RBFNetwork(kernel=2.0 * k.Custom(lambda a, b: float(len(a) == len(b))), width="learned").fit(
            ["a", "bb"], [1, 2]
        )


# -- what it promises ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["concrete", "energy", "airfoil"])
def test_better_than_a_line_on_real_data(name):
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    path = REGRESSION / f"uci_{name}.npz"
    if not path.exists():
        pytest.skip("the data are not here")
    data = np.load(path)
    test = data["test_mask"][:, 0].astype(bool)
    A, t = data["X"].astype(float), data["y"].ravel().astype(float)
    line = make_pipeline(StandardScaler(), Ridge()).fit(A[~test], t[~test])
    ours = RBFNetwork().fit(A[~test], t[~test])
    errors = [np.sqrt(np.mean((model.predict(A[test]) - t[test]) ** 2)) for model in (ours, line)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_units_do_not_matter(scale):
    found = RBFNetwork().fit(X * [scale, 1.0] + [scale * 1e4, 0.0], y * scale)
    np.testing.assert_allclose(
        found.predict(Z * [scale, 1.0] + [scale * 1e4, 0.0]) / scale,
        RBFNetwork().fit(X, y).predict(Z),
        rtol=1e-3,
        atol=1e-3,
    )


def test_little_data():
    assert RBFNetwork().fit(X[:1], y[:1]).predict(Z) == pytest.approx(y[0])
    np.testing.assert_allclose(RBFNetwork().fit(X, np.full(40, 3.0)).predict(Z), 3.0)
    assert np.isfinite(RBFNetwork().fit(np.ones((10, 2)), y[:10]).predict(np.zeros((2, 2)))).all()
    assert np.isfinite(RBFNetwork().fit(X[:5], y[:5]).loo().residual).all()


def test_any_kernel_on_any_input():
    shared = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    words = ["ab", "bc", "cd", "xyz", "abc", "yz"]
    t = [1.0, 2.0, 3.0, 9.0, 1.0, 8.0]
    found = RBFNetwork(3, kernel=shared).fit(words, t)
    assert list(found.centers_) == [words[i] for i in found.center_indices_]
    assert found.score(words, t) > 0.9
    assert RBFNetwork(centers=["ab", "xyz"], kernel=shared).fit(words, t).predict(["zx"])[0] > 5
    for kernel in (k.ThinPlate(), k.Sigmoid(0.5, 0.1)):  # a basis need not be positive definite
        assert RBFNetwork(20, kernel=kernel).fit(X, y).score(X, y) > 0.9
    frame = pd.DataFrame({"a": X[:, 0], "word": "w", "b": X[:, 1]})
    found = RBFNetwork(10, kernel=KERNEL.on(["a", "b"])).fit(frame, y)
    np.testing.assert_allclose(found.predict(frame), RBFNetwork(10, kernel=KERNEL).fit(X, y).predict(X), atol=1e-9)


def test_predictions_in_pieces(monkeypatch):
    found = RBFNetwork(centers=X[:6], kernel=KERNEL).fit(X, Y)
    many = rng.normal(size=(1200, 2))
    whole = found.predict(many)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)
    np.testing.assert_allclose(found.predict(many), whole, atol=1e-12)


def test_settings_and_what_is_printed():
    for wrong, said in (
        ({"n_centers": 0}, "n_centers must be"), ({"n_centers": 41}, "only 40 rows"), ({"centers": "best"}, "one of"),
        ({"centers": X[:5], "n_centers": 3}, "5 centres are given"), ({"centers": X[:5, :1]}, "1 columns"),
        ({"centers": []}, "no rows"), ({"alpha": -1}, "alpha must be"), ({"width": 0}, "width must be"),
        ({"n_candidates": 0}, "n_candidates must be"),
    ):  # fmt: skip
        with pytest.raises(mc.MercerError, match=said):
            RBFNetwork(**{"kernel": KERNEL, **wrong}).fit(X, y)
    text = str(RBFNetwork(5, kernel=KERNEL).fit(X, y))
    assert "5 basis functions" in text
    assert "leave-one-out error" in text
    assert str(RBFNetwork(5)) == "RBFNetwork(n_centers=5)"
