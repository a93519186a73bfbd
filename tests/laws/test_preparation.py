"""Every data set is prepared once: by a fit, and never again for the rows that a fitted model keeps."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone

import mercer as mc
from design import example
from mercer import gram
from mercer import kernels as k
from mercer.core.parameters import Positive
from mercer.models.estimator import Estimator
from mercer.persist import classes

words = ["".join(letters) for letters in np.random.default_rng(0).choice(list("abcd"), size=(23, 5))]
NEW = [word[::-1] for word in words[:7]]
y = np.array([word.count("a") - word.count("d") for word in words], dtype=float) + np.linspace(0, 0.1, 23)
TWO, THREE = y > 0, np.digitize(y, [-0.5, 0.9])
PREPARED: list[int] = []  # numbers of rows, each time


class Counting(example("kernel").Mismatch):
    """A kernel that records how often data sets are prepared."""

    def prepare(self, X, index):
        PREPARED.append(len(X))
        return super().prepare(X, index)


class CountingFeatures(Counting):
    """The letters as features, which are few."""

    def block(self, X, Z):
        return self.feature_block(X) @ self.feature_block(Z).T

    def feature_block(self, X):
        return X[:, :2] / 100 / self.lengthscale


def prepared_in(work, rows=23) -> int:
    """How often ``work`` prepares the training rows."""
    PREPARED.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    return PREPARED.count(rows)


KERNEL, FEATURES = 1.0 * Counting(2.0) + k.White(0.1), 1.0 * CountingFeatures(2.0)
GPR, GPC = mc.GaussianProcessRegressor, mc.GaussianProcessClassifier
MODELS = {
    "gp": (GPR(KERNEL), y),
    "gp with noise": (GPR(1.0 * Counting(2.0)), y),
    "calibrated gp": (GPR(1.0 * Counting(2.0), calibrate=True), y),
    "gp by weights": (GPR(FEATURES), y),
    "varying noise": (
        mc.HeteroscedasticGaussianProcessRegressor(
            1.0 * Counting(2.0), 0.1, noise_kernel=0.5 * Counting(2.0), learning=None
        ),
        y,
    ),
    "several targets": (
        mc.MultiOutputGaussianProcessRegressor(1.0 * Counting(2.0), learning=None),
        np.column_stack([y, np.where(y == y.max(), np.nan, y**2)]),
    ),
    "counts": (GPR(1.0 * Counting(2.0), likelihood="poisson"), np.digitize(y, [-1.0, 0.0, 1.0])),
    "Student's t": (GPR(1.0 * Counting(2.0), likelihood="student"), y),
    "laplace": (GPC(KERNEL, "laplace"), TWO),
    "ep": (GPC(KERNEL, "ep"), TWO),
    "laplace by weights": (GPC(FEATURES, "laplace"), TWO),
    "mcmc": (GPC(KERNEL, "mcmc", n_samples=20), TWO),
    "mcmc of parameters": (GPC(1.0 * Counting(2.0), "mcmc", learning="sample", n_samples=20), TWO),
    "three classes": (GPC(KERNEL, "laplace"), THREE),
    "three classes, variational": (GPC(KERNEL, "variational"), THREE),
    "one kernel per class": (GPC([KERNEL, 2.0 * Counting(1.0) + k.White(0.3), KERNEL], "laplace"), THREE),
    "ridge": (mc.KernelRidge(KERNEL), y),
    "interpolator": (mc.RBFInterpolator(KERNEL, smoothing=0.1), y),
    "kernel regression": (mc.NadarayaWatson(Counting(2.0)), y),
    "network": (mc.RBFNetwork(kernel=Counting(2.0)), y),
    "neighbours": (mc.KernelNeighborsClassifier(kernel=KERNEL), TWO),
    "discriminant": (mc.KernelFisherDiscriminant(KERNEL), TWO),
    "perceptron": (mc.KernelPerceptron(KERNEL), TWO),
    "components": (mc.KernelPCA(3, KERNEL), None),
    "components by features": (mc.KernelPCA(2, FEATURES), None),
}
CALLS = {
    "predict": lambda model: model.predict(NEW),
    "predict_distribution": lambda model: model.predict_distribution(NEW),
    "sample_y": lambda model: [model.sample_y(NEW, include_noise=noise) for noise in (True, False)],
    "decompose": lambda model: model.decompose(NEW),
    "predict_proba": lambda model: model.predict_proba(NEW),
    "predict_latent": lambda model: model.predict_latent(NEW),
    "transform": lambda model: model.transform(NEW),
    "loo": lambda model: model.loo(),
    "report": lambda model: model.report(),
    "effects": lambda model: model.effects(),
    "log_marginal_likelihood": lambda model: model.log_marginal_likelihood(model.theta_ + 0.1, eval_gradient=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_rows_are_prepared_once(name):
    model, target = MODELS[name]
    if hasattr(model, "progress"):
        model.set_params(progress=False)
    rows = len(words) if target is None else np.isfinite(target).sum()  # of several targets one for each measurement
    assert prepared_in(lambda: model.fit(words, target), rows) == 1
    for method, work in CALLS.items():
        if hasattr(model, method):
            assert prepared_in(lambda work=work: work(model), rows) == 0, method


M = {width: Counting(width)(words) for width in (0.5, 1.0, 2.0, 3.0)}
EYE = np.eye(len(words))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (Counting(2.0) + Counting(2.0) * k.White(0.1), M[2.0] + M[2.0] * 0.1 * EYE),
        (
            2.0 * Counting(2.0) + 0.5 * Counting(1.0).normalize() ** 2 + k.Constant(1.0),
            2 * M[2.0] + M[1.0] ** 2 / 2 + 1,
        ),
        (
            (Counting(2.0) + 2.0 * Counting(3.0) * Counting(1.0)) * (Counting(0.5) + k.White(1.0)),
            (M[2.0] + 2 * M[3.0] * M[1.0]) * (M[0.5] + EYE),
        ),
    ],
)
def test_parts_of_an_expression_that_prepare_rows_alike_share_them(kernel, expected):
    assert prepared_in(lambda: gram.Gram(kernel, words)) == 1
    assert prepared_in(lambda: mc.GP(kernel).condition(words, y, 0.1)) == 1
    np.testing.assert_allclose(gram.Gram(kernel, words).matrix(), expected, atol=1e-13)


def test_parts_on_other_columns_or_with_other_constants_do_not_share_rows():
    table = np.random.default_rng(0).normal(size=(23, 2))
    kernel = k.RBF(1.0).on(0) + k.RBF(1.0).on(1) * k.RBF(2.0)
    expected = k.RBF(1.0)(table[:, :1]) + k.RBF(1.0)(table[:, 1:]) * k.RBF(2.0)(table)
    np.testing.assert_allclose(kernel(table), expected, atol=1e-14)
    one, other = (Tabulated(2.0, shift).fix("shift") for shift in (2.0, 3.0))
    assert prepared_in(lambda: gram.Gram(one + other * one, words)) == 2
    np.testing.assert_allclose((one + other * one)(words), one(words) + other(words) * one(words), atol=1e-14)


def test_white_noise_of_a_network_is_not_shared_with_its_centres():
    """Basis functions are about other rows, even where the centres are among them."""
    X = np.random.default_rng(0).normal(size=(23, 2))
    plain, noisy = (mc.RBFNetwork(5, kernel=kernel).fit(X, y) for kernel in (k.RBF(1.0), k.RBF(1.0) + k.White(3.0)))
    assert np.array_equal(plain.center_indices_, noisy.center_indices_)
    np.testing.assert_allclose(plain.predict(X), noisy.predict(X), atol=1e-10)


def test_every_estimator_that_takes_a_kernel_is_held_to_it():
    known = {cls for cls in classes().values() if issubclass(cls, Estimator) and "kernel" in cls._parameter_names()}
    own = {cls for cls in known if cls.__module__.startswith("mercer.")}
    of_other_rows = {mc.ParzenDensity, mc.GaussianProcessLatentVariables}  # vectors alone; points that are learned
    assert own - of_other_rows == {type(model) for model, _ in MODELS.values()}


def test_a_process_prepares_what_it_is_conditioned_on_once():
    f = mc.GP(KERNEL)
    assert prepared_in(lambda: f.condition(words, y, 0.1)) == 1
    g = f.condition(words, y, 0.1)
    assert prepared_in(lambda: [g.moments(NEW), g.terms(NEW), g.latent().mean(NEW), g.residual(), g.sample(NEW)]) == 0
    assert prepared_in(lambda: [f.condition(words[:20], y[:20]).condition(words[20:], y[20:]).mean(NEW)]) == 1


def test_gradients_do_not_prepare_training_rows_again(monkeypatch):
    X = np.random.default_rng(0).normal(size=(23, 2))
    model = GPR(1.0 * k.RBF() + k.Linear(), noise=0.1, progress=False).fit(X, y)
    expected = model.predict_gradient(X[:7])
    prepare = k.RBF.prepare
    monkeypatch.setattr(k.RBF, "prepare", lambda self, X, index: PREPARED.append(len(X)) or prepare(self, X, index))
    assert prepared_in(lambda: model.predict_gradient(X[:7])) == 0
    assert np.array_equal(model.predict_gradient(X[:7]), expected)


@pytest.mark.filterwarnings("ignore")  # few draws
@pytest.mark.parametrize("name", [name for name in MODELS if "weights" not in name and "features" not in name])
def test_a_fitted_model_does_not_see_later_changes_to_the_rows(name):
    X = np.random.default_rng(1).normal(size=(23, 2))
    model, target = MODELS[name]
    of_class = {"kernel": [1.0 * k.RBF()] * 3 if isinstance(model.kernel, list) else 1.0 * k.RBF() + 1.0 * k.Matern()}
    if "noise_kernel" in model.get_params():
        of_class["noise_kernel"] = 0.5 * k.RBF()
    model = clone(model).set_params(**of_class).fit(X, target)
    answer = model.transform if hasattr(model, "transform") else model.predict
    answers = lambda: [answer(np.ones((3, 2))), *(model.loo() if hasattr(model, "loo") else [])]
    before = answers()
    X[:] = 7.0
    for one, other in zip(before, answers(), strict=True):
        assert np.array_equal(one, other, equal_nan=True)


class Tabulated(Counting):
    """A kernel that uses a constant parameter when it prepares rows."""

    shift: Positive = 1.0

    def prepare(self, X, index):
        return super().prepare(X, index) % float(self.shift)


def test_rows_are_shared_only_by_kernels_that_prepare_them_alike():
    one, other = (Tabulated(2.0, shift).fix("shift") for shift in (2.0, 3.0))
    assert gram.Gram(one, words).covers(Tabulated(1.0, 2.0).fix("shift"))  # another value of a free parameter
    assert not gram.Gram(one, words).covers(other)
    assert not gram.Gram(one, words).covers(one.fix())
    rows = gram.Gram(gram.together([one, other, 1.5 * one]), words)
    for kernel in (one, other, 1.5 * one, one + other):
        assert rows.covers(kernel)
        assert np.array_equal(rows.of(kernel).matrix(), kernel(words))
    model = GPC([one, other, one], "laplace", learning=None).fit(words, THREE)
    swapped = GPC([other, one, other], "laplace", learning=None).fit(words, THREE)
    assert np.abs(model.predict_proba(NEW) - swapped.predict_proba(NEW)).max() > 1e-3
