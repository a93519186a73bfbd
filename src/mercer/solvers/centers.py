"""Choice of the centres of a low-rank approximation among the rows."""

from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_matrix, count_rows, holds_numbers, take_rows
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.kernels.sets import metric
from mercer.linalg.cholesky import random_pivots
from mercer.linalg.lowrank import forward_centers, least_pivot

CHOICES = ("greedy", "kmeans", "forward", "random")
MIN_CANDIDATES, CANDIDATE_SHARE = 5000, 4  # rows among which centres are chosen, at least, and per centre
MAX_ITERATIONS = 20  # of K-means, after which centres hardly move
DRAWS_PER_CENTER = 8
SEED = 0  # the same rows have the same centres


def choose_centers(how: Any, count: int, kernel: Kernel, rows: gram.Gram, y: np.ndarray, noise: np.ndarray) -> Inputs:
    """Centres for a kernel with these parameters: rows, or for "kmeans" means of rows, at most ``count``.

    "greedy" takes rows with most variance given those before (pivoted Cholesky, of rows drawn in proportion to it,
    so that not all of them are outliers; Chen et al. 2025); "forward" of 59 rows each that which raises the bound most;
    "kmeans" means of rows that are near one another in the lengthscales of the kernel; "random" rows at random. They
    are chosen among a random subset of many rows.
    """
    n, rng = rows.n, np.random.default_rng(SEED)
    if not isinstance(how, str):
        _check_columns(how, rows.X)
        return how
    if how == "random":
        return take_rows(rows.X, np.sort(rng.choice(n, size=min(count, n), replace=False)))
    most = max(MIN_CANDIDATES, CANDIDATE_SHARE * count)
    some = np.arange(n) if n <= most else np.sort(rng.choice(n, size=most, replace=False))
    if how == "kmeans":
        return _means(kernel, take_rows(rows.X, some), min(count, n))
    latent = split_white(kernel)[0]
    assert latent is not None
    candidates = rows[some].of(latent)
    diagonal = candidates.diagonal()
    tolerance = least_pivot(float(diagonal.max(initial=0.0)), float(noise.min(initial=np.inf)))
    if how == "greedy":
        taken = random_pivots(candidates.some, diagonal, min(count, len(some)), tolerance, rng, DRAWS_PER_CENTER)[0]
    else:
        taken = forward_centers(
            candidates.some, diagonal, y[some], noise[some], min(count, len(some)), tolerance, rng
        )  # fmt: skip
    if not len(taken):
        taken = np.array([0])
    return take_rows(rows.X, some[np.sort(taken)])


def _means(kernel: Kernel, X: Inputs, count: int) -> np.ndarray:
    from sklearn.cluster import KMeans  # takes a while to import

    X = as_matrix(X)
    scale = np.asarray(metric(kernel, X.shape[1]), dtype=float)
    _, which = np.unique(X, axis=0, return_index=True)
    if len(which) <= count:
        return X[np.sort(which)]
    found = KMeans(count, n_init=1, max_iter=MAX_ITERATIONS, random_state=SEED).fit((X * scale)[np.sort(which)])
    # Means of the rows themselves, so that an input without weight keeps its scale.
    sums = np.zeros((count, X.shape[1]))
    np.add.at(sums, found.labels_, X[np.sort(which)])
    sizes = np.bincount(found.labels_, minlength=count)
    return sums[sizes > 0] / sizes[sizes > 0, None]


def _check_columns(centers: Any, X: Inputs) -> None:
    """Raise if centres for rows of numbers have another number of columns."""
    if not holds_numbers(X):
        return
    given, expected = as_matrix(centers, "centers").shape[1], as_matrix(X).shape[1]
    if given != expected:
        raise ParameterError(
            f"centers have {given} column{'s' * (given != 1)}, and the rows {expected}: they must have the same."
        )


def check_centers(how: Any) -> None:
    """Raise if this is neither the name of a choice nor centres."""
    if isinstance(how, str):
        if how not in CHOICES:
            names = ", ".join(map(repr, CHOICES))
            raise ParameterError(f"centers must be one of {names}, or the centres themselves; got {how!r}.")
        return
    try:
        empty = not count_rows(how)
    except DataError as error:
        raise ParameterError(f"centers must be the name of a choice or rows: {error}") from None
    if empty:
        raise ParameterError("centers has no rows; at least one is needed.")
