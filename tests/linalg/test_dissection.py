"""Nested dissection: the factor of a sparse precision against the dense matrix."""

import numpy as np
import pytest

from mercer.linalg import dissection
from mercer.linalg.dissection import Dissection
from mercer.linalg.ordering import maximin_order, nearest_before

rng = np.random.default_rng(0)
N, M = 150, 4


def dense(members, vectors, variance, S):
    """diag(S) + sum_i v_i v_i^T / d_i."""
    V = np.zeros((N, N))
    for i in range(N):
        there = members[i] >= 0
        V[i, members[i][there]] = vectors[i][there]
    return np.diag(S) + V.T @ np.diag(1 / variance) @ V, V


@pytest.mark.parametrize("leaf", [8, 40, N])
@pytest.mark.parametrize("places", ["plane", "line", "one place"])
def test_factor_solution_and_inverse_are_those_of_the_matrix(leaf, places, monkeypatch):
    monkeypatch.setattr(dissection, "LEAF_POINTS", leaf)
    points = rng.uniform(size=(N, 2)) * {"plane": [1, 1], "line": [1, 0], "one place": [0, 0]}[places]
    points = points[maximin_order(points)]
    members = np.column_stack([nearest_before(points, M), np.arange(N)])
    vectors = rng.normal(size=members.shape) * (members >= 0)
    vectors[:, -1], variance, S = 1.0, rng.uniform(0.1, 2.0, N), rng.uniform(0, 3, N) * (rng.uniform(size=N) < 0.7)
    tree = Dissection(points, members)
    assert np.array_equal(np.sort(np.concatenate([f.points[: f.own] for f in tree.fronts])), np.arange(N))
    assert len(tree.fronts) == 1 if leaf == N else len(tree.fronts) > 1 or places == "one place"
    found = tree.factor(vectors, variance, S)
    P, V = dense(members, vectors, variance, S)
    inverse, b = np.linalg.inv(P), rng.normal(size=N)
    assert found.log_det() == pytest.approx(np.linalg.slogdet(P)[1], rel=1e-10)
    assert found.solve(b) == pytest.approx(inverse @ b, rel=1e-7, abs=1e-8)
    diagonal, along = found.inverse(along=True)
    assert diagonal == pytest.approx(np.diag(inverse), rel=1e-8)
    expected = np.take_along_axis(V @ inverse, members, axis=1)
    assert along[members >= 0] == pytest.approx(expected[members >= 0], rel=1e-6, abs=1e-8)
    assert tree.factor(vectors, variance, S - 1e4) is None
