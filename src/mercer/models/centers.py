"""Choice of a network's centres, and normalisation of its basis functions (PRML 6.3)."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_matrix, centre_and_spread, count_rows, holds_numbers, take_rows
from mercer.core.parameters import slots_of
from mercer.kernels import RationalQuadratic
from mercer.kernels.base import Kernel
from mercer.kernels.stationary import Isotropic
from mercer.linalg.forward import Ridge, forward

MAX_CENTERS = 200  # when their number is chosen by leave-one-out
MAX_KERNEL_VALUES = 1 << 23  # computed for orthogonal least squares, unless n_candidates is given
LINEAR_PENALTY = 1e-6  # per row, on standardised inputs: keeps linear terms determined
PARAMETERS_PER_CENTER = 2.5  # charged for a centre found by search (Friedman 1991, section 3.6: 1 + 3/2)
MIN_BASIS_SUM = 1e-290  # below it, dividing by the sum of basis functions loses all digits


class CenterPath(NamedTuple):
    """Centres in the order of selection, all (m,): row index, error-reduction ratio (fraction of the targets' variance
    explained), and root mean squares of the residuals and leave-one-out residuals with the centres so far.
    For several targets the errors are in units of each target's standard deviation."""

    indices: np.ndarray
    error_reduction: np.ndarray
    training_error: np.ndarray
    loo_error: np.ndarray


# -- data ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Rows X, standardised targets T (n, q), standardised inputs for linear terms or None; ``unit`` scales T to y."""

    X: Any
    T: np.ndarray
    inputs: np.ndarray | None
    intercept: bool
    unit: float

    def subset(self, max_rows: int, rng) -> "Data":
        n = len(self.T)
        if n <= max_rows:
            return self
        rows = np.sort(rng.choice(n, max_rows, replace=False))
        inputs = None if self.inputs is None else self.inputs[rows]
        return Subset(take_rows(self.X, rows), self.T[rows], inputs, self.intercept, self.unit, rows, self)

    def prepared(self, kernel: Kernel) -> gram.Gram:
        """X, prepared once for all kernels that differ in the values of free parameters."""
        return gram.kept(self, kernel, self.X)

    @property
    def terms(self) -> np.ndarray:
        """Constant and linear terms, augmented by d rows with the root of their penalty: (n + d, 1 + d)."""
        n, d = len(self.T), 0 if self.inputs is None else self.inputs.shape[1]
        A = np.zeros((n + d, int(self.intercept) + d))
        if self.intercept:
            A[:n, 0] = 1.0
        if self.inputs is not None:
            A[:n, -d:] = self.inputs
            A[range(n, n + d), range(A.shape[1] - d, A.shape[1])] = np.sqrt(LINEAR_PENALTY * n)
        return A

    @property
    def fixed(self) -> np.ndarray:
        """Orthonormal columns that span ``terms``."""
        A = self.terms
        return np.linalg.qr(A)[0] if A.shape[1] else A

    def augmented(self, T):
        d = 0 if self.inputs is None else self.inputs.shape[1]
        return np.concatenate([T, np.zeros((d, T.shape[1]))])


@dataclasses.dataclass(frozen=True, eq=False)
class Subset(Data):
    rows: np.ndarray
    whole: Data

    def prepared(self, kernel: Kernel) -> gram.Gram:
        return self.whole.prepared(kernel)[self.rows]


# -- centres -----------------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """Centres, their row indices, the path that selected them, and their mean squared leave-one-out error."""

    centers: Any
    indices: np.ndarray | None
    path: CenterPath | None
    error: float


