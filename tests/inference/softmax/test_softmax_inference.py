"""Joint softmax classification: explicit (nC)^2 matrices, differences, brute-force integrals, and laws."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from mercer import kernels as k
from mercer.core.coordinates import to_free
from mercer.gp.likelihood import Logistic
from mercer.gram import on
from mercer.inference.laplace import laplace as binary_laplace
from mercer.inference.sites import Covariance, LatentPosterior
from mercer.inference.softmax.expectation import mean_softmax
from mercer.inference.softmax.laplace import softmax_laplace as laplace
from mercer.inference.softmax.posterior import SoftmaxPosterior
from mercer.inference.softmax.variational import StoppingRule
from mercer.inference.softmax.variational import softmax_variational as variational
from mercer.inference.variational import gaussian

SETTINGS = [(2, True), (3, True), (3, False), (5, True), (5, False)]


def rbf(X, amplitude, lengthscale, Z=None):
    Z = X if Z is None else Z
    return amplitude * np.exp(-0.5 * ((X[:, None] - Z[None]) ** 2).sum(-1) / lengthscale**2)


def problem(C, shared, n=22, seed=0):
    """Rows, labels, and one covariance a kernel."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, 2)), rng.integers(0, C, n)
    y[:C] = range(C)
    return X, y, [rbf(X, 3.0 + c, 0.8 + 0.2 * c) for c in range(1 if shared else C)]


def covariances(Ks):
    return [Covariance(np.triu(K)) for K in Ks]  # nothing may look below the diagonal


def joint(Ks, C):
    return [Ks[0]] * C if len(Ks) == 1 else Ks


def explicit(Ks, s):
    """K and W, (nC, nC), from the formulas."""
    C, n = s.shape
    K, W = np.zeros((C, n, C, n)), np.zeros((C, n, C, n))
    for c in range(C):
        K[c, :, c] = Ks[c]
        for d in range(C):
            W[c, range(n), d, range(n)] = (c == d) * s[c] - s[c] * s[d] / s.sum(axis=0)
    return K.reshape(C * n, C * n), W.reshape(C * n, C * n)


def naive_laplace(Ks, y, C):
    """Newton's method and RW06 3.44 as written: ln Z and the mode."""
    n = len(y)
    targets = np.eye(C)[y].T
    f = np.zeros((C, n))
    for _ in range(50):
        pi = softmax(f, axis=0)
        K, W = explicit(Ks, pi)
        B = np.eye(C * n) + W @ K
        f = (K @ np.linalg.solve(B, W @ f.ravel() + (targets - pi).ravel())).reshape(C, n)
    quadratic = float(f.ravel() @ (targets - pi).ravel())
    return (f[y, range(n)] - logsumexp(f, axis=0)).sum() - 0.5 * quadratic - 0.5 * np.linalg.slogdet(B)[1], f


def whole(triangle):
    return np.triu(triangle) + np.triu(triangle, 1).T


def directions(Ks, seed=3):
    """A symmetric change of every K, and what contracts with it."""
    rng = np.random.default_rng(seed)
    changes = []
    for K in Ks:
        A = rng.normal(size=K.shape)
        changes.append(0.01 * K @ (A + A.T) @ K)
    return changes, [lambda inverse, a, d=d: np.sum((np.outer(a, a) - whole(inverse)) * d) for d in changes]


@pytest.mark.parametrize(("C", "shared"), SETTINGS)
def test_mode_and_evidence_are_those_of_explicit_matrices(C, shared):
    _, y, Ks = problem(C, shared)
    found = laplace(covariances(Ks), y)
    value, mode = naive_laplace(joint(Ks, C), y, C)
    assert found.converged
    assert found.log_evidence == pytest.approx(value, rel=1e-11)
    np.testing.assert_allclose(found.mean, mode, atol=1e-9)
    np.testing.assert_allclose(found.a, np.eye(C)[y].T - softmax(mode, axis=0), atol=1e-9)


