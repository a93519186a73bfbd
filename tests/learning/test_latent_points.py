"""Latent points: evidence and bound from their formulas, gradients from differences, laws of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import approx_fprime

from mercer import gram
from mercer import kernels as k
from mercer.core.precision import double
from mercer.learning import latent_bounds, latent_points
from mercer.learning.latent_map import LatentMap, climb_rows, magnification
from mercer.learning.progress import Progress
from reference import latent_points as reference

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(9, 2)), rng.normal(size=(9, 4))
GAPS = Y.copy()
GAPS[[1, 2, 5], [0, 3, 3]] = np.nan
KERNEL = 1.3 * k.RBF(0.8)
THETA = np.array([0.4, -0.2])
QUIET = Progress(False)


@pytest.mark.parametrize("columns", [Y, GAPS, rng.normal(size=(9, 30))], ids=["complete", "gaps", "wide"])
def test_evidence_and_its_gradient_by_the_formula(columns):
    evidence = latent_points.LatentEvidence(KERNEL, columns)

    def formula(z):
        K = np.asarray((np.exp(z[18]) * k.RBF(np.exp(z[19])))(z[:18].reshape(9, 2)))
        return reference.log_evidence(K, columns, np.exp(z[20]))

    z = np.concatenate([X.ravel(), THETA, [-1.0]])
    found = evidence(X, THETA, -1.0)
    assert found.value == pytest.approx(formula(z), rel=1e-12)
    expected = approx_fprime(z, formula, 1e-6)
    np.testing.assert_allclose(np.concatenate([found.points.ravel(), found.kernel]), expected[:-1], atol=2e-4)
    assert found.log_noise == pytest.approx(expected[-1], rel=1e-4)


def test_principal_components_are_the_optimum_of_the_linear_kernel():
    # Dual probabilistic PCA (Lawrence 2005, 2.2): X = U (eigenvalues - noise)^1/2, the rest of the spectrum is noise.
    centred = Y - Y.mean(axis=0)
    values, U = np.linalg.eigh(centred @ centred.T / 4)
    noise = values[:-2].mean()
    best = U[:, -2:] * np.sqrt(values[-2:] - noise)
    found = latent_points.LatentEvidence(k.Linear(), centred)(best, np.zeros(0), np.log(noise))
    np.testing.assert_allclose(found.points, 0, atol=1e-9)
    assert found.log_noise == pytest.approx(0, abs=1e-9)


def test_where_there_is_no_value_none_is_returned():
    evidence = latent_points.LatentEvidence(KERNEL, Y)
    assert evidence(1e3 * X, np.array([0.0, 0.0]), -800.0) is not None  # far apart: the identity
    assert evidence(np.zeros((9, 2)), np.array([0.0, 0.0]), -800.0) is None  # singular


def test_the_search_climbs_and_back_constraints_hold():
    start = latent_points.principal(Y, 2)
    evidence = latent_points.LatentEvidence(KERNEL, Y)
    before = evidence(start, np.array([np.log(1.3), np.log(0.8)]), np.log(0.1)).value + latent_points.log_prior(start)
    free = latent_points.learn_points(KERNEL, Y, start, 0.1, 40, QUIET)
    root = np.asarray(k.RBF(2.0)(Y))
    tied = latent_points.learn_points(KERNEL, Y, start, 0.1, 40, QUIET, root=root)
    for found in (free, tied):
        assert (np.diff(found.path) >= 0).all()
        assert found.value == pytest.approx(found.log_evidence + latent_points.log_prior(found.points))
    assert free.value > before
    np.testing.assert_allclose(root @ tied.weights, tied.points)


def test_gaps_of_a_plane_are_filled():
    plane = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 5))
    holes = rng.random(plane.shape) < 0.1
    filled = latent_points.completed(np.where(holes, np.nan, plane), 2)
    np.testing.assert_allclose(filled, plane, atol=0.02)
    assert latent_points.completed(plane, 2) is plane


# -- the map ---------------------------------------------------------------------------------------------------------

MAP = LatentMap.of_points(KERNEL, X, GAPS, 0.3)
Z = rng.normal(size=(3, 2))


def test_predictions_are_those_of_a_process_for_every_column():
    mean, variance = MAP.predict(Z)
    for d, y in enumerate(GAPS.T):
        rows = np.isfinite(y)
        C = np.asarray(KERNEL(X[rows])) + 0.3 * np.eye(rows.sum())
        Ks = np.asarray(KERNEL(Z, X[rows]))
        np.testing.assert_allclose(mean[:, d], Ks @ np.linalg.solve(C, y[rows]), rtol=1e-9)
        np.testing.assert_allclose(variance[:, d], 1.3 - np.diag(Ks @ np.linalg.solve(C, Ks.T)), rtol=1e-9)


def test_density_of_rows_with_gaps_and_its_gradient():
    rows = GAPS[[1, 2, 4]]
    value, slope = MAP.log_density(rows, Z)
    mean, variance = MAP.predict(Z)
    s2 = variance + 0.3
    each = np.nansum(-0.5 * (rows - mean) ** 2 / s2 - 0.5 * np.log(2 * np.pi * s2) + 0 * rows, axis=1)
    np.testing.assert_allclose(value, each - 0.5 * (Z**2).sum(1) - np.log(2 * np.pi))
    for i in range(3):
        f = lambda z, i=i: MAP.log_density(rows[[i]], z[None])[0][0]
        np.testing.assert_allclose(slope[i], approx_fprime(Z[i], f, 1e-6), rtol=1e-4, atol=1e-4)
    linear = LatentMap.of_points(k.Linear(), X, Y, 0.3)  # whose prior variance depends on the point
    slope = linear.log_density(Y[:3], Z)[1]
    f = lambda z: linear.log_density(Y[:1], z[None])[0][0]
    np.testing.assert_allclose(slope[0], approx_fprime(Z[0], f, 1e-6), rtol=1e-4, atol=1e-4)


def test_rows_find_their_likeliest_points():
    found = MAP.project(Y[:4])
    value = MAP.log_density(Y[:4], found)[0]
    grid = np.stack(np.meshgrid(*[np.linspace(-3, 3, 61)] * 2), -1).reshape(-1, 2)
    for i in range(4):
        assert value[i] >= MAP.log_density(np.tile(Y[i], (len(grid), 1)), grid)[0].max() - 0.02
    np.testing.assert_allclose(MAP.log_density(Y[:4], found)[1], 0, atol=1e-3)
    np.testing.assert_allclose(MAP.project(np.full((1, 4), np.nan)), MAP.project(np.full((1, 4), np.nan)))


def test_every_row_climbs_by_itself():
    centre, A = rng.normal(size=(5, 3)), np.array([1.0, 10.0, 100.0])

    def bowl(which, X):
        away = X - centre[which]
        return -(A * away**2).sum(1), -2 * A * away

    places, values = climb_rows(bowl, rng.normal(size=(5, 3)))
    np.testing.assert_allclose(places, centre, atol=1e-5)
    assert (values > -1e-6).all()


def test_slopes_and_the_metric_from_differences():
    h, J = 1e-5, MAP.slopes(Z)
    for j, e in enumerate(h * np.eye(2)):
        np.testing.assert_allclose(J[:, :, j], (MAP.predict(Z + e)[0] - MAP.predict(Z - e)[0]) / (2 * h), atol=1e-7)
        K = (KERNEL(Z + e, X) - KERNEL(Z - e, X)) / (2 * h)
        np.testing.assert_allclose(gram.slopes(KERNEL, Z, X)[:, :, j], K, atol=1e-8)
    # Covariance of the gradient of a process: 1.3 / l^2 before data; E[J^T J] = J^T J + sum_d cov.
    np.testing.assert_allclose(gram.cross_slopes(KERNEL, Z), np.tile(1.3 / 0.64 * np.eye(2), (3, 1, 1)), rtol=1e-9)
    metric, units = MAP.metric(Z, np.ones(4)), np.array([1.0, 2.0, 0.5, 3.0])
    expected = np.einsum("sdq,sdr->sqr", J, J)
    for columns, rows, _, Q in MAP.groups:
        G = gram.slopes(KERNEL, Z, X)[:, rows]
        left = np.eye(2) * 1.3 / 0.64 - np.einsum("snq,nm,smr->sqr", G, Q, G)
        expected += len(columns) * left
    np.testing.assert_allclose(metric, expected, rtol=1e-8)
    assert (magnification(MAP.metric(Z, units)) > 0).all()


# -- the bound -------------------------------------------------------------------------------------------------------


def latents(q=2, n=9, m=5):
    with double():
        return latent_bounds.Latents(*map(jnp.asarray, (
            rng.normal(size=(n, q)), np.log(rng.uniform(0.05, 0.8, size=(n, q))), rng.normal(size=(m, q)),
            np.log(rng.uniform(0.6, 2.0, size=q)), np.log(1.4), np.log(0.2),
        )))  # fmt: skip


AT = latents()
bound, psi_statistics = jax.jit(latent_bounds.bound), jax.jit(latent_bounds.psi_statistics)


def test_averages_of_the_kernel_are_those_of_samples():
    with double():
        psi1, psi2 = map(np.asarray, psi_statistics(AT))
    for row in (0, 4):
        mean, variance = np.asarray(AT.mean)[row], np.exp(np.asarray(AT.log_variance)[row])
        lengthscale = np.exp(np.asarray(AT.log_lengthscale))
        one, two = reference.averaged(mean, variance, np.asarray(AT.inducing), lengthscale, 1.4)
        np.testing.assert_allclose(psi1[row], one, atol=0.005)
        np.testing.assert_allclose(psi2[row], two, atol=0.008)


def complete():
    return Y, np.ones((1, 9)), np.zeros(4, int), np.ones(9)


def test_the_bound_by_the_formula():
    with double():
        found = float(bound(AT, *complete()))
        psi1, psi2 = map(np.asarray, psi_statistics(AT))
    Z = np.asarray(AT.inducing)
    K = np.asarray((1.4 * k.RBF(np.exp(np.asarray(AT.log_lengthscale))))(Z)) + 1e-8 * 1.4 * np.eye(len(Z))
    variance = np.exp(np.asarray(AT.log_variance))
    expected = reference.variational_bound(psi1, psi2.sum(0), K, 9 * 1.4, Y, 0.2, np.asarray(AT.mean), variance)
    assert found == pytest.approx(expected, rel=1e-8)


def test_the_bound_without_doubt_at_all_points_is_the_evidence():
    # q(x) of almost no variance, inducing points at the points: the bound plus the divergence is ln p(Y | X).
    at = AT._replace(inducing=AT.mean, log_variance=jnp.full((9, 2), -18.0))
    with double():
        found = float(bound(at, *complete()))
    S = np.exp(-18.0)
    divergence = 0.5 * (np.asarray(at.mean) ** 2 + S + 18.0 - 1).sum()
    kernel = 1.4 * k.RBF(np.exp(np.asarray(at.log_lengthscale)))
    expected = reference.log_evidence(np.asarray(kernel(np.asarray(at.mean))), Y, 0.2)
    assert found + divergence == pytest.approx(expected, abs=1e-3)


def test_columns_with_gaps_add_up():
    seen = np.isfinite(GAPS)
    groups = latent_points.groups_of(GAPS)
    owner, mask = np.zeros(4, int), np.zeros((len(groups), 9))
    for g, (columns, rows) in enumerate(groups):
        owner[columns], mask[g, rows] = g, 1.0
    with double():
        whole = float(bound(AT, np.nan_to_num(GAPS), mask, owner, np.ones(9)))
        parts = [
            float(bound(
                AT, np.where(seen, GAPS, 0.0)[:, [d]], seen[:, d].astype(float)[None], np.zeros(1, int), np.zeros(9)
            ))
            for d in range(4)
        ]  # fmt: skip
        divergence = sum(parts) - whole
        S = np.exp(np.asarray(AT.log_variance))
    assert divergence == pytest.approx(0.5 * (np.asarray(AT.mean) ** 2 + S - np.log(S) - 1).sum())


def test_the_bound_predicts_as_a_sparse_process_and_only_rises():
    curve = np.column_stack([np.sin(2 * X[:, 0]), X[:, 0], np.cos(X[:, 0])])
    found = latent_bounds.learn_bounded(
        curve, latent_points.principal(curve, 2), np.full(2, 1.4), 0.1, 9, 60, QUIET, np.random.default_rng(0)
    )
    assert (np.diff(found.path) >= -1e-9).all()
    mean, variance = found.map.predict(found.mean)
    assert np.mean((mean - curve) ** 2) < 0.3 * curve.var()
    assert (variance > 0).all()
