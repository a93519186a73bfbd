"""Explicit features, basis functions, and Mercer's expansion."""

import math

import numpy as np
import pytest

import mercer as mc
from mercer import basis
from mercer import kernels as k

rng = np.random.default_rng(0)
X = rng.normal(size=(8, 3))


def test_features_of_the_quadratic_kernel_are_those_of_the_book():
    x = np.array([[2.0, 3.0]])
    np.testing.assert_allclose(k.Polynomial(2).features(x), [[4.0, math.sqrt(2) * 6.0, 9.0]], rtol=1e-15)


@pytest.mark.parametrize(
    ("kernel", "columns"),
    [
        (k.Linear(), 3),
        (k.Linear(np.diag([1.0, 2.0, 0.0])), 3),
        (k.Polynomial(3), math.comb(3 + 3 - 1, 3)),
        (k.Polynomial(3, offset=0.5), math.comb(3 + 3, 3)),
        (k.Constant(2.0), 1),
        (k.Linear() + 3.0, 4),
        (2 * k.Linear() * k.Polynomial(2), 18),
        ((k.Linear() + 1.0) ** 3, math.comb(4 + 3 - 1, 3)),
        (k.Linear().polynomial([1.0, 0.0, 2.0]), 1 + 6),
        (k.Linear().on([0, 2]) + k.Polynomial(2).on(1), 3),
        (k.Linear().warp(lambda x: x**2).modulate(lambda x: 1 + x[0]), 3),
        (k.Polynomial(2, offset=1.0).normalize(), 10),
        (k.FeatureMap(basis.Gaussian(np.zeros((4, 3)), 2.0), alpha=3.0), 4),
        (k.FeatureMap(lambda x: [float(x[0]), 1.0]), 2),
    ],
)
def test_features_multiply_to_the_gram_matrix(kernel, columns):
    F = kernel.features(X)
    assert F.shape == (8, columns)
    np.testing.assert_allclose(F @ F.T, kernel(X), rtol=1e-12, atol=1e-13)
    G = kernel.features(X[:3])
    np.testing.assert_allclose(F @ G.T, kernel(X, X[:3]), rtol=1e-12, atol=1e-13)


def test_features_that_do_not_exist_or_are_too_many_are_refused():
    for kernel in (k.RBF(), k.Linear() + k.RBF(), k.Linear() * k.Matern(), k.White(), k.Linear().exp(), k.Sigmoid()):
        with pytest.raises(mc.InfiniteFeaturesError):
            kernel.features(X)
    with pytest.raises(mc.InfiniteFeaturesError, match="dimensions"):
        k.Polynomial(10).features(np.ones((2, 100)))


def test_many_rows_of_features_come_in_strips():
    many = rng.normal(size=(1300, 3))
    F = k.Polynomial(2).features(many)
    np.testing.assert_allclose(F[777:778], k.Polynomial(2).features(many[777:778]), rtol=1e-15)
    np.testing.assert_allclose(k.RBF().diag(many), 1.0)


def test_bases():
    x = np.array([-0.5, 0.0, 2.0])
    np.testing.assert_allclose(basis.Polynomial(3)(x), np.vander(x, 4, increasing=True))
    centers = np.array([0.0, 1.0])
    np.testing.assert_allclose(
        basis.Gaussian(centers, 0.5)(x), np.exp(-((x[:, None] - centers) ** 2) / 0.5), rtol=1e-14
    )
    np.testing.assert_allclose(
        basis.Sigmoid(centers, 0.5)(x), 1 / (1 + np.exp(-(x[:, None] - centers) / 0.5)), rtol=1e-14
    )
    assert basis.Polynomial(2)(X).shape == (8, 10)
    with pytest.raises(mc.DataError, match="one input"):
        basis.Sigmoid(np.zeros((2, 3)))(X)
    with pytest.raises(mc.DataError, match="columns"):
        basis.Gaussian([0.0, 1.0])(X)
    with pytest.raises(mc.ParameterError):
        basis.Polynomial(-1)
    with pytest.raises(mc.ParameterError):
        basis.Gaussian([0.0], width=0.0)


