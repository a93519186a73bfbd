"""Generative topographic mapping: densities and updates from their formulas, laws of the iterations."""

import numpy as np
import pytest

from mercer.learning import topographic
from mercer.learning.latent_points import groups_of
from mercer.learning.progress import Progress
from reference import latent_points as reference

rng = np.random.default_rng(1)
ANGLE = np.sort(rng.uniform(-1.5, 1.5, size=60))
Y = np.column_stack([np.sin(ANGLE), np.cos(ANGLE), ANGLE]) + 0.05 * rng.normal(size=(60, 3))
GAPS = np.where(rng.random(Y.shape) < 0.1, np.nan, Y)
GRID, BUMPS = topographic.lattice(12, 1), topographic.lattice(4, 1)
FIRST = topographic.first_surface(Y - Y.mean(axis=0), GRID, BUMPS, 0.8)
QUIET = Progress(False)


@pytest.mark.parametrize("rows", [Y, GAPS], ids=["complete", "gaps"])
def test_density_and_responsibilities_by_the_formula(rows):
    R, density = FIRST.responsibilities(rows)
    np.testing.assert_allclose(density, reference.mixture_log_density(rows, FIRST(GRID), FIRST.noise))
    np.testing.assert_allclose(R.sum(axis=1), 1)
    y, seen = rows[3], np.isfinite(rows[3])
    each = np.exp([-0.5 * ((y - c)[seen] ** 2).sum() / FIRST.noise for c in FIRST(GRID)])
    np.testing.assert_allclose(R[3], each / each.sum())


def test_maximisation_solves_its_equations():
    # Each column by itself: weighted ridge regression on the grid, weights the responsibilities of its measured rows.
    groups = groups_of(GAPS)
    sums = topographic.expectation(FIRST, GAPS, groups)
    surface, gamma = topographic.maximisation(FIRST, sums, groups, 0.7)
    R, Phi = FIRST.responsibilities(GAPS)[0], FIRST.design(GRID)
    left = 0.0
    for d, y in enumerate(GAPS.T):
        rows = np.isfinite(y)
        A = sum(R[n, k] * np.outer(Phi[k], Phi[k]) for n in np.flatnonzero(rows) for k in range(12)) / FIRST.noise
        b = sum(R[n, k] * y[n] * Phi[k] for n in np.flatnonzero(rows) for k in range(12)) / FIRST.noise
        np.testing.assert_allclose(surface.weights[:, d], np.linalg.solve(A + np.diag([0.7] * 4 + [0]), b), rtol=1e-6)
        left += (R[rows] * (y[rows, None] - (Phi @ surface.weights[:, d])[None]) ** 2).sum()
    assert surface.noise == pytest.approx(left / np.isfinite(GAPS).sum(), rel=1e-9)
    assert 0 < gamma < 12


@pytest.mark.parametrize("rows", [Y, GAPS], ids=["complete", "gaps"])
def test_no_iteration_lowers_the_penalised_likelihood(rows):
    found = topographic.learn_surface(rows, FIRST, 0.5, 60, 1e-9, QUIET)
    assert (np.diff(found.path) > -1e-7).all()
    assert found.path[-1] > found.path[0] + 10
    learned = topographic.learn_surface(rows, FIRST, None, 60, 1e-4, QUIET)
    assert learned.converged
    assert learned.log_likelihood == pytest.approx(
        reference.mixture_log_density(rows, learned.surface(GRID), learned.surface.noise).sum()
    )


def test_pieces_of_rows_add_up(monkeypatch):
    groups = groups_of(GAPS)
    whole = topographic.expectation(FIRST, GAPS, groups)
    monkeypatch.setattr("mercer.core.machine.rows_within", lambda size, width: 7)
    for a, b in zip(whole, topographic.expectation(FIRST, GAPS, groups), strict=True):
        np.testing.assert_allclose(a, b)


def test_the_metric_from_differences():
    X, h, units = rng.uniform(-1, 1, size=(4, 1)), 1e-6, np.array([1.0, 2.0, 0.5])
    J = (FIRST(X + h) - FIRST(X - h)) / (2 * h) * units
    np.testing.assert_allclose(FIRST.metric(X, units)[:, 0, 0], (J**2).sum(axis=1), rtol=1e-6)


def test_the_first_surface_is_the_plane_of_principal_components():
    flat = rng.normal(size=(50, 2)) * [3.0, 1.0] @ rng.normal(size=(2, 4))
    surface = topographic.first_surface(flat, topographic.lattice(6, 2), topographic.lattice(3, 2), 2.0)
    V = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)[2][:2]
    at = surface(surface.grid) - flat.mean(axis=0)
    np.testing.assert_allclose(at, at @ V.T @ V, atol=0.05 * np.abs(at).max())
