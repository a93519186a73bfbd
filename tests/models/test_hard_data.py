"""180 tables with the defects of real ones, and 32 of labels: a finite answer or a clear refusal."""

import warnings

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k

KERNELS = [None, k.RBF(), 1.0 * k.Matern(nu=1.5) + k.Linear(), k.Polynomial(2, 1.0)]


def table(rng):
    """Inputs with some of: duplicates, wild scales, constants, integers, single precision, zeros and ones, shifts."""
    d, n = int(rng.choice([1, 2, 5, 40])), int(rng.choice([1, 2, 3, 10, 40, 100]))
    if rng.random() < 0.04:
        d, n = 1000, 50
    X = rng.normal(size=(n, d))
    tricks = {
        "duplicates": lambda X: X[rng.integers(0, max(1, n // 2), n)],
        "scales": lambda X: X * 10.0 ** rng.integers(-12, 13, d),
        "constant": lambda X: np.where(np.arange(d) == rng.integers(d), rng.choice([0, 3.7, 1e12]), X),
        "integers": lambda X: np.round(3 * X).astype(int) if np.abs(X).max() < 1e15 else X,
        "single": lambda X: X.astype(np.float32),
        "flags": lambda X: (X > 0).astype(float),
        "shift": lambda X: X + 10.0 ** rng.integers(0, 9),
    }
    for trick in tricks.values():
        if rng.random() < 0.15:
            X = trick(X)
    first = np.asarray(X[:, 0], dtype=float)
    y = np.sin(2 * (first - first.mean()) / (first.std() or 1.0)) + rng.choice([0, 0, 0.1, 1]) * rng.normal(size=n)
    targets = {
        "plain": y, "constant": np.full(n, rng.choice([0, 1, -3.3, 1e12, 1e-12])), "zero": np.zeros(n),
        "scaled": y * 10.0 ** rng.integers(-12, 13), "shifted": y + 10.0 ** rng.integers(0, 12),
        "integers": np.round(3 * y).astype(int), "heavy": rng.standard_cauchy(n), "flags": y > 0,
    }  # fmt: skip
    return X, targets[rng.choice(list(targets))]


@pytest.mark.parametrize("block", range(10))
def test_hard_data(block):
    refused = 0
    for seed in range(30 * block, 30 * block + 18):
        rng = np.random.default_rng(seed)
        X, y = table(rng)
        kernel = KERNELS[rng.choice(4, p=[0.55, 0.2, 0.15, 0.1])]
        noise = rng.choice([None, 0.0, 0.1], p=[0.8, 0.1, 0.1])
        model = mc.GaussianProcessRegressor(kernel, noise=noise, normalize=rng.random() < 0.85, progress=False)
        Z = np.asarray(X[:5], dtype=float) * 1.01
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "rows .* have the same inputs and different targets")
            try:
                model.fit(X, y)
                answers = [*model.predict(Z, return_std=True), *model.loo(), model.sample_y(Z, 2)]
                answers += [model.predict(Z, return_cov=True)[1], model.log_marginal_likelihood_]
                text = str(model.report())
            except mc.MercerError:
                refused += 1
                continue
        assert all(np.isfinite(answer).all() for answer in answers), seed
        assert "nan" not in text, seed
    assert refused <= 2


@pytest.mark.parametrize("block", range(4))
def test_hard_labels(block):
    refused = 0
    for seed in range(1000 + 8 * block, 1008 + 8 * block):
        rng = np.random.default_rng(seed)
        X, y = table(rng)
        cuts = np.quantile(y.astype(float), np.sort(rng.choice([0.3, 0.7], rng.integers(1, 3), replace=False)))
        labels = np.searchsorted(cuts, y)
        inference = rng.choice(["laplace", "ep" if len(set(labels)) == 2 else "laplace", "variational"])
        kernel = KERNELS[rng.choice(4, p=[0.55, 0.2, 0.15, 0.1])]
        model = mc.GaussianProcessClassifier(kernel, inference, progress=False)
        Z = np.asarray(X[:5], dtype=float) * 1.01
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.simplefilter("ignore", mc.NumericalWarning)  # a latent variance of 1e20 is told, and answered
                model.fit(X, labels)
                answers = [
                    model.predict_proba(Z),
                    *model.predict_latent(Z),
                    *model.loo(),
                    model.log_marginal_likelihood_,
                ]
                text = str(model.report())
            except mc.MercerError:
                refused += len(set(labels)) > 1
                continue
        assert all(np.isfinite(answer).all() for answer in answers), seed
        np.testing.assert_allclose(answers[0].sum(axis=1), 1, atol=1e-12)
        assert "nan" not in text, seed
    assert refused <= 2


def test_one_row_and_two_rows():
    one = mc.GaussianProcessRegressor().fit([[1.0, 2.0]], [3.0])
    assert one.predict([[1.0, 2.0]])[0] == pytest.approx(3.0)
    assert one.predict([[1.0, 2.0]], return_std=True)[1][0] > 0.1  # one row says nothing of how far others are
    two = mc.GaussianProcessRegressor(progress=False).fit([[0.0], [1.0]], [0.0, 1.0])
    assert np.isfinite(two.predict([[0.5]], return_std=True)).all()


def test_a_constant_target_is_predicted():
    X = np.random.default_rng(0).normal(size=(30, 2))
    for value in (0.0, -3.3, 1e12):
        mean, deviation = mc.GaussianProcessRegressor().fit(X, np.full(30, value)).predict(X + 0.1, return_std=True)
        np.testing.assert_allclose(mean, value)
        assert (deviation <= 1e-5 * max(1.0, abs(value))).all()


def test_noise_free_data_are_interpolated():
    x = np.linspace(0, 6, 25)[:, None]
    model = mc.GaussianProcessRegressor(progress=False).fit(x, np.sin(x[:, 0]))
    between = (x[:-1] + x[1:]) / 2
    np.testing.assert_allclose(model.predict(between), np.sin(between[:, 0]), atol=2e-3)
    assert model.noise_ < 1e-4
    exact = mc.GaussianProcessRegressor(1.0 * k.RBF(1.0), noise=0.0, progress=False).fit(x, np.sin(x[:, 0]))
    np.testing.assert_allclose(exact.predict(x), np.sin(x[:, 0]), atol=1e-5)


def test_scales_do_not_matter():
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    y = np.sin(X[:, 0]) + 0.1 * y
    plain = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    for a, b, c in ((1e12, 1e-12, 0.0), (1e-12, 1e12, 0.0), (1.0, 1.0, 1e6)):
        scaled = mc.GaussianProcessRegressor(progress=False).fit(a * X + c, b * y)
        mean, deviation = scaled.predict(a * X[:5] + c, return_std=True)
        expected = plain.predict(X[:5], return_std=True)
        np.testing.assert_allclose(mean / b, expected[0], atol=2e-3)
        np.testing.assert_allclose(deviation / b, expected[1], rtol=2e-2)


def test_many_columns_few_rows():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 1000))
    model = mc.GaussianProcessRegressor(progress=False).fit(X, X[:, 0] + 0.1 * rng.normal(size=50))
    assert np.isfinite(model.predict(X)).all()
    assert len(model.relevance()) == 1000


