"""The kernel Fisher discriminant: its eigenproblem, linear discriminant analysis, leave-one-out, and real data."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import scipy.stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import mercer as mc
from mercer import kernels as k
from mercer.models.discriminant import KernelFisherDiscriminant

rng = np.random.default_rng(0)
X = rng.normal(size=(70, 3))
y = np.digitize(X[:, 0] + 0.4 * X[:, 1] ** 2 + 0.3 * rng.normal(size=70), [-0.2, 0.7])
Z = rng.normal(size=(40, 3))
RBF = k.RBF(1.2)
DATA = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[3] / "shared" / "data")) / "classification"


def same_up_to_sign(A, B, **tolerance):
    np.testing.assert_allclose(A, B * np.sign(np.sum(A * B, axis=0)), **tolerance)


def by_the_papers(kernel, X, codes, Z, alpha, C):
    """M a = value (N + alpha K) a (Mika et al. 1999; Baudat and Anouar 2000): scatters between and within classes of
    w = sum_n a_n phi(x_n), by their sums; coordinates of Z, centred, with a^T (N + alpha K) a = n - C."""
    n, K = len(X), np.asarray(kernel(X))
    mean = K.mean(axis=1)
    M, N = np.zeros((n, n)), np.zeros((n, n))
    for c in range(C):
        Kc = K[:, codes == c]
        m = Kc.mean(axis=1)
        M += Kc.shape[1] * np.outer(m - mean, m - mean)
        N += (Kc - m[:, None]) @ (Kc - m[:, None]).T
    values, A = scipy.linalg.eigh(M, N + alpha * K + 1e-13 * np.trace(K) / n * np.eye(n))
    values, A = values[::-1][: C - 1], A[:, ::-1][:, : C - 1]
    A *= np.sqrt((n - C) / np.einsum("ij,ij->j", A, (N + alpha * K) @ A))
    return values, (np.asarray(kernel(Z, X)) - mean) @ A


@pytest.mark.parametrize("codes", [y, (y > 0).astype(int)], ids=["three", "two"])
@pytest.mark.parametrize("alpha", [0.03, 2.0])
def test_directions_are_those_of_the_papers(codes, alpha):
    C = codes.max() + 1
    ratio, expected = by_the_papers(RBF, X, codes, Z, alpha, C)
    model = KernelFisherDiscriminant(RBF, alpha).fit(X, codes)
    np.testing.assert_allclose(model.eigenvalues_, ratio / (1 + ratio), rtol=1e-6)
    same_up_to_sign(model.transform(Z), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labels", [y, y > 0], ids=["three", "two"])
def test_linear_kernel_and_tiny_alpha_are_linear_discriminant_analysis(labels):
    theirs = LinearDiscriminantAnalysis().fit(X, labels)
    ours = KernelFisherDiscriminant(k.Linear(), 1e-10, calibrate=False).fit(X, labels)
    T = ours.transform(Z)
    for a, b in zip(T.T, theirs.transform(Z).T, strict=True):
        assert abs(np.corrcoef(a, b)[0, 1]) == pytest.approx(1.0, abs=1e-9)
    np.testing.assert_array_equal(ours.predict(Z), theirs.predict(Z))
    # Theirs divide the covariance by n, ours by n - C.
    n, C = len(X), len(ours.classes_)
    prior = np.log(ours.priors_)
    joint = ours._log_joint(Z) - prior
    expected = theirs.decision_function(Z)
    if C == 2:
        expected = np.column_stack([np.zeros(len(Z)), expected])
    expected = (expected - prior) * (n - C) / n
    centred = [A - A[:, :1] for A in (joint, expected)]
    np.testing.assert_allclose(*centred, atol=1e-7)


def test_features_and_gram_matrix_say_the_same(monkeypatch):
    kernel = k.Polynomial(2, 1.0)
    primal = KernelFisherDiscriminant(kernel, 0.1).fit(X, y)
    assert primal.weights_.shape == (10, 2)
    monkeypatch.setattr(mc.gram, "count_features", lambda kernel, X: None)
    dual = KernelFisherDiscriminant(kernel, 0.1).fit(X, y)
    assert dual.weights_ is None
    np.testing.assert_allclose(primal.transform(Z), dual.transform(Z), atol=1e-8)
    np.testing.assert_allclose(primal.predict_proba(Z), dual.predict_proba(Z), atol=1e-8)
    np.testing.assert_allclose(primal.dual_coef_, dual.dual_coef_, atol=1e-8)


def test_covariance_within_classes_is_the_unit_matrix():
    model = KernelFisherDiscriminant(k.Polynomial(2, 1.0), 1e-9, calibrate=False).fit(X, y)
    T = model.transform(X)
    R = T - model.means_[y]
    np.testing.assert_allclose(R.T @ R / (len(X) - 3), np.eye(2), atol=1e-7)
    np.testing.assert_allclose(T.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose([T[y == c].mean(axis=0) for c in range(3)], model.means_, atol=1e-7)


def test_leave_one_out_is_leaving_one_out():
    """Ridge regression on indicators, fitted again without each row."""
    alpha = 0.3
    model = KernelFisherDiscriminant(RBF, alpha).fit(X, y)
    Y, errors = np.eye(3)[y], []
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        ridge = mc.KernelRidge(RBF, alpha).fit(X[rest], Y[rest])
        errors.append(Y[i] - ridge.predict(X[i : i + 1])[0])
    assert model.loo_error_ == pytest.approx(np.mean(np.square(errors)), rel=1e-8)


def test_loo_takes_the_best_alpha_and_lengthscale():
    chosen = KernelFisherDiscriminant(RBF).fit(X, y)
    for factor in (0.1, 10.0):
        other = KernelFisherDiscriminant(RBF, factor * chosen.alpha_).fit(X, y)
        assert chosen.loo_error_ <= other.loo_error_
    default = KernelFisherDiscriminant().fit(X, y)
    for stretch in (0.25, 0.5, 1.0, 2.0):
        kernel = k.RBF(stretch * np.sqrt(3) * X.std(axis=0))
        assert default.loo_error_ <= KernelFisherDiscriminant(kernel).fit(X, y).loo_error_ + 1e-12


def test_probabilities_are_those_of_gaussian_classes():
    model = KernelFisherDiscriminant(RBF, 0.1, priors=[0.5, 0.3, 0.2]).fit(X, y)
    T = model.transform(Z)
    joint = np.stack([
        p * scipy.stats.multivariate_normal(m, model.covariance_).pdf(T)
        for p, m in zip([0.5, 0.3, 0.2], model.means_, strict=True)
    ], axis=1)  # fmt: skip
    np.testing.assert_allclose(model.predict_proba(Z), joint / joint.sum(axis=1, keepdims=True), atol=1e-10)
    np.testing.assert_array_equal(model.predict(Z), joint.argmax(axis=1))
    two = KernelFisherDiscriminant(RBF, 0.1).fit(X, y > 0)
    odds = two.predict_proba(Z)
    np.testing.assert_allclose(two.decision_function(Z), np.log(odds[:, 1] / odds[:, 0]), atol=1e-8)


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
@pytest.mark.parametrize(("name", "most"), [("sonar", 0.19), ("ionosphere", 0.08)])
def test_defaults_on_real_data(name, most):
    table = pd.read_csv(DATA / f"{name}.csv.gz")
    inputs, labels = table.iloc[:, :-1].to_numpy(float), table.iloc[:, -1].to_numpy(str)
    errors, losses = [], []
    for train, test in StratifiedShuffleSplit(2, test_size=0.3, random_state=1).split(inputs, labels):
        model = KernelFisherDiscriminant().fit(inputs[train], labels[train])
        peer = make_pipeline(StandardScaler(), SVC()).fit(inputs[train], labels[train])
        errors.append([1 - m.score(inputs[test], labels[test]) for m in (model, peer)])
        losses.append(log_loss(labels[test], model.predict_proba(inputs[test])))
    ours, theirs = np.mean(errors, axis=0)
    assert ours < most
    assert ours < theirs + 0.02
    assert np.mean(losses) < 0.45  # left-out rows say how wide the classes are


# -- hard data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        ([[0.0], [1.0]], [0, 1]),
        ([[0.0], [1.0], [2.0]], [0, 1, 2]),
        ([[0.0], [0.0], [1.0], [1.0]], [0, 0, 1, 1]),
        ([[0.0], [0.0], [0.0], [0.0]], [0, 1, 0, 1]),
        ([[0.0], [0.0], [1.0], [1.0]], [0, 1, 0, 1]),
        (np.repeat(X, 2, axis=0)[:, :1], np.repeat(y, 2)),
        (1e8 * X, y),
        (1e-8 * X, y),
        (np.tile(X[:8], 4), y[:8]),
    ],
)
def test_singular_data(inputs, labels, calibrate):
    for kernel in (None, k.Linear(), k.RBF(1.0)):
        model = KernelFisherDiscriminant(kernel, calibrate=calibrate).fit(inputs, labels)
        far = np.concatenate([np.asarray(inputs), 1e6 * np.asarray(inputs) + 3])
        for answer in (model.transform(far), model.predict_proba(far), model.decision_function(far)):
            assert np.isfinite(answer).all()
        np.testing.assert_allclose(model.predict_proba(far).sum(axis=1), 1)
    if len(labels) <= 3:
        assert KernelFisherDiscriminant(alpha=0.1).fit(inputs, labels).score(inputs, labels) == 1.0


def test_far_from_all_data_probabilities_do_not_run_away():
    model = KernelFisherDiscriminant().fit(X, y)
    assert model.predict_proba([[1e5, 0.0, 0.0]]).max() < 0.99


# -- the shell -------------------------------------------------------------------------------------------------------


def test_frames_names_and_words():
    frame = pd.DataFrame(X, columns=list("abc"))
    model = KernelFisherDiscriminant(n_components=1).set_output(transform="pandas")
    assert list(model.fit_transform(frame, y).columns) == ["kernelfisherdiscriminant0"]
    assert "by leave-one-out" in str(model)
    letters = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    words = KernelFisherDiscriminant(letters, 0.1).fit(["tea", "tee", "eat", "sun", "nun", "sum"], list("eeeuuu"))
    assert words.predict(["ate", "mum"]).tolist() == ["e", "u"]


def test_settings_are_checked():
    for alpha in (0.0, -1.0, "gcv", np.nan, [1.0]):
        with pytest.raises(mc.ParameterError, match="alpha must be 'loo' or a positive number"):
            KernelFisherDiscriminant(RBF, alpha).fit(X, y)
    with pytest.raises(mc.ParameterError, match="n_components must be None or from 1 to 2"):
        KernelFisherDiscriminant(RBF, n_components=3).fit(X, y)
    with pytest.raises(mc.ParameterError, match="3 positive numbers that sum to one"):
        KernelFisherDiscriminant(RBF, priors=[0.5, 0.5]).fit(X, y)
    with pytest.raises(mc.InvalidKernelError, match="a discriminant needs"):
        KernelFisherDiscriminant(k.Sigmoid()).fit(X, y)
    assert KernelFisherDiscriminant(k.Sigmoid(), allow_invalid=True).fit(X, y).score(X, y) > 0.4