@pytest.mark.parametrize("infer", [laplace, variational])
@pytest.mark.parametrize(("C", "shared"), SETTINGS)
def test_gradient_is_the_slope_of_the_evidence(C, shared, infer):
    _, y, Ks = problem(C, shared)
    changes, contracts = directions(Ks)

    def value(k, step):
        moved = [K + step * d * (i == k) for i, (K, d) in enumerate(zip(Ks, changes, strict=True))]
        return infer(covariances(moved), y, gradient=False).log_evidence

    # The slope of the bound leaves out how its sites answer, and both have errors of quadrature.
    step, tolerance = (1e-4, 1e-6) if infer is laplace else (1e-2, 0.01)
    slopes = infer(covariances(Ks), y).slope(contracts)
    assert len(slopes) == len(Ks)
    differences = [(value(k, step) - value(k, -step)) / (2 * step) for k in range(len(Ks))]
    scale = np.abs(differences).max()
    np.testing.assert_allclose(slopes, differences, rtol=1e-6, atol=tolerance * scale)


def test_gradient_without_the_mode_would_be_wrong():
    _, y, Ks = problem(3, True)
    _, contracts = directions(Ks)
    found, bare = laplace(covariances(Ks), y), laplace(covariances(Ks), y, gradient=False)
    (right,), (explicit_part,) = found.slope(contracts), bare.slope(contracts)
    assert abs(right - explicit_part) > 1e-2 * abs(right)


def test_blocks_and_variances_are_those_of_explicit_matrices():
    for C, shared in SETTINGS:
        _, y, Ks = problem(C, shared, n=12)
        found = laplace(covariances(Ks), y)
        pi, n = found.sites, len(y)
        K, W = explicit(joint(Ks, C), pi)
        R = (W @ np.linalg.inv(np.eye(C * n) + K @ W)).reshape(C, n, C, n)
        Sigma = np.linalg.inv(np.linalg.inv(K + 1e-9 * np.eye(C * n)) + W).reshape(C, n, C, n)
        V = np.random.default_rng(0).normal(size=(C, n))
        np.testing.assert_allclose(found.factor.times(V), np.einsum("cidj,dj->ci", R, V), atol=1e-9)
        fresh = laplace(covariances(Ks), y, gradient=False).factor
        scaled = fresh.scaled_variances()
        blocks = np.array([[Sigma[:, i, :, i] for i in range(n)]])[0]  # (n, C, C)
        away = np.eye(C)[None] - pi.T[:, None, :]  # e_c - pi, row by row
        rows = laplace(covariances(Ks), y, gradient=False).factor.row_covariances()
        U = np.linalg.svd(np.ones((1, C)))[2][1:]  # of these differences the common part is not felt
        np.testing.assert_allclose(U @ rows @ U.T, U @ blocks @ U.T, atol=1e-6)
        np.testing.assert_allclose((scaled / pi - 1).T, np.einsum("icd,ide,ice->ic", away, blocks, away), atol=1e-6)
        for c in range(C):
            np.testing.assert_allclose(whole(found.factor.summed_block([c])), R[c, :, c], atol=1e-9)


# -- two classes are one function ------------------------------------------------------------------------------------


