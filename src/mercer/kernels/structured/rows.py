"""Prepared rows of kernels on objects: counts of features in sparse matrices, with features numbered exactly.

Every data set numbers the features that it has by itself (`Vocabulary`). Two data sets are compared by finding the
features of one in the numbering of the other, so that nothing has to be known in advance, features that only one of
them has are counted in its own self-similarity, and different features never share a number.
"""

import abc
import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from mercer.core.errors import DataError, ObjectError
from mercer.core.inputs import Inputs, Rows, as_objects, column_names
from mercer.core.precision import Array, is_traced
from mercer.kernels.base import Kernel
from mercer.kernels.evaluate import Collection, HostRows

MIN_DENSE_SHARE = 0.25  # of the rows: features that more of them have are multiplied as dense columns
MIN_COMPILED = 1_000_000  # entries of a matrix of products: for fewer, loading compiled code does not pay


class Vocabulary:
    """Features of a data set. ``keys`` identify them: their order numbers the columns of `Counts`."""

    def __init__(self, keys: Sequence[Hashable]) -> None:
        self.keys = keys
        self._places: weakref.WeakKeyDictionary[Vocabulary, np.ndarray] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.keys)

    @functools.cached_property
    def numbers(self) -> dict[Hashable, int]:
        return {key: number for number, key in enumerate(self.keys)}

    def places_in(self, other: "Vocabulary") -> np.ndarray:
        """Number of each feature in another vocabulary, -1 where that lacks it: (M,)."""
        if other is self:
            return np.arange(len(self))
        if other not in self._places:
            self._places[other] = self._found_in(other)
        return self._places[other]

    def _found_in(self, other: "Vocabulary") -> np.ndarray:
        numbers = other.numbers
        return np.fromiter((numbers.get(key, -1) for key in self.keys), dtype=np.int64, count=len(self))


class Counts(Collection):
    """How much each row has of each feature: a sparse matrix (n, M), and what its columns are.

    ``squared_norms`` (n,) are those of the whole rows, if the matrix lacks some of their features.
    """

    def __init__(self, matrix: Any, vocabulary: Vocabulary, squared_norms: np.ndarray | None = None) -> None:
        self.matrix, self.vocabulary = sp.csr_matrix(matrix, dtype=float), vocabulary
        self._squared_norms = squared_norms

    def __len__(self) -> int:
        return self.matrix.shape[0]

    def __getitem__(self, which: Any) -> "Counts":
        norms = self._squared_norms
        return Counts(self.matrix[which], self.vocabulary, None if norms is None else norms[which])

    def numbered_like(self, other: "Counts") -> "Counts":
        """The same rows with features numbered as in another data set; those that it lacks are left out, but count in
        the norms, by which a kernel may divide."""
        if other.vocabulary is self.vocabulary:
            return self
        places = self.vocabulary.places_in(other.vocabulary)
        entries = self.matrix.tocoo()
        columns = places[entries.col]
        kept = columns >= 0
        shape = len(self), len(other.vocabulary)
        matrix = sp.csr_matrix((entries.data[kept], (entries.row[kept], columns[kept])), shape=shape)
        return Counts(matrix, other.vocabulary, self.squared_norms())

    def products(self, other: "Counts") -> np.ndarray:
        """Scalar products of all pairs of rows: (n, m)."""
        A, B = self.matrix, other.numbered_like(self).matrix
        # Features that most rows have make the sparse product dense: as dense columns they are a matrix product.
        common = np.bincount(B.indices, minlength=B.shape[1]) > MIN_DENSE_SHARE * max(len(other), 1)
        dense, rest = np.flatnonzero(common), np.flatnonzero(~common)
        out = A[:, dense].toarray() @ B[:, dense].toarray().T
        A, B = A[:, rest], B[:, rest]
        if out.size < MIN_COMPILED:
            out += (A @ B.T).toarray()
        else:  # into the result: a sparse one, of which many entries are not zero, takes three times as long
            from mercer.kernels.structured.count_loops import add_products

            B = B.tocsc()
            add_products(out, A.indptr, A.indices, A.data, B.indptr, B.indices, B.data)
        return out

    def squared_norms(self) -> np.ndarray:
        """Scalar product of each row with itself: (n,)."""
        if self._squared_norms is not None:
            return self._squared_norms
        return np.asarray(self.matrix.multiply(self.matrix).sum(axis=1)).ravel()