class TestMercer:
    """The Gaussian kernel under a Gaussian measure has a known spectrum (RW06 4.3.1)."""

    length, sigma = 0.8, 1.0

    def spectrum(self, count):
        a, b = 1 / (4 * self.sigma**2), 1 / (2 * self.length**2)
        c = math.sqrt(a**2 + 2 * a * b)
        A = a + b + c
        values = math.sqrt(2 * a / A) * (b / A) ** np.arange(count)

        def functions(x):
            hermite = [np.polynomial.hermite.Hermite.basis(i)(math.sqrt(2 * c) * x) for i in range(count)]
            norm = [math.sqrt(math.sqrt(a / c) * 2**i * math.factorial(i)) for i in range(count)]
            # Orthonormal under the measure: sqrt(c/a)^(1/2) / sqrt(2^i i!) exp(-(c-a) x^2) H_i(sqrt(2c) x).
            return np.column_stack([h / n * np.exp(-(c - a) * x**2) for h, n in zip(hermite, norm, strict=True)])

        return values, functions

    def test_quadrature_converges_to_the_known_spectrum(self):
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        expansion = mc.mercer_expansion(k.RBF(self.length), nodes, 8, weights=weights / weights.sum())
        values, functions = self.spectrum(8)
        np.testing.assert_allclose(expansion.eigenvalues, values, rtol=1e-9)
        # Eigenfunctions at new points, up to sign.
        z = np.linspace(-2, 2, 9)
        got, known = expansion.eigenfunctions(z), functions(z)
        np.testing.assert_allclose(np.abs(got), np.abs(known), rtol=1e-6, atol=1e-6)

    def test_samples_converge_as_their_number_grows(self):
        values, _ = self.spectrum(5)
        errors = []
        for n in (100, 3000):
            x = np.random.default_rng(1).normal(size=n)
            errors.append(np.abs(mc.mercer_expansion(k.RBF(self.length), x, 5).eigenvalues - values).max())
        assert errors[1] < errors[0] / 2
        assert errors[1] < 0.02

    def test_laws(self):
        x = rng.normal(size=200)
        expansion = mc.mercer_expansion(k.RBF(0.5), x, 12)
        psi = expansion.eigenfunctions(x)
        np.testing.assert_allclose(psi.T @ psi / 200, np.eye(12), atol=1e-8)
        F = expansion.features(x)
        tail = k.RBF(0.5).diag(x).mean() - expansion.eigenvalues.sum()
        assert np.abs(F @ F.T - k.RBF(0.5)(x)).max() < 200 * tail
        assert (np.diff(expansion.eigenvalues) <= 0).all()
        assert "12 eigenvalues" in repr(expansion)

    def test_refusals(self):
        x = np.linspace(0, 1, 10)
        with pytest.raises(mc.ParameterError, match="between 1 and"):
            mc.mercer_expansion(k.RBF(), x, 11)
        with pytest.raises(mc.ParameterError, match="exceed rounding errors"):
            mc.mercer_expansion(k.Linear(), x, 5)
        with pytest.raises(mc.InvalidKernelError, match="positive semidefinite"):
            mc.mercer_expansion(k.Sigmoid(), x, 2)
        with pytest.raises(mc.ParameterError, match="negative"):
            mc.mercer_expansion(k.RBF(), x, 2, weights=-np.ones(10))


class TestNetworks:
    """Infinite networks: the kernels are the covariances of random hidden units (PRML 6.4.7, Williams 1998)."""

    @staticmethod
    def probit_units(x, H, seed):
        from scipy.special import erf

        r = np.random.default_rng(seed)
        u0, u = r.normal(size=H) * math.sqrt(0.7), r.normal(size=(2, H)) * math.sqrt(1.5)
        return erf(u0 + x @ u)

    @staticmethod
    def gaussian_units(x, H, seed):
        u = np.random.default_rng(seed).normal(size=(H, 2)) * 1.4
        return np.exp(-((x[:, None, :] - u) ** 2).sum(-1) / (2 * 0.9**2))

    @pytest.mark.parametrize(
        ("kernel", "units"),
        [
            (k.ArcSine(bias=0.7, weight=1.5), "probit_units"),
            (k.GaussianNetwork(width=0.9, spread=1.4), "gaussian_units"),
        ],
    )
    def test_finite_networks_converge_to_the_kernel(self, kernel, units):
        x = np.random.default_rng(3).normal(size=(6, 2))
        errors = []
        for H in (300, 300 * 64):
            covariances = [f @ f.T / H for f in (getattr(self, units)(x, H, seed) for seed in range(8))]
            errors.append(np.sqrt(np.mean([(c - kernel(x)) ** 2 for c in covariances])))
        # Monte Carlo: 64 times the units, an eighth of the error; and no bias that would stop it.
        assert errors[1] < errors[0] / 5
        assert errors[1] < 0.01

    def test_a_network_becomes_gaussian_as_it_grows(self):
        x = np.random.default_rng(3).normal(size=(1, 2))

        def kurtosis(H):
            r = np.random.default_rng(0)
            outputs = [r.normal(size=H) @ self.gaussian_units(x, H, s)[0] / math.sqrt(H) for s in range(4000)]
            outputs = np.array(outputs) / np.std(outputs)
            return np.mean(outputs**4) - 3

        assert kurtosis(2) > 1.0
        assert abs(kurtosis(300)) < 0.3
