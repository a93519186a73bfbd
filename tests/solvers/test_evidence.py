"""The evidence and its gradient: against formulas, against differences, and two routes to one answer."""

from pathlib import Path

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.solvers.dense import FunctionSpace
from mercer.solvers.weights import WeightSpace
from reference import regression as reference

rng = np.random.default_rng(0)
X = rng.normal(size=(140, 3))  # more than one small tile
y = rng.normal(size=140)

KERNELS = {
    "ard": 1.3 * k.RBF([1.0, 2.0, 0.5]),
    "standard": k.Standard(1.0, [0.5, 1.0, 2.0], 0.3, 0.2),
    "standardised": k.Standard(1.0, [0.5, 1.0, 2.0], 0.3, 0.2, shift=[1.0, 0.0, 2.0], scale=2.0),
    "sum": 1.3 * k.RBF(0.8) + 0.4 * k.Matern(0.7, nu=1.5).on(0) + k.Linear() * k.Periodic(2.0).on(1),
    "white": k.RBF(1.2) + k.White(0.2),
    "fixed": (1.3 * k.RBF([1.0, 2.0, 0.5]) + k.Constant(0.5)).fix("rbf_variance", "constant_variance"),
    "off": k.Standard(1.0, [0.5, 1.0, 2.0], 0.0, 0.2),
    "warped": (k.RBF(0.7) + k.Linear()).warp(mc.basis.Polynomial(2)),
    "custom": 2.0 * k.Custom(lambda a, b: np.exp(-abs(float(a[0]) - float(b[0])))),  # runs on the host
}
FINITE = {
    "polynomial": k.Polynomial(2, 1.0) + 0.5 * k.Linear(),
    "features": k.FeatureMap(mc.basis.Gaussian(centers=rng.normal(size=(6, 3)), width=1.5), alpha=0.7),
}


def theta_of(kernel, noise=None):
    theta = np.asarray(to_free(kernel))
    return theta if noise is None else np.append(theta, np.log(noise))


def differences(f, theta, step=1e-5):
    return np.array([(f(theta + step * e) - f(theta - step * e)) / (2 * step) for e in np.eye(len(theta))])


@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize("name", [*KERNELS, *FINITE])
def test_gradient_is_the_slope_of_the_evidence(name, profiled):
    kernel = {**KERNELS, **FINITE}[name]
    n = 40 if name == "custom" else 140
    theta = theta_of(kernel, 0.3)
    with FunctionSpace(kernel, X[:n], y[:n]) as value:
        found = value(theta, profiled=profiled)
        slope = differences(lambda t: value(t, gradient=False, profiled=profiled).value, theta)
    np.testing.assert_allclose(found.gradient, slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [*KERNELS, *FINITE])
@pytest.mark.parametrize("each", [False, True])
def test_value_is_the_log_density(name, each):
    kernel = {**KERNELS, **FINITE}[name]
    n = 40 if name == "custom" else 140
    noise = rng.uniform(0.1, 1.0, n) if each else 0.3
    theta = theta_of(kernel, None if each else noise)
    with FunctionSpace(kernel, X[:n], y[:n], noise if each else None) as value:
        found = value(theta, gradient=False).value
    C = kernel(X[:n]) + np.diag(np.broadcast_to(noise, n))
    assert found == pytest.approx(reference.log_evidence(C, y[:n]), abs=1e-8)


def test_gradient_matches_the_book():
    # PRML 6.70 with dC/dtheta written out for an ARD kernel: theta = (ln variance, ln l_1..3, ln noise).
    variance, lengths, noise = 1.3, np.array([1.0, 2.0, 0.5]), 0.3
    K = reference.rbf(X, X, variance, lengths)
    slopes = [K, *(K * (X[:, None, i] - X[None, :, i]) ** 2 / lengths[i] ** 2 for i in range(3)), noise * np.eye(140)]
    expected = reference.gradient(K + noise * np.eye(140), y, slopes)
    with FunctionSpace(KERNELS["ard"], X, y) as value:
        np.testing.assert_allclose(value(theta_of(KERNELS["ard"], noise)).gradient, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_weight_space_and_function_space_agree(name, profiled, each):
    kernel = FINITE[name]
    noise = rng.uniform(0.1, 1.0, 140) if each else None
    theta = theta_of(kernel, None if each else 0.3)
    with WeightSpace(kernel, X, y, noise) as w, FunctionSpace(kernel, X, y, noise) as f:
        assert isinstance(w, WeightSpace)
        a, b = w(theta, profiled=profiled), f(theta, profiled=profiled)
    assert a.value == pytest.approx(b.value, abs=1e-8)
    assert a.scale == pytest.approx(b.scale, rel=1e-9)
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 505, 1010])
def test_any_number_of_rows(n):
    # One tile, several, and the borders between them.
    A, t = rng.normal(size=(n, 3)), rng.normal(size=n)
    with FunctionSpace(KERNELS["ard"], A, t) as value:
        found = value(theta_of(KERNELS["ard"], 0.3))
    C = reference.rbf(A, A, 1.3, np.array([1.0, 2.0, 0.5])) + 0.3 * np.eye(n)
    assert found.value == pytest.approx(reference.log_evidence(C, t), abs=1e-7)
    K = C - 0.3 * np.eye(n)
    assert found.gradient[0] == pytest.approx(reference.gradient(C, t, [K])[0], abs=1e-7)


