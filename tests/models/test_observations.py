"""Regression on linear observations and with known shapes."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.operators import Derivative, Integral, Value

rng = np.random.default_rng(0)
T = np.linspace(0.0, 6.0, 15)
BOTH = pd.DataFrame({"t": np.concatenate([T, T])})
y = np.concatenate([30 + 10 * np.sin(T) + rng.normal(size=15), 10 * np.cos(T) + 0.2 * rng.normal(size=15)])
OPS = [Value()] * 15 + [Derivative("t")] * 15
NEW = pd.DataFrame({"t": np.linspace(0.1, 5.9, 12)})


@pytest.fixture(scope="module")
def model():
    return mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(BOTH, y, operator=OPS)


def test_values_and_slopes_together_tell_more(model):
    truth = 30 + 10 * np.sin(NEW["t"])
    mean, deviation = model.predict(NEW, return_std=True, include_noise=False)
    assert np.abs(mean - truth).max() < 1.0
    assert np.mean(np.abs(mean - truth) < 2.5 * deviation) > 0.8
    alone = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(BOTH[:15], y[:15])
    assert deviation.mean() < 0.8 * alone.predict(NEW, return_std=True, include_noise=False)[1].mean()
    # Each kind has its own noise: 1 and 0.04.
    assert 0.3 < model.noise_[0] < 3
    assert 0.01 < model.noise_[1] < 0.15
    slope, _of_slope = model.predict(NEW, return_std=True, operator=Derivative("t"))
    np.testing.assert_allclose(slope, 10 * np.cos(NEW["t"]), atol=0.6)
    np.testing.assert_allclose(slope, model.predict_gradient(NEW)[0][:, 0], rtol=1e-8)
    # The same of a model that was fitted to values, whose target was centred.
    np.testing.assert_allclose(
        alone.predict(NEW, operator=Derivative("t")), alone.predict_gradient(NEW)[0][:, 0], rtol=1e-6
    )
    total, of_total = alone.predict(NEW[:1], return_std=True, operator=Integral(0.0, 6.0))
    assert abs(total[0] - (180 + 10 * (1 - np.cos(6.0)))) < 3 * of_total[0]


def test_the_evidence_and_its_gradient(model):
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    np.testing.assert_allclose(value, model.log_marginal_likelihood_, rtol=1e-8)
    for i in range(len(gradient)):
        step = 1e-5 * np.eye(len(gradient))[i]
        up, down = (model.log_marginal_likelihood(model.theta_ + s) for s in (step, -step))
        np.testing.assert_allclose(gradient[i], (up - down) / 2e-5, atol=1e-3)


def test_leave_one_out_and_files(model, tmp_path):
    left = model.loo()
    assert left.mean.shape == (30,)
    assert np.mean(np.abs(left.mean - y) < 2.5 * np.sqrt(left.variance)) > 0.8
    mc.save(model, tmp_path / "slopes.mercer")
    np.testing.assert_array_equal(mc.load(tmp_path / "slopes.mercer").predict(NEW), model.predict(NEW))


def test_derivatives_alone_leave_the_level_open():
    with pytest.warns(mc.ModelWarning, match="do not determine the level"):
        found = mc.GaussianProcessRegressor(1.0 * k.RBF(), noise=0.04, progress=False).fit(
            BOTH[15:], y[15:], operator=Derivative("t")
        )
    mean = found.predict(NEW)
    np.testing.assert_allclose(np.diff(mean), np.diff(10 * np.sin(NEW["t"])), atol=0.5)


def test_predictions_of_measurements_under_an_operator(model):
    slopes = {"operator": Derivative("t"), "return_std": True}
    mean, free = model.predict(NEW, **slopes)
    np.testing.assert_array_equal(model.predict(NEW, include_noise=False, **slopes)[1], free)
    measured = model.predict(NEW, include_noise=True, **slopes)[1]
    np.testing.assert_allclose(measured**2, free**2 + model.noise_[1])
    K = model.predict(NEW, return_cov=True, operator=Derivative("t"), include_noise=True)[1]
    np.testing.assert_allclose(np.diag(K), measured**2)
    upper = model.predict_quantile(NEW, 0.975, operator=Derivative("t"))
    np.testing.assert_allclose(upper, mean + 1.959964 * free, rtol=1e-6)
    draws = model.sample_y(NEW, 2000, operator=Derivative("t"), include_noise=True)
    assert draws.shape == (12, 2000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.1 * measured.max() + 0.02)
    np.testing.assert_allclose(draws.std(axis=1), measured, rtol=0.1)
    for ask in (model.predict_distribution, model.sample_y):
        with pytest.raises(mc.ParameterError, match="noise of these is not known"):
            ask(NEW, include_noise=True, operator=Derivative("t", order=2))


def test_further_rows_have_the_noise_of_their_kind(model, tmp_path):
    new, seen = NEW[:2], np.array([10.0, 9.0])
    updated = copy.copy(model).update(new, seen, operator=Derivative("t"))
    np.testing.assert_allclose(updated.posterior_.data[2][-2:] * updated.scale_**2, model.noise_[1], rtol=1e-6)
    further = copy.copy(model)
    with pytest.raises(mc.ParameterError, match="not known.*noise="):
        further.update(new, seen, operator=Derivative("t", order=2))
    further.update(new, seen, noise=0.5, operator=Derivative("t", order=2))
    assert further.posterior_.data[2][-1] * further.scale_**2 == pytest.approx(0.5)
    further.log_marginal_likelihood(further.theta_)
    mc.save(further, tmp_path / "further.mercer")
    again = mc.load(tmp_path / "further.mercer")
    asked = {"operator": Derivative("t", order=2), "return_std": True, "include_noise": True}
    np.testing.assert_array_equal(again.predict(NEW, **asked)[1], further.predict(NEW, **asked)[1])


@pytest.mark.filterwarnings("ignore::mercer.ModelWarning")
def test_the_noise_of_one_kind_is_not_that_of_another():
    found = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(BOTH[15:], y[15:], operator=Derivative("t"))
    with pytest.raises(mc.ParameterError, match="noise of values.*not known"):
        found.update(NEW[:1], [30.0])
    with pytest.raises(mc.ParameterError, match="noise of values.*not known"):
        found.sample_y(NEW, include_noise=True)
    function = found.predict(NEW, return_std=True, include_noise=False)[1]
    np.testing.assert_array_equal(found.predict(NEW, return_std=True)[1], function)
    found.update(NEW[:1], [30.0], noise=0.25)
    np.testing.assert_allclose(
        found.predict(NEW, return_std=True, include_noise=True)[1] ** 2,
        found.predict(NEW, return_std=True, include_noise=False)[1] ** 2 + 0.25,
    )
    values = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(BOTH[:15], y[:15])
    with pytest.raises(mc.ParameterError, match="not known"):
        copy.copy(values).update(NEW[:1], [1.0], operator=Derivative("t"))
    values.update(NEW[:1], [9.0], noise=0.04, operator=Derivative("t")).update(NEW[1:2], [33.0])
    known = values.posterior_.data[2] * values.scale_**2
    np.testing.assert_allclose(known[-2:], [0.04, float(values.noise_[0])], rtol=1e-5)


@pytest.mark.parametrize("settings", [{"likelihood": "poisson"}, {"solver": "weights"}, {"calibrate": True}])
def test_settings_that_have_no_meaning_with_operators(settings):
    with pytest.raises(mc.ParameterError, match=next(iter(settings))):
        mc.GaussianProcessRegressor(progress=False, **settings).fit(BOTH, y, operator=OPS)


def test_monotone_and_bounded_functions():
    x = np.linspace(0, 5, 20)[:, None]
    waves = np.log1p(3 * x[:, 0]) + 0.3 * np.sin(4 * x[:, 0])  # falls here and there, and exceeds 2.8
    settings = {"kernel": 1.0 * k.RBF(0.7), "noise": 0.05, "learning": None, "progress": False}
    free = mc.GaussianProcessRegressor(**settings).fit(x, waves)
    rising = mc.GaussianProcessRegressor(**settings).fit(x, waves, monotone={0: +1}, within=(-0.5, 2.8))
    grid = np.linspace(0, 5, 50)[:, None]
    mean = rising.predict(grid)
    assert (np.diff(free.predict(grid)) < 0).any()
    assert free.predict(grid).max() > 2.8
    assert (np.diff(mean) > 0).all()
    assert mean.max() < 2.8
    assert np.sqrt(np.mean((mean - np.log1p(3 * grid[:, 0])) ** 2)) < 0.2
    assert rising.loo().mean.shape == (20,)
    np.testing.assert_allclose(
        rising.log_marginal_likelihood(rising.theta_), rising.log_marginal_likelihood_, rtol=1e-6
    )
    with pytest.raises(mc.ParameterError, match=r"\+1"):
        rising.fit(x, waves, monotone={0: 2})


def test_copies_know_their_operators():
    slope, x = Derivative(0), np.linspace(0, 3, 8)[:, None]
    settings = {"noise": 1e-4, "learning": None, "normalize": False, "progress": False}
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(1.0), **settings).fit(x, np.cos(x[:, 0]), operator=slope)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for operator in (slope, None):
            np.testing.assert_array_equal(other.predict(x, operator=operator), model.predict(x, operator=operator))


@pytest.mark.parametrize("mean", ["linear", mc.basis.Polynomial(2), mc.means.Basis(mc.basis.Polynomial(1), 100.0)])
def test_trends_are_observed_too(mean):
    x = np.linspace(0, 5, 15)[:, None]
    line = 2.0 + 3.0 * x[:, 0]
    settings = {"kernel": 1.0 * k.RBF(), "mean": mean, "progress": False}
    plain = mc.GaussianProcessRegressor(**settings).fit(x, line + 0.1 * np.sin(9 * x[:, 0]))
    for given in ({"monotone": {0: 1}}, {"within": (0.0, None)}, {"operator": Value()}):
        found = mc.GaussianProcessRegressor(**settings).fit(x, line + 0.1 * np.sin(9 * x[:, 0]), **given)
        assert found.trend_.names == plain.trend_.names
        assert found.trend_.estimate[:2] == pytest.approx(plain.trend_.estimate[:2], abs=0.3)
        assert found.predict([[10.0]]) == pytest.approx([32.0], abs=1.0)
    slopes = mc.GaussianProcessRegressor(**settings).fit(
        np.vstack([x, x]), np.concatenate([line, np.full(15, 3.0)]), operator=[Value()] * 15 + [Derivative(0)] * 15
    )
    assert slopes.trend_.estimate[1] == pytest.approx(3.0, abs=0.05)
