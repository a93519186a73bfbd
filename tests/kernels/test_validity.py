"""Proofs: what they say, how they print, and what happens when there is none."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.check import KernelReport


@pytest.mark.parametrize(
    ("kernel", "proof"),
    [
        (k.RBF() + k.Linear(np.eye(2)), "6.17 from 6.23 and 6.20"),
        (k.RBF() * k.Exponential(), "6.18 from 6.23 and 6.56"),
        (2 * k.RBF(), "6.13 from 6.23"),
        (k.RBF().on(0) + k.Linear().on(1), "6.21 from 6.23 and 6.20"),
        (k.RBF().on(0) * k.Linear().on(1), "6.22 from 6.23 and 6.20"),
        (k.RBF().on(0), "6.19 from 6.23"),
        (k.Linear().exp(), "6.16 from 6.20"),
        (k.Linear().polynomial([1, 2]), "6.15 from 6.20"),
        (k.Linear().modulate(lambda x: x[0]), "6.14 from 6.20"),
        (k.Linear().warp(lambda x: x), "6.19 from 6.20"),
        (k.Linear().gaussian(), "6.26 from 6.20"),
        (k.RBF() + k.Linear() * k.White(), "6.17 from 6.23 and (6.18 from 6.20 and 6.62)"),
        (k.RBF() + k.Linear() + k.White(), "6.17 from 6.23, 6.20 and 6.62"),
        (k.Standard(1, 1, 0, 0), "6.13 from 6.23"),
        (k.Standard(), "6.17 from (6.13 from 6.23), 6.1 and (6.13 from 6.20)"),
    ],
)
def test_proofs_name_their_rules(kernel, proof):
    assert kernel.validity.valid is True
    assert str(kernel.validity.proof) == proof


def test_a_proof_prints_as_a_tree():
    text = str((k.RBF() + 2 * k.Linear()).validity)
    assert text.splitlines() == [
        "valid, by 6.17 from 6.23 and (6.13 from 6.20)",
        "[6.17] RBF(lengthscale=1.0) + 2.0 * Linear(): a sum of valid kernels",
        "├─ [6.23] RBF(lengthscale=1.0): Gaussian: 6.14 and 6.16 applied to a linear kernel, as in 6.25",
        "└─ [6.13] 2.0 * Linear(): a positive multiple of a valid kernel",
        "   └─ [6.20] Linear(): linear: A is the unit matrix",
    ]


def test_ignorance_and_failure_spread_honestly():
    unknown, sigmoid, spline = k.Custom(lambda x, z: 1.0), k.Sigmoid(), k.ThinPlate()
    assert unknown.validity.valid is None
    assert (unknown + k.RBF()).validity.valid is None
    assert (2 * unknown).validity.valid is None
    assert sigmoid.validity.valid is False
    assert (2 * sigmoid).validity.valid is False
    assert sigmoid.on(0).validity.valid is False
    assert (sigmoid + k.RBF()).validity.valid is None
    assert (sigmoid**2).validity.valid is None
    assert (2 * spline).validity.conditional == 2
    assert (spline + k.RBF()).validity.conditional == 2
    assert (spline * k.RBF()).validity.valid is None
    assert "conditionally valid" in str(spline.validity)
    assert "indefinite" in str(sigmoid.validity)
    assert "unknown" in str(unknown.validity)
    assert not unknown.validity
    assert k.RBF().validity


def test_check_kernel_finds_a_violation_and_a_witness():
    X = np.random.default_rng(0).normal(size=(12, 2))
    report = mc.check_kernel(lambda x, z: -np.sum((x - z) ** 2), X)
    assert isinstance(report, KernelReport)
    assert not report.passed
    assert not report
    assert report.kernel.validity.valid is None
    K = report.kernel(X)
    assert report.witness @ K @ report.witness == pytest.approx(report.smallest_eigenvalue)
    assert report.smallest_eigenvalue == pytest.approx(np.linalg.eigvalsh(K)[0])
    assert "not positive semidefinite" in str(report)


def test_check_kernel_finds_asymmetry():
    report = mc.check_kernel(lambda x, z: x[0] + 2 * z[0], np.arange(4.0))
    assert not report.symmetric
    assert not report.passed
    assert "differs" in report.verdict
    # Also across tiles, where a symmetric matrix would be mirrored.
    K = k.Custom(lambda x, z: x[0] + 2 * z[0])(np.arange(600.0))
    assert K[0, 599] == 1198
    assert K[599, 0] == 599


def test_check_kernel_passes_what_is_valid_with_rounding_only_above_tolerance():
    X = np.linspace(0, 1, 200)  # numerically singular: eigenvalues of both signs at rounding level
    report = mc.check_kernel(k.RBF(1.0), X)
    assert report.smallest_eigenvalue < 0
    assert abs(report.smallest_eigenvalue) < report.tolerance < 1e-9
    assert report.passed
    assert "valid by proof" in report.verdict
    unknown = mc.check_kernel(lambda x, z: x[0] * z[0], X)
    assert unknown.passed
    assert "not a proof" in unknown.verdict


@pytest.mark.parametrize("power", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_splines_are_conditionally_positive_on_the_space_they_declare(power, d):
    X = np.random.default_rng(power).normal(size=(40, d))
    kernel = k.ThinPlate(power=power)
    report = mc.check_kernel(kernel, X)
    assert report.passed, report
    assert report.smallest_eigenvalue > 0
    # The order is the least one: with one polynomial degree fewer removed, the form takes both signs.
    P = kernel.null_space(X)
    assert P.shape[1] == report.polynomials
    K = kernel(X)
    lower = mc.basis.Polynomial(kernel.order - 2)(X) if kernel.order > 1 else np.zeros((40, 1))
    Q = np.linalg.qr(np.column_stack([lower, np.random.default_rng(0).normal(size=(40, 40))]))[0]
    rank = lower.shape[1] if kernel.order > 1 else 0
    assert np.linalg.eigvalsh(Q[:, rank:].T @ K @ Q[:, rank:]).min() < 0


def test_null_space_follows_columns():
    X = np.random.default_rng(0).normal(size=(30, 3))
    kernel = k.ThinPlate().on([0, 2]) + k.RBF()
    assert kernel.null_space(X).shape == (30, 3)
    assert mc.check_kernel(kernel, X).passed


def test_sigmoid_has_an_indefinite_gram_matrix():
    for a, b in [(1.0, 0.0), (1.0, -1.0), (0.1, 1.0), (-1.0, 0.0)]:
        X = np.random.default_rng(0).normal(size=(60, 2)) * 3
        assert not mc.check_kernel(k.Sigmoid(a, b), X).passed


def test_precomputed_is_judged_by_its_matrix():
    assert k.Precomputed([[2.0, 1.0], [1.0, 2.0]]).validity.valid is True
    assert k.Precomputed([[1.0, 2.0], [2.0, 1.0]]).validity.valid is False
    assert k.Precomputed([[1.0, 1.0], [1.0, 1.0]]).validity.valid is True
    with pytest.raises(mc.InvalidKernelError, match="symmetric"):
        k.Precomputed([[1.0, 2.0], [0.0, 1.0]])
    with pytest.raises(mc.InvalidKernelError, match="square"):
        k.Precomputed([[1.0, 2.0]])
    for bad in ([2], [-1], [0.5], [[0, 1]]):
        with pytest.raises(mc.DataError, match="row numbers"):
            k.Precomputed(np.eye(2))(bad)


@pytest.mark.parametrize("power", [2, 4, 6])
def test_splines_far_from_zero(power):
    X = np.random.default_rng(0).normal(size=(40, 2)) + 1e6
    report = mc.check_kernel(k.ThinPlate(power=power), X)
    assert report.passed, report
    assert report.polynomials == (power // 2 + 1) * (power // 2 + 2) // 2


def test_null_space_of_a_selection_of_a_selection():
    X = np.random.default_rng(0).normal(size=(9, 3))
    kernel = k.ThinPlate().on([0]).on([1, 2])
    np.testing.assert_allclose(kernel.null_space(X), np.column_stack([np.ones(9), X[:, 1]]))


def test_what_cannot_be_known_is_not_denied():
    gaussian = k.Linear().exp().normalize()  # (6.25): this is the Gaussian kernel
    X = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(gaussian(X), k.RBF()(X), rtol=1e-12)
    for kernel in (gaussian, k.Linear().polynomial([1.0, 0.5]), k.Linear() + k.Polynomial(2), k.Linear() * k.Linear()):
        assert kernel.stationary is None
    assert (k.Linear() + k.RBF()).stationary is False
    assert (k.Linear() * k.RBF()).stationary is False
    assert (k.Linear() * k.White()).stationary is None
    assert k.Polynomial(1).gaussian().stationary is None  # which is the Gaussian kernel
    assert k.RBF([1.0, 1.0]).isotropic is True
    assert k.RBF([2.0]).isotropic is True
    assert k.RBF().on(slice(None)).isotropic is True
    assert k.RBF().on(0).isotropic is False
    assert k.Sigmoid(0.0, 1.0).validity.valid is True


def test_proofs_of_extreme_and_of_traced_parameters():
    import jax

    assert k.Standard(theta1=1e39).validity
    assert k.Standard(theta1=1e-46).validity
    assert k.GaussianNetwork(width=1e-25).validity
    seen = []
    jax.jit(lambda q: seen.append(q.validity.valid) or q(np.zeros(2)))(k.Standard() + k.GaussianNetwork())
    jax.jit(lambda q: seen.append(q.validity.valid) or q(np.arange(2)))(k.Precomputed(np.eye(2)))
    assert seen == [True, None]
