"""Interpolation: SciPy's, the system of equations written out, and what an interpolant promises."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import RBFInterpolator as Theirs

import mercer as mc
from mercer import kernels as k
from mercer.core.random import generator
from mercer.linalg.saddle import Saddle
from mercer.models.interpolator import RBFInterpolator

rng = generator(0)
X = rng.uniform(size=(40, 2))
Y = np.column_stack([np.sin(4 * X).sum(axis=1), X[:, 0] * X[:, 1]])
y = Y[:, 0]
Z = rng.uniform(-0.3, 1.3, size=(30, 2))
EPSILON = 6.0
KERNELS = {
    "thin_plate_spline": None, "linear": k.ThinPlate(1), "cubic": k.ThinPlate(3), "quintic": k.ThinPlate(5),
    "gaussian": k.RBF(1 / (EPSILON * np.sqrt(2))),
}  # fmt: skip


def test_inputs_in_unlike_units_are_brought_to_one_scale():
    rng = np.random.default_rng(0)
    X, Z = rng.uniform(size=(80, 2)), rng.uniform(0.2, 0.8, size=(20, 2))
    f = lambda X: np.sin(5 * X[:, 0]) * X[:, 1]
    units = np.array([1.0, 1e4])
    alike, unlike = (mc.RBFInterpolator().fit(X * u, f(X)) for u in (np.ones(2), units))
    assert alike.scale_ is None  # as SciPy's
    np.testing.assert_allclose(unlike.predict(Z * units), f(Z), atol=0.05)
    raw = mc.RBFInterpolator(scale_inputs=False).fit(X * units, f(X))
    assert np.abs(raw.predict(Z * units) - f(Z)).max() > 3 * np.abs(unlike.predict(Z * units) - f(Z)).max()


@pytest.mark.parametrize("name", KERNELS)
def test_scipys_interpolator(name):
    epsilon = EPSILON if name == "gaussian" else None
    for degree in (None, -1, 0, 1, 2):
        if name == "gaussian" and degree is None:
            continue  # they add a constant, we nothing
        for smoothing in (0.0, 0.1, rng.uniform(0, 0.2, 40)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about degrees below what the kernel needs
                theirs = Theirs(X, Y, kernel=name, degree=degree, smoothing=smoothing, epsilon=epsilon)
            ours = RBFInterpolator(KERNELS[name], smoothing, degree).fit(X, Y)
            np.testing.assert_allclose(ours.predict(Z), theirs(Z), atol=1e-7, rtol=1e-7)


def test_scipys_interpolator_in_other_dimensions():
    for d in (1, 3, 6):
        A, B = rng.uniform(size=(50, d)), rng.uniform(size=(20, d))
        t = np.cos(3 * A).sum(axis=1)
        np.testing.assert_allclose(RBFInterpolator().fit(A, t).predict(B), Theirs(A, t)(B), atol=1e-9)


def written_out(K, P, smoothing, t):
    """w and c from the whole system at once (Wendland 2004, 8.5)."""
    p = P.shape[1]
    A = np.block([[K + np.diag(smoothing), P], [P.T, np.zeros((p, p))]])
    return np.split(np.linalg.solve(A, np.concatenate([t, np.zeros((p, t.shape[1]))])), [len(K)])


def test_the_equations():
    kernel, s = k.ThinPlate(2), rng.uniform(0, 0.1, 40)
    P, Ps = (np.column_stack([np.ones(len(A)), A]) for A in (X, Z))
    w, c = written_out(kernel(X), P, s, Y)
    found = RBFInterpolator(kernel, s).fit(X, Y)
    np.testing.assert_allclose(found.coef_, w, atol=1e-9)
    np.testing.assert_allclose(found.predict(Z), kernel(Z, X) @ w + Ps @ c, atol=1e-10)
    np.testing.assert_allclose(P.T @ found.coef_, 0, atol=1e-10)
    alone = RBFInterpolator(kernel, s).fit(X, y)
    assert alone.coef_.shape == (40,)
    np.testing.assert_allclose(alone.predict(Z), found.predict(Z)[:, 0], atol=1e-12)


def test_the_solver_on_matrices_of_all_kinds():
    for n, p, q in [(1, 0, 1), (1, 1, 1), (2, 1, 3), (7, 3, 12), (30, 5, 2), (30, 30, 1)]:
        A, P, T = rng.normal(size=(n, n)), rng.normal(size=(n, p)), rng.normal(size=(n, q))
        for K, method in ((A @ A.T + 0.1 * np.eye(n), "Cholesky"), (A + A.T - 9 * np.eye(n), "L D L^T")):
            system = Saddle(K.copy(), P)
            found = system.solve(T)
            w, c = written_out(K, P, np.zeros(n), T)
            np.testing.assert_allclose(found.w, w, atol=1e-9)
            np.testing.assert_allclose(found.c, c, atol=1e-8)
            assert found.share < 1e-10
            assert n == p or found.method == method
            if n > p:
                whole = np.linalg.inv(np.block([[K, P], [P.T, np.zeros((p, p))]]))
                np.testing.assert_allclose(system.inverse_diagonal(), np.diag(whole)[:n], atol=1e-8)


@pytest.mark.parametrize(
    ("X", "lengthscale"),
    [(np.linspace(0, 1, 60)[:, None], 0.3), (rng.uniform(size=(400, 2)), 0.3), (np.linspace(0, 1, 90)[:, None], 0.4)],
)
def test_flat_gaussians_pass_through_smooth_data(X, lengthscale):
    t = np.sin(6 * X).sum(axis=1) * 1e5
    found = RBFInterpolator(k.RBF(lengthscale)).fit(X, t)  # a warning would be an error
    assert found.numerics_["condition"] > 1e12
    assert np.abs(found.predict(X) - t).max() < 1e-8 * np.ptp(t)


def test_what_cannot_be_reached_is_said():
    x = np.linspace(0, 1, 60)[:, None]
    with pytest.warns(mc.NumericalWarning, match="singular to double precision"):
        found = RBFInterpolator(k.RBF(0.5)).fit(x, rng.normal(size=60))
    assert found.numerics_["residual"] > 1e-8
    assert np.isfinite(found.predict(x)).all()


def test_a_gaussian_process_with_noise_of_that_variance():
    noise = rng.uniform(0.01, 0.2, 40)
    mean = mc.GP(k.RBF(0.3)).condition(X, y, noise).mean(Z)
    np.testing.assert_allclose(RBFInterpolator(k.RBF(0.3), noise).fit(X, y).predict(Z), mean, atol=1e-9)
    white = RBFInterpolator(k.RBF(0.3) + k.White(0.1)).fit(X, y)
    np.testing.assert_allclose(white.predict(Z), RBFInterpolator(k.RBF(0.3), 0.1).fit(X, y).predict(Z), atol=1e-10)


def test_polynomials_of_the_null_space_are_reproduced_everywhere():
    far = 50 * Z
    for power, f in ((2, lambda A: A @ [2.0, -3.0] + 5), (5, lambda A: A[:, 0] * A[:, 1])):
        found = RBFInterpolator(k.ThinPlate(power)).fit(X, f(X))
        np.testing.assert_allclose(found.predict(far), f(far), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1e8, 1e30])
def test_thin_plates_do_not_mind_scale_place_or_rotation(scale):
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    move = lambda A: (A @ turn + 100.0) * scale
    found = RBFInterpolator().fit(move(X), Y * 1e100)
    np.testing.assert_allclose(found.predict(move(Z)) / 1e100, RBFInterpolator().fit(X, Y).predict(Z), atol=1e-9)


def test_scaled_inputs():
    units = np.array([1e6, 1e-3])
    found = RBFInterpolator(scale_inputs=True).fit(X * units, y)
    np.testing.assert_allclose(
        found.predict(Z * units), RBFInterpolator().fit(X / X.std(axis=0), y).predict(Z / X.std(axis=0)), atol=1e-9
    )


@pytest.mark.parametrize(
    ("kernel", "degree", "smoothing"),
    [(None, None, 0.0), (None, -1, 0.0), (k.ThinPlate(3), 2, 0.1), (k.RBF(0.12), None, 0.0), (k.RBF(0.12), 1, 0.05)],
)
def test_leaving_one_out_is_fitting_again(kernel, degree, smoothing):
    found = RBFInterpolator(kernel, smoothing, degree).fit(X, Y).loo()
    for i in range(0, 40, 6):
        rest = np.arange(40) != i
        again = RBFInterpolator(kernel, smoothing, degree).fit(X[rest], Y[rest]).predict(X[i : i + 1])[0]
        np.testing.assert_allclose(found.prediction[i], again, atol=1e-7)
    np.testing.assert_allclose(found.prediction + found.residual, Y)


def test_leaving_out_what_cannot_be():
    with pytest.raises(mc.DataError, match="without row 0"):
        RBFInterpolator().fit(X[:3], y[:3]).loo()
    corner = np.r_[np.c_[np.arange(5.0), np.zeros(5)], [[2.0, 1.0]]]  # all but the last on a line
    with pytest.raises(mc.DataError, match="without row 5"):
        RBFInterpolator().fit(corner, np.arange(6.0)).loo()


def test_rows_at_one_place():
    twice, t = np.r_[X, X[:3]], np.r_[y, y[:3]]
    found = RBFInterpolator().fit(twice, t)
    assert found.coef_.shape == (40,)
    np.testing.assert_array_equal(found.sites_, np.r_[np.arange(40), [0, 1, 2]])
    np.testing.assert_allclose(found.predict(Z), RBFInterpolator().fit(X, y).predict(Z), atol=1e-10)
    left_out = found.loo().residual
    assert left_out.shape == (43,)
    assert not left_out[[0, 1, 2, 40, 41, 42]].any()
    np.testing.assert_allclose(left_out[3:40], RBFInterpolator().fit(X, y).loo().residual[3:], atol=1e-8)
    t[41] += 1e-3
    with pytest.raises(mc.DataError, match=r"rows 1 and 41 are at the same point.*1 such rows"):
        RBFInterpolator().fit(twice, t)
    s = np.zeros(43)
    s[41] = 0.1  # the other passes through its value
    np.testing.assert_allclose(RBFInterpolator(smoothing=s).fit(twice, t).predict(X[1:2]), y[1], atol=1e-9)
    s[:] = 0.1
    np.testing.assert_allclose(
        RBFInterpolator(smoothing=s).fit(twice, t).predict(Z), Theirs(twice, t, smoothing=s)(Z), atol=1e-8
    )


def test_rows_the_kernel_cannot_tell_apart():
    with pytest.raises(mc.DataError, match=r"rows 0 and 2 are the same to .*on\(0\)"):
        RBFInterpolator(k.RBF(1.0).on(0)).fit([[0.0, 1.0], [1.0, 3.0], [0.0, 2.0]], [1.0, 3.0, 2.0])


def test_rows_that_do_not_determine_the_polynomials():
    with pytest.raises(mc.DataError, match=r"2 rows do not determine the 3 polynomials.*degree=0"):
        RBFInterpolator().fit(X[:2], y[:2])
    line = np.linspace(0, 1, 9)
    with pytest.raises(mc.DataError, match=r"lie on a line.*degree=0"):
        RBFInterpolator().fit(np.c_[line, 2 * line + 1e3], line**2)
    with pytest.raises(mc.DataError, match="at least 501501"):
        RBFInterpolator(degree=2).fit(rng.normal(size=(5, 1000)), np.arange(5.0))
    found = RBFInterpolator(degree=0).fit(np.c_[line, 2 * line + 1e3], line**2)
    np.testing.assert_allclose(found.predict(np.c_[line, 2 * line + 1e3]), line**2, atol=1e-8)
    # A column that is constant is no column.
    found = RBFInterpolator().fit(np.c_[X, np.full(40, 7.0)], y)
    np.testing.assert_allclose(found.predict(np.c_[Z, np.full(30, 7.0)]), RBFInterpolator().fit(X, y).predict(Z))
    assert RBFInterpolator().fit([[1.0, 2.0]], [3.0]).predict([[5.0, 6.0]]) == pytest.approx(3.0)


def test_any_kernel_on_any_input():
    shared = k.Custom(lambda a, b: float(len(set(a) & set(b)) + (a == b)))
    words = ["ab", "bc", "cd", "xyz", "ab"]
    found = RBFInterpolator(shared).fit(words, [1.0, 2.0, 3.0, 4.0, 1.0])
    np.testing.assert_allclose(found.predict(words), [1.0, 2.0, 3.0, 4.0, 1.0], atol=1e-10)
    assert found.coef_.shape == (4,)
    frame = pd.DataFrame({"east": X[:, 0], "word": "w", "north": X[:, 1]})
    kernel = k.ThinPlate().on("east") + k.ThinPlate().on(["east", "north"])
    found = RBFInterpolator(kernel).fit(frame, y)
    assert len(found.polynomial_coef_) == 3  # the constant and the first column are shared
    np.testing.assert_allclose(found.predict(frame), y, atol=1e-9)
    P = np.column_stack([np.ones(40), X])
    w, _ = written_out(kernel(frame), P, np.zeros(40), Y[:, :1])
    np.testing.assert_allclose(found.coef_, w[:, 0], atol=1e-7)


def test_predictions_in_pieces(monkeypatch):
    found = RBFInterpolator().fit(X, Y)
    many = rng.uniform(size=(1200, 2))
    whole = found.predict(many)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)
    np.testing.assert_allclose(found.predict(many), whole, atol=1e-12)


def test_settings_and_what_is_printed():
    for wrong, said in (
        ({"degree": -2}, "degree must be"), ({"degree": 1.5}, "degree must be"), ({"smoothing": -1}, "non-negative"),
        ({"smoothing": [1.0, 2.0]}, "one for each of 40 rows"), ({"kernel": k.White()}, "pure noise"),
    ):  # fmt: skip
        with pytest.raises(mc.MercerError, match=said):
            RBFInterpolator(**wrong).fit(X, y)
    text = str(RBFInterpolator().fit(X, y))
    assert "interpolating 40 rows" in text
    assert "3 polynomials" in text
    assert str(RBFInterpolator()) == "RBFInterpolator()"