def test_two_classes_are_the_logistic_model_with_twice_the_kernel():
    rng = np.random.default_rng(1)
    X, kernel = rng.normal(size=(60, 2)), 2.5 * k.RBF([0.7, 1.1])
    y = (X[:, 0] + 0.7 * rng.normal(size=60) > 0).astype(int)
    Z = 3 * rng.normal(size=(40, 2))
    theta, K = np.asarray(to_free(kernel)), np.zeros((60, 60))
    with on(kernel, X).varying(compiled=True) as triangle:
        triangle.fill(theta, K)
        one = [Covariance(K)]
        found = laplace(one, y)
        posterior = SoftmaxPosterior.of(laplace(one, y), [kernel], X)
        slope = found.slope([lambda inverse, a: triangle.contract(theta, inverse, a)])
        double = Covariance(2 * K)
        other = binary_laplace(double, 1.0 - 2.0 * y, Logistic())
        lower = np.asfortranarray(np.tril(double.factor(other.S).lower))
        peer = LatentPosterior(2 * kernel, X, other.a, np.sqrt(other.S), lower)
        other = binary_laplace(double, 1.0 - 2.0 * y, Logistic())
        expected = other.slope([lambda inverse, a: 2 * triangle.contract(theta, inverse, a)])
    assert found.log_evidence == pytest.approx(other.log_evidence, rel=1e-8)
    np.testing.assert_allclose(slope, expected, rtol=1e-8, atol=1e-8)
    means, variances = posterior.joint_moments(Z)
    mean, variance = peer.moments(Z)
    np.testing.assert_allclose(means[:, 0] - means[:, 1], mean, atol=1e-8)
    difference = np.array([1.0, -1.0])
    np.testing.assert_allclose(np.einsum("c,scd,d->s", difference, variances, difference), variance, atol=1e-8)
    np.testing.assert_allclose(mean_softmax(means, variances)[:, 0], Logistic().probability(mean, variance), atol=1e-8)


@pytest.mark.parametrize("amplitude", [1.0, 30.0, 300.0])
def test_two_classes_have_the_bound_of_the_best_gaussian(amplitude):
    _, y, Ks = problem(2, True)
    K = amplitude * Ks[0]
    found = variational(covariances([K]), y, gradient=False)
    peer = gaussian(Covariance(2 * K), 1.0 - 2.0 * y, Logistic(), gradient=False)
    assert found.converged
    assert found.log_evidence == pytest.approx(peer.log_evidence, rel=2e-3)
    np.testing.assert_allclose(found.mean[0] - found.mean[1], peer.mean, atol=0.03 * np.abs(peer.mean).max())


# -- the bound ---------------------------------------------------------------------------------------------------------


def truth(K, y, C, side=31, reach=6.0):
    """The evidence by integrating over the C - 1 contrasts of every row: a grid in whitened coordinates."""
    L = np.linalg.cholesky(K)
    contrasts = np.linalg.svd(np.ones((1, C)))[2][1:]
    axis = np.linspace(-reach, reach, side)
    d = len(y) * (C - 1)
    total = 0.0
    rest = np.stack(np.meshgrid(*[axis] * (d - 1), indexing="ij"), -1).reshape(-1, d - 1)
    for first in axis:
        z = np.column_stack([np.full(len(rest), first), rest])
        f = np.einsum("ij,pjc,cd->pid", L, z.reshape(-1, len(y), C - 1), contrasts)
        logs = (np.take_along_axis(f, y[None, :, None], axis=2)[..., 0] - logsumexp(f, axis=2)).sum(axis=1)
        total += np.exp(logs - 0.5 * (z**2).sum(axis=1)).sum()
    return math.log(total) + d * math.log((axis[1] - axis[0]) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("amplitude", "labels"), [(0.3, [0, 1]), (3.0, [0, 1]), (3.0, [2, 2]), (30.0, [0, 2])])
def test_bound_is_below_the_evidence_and_not_by_much(amplitude, labels):
    X, y, C = np.array([[0.0], [0.7]]), np.array(labels), 3
    K = rbf(X, amplitude, 1.0)
    found = variational([Covariance(K.copy())] * C, y)  # one each: the last class may have no rows
    right = truth(K, y, C)
    assert found.converged
    assert right - 0.02 - 0.02 * amplitude < found.log_evidence < right + 1e-3
    again = variational([Covariance(K.copy())] * C, y, start=found, gradient=False)
    assert again.log_evidence == pytest.approx(found.log_evidence, abs=5e-3)
    # For small variances both are second-order exact.
    if amplitude < 1:
        assert laplace([Covariance(K.copy())] * C, y).log_evidence == pytest.approx(right, abs=0.02)