class CountKernel(Kernel):
    """Scalar product of explicit features, phi(x)^T phi(x') (PRML 6.1). Subclasses give the features in `counts`."""

    reads = "objects"
    joins_columns: ClassVar[bool] = False  # whether several columns of a frame make one object, a tuple

    @abc.abstractmethod
    def counts(self, objects: np.ndarray) -> Counts:
        """Features of an array of objects (n,). Raises `ObjectError` for those that it cannot read."""

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return HostRows(self.counts(as_objects(X) if self.joins_columns else objects_of(X)))

    def block(self, X: Rows, Z: Rows) -> Any:
        return X.rows.products(Z.rows)

    def block_diag(self, X: Rows) -> Any:
        return X.rows.squared_norms()

    def feature_block(self, X: Rows) -> jax.Array:
        return jnp.asarray(X.rows.matrix.toarray())


def objects_of(X: Inputs) -> np.ndarray:
    """Rows of X as an array of objects (n,). A frame must have one column."""
    names = column_names(X)
    if names is not None and len(names) > 1:
        raise DataError(
            f"the kernel reads one object a row, and X has the columns {', '.join(map(str, names))}. Select one: "
            f"kernel.on({names[0]!r})."
        )
    return as_objects(X)


def numbered_like(rows: Rows, others: Rows) -> Rows:
    """Prepared rows with features numbered as in another data set, prepared by the same kernel."""
    return jax.tree.map(lambda own, other: own.numbered_like(other) if isinstance(own, Counts) else own, rows, others)


def differentiable(compute: Callable[[float, bool], tuple[np.ndarray, np.ndarray | None]], parameter: Any) -> Any:
    """Array that is computed on the host as a function of one parameter, for JAX to differentiate.

    ``compute(value, slope)`` returns the array, and if ``slope`` is asked for, its derivative.
    """
    if not is_traced(parameter):
        return compute(float(parameter), False)[0]

    def number(value: Any) -> float:
        try:
            return float(value)
        except jax.errors.ConcretizationTypeError:
            says = "the kernel runs on the host: jax.grad differentiates it, but jit and hessian cannot trace it."
            raise DataError(says) from None

    @jax.custom_jvp
    def call(value: Any) -> jax.Array:
        return jnp.asarray(compute(number(value), False)[0])

    @call.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
        values, slope = compute(number(primals[0]), True)
        return jnp.asarray(values), jnp.asarray(slope) * tangents[0]

    return call(parameter)


def refuse_missing(objects: np.ndarray, expected: str) -> None:
    """Refuse missing cells: None, NaN, and those of pandas. ``expected`` names what a row should hold."""
    for i, item in enumerate(objects):
        if is_missing(item):
            raise ObjectError(i, f"a missing value, where {expected} was expected. Drop the row, or fill it in.")


def refuse_nan(distinct: Iterable[Any], rows: Iterable[Iterable[Any]], what: str) -> None:
    """Refuse NaN among elements or tokens: it is not equal to itself, so whether two are the same would depend on how
    they were made. ``rows`` are searched if it is among the ``distinct`` ones."""
    if not any(isinstance(item, float | np.floating) and item != item for item in distinct):
        return
    for i, row in enumerate(rows):
        if any(isinstance(item, float | np.floating) and item != item for item in row):
            raise ObjectError(i, f"NaN, where {what} was expected. Leave it out, or write another value for it.")


def is_missing(item: Any) -> bool:
    """Whether a cell is None, NaN, or pandas' NA or NaT, whose comparisons are not booleans."""
    return item is None or (isinstance(item, float) and item != item) or type(item).__name__ in ("NAType", "NaTType")