def test_profiled_is_the_best_multiple():
    kernel = KERNELS["ard"]
    theta, amplitude = theta_of(kernel, 0.3), np.array([1, 0, 0, 0, 1])
    with FunctionSpace(kernel, X, y) as value:
        best = value(theta, profiled=True)
        at_best = value(theta + np.log(best.scale) * amplitude)
        others = [value(theta + (np.log(best.scale) + d) * amplitude).value for d in (-0.3, -0.01, 0.01, 0.3)]
    assert at_best.value == pytest.approx(best.value, abs=1e-9)
    assert max(others) < best.value
    np.testing.assert_allclose(best.gradient, at_best.gradient, atol=1e-8)


def test_what_cannot_be_factorised_is_refused_quietly():
    twice = np.repeat(X[:20], 2, axis=0)
    with FunctionSpace(k.RBF(1.0), twice, np.tile(y[:20], 2), np.zeros(40)) as value:
        assert value(np.zeros(1)) is None
        value.jitter = 1e-8
        assert np.isfinite(value(np.zeros(1)).value)
        assert value(np.array([np.nan])) is None


def test_many_columns_where_digits_get_lost():
    # Many columns: distances by a matrix product, with near-duplicates that need the accurate formula.
    A = rng.normal(size=(60, 40))
    A[1] = A[0] + 1e-9
    kernel = k.RBF(np.full(40, 6.0))
    theta = theta_of(kernel, 0.1)
    with FunctionSpace(kernel, A, y[:60]) as value:
        found = value(theta)
    C = reference.rbf(A, A, 1.0, 6.0) + 0.1 * np.eye(60)
    assert found.value == pytest.approx(reference.log_evidence(C, y[:60]), abs=1e-8)
    slope = (A[:, None, 0] - A[None, :, 0]) ** 2 / 36.0 * (C - 0.1 * np.eye(60))
    assert found.gradient[0] == pytest.approx(reference.gradient(C, y[:60], [slope])[0], rel=1e-7)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_parameters():
    def resident(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    A = rng.normal(size=(1500, 60))
    kernel = k.RBF(np.full(60, 8.0))
    with FunctionSpace(kernel, A, rng.normal(size=1500)) as value:
        value(theta_of(kernel, 0.1))  # compiled, and its matrix allocated
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        value(theta_of(kernel, 0.1))
        grown = resident("VmHWM") - before
    assert grown < 4 * 1500**2 * 8  # n x n x p would be sixty of them


def test_layout_places_what_the_optimiser_moves():
    kernel = KERNELS["off"]
    theta = np.asarray(to_free(kernel))
    assert theta.size == 5  # theta2 is switched off
    assert from_free(kernel, theta + 1.0).theta2 == 0.0


def test_samples_at_rows_whose_features_are_all_known():
    words = ["".join(letters) for letters in np.random.default_rng(0).choice(list("abc"), size=(40, 6))]
    y = np.array([float(word.count("a")) for word in words])
    model = mc.GaussianProcessRegressor(1.0 * k.Spectrum(2), solver="weights", progress=False).fit(words, y)
    draws = model.sample_y(words[:7], 2000, include_noise=False)
    mean, deviation = model.predict(words[:7], return_std=True, include_noise=False)
    assert np.abs(draws.mean(axis=1) - mean).max() < 5 * deviation.max() / np.sqrt(2000)
    assert draws.std(axis=1) == pytest.approx(deviation, rel=0.1)
