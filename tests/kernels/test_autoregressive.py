"""Autoregressions beside statsmodels, in learning, and at times that they refuse."""

import datetime

import numpy as np
import pytest
from statsmodels.tsa.arima.model import ARIMA
from statsmodels.tsa.arima_process import arma_acovf

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.errors import DataError, ParameterError

ORDERS = [([0.5], []), ([-0.7], []), ([0.5, 0.3], []), ([1.2, -0.6], []), ([0.3, -0.2, 0.4], []), ([0.5, 0.2], [0.4])]


def kernel_of(phi, theta, **options):
    return k.ARMA(phi, theta, **options) if theta else k.AR(phi, **options)


@pytest.mark.parametrize(("phi", "theta"), ORDERS)
def test_autocovariance_is_that_of_statsmodels(phi, theta):
    expected = arma_acovf(np.r_[1, -np.array(phi)], np.r_[1, theta], nobs=12)
    kernel = kernel_of(phi, theta)
    np.testing.assert_allclose(kernel.autocovariance(12), expected / expected[0], rtol=1e-12, atol=1e-14)
    assert 1 / kernel.innovation_variance == pytest.approx(expected[0], rel=1e-12)


def test_lags_beyond_the_first_table_and_beyond_all_of_them():
    slow = k.AR([0.2, 0.1, 1 - 0.3 - 1e-9])
    lags = np.array([0.0, 5000.0, 3e6])
    got = slow(np.zeros(1), lags)[0]
    roots = np.roots(np.r_[1, -slow.phi])
    # After thousands of steps the slowest root alone is left.
    assert got[2] / got[1] == pytest.approx(np.abs(roots).max() ** (3e6 - 5000), rel=1e-6)
    assert k.AR([0.3, -0.2, 0.4])([0.0], [1e12])[0, 0] == 0.0
    with pytest.raises(DataError, match="not finite"):
        slow([0.0], [1e9])


def test_log_likelihood_is_that_of_statsmodels_with_gaps():
    rng = np.random.default_rng(0)
    t = np.setdiff1d(np.arange(40), [3, 4, 17])
    y = rng.normal(size=40)
    y[[3, 4, 17]] = np.nan
    phi, theta, innovation = [0.5, 0.2], [0.4], 1.3
    kernel = (innovation / k.ARMA(phi, theta).innovation_variance) * k.ARMA(phi, theta, step=1 / 12, origin=2000.5)
    got = mc.GP(kernel).log_likelihood(2000.5 + t / 12, y[t], noise=1e-12)
    model = ARIMA(y, order=(2, 0, 1), trend="n")
    assert got == pytest.approx(model.loglike([*phi, *theta, innovation]), rel=1e-8)


def test_coordinates_reach_stationary_coefficients_only():
    kernel = k.ARMA([0.5, 0.2], [0.4, -0.3, 0.2])
    theta = to_free(kernel)
    again = from_free(kernel, theta)
    np.testing.assert_allclose(again.phi, kernel.phi, rtol=1e-13)
    np.testing.assert_allclose(again.theta, kernel.theta, rtol=1e-13)
    far = from_free(kernel, np.random.default_rng(0).normal(0, 3, theta.shape))
    assert np.abs(np.roots(np.r_[1, -far.phi])).max() < 1
    assert np.abs(np.roots(np.r_[1, far.theta])).max() < 1


@pytest.mark.parametrize("build", [lambda: k.AR(1.0), lambda: k.AR([0.5, 0.6]), lambda: k.ARMA(0.5, 1.3)])
def test_coefficients_outside_are_refused(build):
    with pytest.raises(ParameterError, match="outside the unit circle"):
        build()


def test_learned_parameters_are_the_maximum_likelihood_of_statsmodels():
    rng = np.random.default_rng(1)
    e, y = rng.normal(size=300), np.zeros(300)
    for t in range(2, 300):
        y[t] = 1.2 * y[t - 1] - 0.6 * y[t - 2] + e[t]
    model = mc.GaussianProcessRegressor(1.0 * k.AR([0.1, 0.0]), noise=1e-8, normalize=False, progress=False)
    model.fit(np.arange(300.0)[:, None], y)
    expected = ARIMA(y, order=(2, 0, 0), trend="n").fit()  # not 1.2 and -0.6: 300 values tell them to 0.05 or so
    phi, variance = model.kernel_.parameters["phi"], model.kernel_.parameters["variance"]
    np.testing.assert_allclose([*phi, variance * k.AR(phi).innovation_variance], expected.params, rtol=1e-4)
    assert model.log_marginal_likelihood_ == pytest.approx(expected.llf, rel=1e-8)
    np.testing.assert_allclose(phi, [1.2, -0.6], atol=0.25)


def test_continuous_forms():
    t = np.array([0.0, 0.3, 1.7, 4.2])
    np.testing.assert_allclose(k.AR(0.6)(t), k.Exponential(-1 / np.log(0.6))(t), rtol=1e-13)
    for phi in ([1.2, -0.6], [1.0, -0.25], [1.1, -0.28], [-0.2, -0.5], [-0.2, -0.2]):
        fine = np.arange(400) / 7
        assert np.linalg.eigvalsh(k.AR(phi)(fine)).min() > -1e-10
    for phi in (-0.6, [-1.7, -0.9], [0.5, 0.3], [-1.1, -0.28]):  # fast and hardly damped, or with negative roots
        with pytest.raises(DataError, match="row 1: AR is a process at whole steps"):
            k.AR(phi)(t)


