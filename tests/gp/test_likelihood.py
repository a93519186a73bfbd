"""Likelihoods of labels: derivatives by differences, integrals to forty digits, and what must be symmetric."""

import mpmath as mp
import numpy as np
import pytest

from mercer.gp.likelihood import Logistic, Probit, ProbitMixture, with_fast_integrals
from reference.likelihoods import Gaussian

LIKELIHOODS = [Logistic(), Probit(), Gaussian(0.3)]
F = np.array([-3.0, -1.2, 0.0, 0.4, 2.5])
T = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
V = np.array([0.01, 0.3, 1.0, 20.0, 500.0])
STEP = 1e-5


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda p: p.name)
def test_derivatives_are_those_of_the_values(likelihood):
    here, up, down = (likelihood.derivatives(F + shift, T) for shift in (0.0, STEP, -STEP))
    for order in range(3):
        np.testing.assert_allclose((up[order] - down[order]) / (2 * STEP), here[order + 1], rtol=1e-7, atol=1e-8)
    here, up, down = (likelihood.tilted(F + shift, V, T) for shift in (0.0, STEP, -STEP))
    for order in range(2):
        np.testing.assert_allclose((up[order] - down[order]) / (2 * STEP), here[order + 1], rtol=1e-6, atol=1e-8)
    here, up, down = (likelihood.expected(F + shift, V, T) for shift in (0.0, STEP, -STEP))
    np.testing.assert_allclose((up.value - down.value) / (2 * STEP), here.in_mean, rtol=1e-6, atol=1e-8)
    step = 1e-4 * V
    up, down = (likelihood.expected(F, V + sign * step, T) for sign in (1, -1))
    np.testing.assert_allclose((up.value - down.value) / (2 * step), here.in_variance, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("mean", "variance"), [(0.7, 1e-4), (-3.0, 0.5), (2.0, 30.0), (-40.0, 60.0), (5.0, 1e4)])
def test_logistic_integrals_to_many_digits(mean, variance):
    with mp.workdps(30):
        deviation = mp.sqrt(variance)
        centre = min(deviation, max(-mean, 0) / deviation)  # a factor that grows like exp(f) moves the mass so far
        cuts = [centre - 14, centre, centre + 14, *((edge - mean) / deviation for edge in (-40, -8, -2, 0, 2, 8, 40))]
        cuts = sorted(cut for cut in cuts if centre - 14 <= cut <= centre + 14)
        gauss = lambda z: mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)
        sigmoid = lambda f: 1 / (1 + mp.exp(-f))
        exact = mp.quad(lambda z: gauss(z) * sigmoid(mean + deviation * z), cuts)
        log_exact = float(mp.log(exact))
        cuts = sorted({-14, 14, *(cut for cut in cuts if -14 < cut < 14)})
        expected = float(mp.quad(lambda z: gauss(z) * mp.log(sigmoid(mean + deviation * z)), cuts))
    one, at, spread = np.ones(1), np.array([mean]), np.array([variance])
    assert Logistic().tilted(at, spread, one).log_z[0] == pytest.approx(log_exact, rel=1e-11, abs=1e-12)
    assert Logistic().expected(at, spread, one).value[0] == pytest.approx(expected, rel=1e-10)
    assert Logistic().probability(mean, variance) == pytest.approx(np.exp(log_exact), rel=1e-10)


@pytest.mark.parametrize("likelihood", LIKELIHOODS[:2], ids=lambda p: p.name)
def test_both_sides_make_one(likelihood):
    mean, variance = np.meshgrid(np.linspace(-30, 30, 13), [0.0, 1e-8, 1.0, 1e3])
    p, q = likelihood.probability(mean, variance), likelihood.probability(-mean, variance)
    np.testing.assert_allclose(p + q, 1, atol=1e-14)
    assert (p >= 0).all()
    assert (p <= 1).all()
    np.testing.assert_allclose(
        p[0], np.exp(likelihood.derivatives(mean[0], np.ones(13)).value), rtol=1e-10
    )  # no spread
    assert np.all(np.diff(p, axis=1) >= 0)


def test_the_probit_integral_has_a_closed_form_that_quadrature_confirms():
    closed = Probit().tilted(F, V, T)
    by_quadrature = super(Probit, Probit()).tilted(F, V, T)
    for ours, theirs in zip(closed, by_quadrature, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)


def test_mackays_closed_form_is_near():
    mean, variance = np.meshgrid(np.linspace(-6, 6, 25), [0.1, 1.0, 10.0])
    p = Logistic().probability(mean, variance)
    assert 0 < np.abs(Logistic().closed_form(mean, variance) - p).max() < 0.02


def test_a_logistic_is_a_mixture_of_probits():
    mean, variance = np.linspace(-30, 30, 41)[:, None], np.array([0.0, 0.1, 1.0, 30.0, 1e4])
    mean, variance = (part.ravel() for part in np.broadcast_arrays(mean, variance))
    assert np.allclose(ProbitMixture().probability(mean, variance), Logistic().probability(mean, variance), atol=1e-8)
    assert isinstance(with_fast_integrals(Logistic()), ProbitMixture)
    for t in (np.ones_like(mean), -np.ones_like(mean)):
        exact, found = Logistic().tilted(mean, variance, t), ProbitMixture().tilted(mean, variance, t)
        z = np.exp(exact.log_z)
        assert np.allclose(z * found.log_z, z * exact.log_z, atol=1e-7)
        assert np.allclose(z * found.first, z * exact.first, atol=1e-7)
        assert np.allclose(z * found.second, z * exact.second, atol=1e-7)
