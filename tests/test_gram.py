"""Data sets that are kept: prepared once, whatever is asked of them."""

import gc
import tracemalloc
import weakref

import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free

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
    assert seen.across(Z, y) == pytest.approx(kernel(Z, X) @ y)
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


# -- the operator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("n", [1, 7, 1100])
def test_the_operator_is_the_matrix(n, kept, monkeypatch):
    if not kept:
        monkeypatch.setattr("mercer.core.machine.available_memory", lambda: 1 << 20)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)  # 504 rows at a time
    rng = np.random.default_rng(n)
    data, A, kernel = rng.normal(size=(n, 2)), rng.normal(size=(n, 3)), 0.7 * k.RBF(1.3) + k.White(0.4)
    K, operator = kernel(data), gram.Gram(kernel, data)
    which = rng.permutation(n)[: max(1, n // 3)]
    for _ in range(2):  # strips may be kept
        np.testing.assert_allclose(operator.times(A), K @ A, atol=1e-11)
    np.testing.assert_allclose(operator.times(A[:, 0]), K @ A[:, 0], atol=1e-11)
    np.testing.assert_allclose(operator.matrix(), K, atol=1e-14)
    np.testing.assert_allclose(operator.some(which), K[which], atol=1e-14)
    np.testing.assert_allclose(operator.diagonal(), np.diag(K), atol=1e-14)
    np.testing.assert_allclose(operator[which].matrix(), K[np.ix_(which, which)], atol=1e-14)
    np.testing.assert_allclose(operator[which].times(A[which]), K[np.ix_(which, which)] @ A[which], atol=1e-11)
    np.testing.assert_allclose(operator.of(k.White(0.4)).times(A), 0.4 * A, atol=1e-14)
    np.testing.assert_allclose(operator.of(k.Linear()).times(A), data @ (data.T @ A), atol=1e-11)
    new = rng.normal(size=(700, 2))
    np.testing.assert_allclose(operator.across(new, A), kernel(new, data) @ A, atol=1e-11)
    blocks = [(part, block.copy()) for part, block in operator.blocks(new)]
    assert [part for part, _ in blocks] == [slice(0, 504), slice(504, 700)]
    np.testing.assert_allclose(np.concatenate([block for _, block in blocks]), kernel(new, data), atol=1e-14)


@pytest.mark.parametrize("n", [1, 7, 700])
@pytest.mark.parametrize(
    "kernel",
    [0.7 * k.RBF([1.3, 0.8]) + k.White(0.4), 0.5 * k.RBF().on(0) * k.Periodic(1.0, 2.0).on(1) + k.White(0.4)],
    ids=["standard form", "compiled"],
)
def test_the_contraction_of_the_operator_is_the_derivative_of_a_bilinear_form(kernel, n):
    rng = np.random.default_rng(n)
    data, U, V, theta = rng.normal(size=(n, 2)), *rng.normal(size=(2, n, 3)), np.asarray(to_free(kernel))
    operator = gram.Gram(kernel, data)
    for found, other in ((operator.contract(U, V), V), (operator.contract(U), U)):

        def form(theta, other=other):
            return float(np.sum(U * gram.Gram(from_free(kernel, theta), data).times(other)))

        for i, step in enumerate(1e-5 * np.eye(len(theta))):
            slope = (form(theta + step) - form(theta - step)) / 2e-5
            assert found[i] == pytest.approx(slope, rel=1e-6, abs=1e-7 * n)
    np.testing.assert_allclose(operator.contract(U[:, 0]), operator.contract(U[:, :1]), rtol=1e-12)


def test_the_contraction_of_the_operator_forms_no_matrix():
    n = 5000
    data = np.random.default_rng(0).normal(size=(n, 2))
    operator, U = gram.Gram(1.0 * k.RBF(), data), np.ones((n, 2))
    operator.contract(U)
    tracemalloc.start()
    operator.contract(U)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n**2 / 2


class Counted:
    """A function of two words that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, a, b):
        self.calls += 1
        return float(len(set(a) & set(b)))


def words_and_numbers(n, seed=0):
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdef"), 5)) for _ in range(n)]
    X = pd.DataFrame({"s": words, "w": rng.normal(size=n)})
    return X, np.array([word.count("a") for word in words]) + np.sin(X["w"].to_numpy()) + 0.1 * rng.normal(size=n)


def test_parts_without_free_parameters_are_computed_once():
    n, f = 30, Counted()
    X, y = words_and_numbers(n)
    kernel = 2.0 * k.Custom(f).on("s") + k.RBF().on("w") + (k.RBF().fix() * k.Matern(0.5, nu=1.5)).on("w")
    expected, theta = kernel(X), np.asarray(to_free(kernel))
    f.calls, operator, K = 0, gram.Gram(kernel, X), np.zeros((n, n))
    with gram.on(kernel, operator).varying() as triangle:
        assert not triangle._host  # what is left compiles
        for shift in (0.4, 0.0):
            triangle.fill(theta + shift, K)
        slope = triangle.contract(theta, np.eye(n), y)
    assert f.calls == n * (n + 1) // 2
    np.testing.assert_allclose(np.triu(K), np.triu(expected), atol=1e-13)
    weights = np.outer(y, y) - np.eye(n)
    for i, step in enumerate(1e-5 * np.eye(len(theta))):
        up, down = (np.sum(weights * from_free(kernel, theta + s * step)(X)) for s in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-5, rel=1e-6)
    f.calls, half = 0, np.arange(0, n, 2)
    np.testing.assert_allclose(operator[half].matrix(), expected[np.ix_(half, half)], atol=1e-13)
    with gram.on(kernel, operator[half]).varying() as triangle:
        part = np.zeros((len(half), len(half)))
        triangle.fill(theta, part)
    np.testing.assert_allclose(np.triu(part), np.triu(expected[np.ix_(half, half)]), atol=1e-13)
    assert f.calls == 0


def test_without_memory_nothing_is_held(monkeypatch):
    X, _ = words_and_numbers(20)
    kernel = 2.0 * k.Custom(Counted()).on("s") + k.RBF().on("w")
    monkeypatch.setattr("mercer.core.machine.available_memory", lambda: 1000)
    with gram.on(kernel, X).varying() as triangle:
        assert triangle._host
        out = np.zeros((20, 20))
        triangle.fill(np.asarray(to_free(kernel)), out)
    np.testing.assert_allclose(np.triu(out), np.triu(kernel(X)), atol=1e-13)