def test_times_between_steps_are_refused_by_row():
    with pytest.raises(DataError, match=r"row 2: ARMA .* got 2\.4"):
        k.ARMA(0.5, 0.4)([0.0, 1.001, 2.4])
    with pytest.raises(DataError, match="one column"):
        k.AR(0.5)(np.zeros((3, 2)))
    with pytest.raises(ParameterError, match="step"):
        k.AR(0.5, step=0.0)
    with pytest.raises(ParameterError, match="takes no prior"):
        k.AR(0.5).with_priors(phi=mc.priors.Normal(0.0, 1.0))


def test_calendar_steps(tmp_path):
    months = (np.datetime64("2019-11") + np.r_[0:30, 35]).astype("datetime64[D]")
    whole = np.r_[0.0:30, 35]
    for days, origin in ((0, {}), (14, {"origin": "2019-11-15"}), (27, {"origin": datetime.date(2020, 2, 28)})):
        kernel = k.ARMA([0.5, 0.2], 0.4, step="month", **origin)
        np.testing.assert_allclose(kernel(months + days), k.ARMA([0.5, 0.2], 0.4)(whole), rtol=1e-12)
        values = [
            mc.GaussianProcessRegressor(kernel, noise=0.1, learning=None, solver=solver, progress=False)
            .fit(months + days, np.cos(whole))
            .predict(np.array(["2023-03", "2020-01"], dtype="datetime64[D]") + days, return_std=True)
            for solver in ("dense", "statespace")
        ]
        np.testing.assert_allclose(values[1], values[0], rtol=1e-8)
    np.testing.assert_allclose(kernel.autocovariance(3), k.ARMA([0.5, 0.2], 0.4)([0.0], [0.0, 1.0, 2.0])[0], rtol=1e-12)
    assert k.AR(0.5, step="day")(np.array(["2020-02-28", "2020-03-01"], dtype="datetime64[D]"))[0, 1] == 0.25
    says = r"from the first moment of a month on; got 2019-11-15. Give a date .* by AR\(..., origin='2019-11-15'\)"
    with pytest.raises(DataError, match=says):
        k.AR(0.5, step="month")(months + 14)
    with pytest.raises(DataError, match=r"row 1: .* of dates step='month'"):
        k.ARMA(0.5, 0.1, step=1 / 12, origin="2019-11-01")(months)
    mc.save(kernel, tmp_path / "kernel")
    assert repr(mc.load(tmp_path / "kernel")) == repr(kernel)
    assert (kernel.stationary, kernel.isotropic, k.AR(0.5).stationary) == (False, False, True)
    with pytest.raises(ParameterError, match="or on dates one of 'year'"):
        k.AR(0.5, step="fortnight")


def test_between_steps_the_recursion_is_the_process_in_continuous_time():
    t, rng = np.array([0.0, 0.3, 1.7, 4.2, 4.2, 9.6])[:, None], np.random.default_rng(0)
    y, new = rng.normal(size=6), np.array([[-0.7], [2.2], [11.3]])
    for phi in (0.6, [1.2, -0.6], [1.0, -0.25], [1.1, -0.28]):  # one root, complex, double and real ones
        kernel = 1.3 * k.AR(phi, step=0.9, origin=2.0) + 0.1 * k.Exponential(2.0)
        one, other = (
            (model.log_marginal_likelihood(model.theta_, eval_gradient=True), model.predict(new, return_std=True))
            for solver in ("dense", "statespace")
            for model in [mc.GaussianProcessRegressor(kernel, noise=0.1, learning=None, solver=solver).fit(t, y)]
        )
        for a, b in zip((*one[0], *one[1]), (*other[0], *other[1]), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-8, atol=1e-10)
    whole = np.arange(6.0)[:, None] + 0.004  # a discrete one, at nearly whole steps
    model = mc.GaussianProcessRegressor(k.AR(-0.6), noise=0.1, learning=None, solver="statespace").fit(whole, y)
    with pytest.raises(DataError, match="row 1: AR is a process at whole steps"):
        model.predict([[7.0], [7.5]])
    with pytest.raises(ParameterError, match=r"cannot take these times: row 1: AR is a process at whole steps"):
        mc.GaussianProcessRegressor(k.AR(-0.6), noise=0.1, learning=None, solver="statespace").fit(t, y)


@pytest.mark.parametrize(
    "kernel",
    [
        k.Cosine(5.3), k.AR(-0.6), k.AR([0.5, 0.3]), k.ARMA([0.5, 0.2], [0.4, -0.3, 0.2]), k.ARMA(0.0, 0.4),
        k.Matern(9.0, nu=1.5) * k.Cosine(4.0) + 0.5 * k.AR([1.0, -0.25]) + k.White(0.1),
    ],
    ids=repr,
)  # fmt: skip
def test_state_space_solver_equals_dense_with_gaps_and_repeated_times(kernel):
    rng = np.random.default_rng(2)
    t = np.r_[rng.permutation(60)[:40], 7, 7, 5000].astype(float)
    y, new = rng.normal(size=len(t)), np.array([-4.0, 3.0, 7.0, 30.0, 70.0, 5003.0])
    values = []
    for solver in ("dense", "statespace"):
        model = mc.GaussianProcessRegressor(kernel, noise=0.3, learning=None, solver=solver, progress=False).fit(
            t[:, None], y
        )
        values.append(
            (
                model.log_marginal_likelihood(model.theta_, eval_gradient=True),
                model.predict(new[:, None], return_std=True),
            )
        )
    ((value, slope), (mean, std)), ((value_s, slope_s), (mean_s, std_s)) = values
    assert value_s == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(slope_s, slope, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(mean_s, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(std_s, std, rtol=1e-8, atol=1e-8)
