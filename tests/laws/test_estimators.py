"""Kernels and estimators of one's own: the examples of docs/design in every place that takes such things."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.model_selection import cross_val_predict
from sklearn.utils.estimator_checks import check_estimator

import mercer as mc
from design import example
from mercer import kernels as k
from mercer.models.estimator import Estimator
from mercer.persist import classes

KernelAverage, Mismatch = example("estimator").KernelAverage, example("kernel").Mismatch
words = ["".join(letters) for letters in np.random.default_rng(0).choice(list("abcd"), size=(24, 5))]
y = np.array([word.count("a") - word.count("d") for word in words], dtype=float)
KERNEL = 1.0 * Mismatch(2.0)


def test_an_estimator_of_ones_own_keeps_the_contract():
    check_estimator(KernelAverage(k.RBF(1.5)), on_skip=None)


def with_kernels() -> list[type]:
    """Every estimator that takes a kernel on any input, of the package or registered; a density and latent points are
    on vectors."""
    known = {cls for cls in classes().values() if issubclass(cls, Estimator) and "kernel" in cls._parameter_names()}
    return sorted(known - {mc.ParzenDensity, mc.GaussianProcessLatentVariables}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", with_kernels(), ids=lambda cls: cls.__name__)
def test_a_kernel_of_ones_own_on_words_goes_into_every_estimator(cls, tmp_path):
    settings = {"progress": False} if "progress" in cls._parameter_names() else {}
    model = cls(kernel=KERNEL, **settings)
    target = y > 0 if is_classifier(model) else y
    fitted = clone(model).fit(words, target)
    answer = lambda model: model.predict(words) if hasattr(model, "predict") else model.transform(words)
    mc.save(fitted, tmp_path / "model")
    assert np.array_equal(answer(mc.load(tmp_path / "model")), answer(fitted))
    if hasattr(model, "predict"):
        assert fitted.score(words, target) > 0.3
        assert len(cross_val_predict(model, words, target, cv=2)) == 24


def test_a_kernel_of_ones_own_keeps_its_laws():
    assert mc.check_kernel(KERNEL, words).smallest_eigenvalue > -1e-12
    assert KERNEL.diag(words) == pytest.approx(1.0)
    expected = [[np.exp(-sum(a != b for a, b in zip(u, v, strict=True)) / 2) for v in words] for u in words]
    assert KERNEL(words) == pytest.approx(np.array(expected))
    assert Mismatch(2.0) * Mismatch(3.0) + 1.0 == Mismatch(2.0) * Mismatch(3.0) + 1.0
    model = mc.GaussianProcessRegressor(KERNEL, progress=False).fit(words, y)
    theta = np.array([0.3, 0.5, -1.0])
    slope = model.log_marginal_likelihood(theta, eval_gradient=True)[1]
    for i, step in enumerate(1e-5 * np.eye(3)):
        high, low = (model.log_marginal_likelihood(theta + sign * step) for sign in (1, -1))
        assert slope[i] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-5)


def test_rows_left_out_unpack_and_index_alike():
    X = np.linspace(0, 3, 12)[:, None]
    loo = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(X, np.sin(X[:, 0])).loo()
    mean, variance, score = loo
    assert len(loo) == 3
    for one, other, named in zip((mean, variance, score), loo, (loo.mean, loo.variance, loo.log_score), strict=True):
        assert one is other is named
    assert loo[1] is variance
    mean, residual = mc.KernelRidge(k.RBF()).fit(X, np.sin(X[:, 0])).loo()
    assert mean + residual == pytest.approx(np.sin(X[:, 0]))
