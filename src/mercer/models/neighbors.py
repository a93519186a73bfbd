"""Nearest neighbours by distance in feature space (PRML 2.5.2, Ex 6.3)."""

import copy
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import align_columns, as_matrix, count_rows, take_rows
from mercer.kernels import Linear
from mercer.kernels.convert import as_covariance
from mercer.learning.heuristics import centre_and_spread
from mercer.models.estimator import Classifier, wholly

WEIGHTS = ("uniform", "distance")
TIE = 1e-12  # relative difference of distances below which they are equal: rounding
LAST = 1e3  # where rows with k(x, z) = 0 stand: beyond -ln of the smallest number


class KernelNeighborsClassifier(Classifier):
    """The class of most of the nearest rows, where |phi(x) - phi(z)|^2 = k(x, x) + k(z, z) - 2 k(x, z) (PRML Ex 6.3).

    Near rows keep their digits, because kernels know their distances without subtracting. So do far ones: where all
    rows have one length k(z, z), as for every stationary kernel, the nearer row is that with the larger k(x, z), which
    has digits when all distances round to the same number.

    The answer does not depend on the order of rows: those equally near at the end share the votes that are left.
    Between classes with equal votes, that of the nearest row wins, then the first.

    Parameters
    ----------
    n_neighbors : how many rows vote.
    kernel : any kernel, on any input it understands. None is the Euclidean distance between inputs, each brought to
        unit spread.
    weights : "uniform", or "distance": votes in proportion to one over the distance; rows at distance zero, where there
        are any, then vote alone.

    Fitted: ``kernel_``, ``classes_``, ``scale_`` (what inputs are divided by; None with a kernel of your own),
    ``codes_`` (which of the classes each row has), ``length_`` (k(z, z), where it is the same for all rows; else None).
    Prediction takes O(n) evaluations of the kernel a row, in pieces of bounded memory.

    >>> model = KernelNeighborsClassifier(n_neighbors=3).fit([[0.0], [1.0], [2.0], [10.0], [11.0]], list("aaabb"))
    >>> model.predict([[1.2], [9.0]]), model.predict_proba([[9.0]]).round(2)
    (array(['a', 'b'], dtype='<U1'), array([[0.33, 0.67]]))
    """

    def __init__(self, n_neighbors=5, kernel=None, weights="uniform"):
        self.n_neighbors = n_neighbors
        self.kernel = kernel
        self.weights = weights

    @wholly
    def fit(self, X, y):
        """Keep the rows."""
        if self.weights not in WEIGHTS:
            raise ParameterError(f"weights must be 'uniform' or 'distance'; got {self.weights!r}.")
        X = self._check_inputs(X, reset=True)
        self.codes_ = self._check_labels(y, count_rows(X))
        self._check_count(self.n_neighbors, count_rows(X))
        if self.kernel is None:
            X = self._check_vectors(X)
            self.scale_: np.ndarray | None = centre_and_spread(X)[1]
            self.X_fit_ = X / self.scale_
        else:
            self.scale_, self.X_fit_ = None, copy.deepcopy(X)
        kernel = Linear() if self.kernel is None else self.kernel
        self.kernel_ = as_covariance(kernel, "distance in feature space")
        lengths = gram.diagonal(self.kernel_, self.X_fit_)
        equal = np.ptp(lengths) <= 1e-14 * np.abs(lengths).max()
        self.length_ = float(lengths.mean()) if equal else None
        return self

    @staticmethod
    def _check_count(k, n):
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
            raise ParameterError(f"n_neighbors must be a whole number of at least 1; got {k!r}.")
        if k > n:
            raise DataError(f"n_neighbors is {k}, but there are only {n} rows. Give more rows, or ask for fewer.")

    # -- distances ----------------------------------------------------------------------------------------------------

    def _pieces(self, X, k):
        """For some rows at a time, squared distances to the rows fitted to, and what orders these for k neighbours."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if self.scale_ is not None:
            X = as_matrix(X) / self.scale_
        X = align_columns(self.X_fit_, X, self.kernel_.needs_all_columns)
        n = len(self.codes_)
        for part in gram.pieces(count_rows(X), 4 * n):
            Z = take_rows(X, part)
            D = gram.distances(self.kernel_, Z, self.X_fit_)
            yield D, self._order(Z, D, k)

    def _order(self, Z, D, k):
        """Numbers that rank as exact distances would: D, but from k(x, z) for rows that have not k near neighbours.

        With a = k(x, x) and b = k(z, z) for all z, the distance a + b - 2c falls with c. Where it is above its middle,
        c is below (a + b) / 4, and -ln c tells apart what a + b - 2c rounds together.
        """
        if self.length_ is None:
            return D
        middle = (gram.diagonal(self.kernel_, Z) + self.length_) / 2
        far = np.flatnonzero(np.partition(D, k - 1, axis=1)[:, k - 1] > middle)
        if not len(far):
            return D
        order, m = D.copy(), middle[far, None]
        C = gram.between(self.kernel_, take_rows(Z, far), self.X_fit_)
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = np.where(C > 0, m * (1 + np.log(m) - np.log(2 * C)), LAST * m + D[far])
        order[far] = np.where(D[far] > m, beyond, D[far])
        return order

    def kneighbors(self, X, n_neighbors=None):
        """Distances in feature space to the nearest rows, nearest first, and which rows these are: (s, k), (s, k)."""
        self._check_fitted()
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        self._check_count(k, len(self.codes_))
        distances, indices = [], []
        for D, order in self._pieces(X, k):
            near = np.sort(np.argpartition(order, k - 1, axis=1)[:, :k], axis=1)
            ranked = np.argsort(np.take_along_axis(order, near, axis=1), axis=1, kind="stable")
            indices.append(np.take_along_axis(near, ranked, axis=1))
            distances.append(np.sqrt(np.take_along_axis(D, indices[-1], axis=1)))
        return np.concatenate(distances), np.concatenate(indices)

    # -- votes --------------------------------------------------------------------------------------------------------

    def _votes(self, X) -> "_Votes":
        found = [self._count(D, order) for D, order in self._pieces(X, self.n_neighbors)]
        return _Votes(*(np.concatenate(both) for both in zip(*found, strict=True)))

    def _count(self, D, order) -> "_Votes":
        k, C, shape = self.n_neighbors, len(self.classes_), (len(D), len(self.classes_))
        last = np.partition(order, k - 1, axis=1)[:, k - 1 : k]
        nearer, equal = order < last * (1 - TIE), np.abs(order - last) <= TIE * last
        left = (k - nearer.sum(axis=1)) / equal.sum(axis=1)  # votes left, for each of those equally near
        row, voter = np.nonzero(nearer | equal)
        vote = np.where(nearer[row, voter], 1.0, left[row])
        if self.weights == "distance":
            distance = np.sqrt(D[row, voter])
            there = np.zeros(len(D), dtype=bool)
            there[row[distance == 0]] = True
            with np.errstate(divide="ignore"):
                vote = vote * np.where(there[row], distance == 0, 1 / distance)
        place = row * C + self.codes_[voter]
        votes = np.bincount(place, weights=vote, minlength=len(D) * C).reshape(shape)
        nearest = np.full(len(D) * C, np.inf)
        np.minimum.at(nearest, place, order[row, voter])
        return _Votes(votes, nearest.reshape(shape))

    def predict_proba(self, X) -> np.ndarray:
        """The share of the votes for each class: (s, C). Of equal shares, that of the class predicted is the larger by
        one rounding."""
        votes, nearest = self._votes(X)
        shares, rows = votes / votes.sum(axis=1, keepdims=True), np.arange(len(votes))
        wins = _winners(votes, nearest)
        tied = np.sum(shares >= shares[rows, wins][:, None], axis=1) > 1
        shares[rows[tied], wins[tied]] = np.nextafter(shares[tied].max(axis=1), 2.0)
        return shares

    def predict(self, X) -> np.ndarray:
        """The class with most votes: (s,)."""
        wins = _winners(*self._votes(X))
        return self.classes_[wins]

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        by = "inputs of unit spread" if self.scale_ is not None else f"feature space of {self.kernel_!r}"
        return (
            f"KernelNeighborsClassifier, {len(self.classes_)} classes of {len(self.codes_):,} rows\n"
            f"{self.n_neighbors} neighbours with {self.weights} weights, nearest by {by}"
        )


class _Votes(NamedTuple):
    """For each class, its votes (s, C) and how near the nearest of its voters is (s, C)."""

    votes: np.ndarray
    nearest: np.ndarray


def _winners(votes, nearest) -> np.ndarray:
    """Which class has most votes; among several, that of the nearest row; then the first: (s,)."""
    most = votes >= votes.max(axis=1, keepdims=True) * (1 - 1e-9)
    nearest = np.where(most, nearest, np.inf)
    return (nearest <= nearest.min(axis=1, keepdims=True) * (1 + TIE)).argmax(axis=1)
