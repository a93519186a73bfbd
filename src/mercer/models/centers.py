"""Where the basis functions of a network sit, and how they are measured against each other (PRML 6.3)."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_matrix, count_rows, holds_numbers, take_rows
from mercer.core.parameters import slots_of
from mercer.kernels import RationalQuadratic
from mercer.kernels.base import Kernel
from mercer.kernels.stationary import Isotropic
from mercer.learning.heuristics import centre_and_spread
from mercer.linalg.forward import Ridge, forward

MOST = 200  # centres, where their number is chosen
VALUES = 1 << 23  # kernel values among which orthogonal least squares looks, unless told how many candidates
SLIGHT = 1e-6  # the penalty of linear terms on standardised inputs, for each row: they are always determined
CHARGE = 2.5  # parameters that a function costs which was searched for (Friedman 1991, section 3.6: 1 + 3/2)
FAR = 1e-290  # a sum of basis functions below this has no digits to be divided by


class CenterPath(NamedTuple):
    """Centres in the order they were taken: the row of each, the share of the targets' variance it explains (the
    error-reduction ratio), and with it the root mean squares of residuals and of leave-one-out residuals; all (m,).
    For several targets these are in units of each one's standard deviation."""

    indices: np.ndarray
    error_reduction: np.ndarray
    training_error: np.ndarray
    loo_error: np.ndarray


# -- data ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Rows X, standardised targets T (n, q), standardised inputs for linear terms or None; ``unit`` is T's in y."""

    X: Any
    T: np.ndarray
    inputs: np.ndarray | None
    intercept: bool
    unit: float

    def some(self, most: int, rng) -> "Data":
        n = len(self.T)
        if n <= most:
            return dataclasses.replace(self)
        rows = np.sort(rng.choice(n, most, replace=False))
        inputs = None if self.inputs is None else self.inputs[rows]
        return Subset(take_rows(self.X, rows), self.T[rows], inputs, self.intercept, self.unit, rows)

    @property
    def terms(self) -> np.ndarray:
        """The constant and the linear terms; below the rows of these the root of their penalty: (n + d, 1 + d)."""
        n, d = len(self.T), 0 if self.inputs is None else self.inputs.shape[1]
        A = np.zeros((n + d, int(self.intercept) + d))
        if self.intercept:
            A[:n, 0] = 1.0
        if self.inputs is not None:
            A[:n, -d:] = self.inputs
            A[range(n, n + d), range(A.shape[1] - d, A.shape[1])] = np.sqrt(SLIGHT * n)
        return A

    @property
    def fixed(self) -> np.ndarray:
        """Orthonormal columns that span them."""
        A = self.terms
        return np.linalg.qr(A)[0] if A.shape[1] else A

    def augmented(self, T):
        d = 0 if self.inputs is None else self.inputs.shape[1]
        return np.concatenate([T, np.zeros((d, T.shape[1]))])


@dataclasses.dataclass(frozen=True, eq=False)
class Subset(Data):
    rows: np.ndarray


# -- centres -----------------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """Centres, their rows, the path to them, and the mean squared leave-one-out error they give."""

    centers: Any
    indices: np.ndarray | None
    path: CenterPath | None
    error: float