@pytest.mark.parametrize("amplitude", [1.0, 30.0])
def test_the_bound_is_that_of_sampling_and_near_its_maximum(amplitude):
    """E ln p(labels | f) - KL by many samples from explicit matrices, at what was found and around it."""
    _, y, Ks = problem(3, False, n=9)
    Ks = [amplitude * K for K in Ks]
    C, n = 3, len(y)
    found = variational(covariances(Ks), y, gradient=False)
    z = np.random.default_rng(0).normal(size=(20000, C))
    z = np.concatenate([z, -z])

    def bound(a, s):
        K, W = explicit(Ks, s)
        m = (K @ a.ravel()).reshape(C, n)
        Sigma = K @ np.linalg.inv(np.eye(C * n) + W @ K)
        blocks = np.array([Sigma.reshape(C, n, C, n)[:, i, :, i] for i in range(n)])
        f = m.T[:, None] + z @ np.linalg.cholesky(blocks + 1e-9 * np.eye(C)).transpose(0, 2, 1)
        divergence = 0.5 * (a.ravel() @ m.ravel() + np.linalg.slogdet(np.eye(C * n) + W @ K)[1] - np.sum(W * Sigma))
        return m[y, range(n)].sum() - logsumexp(f, axis=2).mean(axis=1).sum() - divergence

    best = bound(found.a, found.sites)
    assert found.log_evidence == pytest.approx(best, abs=0.02 + 0.003 * amplitude)
    rng = np.random.default_rng(0)
    for size in (0.3, 1.0):
        for _ in range(3):
            sites = found.sites * np.exp(size * rng.normal(size=(C, n)))
            assert bound(found.a, sites) < best + 0.02
            assert bound(found.a + size * rng.normal(size=(C, n)), found.sites) < best


