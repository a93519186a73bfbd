"""Data sets that are kept: prepared once, whatever is asked of them."""

import gc
import weakref

import numpy as np
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k

rng = np.random.default_rng(0)
X, Z = rng.normal(size=(30, 2)), rng.normal(size=(7, 2))
y = X[:, 0] + 0.1 * rng.normal(size=30)


class Counting(k.RBF):
    """Remembers how many rows it was asked to prepare."""

    rows = []

    def prepare(self, X, index):
        Counting.rows.append(len(X))
        return super().prepare(X, index)


def prepared_again(model, *asks):
    """How many data sets of the size of the training set are prepared by asking twice, after a first time."""
    for ask in asks:
        ask(model)
    Counting.rows.clear()
    for ask in asks:
        ask(model)
    return Counting.rows.count(30)


@pytest.mark.parametrize(
    "model",
    [
        mc.GaussianProcessRegressor(2.0 * Counting(), noise=0.1, learning=None),
        mc.KernelRidge(2.0 * Counting()),
        mc.RBFInterpolator(2.0 * Counting()),
        mc.GaussianProcessClassifier(2.0 * Counting(), "laplace", learning=None),
        mc.KernelFisherDiscriminant(2.0 * Counting()),
        mc.KernelPerceptron(2.0 * Counting()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_prepares_its_training_rows_once(model):
    fitted = model.fit(X, y > 0 if hasattr(model, "predict_proba") or "Perceptron" in repr(model) else y)
    assert prepared_again(fitted, lambda model: model.predict(Z)) == 0
    again = fitted.predict(Z)
    fitted.fit(X[::-1].copy(), (y > 0 if again.dtype == bool else y)[::-1])  # other rows under the same name
    assert fitted.predict(Z) == pytest.approx(again, abs=1e-5)


def test_a_process_prepares_its_data_once():
    g = mc.GP(2.0 * Counting()).condition(X, y, noise=0.1)
    asks = (g.mean, g.variance, g.covariance, lambda Z: g.sample(Z, size=2))
    assert prepared_again(Z, *asks) == 0


def test_kept_rows_give_the_same_matrix_and_go_with_their_owner():
    kernel = 1.5 * k.RBF(0.7) + k.White(0.3)

    class Owner:
        pass

    owner = Owner()
    seen = gram.kept(owner, kernel, X)
    assert gram.kept(owner, kernel, X) is seen
    assert np.array_equal(gram.between(kernel, Z, seen), kernel(Z, X))
    assert np.array_equal(gram.between(kernel, X, seen), kernel(X, X.copy()))  # other measurements: no white noise
    assert gram.product(kernel, Z, seen, y) == pytest.approx(kernel(Z, X) @ y)
    other = gram.kept(owner, kernel, X.copy())
    assert other is not seen
    gone = weakref.ref(seen), weakref.ref(other)
    del owner, seen, other
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_terms_are_not_kept_and_threads_have_their_own():
    from concurrent.futures import ThreadPoolExecutor

    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), noise=0.1, learning=None).fit(X, y)
    for _ in range(5):
        model.decompose(Z)
        model.predict(Z)
    assert len(gram._KEPT[model.posterior_.observed]) == 1
    expected = mc.KernelRidge(k.RBF()).fit(X, y).predict(Z)
    for _ in range(20):
        fresh = mc.KernelRidge(k.RBF()).fit(X, y)
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda _, model=fresh: model.predict(Z), range(16)):
                assert np.array_equal(found, expected)
