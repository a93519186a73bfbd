"""Nearest neighbours by distance in feature space (PRML 2.5.2, Ex 6.3)."""

from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ParameterError, rows_of
from mercer.core.inputs import align_columns, as_matrix, centre_and_spread, copy_rows, count_rows, take_rows
from mercer.kernels import Linear
from mercer.kernels.convert import as_covariance
from mercer.models.estimator import Classifier, all_or_nothing, is_integer

WEIGHTS = ("uniform", "distance")
TIE_TOLERANCE = 1e-12  # relative difference of distances that counts as rounding
ZERO_KERNEL_RANK = 1e3  # for rows with k(x, z) = 0: above -ln of the smallest positive number


class KernelNeighborsClassifier(Classifier):
    """Nearest neighbours in feature space, with |phi(x) - phi(z)|^2 = k(x, x) + k(z, z) - 2 k(x, z) (PRML Ex 6.3).

    Small distances are accurate because kernels compute them without cancellation. Large ones are ranked accurately
    too: if k(z, z) is the same for all rows, as for every stationary kernel, the nearer row is the one with the larger
    k(x, z), which still has digits when all distances round to the same number.

    Predictions do not depend on the order of rows: rows tied for the last place share the remaining votes. Between
    classes with equal votes, that of the nearest row wins, then the first.

    Parameters
    ----------
    n_neighbors : number of rows that vote.
    kernel : any kernel, on any input it accepts. None is the Euclidean distance between inputs scaled to unit
        standard deviation.
    weights : "uniform", or "distance": votes proportional to the inverse distance; if there are rows at distance zero,
        only those vote.

    Fitted: ``kernel_``, ``classes_``, ``scale_`` (divisor of the inputs; None with a given kernel), ``codes_`` (class
    index of each row), ``length_`` (k(z, z) if it is the same for all rows, else None). Prediction takes O(n) kernel
    evaluations per row, in blocks of bounded memory.

    >>> model = KernelNeighborsClassifier(n_neighbors=3).fit([[0.0], [1.0], [2.0], [10.0], [11.0]], list("aaabb"))
    >>> model.predict([[1.2], [9.0]]), model.predict_proba([[9.0]]).round(2)
    (array(['a', 'b'], dtype='<U1'), array([[0.33, 0.67]]))
    """

    def __init__(self, n_neighbors=5, kernel=None, weights="uniform"):
        self.n_neighbors = n_neighbors
        self.kernel = kernel
        self.weights = weights

    @all_or_nothing
    def fit(self, X, y):
        """Store the rows."""
        self._check_choice("weights", WEIGHTS)
        X = self._check_inputs(X, reset=True)
        self.codes_ = self._check_labels(y, count_rows(X))
        self._check_count(self.n_neighbors, count_rows(X))
        if self.kernel is None:
            X = self._check_vectors(X)
            self.scale_: np.ndarray | None = centre_and_spread(X)[1]
            self.X_fit_ = X / self.scale_
        else:
            self.scale_, self.X_fit_ = None, copy_rows(X)
        kernel = Linear() if self.kernel is None else self.kernel
        self.kernel_ = as_covariance(kernel, "distance in feature space", X=X)
        lengths = self._training_rows().diagonal()
        equal = np.ptp(lengths) <= 1e-14 * np.abs(lengths).max()
        self.length_ = float(lengths.mean()) if equal else None
        return self

    @staticmethod
    def _check_count(k, n):
        if not (is_integer(k) and k >= 1):
            raise ParameterError(f"n_neighbors must be an integer of at least 1; got {k!r}.")
        if k > n:
            raise DataError(f"n_neighbors is {k}, but there are only {n} rows. Use more rows, or fewer neighbours.")

    # -- distances ----------------------------------------------------------------------------------------------------

    def _pieces(self, X, k):
        """Squared distances to the training rows and their ranking for k neighbours, in blocks of rows."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if self.scale_ is not None:
            X = as_matrix(X) / self.scale_
        X = align_columns(self.X_fit_, X, self.kernel_.needs_all_columns)
        n = len(self.codes_)
        for part in gram.pieces(count_rows(X), 4 * n):
            with rows_of(part):
                Z = take_rows(X, part)
                D = gram.distances(self.kernel_, Z, self._training_rows())
                order = self._order(Z, D, k)
            yield D, order

    def _order(self, Z, D, k):
        """Values that rank as exact distances would: D, but from k(x, z) for rows without k near neighbours.

        With a = k(x, x) and b = k(z, z) for all z, the squared distance a + b - 2c falls with c. Above (a + b) / 2,
        c is below (a + b) / 4, and -ln c separates what a + b - 2c rounds to the same number.
        """
        if self.length_ is None:
            return D
        middle = (gram.diagonal(self.kernel_, Z) + self.length_) / 2
        far = np.flatnonzero(np.partition(D, k - 1, axis=1)[:, k - 1] > middle)
        if not len(far):
            return D
        order, m = D.copy(), middle[far, None]
        C = gram.between(self.kernel_, take_rows(Z, far), self._training_rows())
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = np.where(C > 0, m * (1 + np.log(m) - np.log(2 * C)), ZERO_KERNEL_RANK * m + D[far])
        order[far] = np.where(D[far] > m, beyond, D[far])
        return order

    def kneighbors(self, X, n_neighbors=None):
        """Distances in feature space to the nearest rows, nearest first, and their indices: (s, k), (s, k)."""
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
        nearer, tied = order < last * (1 - TIE_TOLERANCE), np.abs(order - last) <= TIE_TOLERANCE * last
        shared = (k - nearer.sum(axis=1)) / tied.sum(axis=1)  # remaining votes, shared by the tied rows
        row, voter = np.nonzero(nearer | tied)
        vote = np.where(nearer[row, voter], 1.0, shared[row])
        if self.weights == "distance":
            distance = np.sqrt(D[row, voter])
            coincident = np.zeros(len(D), dtype=bool)
            coincident[row[distance == 0]] = True
            with np.errstate(divide="ignore"):
                vote = vote * np.where(coincident[row], distance == 0, 1 / distance)
        place = row * C + self.codes_[voter]
        votes = np.bincount(place, weights=vote, minlength=len(D) * C).reshape(shape)
        nearest = np.full(len(D) * C, np.inf)
        np.minimum.at(nearest, place, order[row, voter])
        return _Votes(votes, nearest.reshape(shape))

    def predict_proba(self, X) -> np.ndarray:
        """Fraction of the votes for each class: (s, C). In a tie, the predicted class has the larger one by one
        rounding."""
        votes, nearest = self._votes(X)
        shares, rows = votes / votes.sum(axis=1, keepdims=True), np.arange(len(votes))
        wins = _winners(votes, nearest)
        tied = np.sum(shares >= shares[rows, wins][:, None], axis=1) > 1
        shares[rows[tied], wins[tied]] = np.nextafter(shares[tied].max(axis=1), 2.0)
        return shares

    def predict(self, X) -> np.ndarray:
        """The class with the most votes: (s,)."""
        wins = _winners(*self._votes(X))  # before classes_ is read: checks that the model is fitted
        return self.classes_[wins]

    def _summary(self):
        space = "scaled inputs" if self.scale_ is not None else f"the feature space of {self.kernel_!r}"
        return (
            f"KernelNeighborsClassifier, {len(self.classes_)} classes of {len(self.codes_):,} rows\n"
            f"{self.n_neighbors} neighbours with {self.weights} weights, by distance in {space}"
        )


class _Votes(NamedTuple):
    """Votes for each class (s, C), and the rank of its nearest voter (s, C)."""

    votes: np.ndarray
    nearest: np.ndarray


def _winners(votes, nearest) -> np.ndarray:
    """Index of the class with the most votes; in a tie that of the nearest row, then the first: (s,)."""
    leading = votes >= votes.max(axis=1, keepdims=True) * (1 - 1e-9)
    nearest = np.where(leading, nearest, np.inf)
    return (nearest <= nearest.min(axis=1, keepdims=True) * (1 + TIE_TOLERANCE)).argmax(axis=1)
