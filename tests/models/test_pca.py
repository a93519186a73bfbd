"""Kernel PCA: the book's formulas, scikit-learn's, three solvers that agree, and the way back."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.decomposition import KernelPCA as TheirKernelPCA

import mercer as mc
from mercer import kernels as k
from mercer.models import pca
from mercer.models.pca import KernelPCA

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3)) * [1.0, 0.6, 0.3]
Z = rng.normal(size=(40, 3))
RBF = k.RBF(1.3)


def same_up_to_sign(A, B, atol):
    signs = np.sign(np.sum(A * B, axis=0))
    np.testing.assert_allclose(A, B * signs, atol=atol)


def by_the_book(kernel, X, Z, q):
    """PRML 12.80, 12.82, 12.85, with explicit sums."""
    n = len(X)
    K, Kz, one = np.asarray(kernel(X)), np.asarray(kernel(Z, X)), np.full((n, n), 1 / n)
    centred = K - one @ K - K @ one + one @ K @ one
    values, V = np.linalg.eigh(centred)
    values, V = values[::-1][:q], V[:, ::-1][:, :q]
    one_z = np.full((len(Z), n), 1 / n)
    return values, (Kz - one_z @ K - Kz @ one + one_z @ K @ one) @ (V / np.sqrt(values))


@pytest.mark.parametrize("kernel", [RBF, k.Polynomial(3, 1.0), k.Matern(0.8, nu=1.5) + k.White(0.3)])
@pytest.mark.parametrize("solver", ["dense", "iterative"])
def test_new_rows_by_the_book(kernel, solver):
    values, expected = by_the_book(kernel, X, Z, 5)
    found = KernelPCA(5, kernel, solver).fit(X)
    np.testing.assert_allclose(found.eigenvalues_, values, rtol=1e-9)
    same_up_to_sign(found.transform(Z), expected, 1e-8)


@pytest.mark.parametrize("solver", ["dense", "iterative"])
def test_scikit_learn_has_the_same_coordinates(solver):
    theirs = TheirKernelPCA(6, kernel="rbf", gamma=0.5 / 1.3**2).fit(X)
    ours = KernelPCA(6, RBF, solver).fit(X)
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-9)
    same_up_to_sign(ours.transform(X), theirs.transform(X), 1e-8)
    same_up_to_sign(ours.transform(Z), theirs.transform(Z), 1e-8)


@pytest.mark.parametrize("solver", ["auto", "dense"])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_the_linear_kernel_is_ordinary_pca(solver, shift):
    theirs, ours = PCA(2).fit(X + shift), KernelPCA(2, k.Linear(), solver).fit(X + shift)
    assert ours.solver_ == ("features" if solver == "auto" else "dense")
    atol = 1e-8 if shift == 0 or solver == "auto" else 1e-3  # K has lost what features keep
    same_up_to_sign(ours.transform(Z + shift), theirs.transform(Z + shift), atol)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, atol=atol)
    if solver == "auto":
        np.testing.assert_allclose(
            ours.inverse_transform(ours.transform(Z + shift)), theirs.inverse_transform(theirs.transform(Z + shift))
        )


def test_features_and_gram_matrix_say_the_same():
    kernel = k.Polynomial(2, 1.0)
    ours, dense = (KernelPCA(4, kernel, solver).fit(X) for solver in ("features", "dense"))
    np.testing.assert_allclose(ours.transform(Z), dense.transform(Z), atol=1e-8)
    np.testing.assert_allclose(ours.dual_coef_, dense.dual_coef_, atol=1e-8)
    assert KernelPCA(4, kernel).fit(X).solver_ == "features"


@pytest.mark.parametrize("solver", ["dense", "iterative", "features"])
def test_coordinates_are_uncorrelated_with_the_eigenvalues_as_variances(solver):
    kernel = k.Polynomial(2, 1.0) if solver == "features" else RBF
    model = KernelPCA(5, kernel, solver)
    T = model.fit_transform(X)
    np.testing.assert_allclose(T.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(T.T @ T / len(X), np.diag(model.eigenvalues_ / len(X)), atol=1e-9)


@pytest.mark.parametrize("stored", [True, False])
def test_iterative_is_dense_for_many_rows(stored, monkeypatch):
    many = rng.normal(size=(1300, 3)) * [1.0, 0.6, 0.3]  # three strips
    dense = KernelPCA(7, k.Matern(1.0), "dense").fit(many)
    if not stored:
        monkeypatch.setattr("mercer.core.machine.available_memory", lambda: 1 << 20)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 8 * 504 * 1300)
    found = KernelPCA(7, k.Matern(1.0)).fit(many)
    assert found.solver_ == "iterative"
    assert found.numerics_["residual"] < 1e-10
    np.testing.assert_allclose(found.eigenvalues_, dense.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(found.transform(Z), dense.transform(Z), atol=1e-7)
    np.testing.assert_allclose(found.explained_variance_ratio_, dense.explained_variance_ratio_, rtol=1e-9)


def test_all_components_keep_all_distances():
    model = KernelPCA(None, RBF).fit(X)
    T = model.transform(X)
    K = RBF(X)
    expected = np.diag(K)[:, None] + np.diag(K) - 2 * K
    np.testing.assert_allclose(((T[:, None] - T[None]) ** 2).sum(axis=2), expected, atol=1e-9)
    assert model.explained_variance_ratio_.sum() == pytest.approx(1.0)
    assert (model.eigenvalues_ > 0).all()


def test_what_does_not_converge_is_told(monkeypatch):
    monkeypatch.setattr(pca, "MAX_PRODUCTS", 1)
    monkeypatch.setattr(pca, "MIN_PIVOTS", 20)
    rough = k.Exponential(0.05)
    with pytest.warns(mc.NumericalWarning, match="have not converged: the largest residual"):
        found = KernelPCA(5, rough, "iterative").fit(X)
    assert found.numerics_["residual"] > found.tolerance


def test_more_components_than_vary_are_zero():
    flat = np.repeat(X[:3], 20, axis=0)
    for solver in ("dense", "iterative"):
        model = KernelPCA(4, RBF, solver).fit(flat)
        assert (model.eigenvalues_ > 0).tolist() == [True, True, False, False]
        assert np.isfinite(model.transform(Z)).all()
        np.testing.assert_array_equal(model.transform(Z)[:, 2:], 0)
    assert KernelPCA(None, RBF).fit(flat).transform(Z).shape == (40, 2)
    assert KernelPCA(5, k.Linear()).fit(X).transform(Z).shape == (40, 5)
    constant = KernelPCA().fit(np.ones((5, 2)))
    np.testing.assert_array_equal(constant.transform(np.ones((3, 2))), 0)


# -- the way back ----------------------------------------------------------------------------------------------------

ANGLE = np.linspace(0, 2 * np.pi, 150, endpoint=False)
CIRCLE = np.column_stack([np.cos(ANGLE), np.sin(ANGLE)])
NOISY = CIRCLE + 0.15 * rng.normal(size=CIRCLE.shape)


@pytest.mark.parametrize(("kernel", "q"), [(3.0 * k.RBF(1.0), 8), (k.Matern(1.0), 8), (k.Polynomial(3, 1.0), 5)])
def test_points_without_noise_come_back(kernel, q):
    model = KernelPCA(q, kernel).fit(CIRCLE)
    np.testing.assert_allclose(model.inverse_transform(model.transform(CIRCLE)), CIRCLE, atol=0.02)


@pytest.mark.parametrize(("kernel", "q"), [(k.RBF(0.7), 5), (k.Matern(1.0), 6)])
def test_few_components_take_noise_away(kernel, q):
    model = KernelPCA(q, kernel).fit(NOISY)
    clean = model.inverse_transform(model.transform(NOISY))
    before, after = (np.mean((A - CIRCLE) ** 2) for A in (NOISY, clean))
    assert after < 0.75 * before
    off = [np.abs(np.linalg.norm(A, axis=1) - 1).mean() for A in (NOISY, clean)]  # from the circle
    assert off[1] < 0.5 * off[0]


def test_the_image_of_what_comes_back_is_nearest():
    model = KernelPCA(4, k.RBF(0.7)).fit(NOISY)
    T = model.transform(NOISY[:20])
    G = T @ model.dual_coef_.T + 1 / len(NOISY)  # the points are G phi(X)

    def distance(Z):
        return 1 - 2 * np.sum(G * model.kernel_(Z, NOISY), axis=1) + np.sum(G @ model.kernel_(NOISY) * G, axis=1)

    back = model.inverse_transform(T)
    for other in (NOISY[:20], back + 0.01 * rng.normal(size=back.shape), back - [0.01, 0.0]):
        assert (distance(back) <= distance(other) + 1e-10).all()


def test_strings_have_no_pre_images():
    letters = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    model = KernelPCA(2, letters).fit(["tea", "coat", "sun", "nut", "toe"])
    assert model.transform(["ten"]).shape == (1, 2)
    with pytest.raises(mc.DataError, match="numeric vectors"):
        model.inverse_transform([[0.0, 0.0]])
    with pytest.raises(mc.DataError, match="2 coordinates per row; got 3"):
        model.inverse_transform([[0.0, 0.0, 0.0]])


# -- the shell -------------------------------------------------------------------------------------------------------


def test_frames_signs_and_names():
    frame = pd.DataFrame(X, columns=list("abc"))
    model = KernelPCA(3, RBF).set_output(transform="pandas").fit(frame)
    out = model.transform(frame)
    assert list(out.columns) == ["kernelpca0", "kernelpca1", "kernelpca2"]
    largest = np.abs(model.dual_coef_).argmax(axis=0)
    assert (model.dual_coef_[largest, range(3)] > 0).all()
    assert "cumulative" in str(model)
    assert KernelPCA(3, RBF).fit(frame).inverse_transform(out).shape == X.shape


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_units_of_the_inputs_do_not_matter(scale):
    same_up_to_sign(KernelPCA(3).fit(scale * X).transform(scale * Z), KernelPCA(3).fit(X).transform(Z), 1e-9)


def test_settings_are_checked():
    with pytest.raises(mc.ParameterError, match="from 1 to the 120 rows; got 121"):
        KernelPCA(121).fit(X)
    with pytest.raises(mc.ParameterError, match="solver must be one of"):
        KernelPCA(2, solver="qr").fit(X)
    with pytest.raises(mc.ParameterError, match="give n_components"):
        KernelPCA(solver="iterative").fit(X)
    with pytest.raises(mc.ParameterError, match="finitely many features"):
        KernelPCA(2, RBF, solver="features").fit(X)
    with pytest.raises(mc.InvalidKernelError, match="kernel PCA needs a positive semidefinite kernel"):
        KernelPCA(2, k.Sigmoid()).fit(X)
    with pytest.raises(mc.DataError, match="at least 2 samples"):
        KernelPCA().fit(X[:1])
    indefinite = KernelPCA(None, k.Sigmoid(1.0, -1.0), allow_invalid=True).fit(X)
    assert (indefinite.eigenvalues_ > 0).all()