def test_intervals_are_not_too_narrow_with_as_many_columns_as_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(350, 50))
    y = 2 * X[:, 0] + 0.5 * rng.normal(size=350)
    model = mc.GaussianProcessRegressor(progress=False).fit(X[:50], y[:50])
    mean, deviation = model.predict(X[50:], return_std=True)
    assert np.mean(np.abs(y[50:] - mean) < 1.96 * deviation) > 0.9


def test_a_signal_with_many_cycles_is_found():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 10, 120)[:, None]
    y = np.sin(2 * np.pi * t[:, 0]) + 0.3 * t[:, 0] + 0.2 * rng.normal(size=120)
    for kernel in (None, 1.0 * k.RBF()):
        assert 0.03 < mc.GaussianProcessRegressor(kernel, progress=False).fit(t, y).noise_ < 0.06


@pytest.mark.parametrize("shift", [0.0, 1e3])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_amplitudes_begin_on_the_scale_of_the_data(shift, scale):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    y = scale * (X[:, 0] - 0.5 * X[:, 1] + 0.1 * rng.normal(size=60))
    for model in (
        mc.GaussianProcessRegressor(1.0 * k.Linear() + 1.0, progress=False),
        mc.GaussianProcessRegressor(1.0 * k.Linear() + 1.0, progress=False, normalize=False),
        mc.BayesianLinearRegression(),
    ):
        assert model.fit(X + shift, y).score(X + shift, y) > 0.95
