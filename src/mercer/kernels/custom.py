"""Kernels given by features, by a function of two inputs, or by a matrix."""

from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, InvalidKernelError, ParameterError
from mercer.core.inputs import Inputs, Kind, Rows, as_matrix
from mercer.core.parameters import Positive
from mercer.core.precision import Array, as_float, is_traced
from mercer.kernels.base import Kernel
from mercer.kernels.distance import difference_of_squares, squared_distance
from mercer.kernels.evaluate import HostRows
from mercer.kernels.functions import PairFunction, RowFunction
from mercer.kernels.geometry import Geometry
from mercer.kernels.validity import Proof, Validity, proved


class FeatureMap(Kernel):
    """phi(x)^T phi(x') / alpha (PRML 6.1, 6.10, 6.54): alpha is the precision of the weights of y = w.phi(x).

    ``phi`` is a basis from `mercer.basis`, or any function of one input that returns a number or a vector.

    >>> from mercer import basis
    >>> FeatureMap(basis.Polynomial(degree=1))([2.0, 3.0])
    array([[ 5.,  7.],
           [ 7., 10.]])
    """

    phi: RowFunction = eqx.field(converter=RowFunction.of)
    alpha: Positive = 1.0

    reads = "anything"

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self.phi.prepare(X)

    def feature_block(self, X: Rows) -> jax.Array:
        return self.phi(X) / jnp.sqrt(jnp.asarray(self.alpha))

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.phi(X) @ self.phi(Z).T / self.alpha

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.sum(self.phi(X) ** 2, axis=1) / self.alpha

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        P, Q = self.phi(X), self.phi(Z)
        return Geometry(P @ Q.T, squared_distance(P, Q), difference_of_squares(P, Q)).scaled(1 / self.alpha)

    stationary = isotropic = None  # not known

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of features", repr(self))


class Custom(Kernel):
    """A kernel given by a function of two inputs that returns a number. Nothing is known about it: see `check_kernel`.

    Inputs may be anything with rows. From arrays, frames and lists of numbers ``f`` gets vectors; with
    ``kind="objects"`` it gets every row as it is, so that a list of numbers stays a list.

    >>> shared_letters = Custom(lambda a, b: len(set(a) & set(b)))
    >>> shared_letters(["tea", "coat", "sun"])
    array([[3., 2., 0.],
           [2., 4., 0.],
           [0., 0., 3.]])
    """

    runs_user_code = True

    f: PairFunction = eqx.field(converter=lambda f: f if isinstance(f, PairFunction) else PairFunction(f))
    kind: Kind | None = eqx.field(default=None, static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.kind not in (None, *get_args(Kind)):
            kinds = ", ".join(map(repr, get_args(Kind)))
            raise ParameterError(f"Custom.kind must be one of {kinds}; got {self.kind!r}.")

    @property
    def reads(self) -> Kind:
        return self.kind or "anything"

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self.f.prepare(X, self.reads)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.f(X, Z)

    def block_diag(self, X: Rows) -> jax.Array:
        if isinstance(X, HostRows):
            rows = [HostRows(X.rows[i : i + 1]) for i in range(len(X.rows))]
            return jnp.concatenate([jnp.ravel(self.f(row, row)) for row in rows])
        return super().block_diag(X)

    @property
    def symmetric(self) -> bool:
        return False

    stationary = isotropic = None  # not known

    @property
    def validity(self) -> Validity:
        says = "a user's function, about which nothing is known; check_kernel(kernel, X) tests it on data"
        return Validity(None, Proof("?", says, repr(self)))


class Precomputed(Kernel):
    """A kernel given by a finite Gram matrix K: inputs are row numbers of K.

    >>> Precomputed([[2.0, 1.0], [1.0, 2.0]])([0, 1, 0])
    array([[2., 1., 2.],
           [1., 2., 1.],
           [2., 1., 2.]])
    """

    K: Any

    smoothness = -1  # no function of numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_traced(self.K):
            return
        K = as_float(as_matrix(self.K, what="K"))
        if K.shape[0] != K.shape[1]:
            raise InvalidKernelError(f"a precomputed kernel must be a square matrix; got shape {K.shape}.")
        if np.abs(K - K.T).max(initial=0.0) > 1e-10 * np.abs(K).max(initial=0.0):
            raise InvalidKernelError(
                "a precomputed kernel must be symmetric, k(x, x') = k(x', x) (6.1); "
                "this one is not. Try (K + K.T) / 2 if the difference is rounding."
            )
        object.__setattr__(self, "K", K)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = as_matrix(X)
        if is_traced(rows):
            return rows[:, 0].astype(int)
        if rows.shape[1] != 1 or not np.array_equal(rows, np.round(rows)):
            raise DataError("inputs of a precomputed kernel are row numbers of K: one integer per row.")
        n = self.K.shape[0]
        if rows.size and (rows.min() < 0 or rows.max() >= n):
            bad = rows[(rows < 0) | (rows >= n)][0]
            raise DataError(f"inputs of a precomputed kernel are row numbers from 0 to {n - 1}; got {bad:.0f}.")
        return rows[:, 0].astype(int)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jnp.asarray(self.K)[X[:, None], Z[None, :]]

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.asarray(self.K)[X, X]

    def feature_block(self, X: Rows) -> jax.Array:
        if not self.validity:
            return super().feature_block(X)
        values, vectors = jnp.linalg.eigh(jnp.asarray(self.K))
        return (vectors * jnp.sqrt(jnp.maximum(values, 0.0)))[X]

    stationary = isotropic = None  # not known

    @property
    def validity(self) -> Validity:
        if is_traced(self.K):
            return Validity(None, Proof("?", "a traced matrix, whose values are not known yet", "Precomputed"))
        K = np.asarray(self.K)
        values = np.linalg.eigvalsh(K)
        valid = bool(values[0] >= -len(K) * np.finfo(float).eps * max(abs(values[0]), abs(values[-1])))
        says = f"the definition itself, on all {len(K)} inputs: smallest eigenvalue {values[0]:.3g}"
        return Validity(valid, Proof("6.6", says, repr(self)))
