"""Which inputs matter: beside indices known in closed form, and where a slope or a lengthscale alone would mislead."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.models.relevance import relevance


def made(function, n=200, d=3, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d))
    return X, function(X) + noise * rng.normal(size=n)


def wave(X):
    return np.sin(5 * X[:, 0]) + 0.3 * X[:, 1]


def of(function, X, y, **settings):
    """The table of a model that is the function itself, whatever rows it has seen."""
    return relevance(X, y[:, None], lambda rows: lambda Z: function(Z)[:, None], **settings)


def test_shares_are_total_effect_indices():
    """Of a known function: variances sin^2 and x^2 / 3 in closed form, and both for the inputs of a product."""
    X, y = made(wave, n=2000, noise=0.5)
    found = of(wave, X, y)
    sine = 0.5 - np.sin(10) / 20
    expected = np.array([sine, 0.09 / 3, 0.0]) / (sine + 0.09 / 3 + 0.25)
    assert (np.abs(found.effect - expected) < 4 * found.error + 1e-12).all()
    assert (found.error[:2] < [0.05, 0.015]).all()
    assert found.irrelevant.tolist() == [False, False, True]
    product = lambda X: X[:, 0] * X[:, 1]
    found = of(product, *made(product, n=2000))
    explained = (1 / 9) / (1 / 9 + 0.01)
    assert found.effect[:2] == pytest.approx([explained] * 2, abs=4 * found.error.max())
    assert found.irrelevant.tolist() == [False, False, True]


def test_errors_are_standard_errors():
    found = [of(wave, *made(wave, n=100, seed=seed)) for seed in range(40)]
    scattered = np.std([table.effect for table in found], axis=0)[:2]
    assert np.mean([table.error for table in found], axis=0)[:2] == pytest.approx(scattered, rel=0.4)


def test_a_tiny_lengthscale_is_not_importance():
    """A model that follows noise along one input moves steeply there, and predicts nothing by it."""
    X, y = made(wave)
    kernel = 1.0 * k.RBF([0.3, 2.0]).on([0, 1]) + 0.05 * k.RBF(0.003).on(2)
    found = mc.GaussianProcessRegressor(kernel, noise=1e-4, learning=None).fit(X, y).relevance()
    assert np.argsort(-found.effect).tolist() == [0, 1, 2]
    assert found.effect[0] > 0.8
    assert found.irrelevant.tolist() == [False, False, True]
    overfitted = mc.GaussianProcessRegressor(1.0 * k.RBF([0.3, 2.0, 0.003]), noise=1e-4, learning=None).fit(X, y)
    assert overfitted.relevance().effect[2] < 0.05


def test_learned_models():
    model = mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0, 1.0]), progress=False)
    found = model.fit(*made(wave, seed=1)).relevance()
    assert np.argsort(-found.effect).tolist() == [0, 1, 2]
    assert found.irrelevant.tolist() == [False, False, True]
    assert found.effect == pytest.approx([0.93, 0.055, 0.0], abs=0.12)
    found = model.fit(*made(lambda X: X[:, 0] * X[:, 1], seed=1)).relevance()
    assert (found.effect[:2] > 0.5).all()
    assert found.irrelevant.tolist() == [False, False, True]


def test_few_that_matter_of_many():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(120, 32))
    y = np.sin(X[:, 3]) + X[:, 8] + 0.5 * X[:, 20] ** 2 + 0.5 * X[:, 31] + 0.2 * rng.normal(size=120)
    lengths = np.full(32, 1e3)
    lengths[[3, 8, 20, 31]] = 2.0
    kernel = 4.0 * k.RBF(lengths)
    found = mc.GaussianProcessRegressor(kernel, noise=0.05, learning=None).fit(X, y).relevance()
    assert np.flatnonzero(~found.irrelevant).tolist() == [3, 8, 20, 31]


def test_of_two_inputs_that_say_the_same_the_model_chooses():
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, 200)
    X = np.column_stack([x, x + 1e-3 * rng.normal(size=200), rng.uniform(-1, 1, 200)])
    y = np.sin(3 * x) + 0.1 * rng.normal(size=200)
    one = mc.GaussianProcessRegressor(1.0 * k.RBF(0.5).on(1), noise=0.01, learning=None).fit(X, y).relevance()
    assert one.irrelevant.tolist() == [True, False, True]
    both = mc.GaussianProcessRegressor(1.0 * k.RBF(1.0).on([0, 1]), noise=0.01, learning=None).fit(X, y).relevance()
    assert both.irrelevant.tolist() == [False, False, True]


FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize(("kind", "classes"), [("pandas", 2), ("polars", 3)])
def test_classes_in_frames_of_more_rows_than_a_tile(kind, classes):
    X, latent = made(lambda X: np.sin(3 * X[:, 0]), n=300)
    labels = np.array(["low", "middle", "high"])[:: 1 if classes == 3 else 2]
    y = labels[np.digitize(latent, [0.0] if classes == 2 else [-0.4, 0.4])]
    frame = FRAMES[kind](dict(zip(("much", "none", "nothing"), X.T, strict=True)))
    model = mc.GaussianProcessClassifier(4.0 * k.RBF([0.5, 3.0, 3.0]), learning=None).fit(frame, y)
    found = model.relevance()
    assert found.names == ["much", "none", "nothing"]
    assert found.irrelevant.tolist() == [False, True, True]
    assert found.effect[0] > 0.4
    page = model.report()
    assert "much" in page.sections["Relevance of inputs"]
    plain = mc.GaussianProcessClassifier(4.0 * k.RBF([0.5, 3.0, 3.0]), learning=None).fit(X, y).relevance()
    np.testing.assert_allclose(found.effect, plain.effect, atol=1e-9)


@pytest.mark.parametrize("kind", FRAMES)
def test_columns_that_are_not_numbers(kind):
    rng = np.random.default_rng(4)
    colour, x = rng.choice(["red", "green", "blue"], 30), rng.normal(size=30)
    y = np.where(colour == "red", 1.0, -1.0) + 0.1 * rng.normal(size=30)
    frame = FRAMES[kind]({"x": x, "colour": colour})
    same = k.Custom(lambda a, b: float(a == b))
    model = mc.GaussianProcessRegressor(1.0 * same.on("colour") + 0.1 * k.RBF().on("x"), noise=0.01, learning=None)
    found = model.fit(frame, y).relevance()
    assert found.irrelevant.tolist() == [True, False]
    assert np.isnan(found.spread).tolist() == [False, True]
    assert "colour  " in str(found)


def test_a_kernel_for_each_class_and_classes_of_one_row():
    X, latent = made(lambda X: np.sin(3 * X[:, 0]), n=60)
    y = np.digitize(latent, [-0.4, 0.4])
    y[np.argmin(latent)] = 3  # one of its kind, which is never left out
    kernels = [2.0 * k.RBF([0.5, 1.0, 1.0])] * 4
    found = mc.GaussianProcessClassifier(kernels, learning=None).fit(X, y).relevance()
    assert np.argmax(found.effect) == 0
    assert np.isnan(found.lengthscale).all()


def test_few_rows_say_little_and_many_take_one_fold():
    X, y = made(wave, n=3)
    found = of(wave, X, y)
    assert np.isinf(found.error).all()
    assert "unknown" in str(found)
    assert of(wave, X, np.ones(3)).effect.tolist() == [0, 0, 0]
    seen = []

    def fitted_to(rows):
        seen.append(rows)
        return lambda Z: wave(Z)[:, None]

    X, y = made(wave, n=2500)
    relevance(X, y[:, None], fitted_to)
    assert [len(rows) for rows in seen] == [2000]
    seen.clear()
    relevance(X[:100], y[:100, None], fitted_to)
    assert [len(rows) for rows in seen] == [80] * 5
    left_out = np.concatenate([np.setdiff1d(np.arange(100), rows) for rows in seen])
    assert sorted(left_out) == list(range(100))


def test_rows_without_columns():
    with pytest.raises(mc.DataError, match="these rows are objects"):
        of(len, ["tea", "toast"], np.zeros(2))
