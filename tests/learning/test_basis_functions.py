"""The evidence of a linear model, in the parameters of its basis functions."""

import numpy as np
import pytest

from mercer import kernels as k
from mercer.learning.basis_functions import BasisEvidence

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
Y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], 100 * X[:, 0] * X[:, 1]]) + 0.1 * rng.normal(size=(40, 2))


@pytest.mark.parametrize("normalized", [False, True])
def test_the_evidence_and_its_gradient(normalized):
    """Written out with n x n matrices, for the linear model with a constant whose prior is flat."""
    centers, T, start = X[:6], (Y - Y.mean(axis=0)) / Y.std(axis=0), np.log([0.7, 1.1])
    fixed = np.full((40, 1), 40**-0.5)

    def loss(theta):
        K = k.RBF(np.exp(theta[:2]))(X, centers)
        Phi = K / K.sum(axis=1)[:, None] if normalized else K
        Phi = Phi - Phi.mean(axis=0)
        C = np.eye(40) + Phi @ Phi.T / np.exp(theta[2])
        quadratic = np.einsum("ij,ij->j", T, np.linalg.solve(C, T))
        return np.linalg.slogdet(C)[1] + 20 * np.sum(np.log(quadratic / 40))  # two targets

    kernel, theta = k.RBF(np.exp(start)), np.r_[start, np.log(0.05)]
    value, slope, _ = BasisEvidence(kernel, X, T, centers, fixed, normalized)(theta)
    assert -value == pytest.approx(loss(theta), rel=1e-9)
    steps = [(loss(theta + h) - loss(theta - h)) / 2e-5 for h in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(-slope, steps, rtol=1e-5, atol=1e-5)
