"""Scalar products of counts, whatever route they take."""

import numpy as np
import pytest
import scipy.sparse as sp

from mercer.kernels.structured import rows
from mercer.kernels.structured.rows import Counts, Vocabulary


@pytest.mark.parametrize("compiled", [True, False])
def test_products_are_those_of_dense_matrices(compiled, monkeypatch):
    monkeypatch.setattr(rows, "MIN_COMPILED", 0 if compiled else np.inf)
    rng = np.random.default_rng(0)
    frequency = np.append(np.full(5, 0.6), np.full(60, 0.05))  # of features, some of which most rows have
    A, B = (rng.poisson(frequency, size=(n, 65)) for n in (30, 20))
    names = rng.permutation(80)
    mine, theirs = (Vocabulary(names[some].tolist()) for some in (slice(65), slice(15, 80)))
    values = Counts(sp.csr_matrix(A), mine).products(Counts(sp.csr_matrix(B), theirs))
    expected = A[:, 15:] @ B[:, :50].T
    np.testing.assert_array_equal(values, expected)
    same = Counts(sp.csr_matrix(A), mine)
    np.testing.assert_array_equal(same.products(same), A @ A.T)
    nothing = Counts(sp.csr_matrix((3, 0)), Vocabulary([]))
    np.testing.assert_array_equal(same.products(nothing), np.zeros((30, 3)))