@dataclasses.dataclass(frozen=True, eq=False)
class Placer:
    """Choice of centres by the settings of an `RBFNetwork`: ``count`` None takes the number with the least
    leave-one-out error, for ``penalised`` with what choosing them costs (`PARAMETERS_PER_CENTER`)."""

    centers: Any
    count: int | None
    penalised: bool
    normalized: bool
    n_candidates: int | None
    alpha: Any
    seeds: np.ndarray
    _clusters: dict = dataclasses.field(default_factory=dict)

    def __call__(self, kernel, data, count) -> Placed:
        """Place ``count`` centres; None takes that of the settings."""
        n = len(data.T)
        count = self.count if count is None else count
        count = None if count is None else min(count, n)
        method = self.centers
        if not isinstance(method, str):
            return self._evaluated(kernel, data, _checked_centers(method, data.X))
        if method == "kmeans":
            return self._by_clusters(kernel, data, count)
        return self._by_path(kernel, data, count, method)

    def _by_path(self, kernel, data, count, method) -> Placed:
        n = len(data.T)
        fixed = data.fixed
        max_centers = min(n, MAX_CENTERS) if count is None else count
        order = np.random.default_rng(self.seeds[0]).permutation(n)
        if method == "random":
            candidates = order[:max_centers]
        else:
            n_candidates = self.n_candidates or max(MAX_KERNEL_VALUES // n, 4 * MAX_CENTERS)
            candidates = np.sort(order[: max(n_candidates, max_centers)])
        rows = data.prepared(kernel)
        Phi = gram.between(rows.kernel, rows[candidates], rows).T
        chosen = forward(
            Phi, data.T, fixed, max_centers, order=range(len(candidates)) if method == "random" else None,
            stop_early=count is None,
        )  # fmt: skip
        if not len(chosen.columns):  # constant target or basis functions: no centre explains anything
            first = np.array([0])
            return self._evaluated(kernel, data, take_rows(data.X, first), _original_rows(data, first))
        errors = chosen.left_out
        if method == "ols" and self.penalised:
            errors = errors * _search_penalty(len(errors), fixed.shape[1], n)
        m = int(np.argmin(errors)) + 1 if count is None else len(chosen.columns)
        index = candidates[chosen.columns]
        if self.normalized:
            sizes = sizes_up_to(len(index)) if count is None else [len(index)]
            penalty = np.divide(errors, chosen.left_out, out=np.ones(len(errors)), where=chosen.left_out > 0)
            found = {
                size: self._error(kernel, data, take_rows(data.X, index[:size])) * penalty[size - 1] for size in sizes
            }
            m = min(found, key=found.__getitem__)
            error = float(found[m])
        else:
            error = float(errors[m - 1])
        rows = _original_rows(data, index)
        path = CenterPath(rows, chosen.error_reduction, np.sqrt(chosen.training), np.sqrt(chosen.left_out))
        return Placed(take_rows(data.X, index[:m]), rows[:m], path, error)

    def _by_clusters(self, kernel, data, count) -> Placed:
        X = as_matrix(data.X)
        n_distinct = len(np.unique(X, axis=0))
        sizes = [min(count, n_distinct)] if count else sizes_up_to(min(MAX_CENTERS, n_distinct, max(1, len(X) // 2)))
        found = [self._evaluated(kernel, data, self._cluster(X, size)) for size in sizes]
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

    def _evaluated(self, kernel, data, centers, indices=None) -> Placed:
        return Placed(centers, indices, None, self._error(kernel, data, centers))

    def _error(self, kernel, data, centers) -> float:
        rows = data.prepared(kernel)
        K = gram.between(rows.kernel, rows, centers)
        Phi = normalised(K, kernel, data.X, centers) if self.normalized else K
        ridge, alpha = Ridge(Phi, data.T, data.fixed), self.alpha
        return ridge.best()[1] if isinstance(alpha, str) else float(np.mean(ridge.left_out(alpha) ** 2))


def _search_penalty(count: int, k: int, n: int) -> np.ndarray:
    """Factor on the mean squared error of 1, 2, ... centres beside k terms, by generalised cross-validation with
    `PARAMETERS_PER_CENTER`: (count,)."""
    m = np.arange(1, count + 1)
    return ((1 - np.minimum((k + m) / n, 1.0)) / np.maximum(1 - (k + PARAMETERS_PER_CENTER * m) / n, 1e-3)) ** 2


def _original_rows(data, index) -> np.ndarray:
    return data.rows[index] if isinstance(data, Subset) else index


def sizes_up_to(largest: int) -> list[int]:
    """Numbers of centres to compare, each about twice the one before.

    >>> sizes_up_to(40)
    [5, 10, 20, 40]
    """
    sizes = [largest]
    while sizes[0] > 5:
        sizes.insert(0, sizes[0] // 2)
    return sizes


def _checked_centers(centers, X):
    """Validate user-supplied centres against the inputs."""
    if not count_rows(centers):
        raise ParameterError("centers has no rows; give at least one centre.")
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
    """The kernel with every lengthscale multiplied by ``factor``."""
    slots = lengthscales_of(kernel)
    if not slots:
        raise ParameterError(
            f"width multiplies lengthscales, and {kernel!r} has none. Leave it out, or use width='learned'."
        )
    return kernel.replace(**{slot.name: np.asarray(slot.value) * factor for slot in slots})


def normalised(K, kernel, X, centers) -> np.ndarray:
    """Normalised basis functions k_j / sum_l k_l (PRML 6.41), overwriting K. Finite everywhere: see `RBFNetwork`."""
    if K.min(initial=0.0) < 0:
        raise DataError(
            f"{kernel!r} is negative at some of these inputs; normalised basis functions (PRML 6.41) must not be, or "
            "their sum may vanish. Use normalized=False, or another kernel."
        )
    total = K.sum(axis=1)
    far = np.flatnonzero(~(total > MIN_BASIS_SUM))
    K /= np.where(total > MIN_BASIS_SUM, total, 1.0)[:, None]
    if len(far):
        K[far] = 1.0 / K.shape[1]
        if isinstance(kernel, Isotropic):
            # Find the nearest centre by a kernel with tails too heavy to underflow.
            heavy = gram.between(RationalQuadratic(kernel.lengthscale), take_rows(X, far), centers)
            K[far] = np.arange(K.shape[1]) == heavy.argmax(axis=1)[:, None]
    return K