def test_many_rows_begin_at_some_of_them_and_end_where_others_do():
    """Wide priors: from a third of the rows, and from Laplace's mode, whose sites are far away there."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(330, 2))
    y = np.digitize(np.hypot(*X.T) + 0.05 * rng.normal(size=330), [0.7, 1.1, 1.6])
    Ks = [rbf(X, 1000.0, 1.0)]
    found = variational(covariances(Ks), y, gradient=False)
    other = variational(covariances(Ks), y, start=laplace(covariances(Ks), y, gradient=False), gradient=False)
    assert found.converged
    assert found.log_evidence == pytest.approx(other.log_evidence, rel=5e-3)
    assert found.iterations < other.iterations
    hasty = variational(covariances(Ks), y, gradient=False, rule=StoppingRule(1e-9, 1e-9, 2))
    assert not hasty.converged
    assert hasty.log_evidence < found.log_evidence


# -- predictions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("infer", [laplace, variational])
@pytest.mark.parametrize("shared", [True, False])
def test_moments_are_those_of_explicit_matrices(shared, infer):
    C = 3
    X, y, Ks = problem(C, shared)
    kernels = [(3.0 + c) * k.RBF(0.8 + 0.2 * c) for c in range(len(Ks))]
    found = infer(covariances(Ks), y)
    posterior = SoftmaxPosterior.of(found, kernels, X)
    Z = np.random.default_rng(5).normal(size=(7, 2)) * 2
    means, covariance = posterior.joint_moments(Z)
    K, W = explicit(joint(Ks, C), found.sites)
    R = W @ np.linalg.inv(np.eye(len(K)) + K @ W)
    for i, z in enumerate(Z):
        Kz = np.zeros((C, C, len(y)))
        prior = np.zeros(C)
        for c in range(C):
            j = 0 if shared else c
            Kz[c, c], prior[c] = rbf(z[None], 3.0 + j, 0.8 + 0.2 * j, X)[0], 3.0 + j
        Kz = Kz.reshape(C, -1)
        np.testing.assert_allclose(means[i], Kz @ found.a.ravel(), atol=1e-8)
        np.testing.assert_allclose(covariance[i], np.diag(prior) - Kz @ R @ Kz.T, atol=1e-8)


def test_pieces_change_nothing(monkeypatch):
    X, y, Ks = problem(3, True)
    posterior = SoftmaxPosterior.of(laplace(covariances(Ks), y), [3.0 * k.RBF(0.8)], X)
    Z = np.random.default_rng(5).normal(size=(1100, 2))
    once = posterior.joint_moments(Z)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)
    for one, other in zip(once, posterior.joint_moments(Z), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    assert posterior.joint_moments(Z[:0])[1].shape == (0, 3, 3)


def test_permuting_classes_permutes_everything():
    C = 4
    X, y, Ks = problem(C, True)
    order = np.array([2, 0, 3, 1])  # class c is called order[c]
    Z = np.random.default_rng(5).normal(size=(30, 2))
    for infer in (laplace, variational):
        exact = infer is laplace  # else the points of quadrature are not permuted along
        one, other = (infer(covariances(Ks), labels, gradient=False) for labels in (y, order[y]))
        assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-9 if exact else 1e-3)
        here, there = (
            mean_softmax(*SoftmaxPosterior.of(found, [3.0 * k.RBF(0.8)], X).joint_moments(Z)) for found in (one, other)
        )
        np.testing.assert_allclose(here, there[:, order], atol=1e-5 if exact else 3e-3)


# -- hard cases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", [1e-3, 0.3, 3.0, 1e3])
@pytest.mark.parametrize("amplitude", [1e-12, 1.0, math.exp(8), math.exp(16)])
def test_hard_cases_end_in_numbers(amplitude, lengthscale):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(45, 2))
    y = np.argmax(np.column_stack([X, -X.sum(axis=1)]), axis=1)  # separable
    K = rbf(X, amplitude, lengthscale)
    found = laplace([Covariance(K.copy())], y)
    assert found.converged
    np.testing.assert_allclose(found.a, np.eye(3)[y].T - found.sites, atol=1e-6)  # the gradient of Psi is zero
    assert np.isfinite(found.log_evidence)
    assert found.log_evidence <= 0
    assert np.isfinite(found.slope([lambda inverse, a: np.sum(whole(inverse) * K)])).all()
    bound = variational([Covariance(K.copy())], y)
    assert bound.converged or amplitude > 1e3
    assert bound.log_evidence < found.log_evidence + 1
    assert np.isfinite(bound.slope([lambda inverse, a: np.sum(whole(inverse) * K)])).all()


@pytest.mark.parametrize("amplitude", [1e11, 1e14])
def test_a_bound_lost_in_rounding_says_so(amplitude):
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    assert not variational([Covariance(rbf(X, amplitude, 1.0))], y).converged
    assert variational([Covariance(rbf(X, 100.0, 1.0))], y).converged


def test_start_saves_steps_and_changes_nothing():
    _, y, Ks = problem(5, True, n=80)
    first = laplace(covariances(Ks), y)
    near = [1.05 * Ks[0]]
    cold, warm = laplace(covariances(near), y), laplace(covariances(near), y, start=first)
    assert first.take_workspace() is None  # its matrices were taken over
    assert warm.iterations < cold.iterations
    assert warm.log_evidence == pytest.approx(cold.log_evidence, rel=1e-12)
    _, contracts = directions(near)
    np.testing.assert_allclose(warm.slope(contracts), cold.slope(contracts), rtol=1e-7)


@pytest.mark.parametrize(("amplitude", "lengthscale"), [(300.0, 1.0), (1e4, 2.0)])
def test_a_start_worse_than_knowing_nothing_is_not_taken(amplitude, lengthscale):
    """From Laplace's sites, where variances are huge, the bound would climb to a maximum hundreds below."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.digitize(np.hypot(*X.T), [0.8, 1.3])
    K = rbf(X, amplitude, lengthscale)
    mode = laplace(covariances([K]), y, gradient=False)
    cold, warm = (variational(covariances([K]), y, start, gradient=False) for start in (None, mode))
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1.0 if warm.converged else 10.0)


def test_a_covariance_that_is_not_positive_is_refused():
    _, y, Ks = problem(3, True)
    K = Ks[0] - 40 * np.eye(len(y))
    assert laplace([Covariance(K)], y) is None
    assert variational([Covariance(K)], y) is None
    assert laplace([Covariance(np.full_like(K, np.nan))], y) is None
