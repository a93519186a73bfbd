"""The largest eigenvalues from products alone, against LAPACK."""

import numpy as np
import pytest

from mercer.linalg.eigen import largest, signs_to_fix

rng = np.random.default_rng(0)


def matrix(values):
    """A symmetric matrix with these eigenvalues."""
    n = len(values)
    V = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (V * values) @ V.T


SPECTRA = {
    "falling": 0.9 ** np.arange(150),
    "slowly falling": 1 / np.arange(1.0, 151),
    "cut inside a cluster": np.concatenate([[5, 4, 3], np.full(40, 1.0) + 1e-6 * np.arange(40), 0.1 * rng.random(107)]),
    "repeated": np.repeat([3.0, 2.0, 1.0], 50),
    "rank three": np.concatenate([[3.0, 2.0, 1.0], np.zeros(147)]),
    "indefinite": np.linspace(-10, 4, 150),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("guess", ["none", "good"])
def test_values_vectors_and_residuals(name, guess):
    values = SPECTRA[name]
    A = matrix(values)
    k, exact = 6, np.sort(values)[::-1][:6]
    start = np.zeros((150, 0)) if guess == "none" else np.linalg.eigh(A)[1][:, -12:] + 0.01 * rng.normal(size=(150, 12))
    found = largest(lambda V: A @ V, start, k, 1e-9, 300, np.random.default_rng(1))
    assert found.converged
    # The residual bounds the error of a value, and is what it says it is.
    np.testing.assert_allclose(found.values, exact, atol=1e-9 * np.abs(values).max())
    R = A @ found.vectors - found.vectors * found.values
    np.testing.assert_allclose(np.linalg.norm(R, axis=0) / np.abs(values).max(), found.residuals, atol=1e-12, rtol=0.1)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-10)


def test_a_good_start_saves_products():
    A = matrix(SPECTRA["falling"])
    near = np.linalg.eigh(A)[1][:, -20:] + 1e-6 * rng.normal(size=(150, 20))
    counts = [
        largest(lambda V: A @ V, start, 6, 1e-9, 300, np.random.default_rng(0)).products
        for start in (near, rng.normal(size=(150, 1)))
    ]
    assert counts[0] < counts[1]


def test_the_number_of_products_is_kept_to_and_told():
    A, calls = matrix(SPECTRA["slowly falling"]), []

    def product(V):
        calls.append(V.shape[1])
        return A @ V

    found = largest(product, np.zeros((150, 0)), 20, 1e-14, 3, np.random.default_rng(0))
    assert len(calls) == found.products == 3
    assert not found.converged
    assert found.residuals.max() > 1e-14


@pytest.mark.parametrize("n", [1, 2, 5])
def test_small_matrices_are_exact(n):
    A = matrix(np.arange(1.0, n + 1))
    found = largest(lambda V: A @ V, np.zeros((n, 0)), 3, 1e-12, 50, np.random.default_rng(0))
    np.testing.assert_allclose(found.values, np.arange(n, 0, -1.0)[:3], atol=1e-12)


def test_zero_matrix():
    found = largest(lambda V: 0 * V, np.zeros((30, 0)), 3, 1e-10, 50, np.random.default_rng(0))
    assert found.converged
    np.testing.assert_array_equal(found.values, np.zeros(3))


def test_signs_do_not_depend_on_rounding():
    V = np.array([[0.5, -0.7], [-0.5, 0.1], [0.5, 0.7]])
    np.testing.assert_array_equal(signs_to_fix(V), [1, -1])
    for noise in 1e-12 * rng.normal(size=(20, 3, 2)):
        np.testing.assert_array_equal(signs_to_fix(V + noise), [1, -1])
        np.testing.assert_array_equal(signs_to_fix(-V - noise), [-1, 1])
