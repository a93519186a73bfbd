"""Kernels on the scale of the data, and amplitudes."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.parameters import evolve_at
from mercer.learning import heuristics

rng = np.random.default_rng(1)
X = rng.uniform(0, 10, size=(90, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=90)


def test_starts_are_scaled_to_the_data():
    A = np.column_stack([X[:, 0] * 1e6, X[:, 1] * 1e-6])
    scaled = heuristics.starting_kernels(k.RBF([1.0, 1.0]) + k.Matern(7.0), A)[1]
    lengths = scaled.parameters["rbf_lengthscale"]
    assert lengths[0] / lengths[1] == pytest.approx(A[:, 0].std() / A[:, 1].std())
    assert scaled.parameters["matern_lengthscale"] == 7.0  # chosen by a person
    by_columns = heuristics.starting_kernels(k.RBF().on(1), A)[1]
    assert by_columns.parameters["lengthscale"] == pytest.approx(A[:, 1].std())
    far, near = (mc.GaussianProcessRegressor(progress=False).fit(inputs, y) for inputs in (A, X))
    assert far.log_marginal_likelihood_ == pytest.approx(near.log_marginal_likelihood_, abs=0.02)


def test_amplitudes_reach_the_whole_kernel_or_nothing():
    def multiplied(kernel, c):
        places = heuristics.amplitude_places(kernel)
        if places is None:
            return None
        for path, field in places:
            node = kernel
            for name, index in path:
                node = getattr(node, name) if index is None else getattr(node, name)[index]
            kernel = evolve_at(kernel, path, **{field: getattr(node, field) * c})
        return kernel(X[:5])

    for kernel in (
        2.0 * k.RBF(), 2.0 * k.RBF() + k.White(0.1) + k.Constant(1.0), k.Standard(), (2.0 * k.RBF()) * k.Linear(),
        (2.0 * k.RBF() + 3.0 * k.Linear()).on([0, 1]), 1.5 * (k.RBF() + k.Linear()),
    ):  # fmt: skip
        np.testing.assert_allclose(multiplied(kernel, 3.0), 3.0 * kernel(X[:5]))
    for kernel in (k.RBF(), 2.0 * k.RBF() + k.Linear(), (2.0 * k.RBF()).fix("variance"), (2.0 * k.RBF()) ** 2):
        assert heuristics.amplitude_places(kernel) is None


def test_lengthscales_of_what_inputs_explain_alone():
    rng = np.random.default_rng(2)
    A = rng.uniform(size=(400, 3)) * [1.0, 100.0, 1e-3]
    f = 2 * A[:, 0] + np.sin(0.3 * A[:, 1])  # a plane, a wave of lengthscale 1 / 0.3, nothing
    found = heuristics.marginal_lengthscales(A, f + 0.3 * rng.normal(size=400))
    assert np.isinf(found[[0, 2]]).all()
    assert 0.4 / 0.3 < found[1] < 2.5 / 0.3
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=200)
        inputs = np.random.default_rng(99 + seed).normal(size=(200, 8))
        assert np.isinf(heuristics.marginal_lengthscales(inputs, noise)).all()
    assert np.isinf(heuristics.marginal_lengthscales(np.ones((50, 2)), noise[:50])).all()
    assert np.isinf(heuristics.marginal_lengthscales(A[:50], np.ones(50))).all()