class Placer:
    """Chooses centres as an `RBFNetwork` says."""

    def __init__(self, network, rng):
        self.network, self.count, self.normalized = network, network._count, network.normalized
        self.seeds = rng.integers(2**31, size=2)
        self._clusters: dict = {}

    def __call__(self, kernel, data, count) -> Placed:
        """``count`` centres; None is as many as the network says, or as leave-one-out says."""
        n = len(data.T)
        count = self.count if count is None else count
        count = None if count is None else min(count, n)
        how = self.network.centers
        if not isinstance(how, str):
            return self._judged(kernel, data, _given(how, data.X), None, None)
        if how == "kmeans":
            return self._by_clusters(kernel, data, count)
        return self._by_path(kernel, data, count, how)

    def _by_path(self, kernel, data, count, how) -> Placed:
        n = len(data.T)
        fixed = data.fixed
        most = min(n, MOST) if count is None else count
        order = np.random.default_rng(self.seeds[0]).permutation(n)
        if how == "random":
            candidates = order[:most]
        else:
            among = self.network.n_candidates or max(VALUES // n, 4 * MOST)
            candidates = np.sort(order[: max(among, most)])
        Phi = gram.between(kernel, take_rows(data.X, candidates), data.X).T
        chosen = forward(
            Phi, data.T, fixed, most, order=range(len(candidates)) if how == "random" else None,
            stop_early=count is None,
        )  # fmt: skip
        if not len(chosen.columns):  # a constant target, or basis functions that are: nothing is explained by any
            first = np.array([0])
            return self._judged(kernel, data, take_rows(data.X, first), _rows(data, first), None)
        errors = chosen.left_out
        if how == "ols" and self.network.n_centers is None:
            errors = errors * _charged(len(errors), fixed.shape[1], n)
        m = int(np.argmin(errors)) + 1 if count is None else len(chosen.columns)
        index = candidates[chosen.columns]
        if self.normalized:
            sizes = sizes_up_to(len(index)) if count is None else [len(index)]
            charged = np.divide(errors, chosen.left_out, out=np.ones(len(errors)), where=chosen.left_out > 0)
            found = {
                size: self._error(kernel, data, take_rows(data.X, index[:size])) * charged[size - 1] for size in sizes
            }
            m = min(found, key=found.__getitem__)
            error = float(found[m])
        else:
            error = float(errors[m - 1])
        path = CenterPath(
            _rows(data, index), chosen.error_reduction, np.sqrt(chosen.training), np.sqrt(chosen.left_out)
        )
        return Placed(take_rows(data.X, index[:m]), _rows(data, index[:m]), path, error)

    def _by_clusters(self, kernel, data, count) -> Placed:
        found = []
        X = self.network._check_vectors(data.X)
        distinct = len(np.unique(X, axis=0))
        sizes = sizes_up_to(min(MOST, distinct, max(1, len(X) // 2))) if count is None else [min(count, distinct)]
        for size in sizes:
            found.append(self._judged(kernel, data, self._cluster(X, size), None, None))
        return min(found, key=lambda placed: placed.error)

    def _cluster(self, X, size):
        if (len(X), size) not in self._clusters:
            from sklearn.cluster import KMeans
            from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

            shift, spread = centre_and_spread(X)
            with threadpool_limits(1):  # see `one_thread`
                means = KMeans(size, n_init=3, random_state=int(self.seeds[1])).fit((X - shift) / spread)
            self._clusters[len(X), size] = means.cluster_centers_ * spread + shift
        return self._clusters[len(X), size]

    def _judged(self, kernel, data, centers, indices, path) -> Placed:
        return Placed(centers, indices, path, self._error(kernel, data, centers))

    def _error(self, kernel, data, centers) -> float:
        K = gram.between(kernel, data.X, centers)
        Phi = normalised(K, kernel, data.X, centers) if self.normalized else K
        ridge, alpha = Ridge(Phi, data.T, data.fixed), self.network.alpha
        return ridge.best()[1] if isinstance(alpha, str) else float(np.mean(ridge.left_out(alpha) ** 2))


def _charged(count: int, k: int, n: int) -> np.ndarray:
    """By what mean squares grow, after 1, 2, ... centres beside k terms, if each is charged as `CHARGE` parameters
    (generalised cross-validation): (count,)."""
    m = np.arange(1, count + 1)
    return ((1 - np.minimum((k + m) / n, 1.0)) / np.maximum(1 - (k + CHARGE * m) / n, 1e-3)) ** 2


def _rows(data, index) -> np.ndarray:
    return data.rows[index] if isinstance(data, Subset) else index


def sizes_up_to(most: int) -> list[int]:
    """Numbers of centres to compare: twice as many each time.

    >>> sizes_up_to(40)
    [5, 10, 20, 40]
    """
    sizes = [most]
    while sizes[0] > 5:
        sizes.insert(0, sizes[0] // 2)
    return sizes


def _given(centers, X):
    """Centres from outside, checked against the inputs."""
    if not count_rows(centers):
        raise ParameterError("centers has no rows; at least one centre is needed.")
    if not (holds_numbers(centers) and holds_numbers(X)) or hasattr(X, "columns"):
        return centers
    centers = as_matrix(centers, "centers")
    if centers.shape[1] != X.shape[1]:
        raise ParameterError(f"centers have {centers.shape[1]} columns, but the inputs have {X.shape[1]}.")
    return centers


# -- basis functions -----------------------------------------------------------------------------------------------


def lengthscales_of(kernel: Kernel) -> list:
    return [slot for slot in slots_of(kernel) if slot.field == "lengthscale"]


def stretched(kernel: Kernel, factor: float) -> Kernel:
    """With every lengthscale multiplied."""
    slots = lengthscales_of(kernel)
    if not slots:
        raise ParameterError(
            f"width multiplies lengthscales, and {kernel!r} has none. Leave it out, or take width='learned'."
        )
    return kernel.replace(**{slot.name: np.asarray(slot.value) * factor for slot in slots})


def normalised(K, kernel, X, centers) -> np.ndarray:
    """k_j / sum_l k_l (PRML 6.41), overwriting K. Finite everywhere: see `RBFNetwork`."""
    if K.min(initial=0.0) < 0:
        raise DataError(
            f"{kernel!r} is negative at some of these inputs; basis functions to be normalised (6.41) must not be, for "
            "their sum would vanish somewhere. Take normalized=False, or another kernel."
        )
    total = K.sum(axis=1)
    far = np.flatnonzero(~(total > FAR))
    K /= np.where(total > FAR, total, 1.0)[:, None]
    if len(far):
        K[far] = 1.0 / K.shape[1]
        if isinstance(kernel, Isotropic):
            # Which centre is nearest, by a kernel whose tails are too heavy to vanish.
            heavy = gram.between(RationalQuadratic(kernel.lengthscale), take_rows(X, far), centers)
            K[far] = np.arange(K.shape[1]) == heavy.argmax(axis=1)[:, None]
    return K
