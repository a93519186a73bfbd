"""Kernels on sets, and on the features that two objects share."""

from collections.abc import Iterator, MappingView
from typing import Any

import equinox as eqx
import numpy as np
import scipy.sparse as sp

from mercer.core.errors import DataError, ObjectError
from mercer.core.inputs import Inputs, Rows
from mercer.core.precision import Array, namespace
from mercer.kernels import convert
from mercer.kernels.base import Kernel
from mercer.kernels.composite import Unary
from mercer.kernels.dot import Linear
from mercer.kernels.evaluate import HostRows
from mercer.kernels.structured.rows import Counts, Vocabulary, objects_of, refuse_missing, refuse_nan
from mercer.kernels.validity import Validity, derive, proved

MAX_LOG2 = 1023  # of a double


class Subsets(Kernel):
    """2^|A n B|, the number of subsets that two sets share (PRML Ex 6.12). Elements are any hashable objects.

    ``normalized`` divides by the square roots of both self-similarities: 2^(|A n B| - (|A| + |B|) / 2), computed in
    logarithms, for sets of any size.

    >>> Subsets()([{"a", "b"}, {"b", "c", "d"}, set()])
    array([[4., 2., 1.],
           [2., 8., 1.],
           [1., 1., 1.]])
    """

    normalized: bool = eqx.field(default=False, static=True)

    reads = "objects"

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return HostRows(_incidence(objects_of(X)))

    def block(self, X: Rows, Z: Rows) -> Any:
        shared = X.rows.products(Z.rows)
        if self.normalized:
            sizes = [side.rows.squared_norms() for side in (X, Z)]
            shared -= 0.5 * (sizes[0][:, None] + sizes[1][None, :])
        return _power_of_two(shared)

    def block_diag(self, X: Rows) -> Any:
        sizes = X.rows.squared_norms()
        return np.ones(len(sizes)) if self.normalized else _power_of_two(sizes)

    def normalize(self) -> "Kernel":
        return Subsets(normalized=True, name=self.name)

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of indicators, one for every possible subset (Ex 6.12)", repr(self))


def _incidence(objects: np.ndarray) -> Counts:
    """Which elements each set has, as ones."""
    refuse_missing(objects, "a set")
    numbers: dict[Any, int] = {}
    columns: list[int] = []
    ends = [0]
    for i, items in enumerate(objects):
        if isinstance(items, str | bytes) or not hasattr(items, "__iter__"):
            raise ObjectError(
                i, f"a set was expected, or a list of its elements; got {items!r}. Write set(text) for its letters."
            )
        if isinstance(items, Iterator | MappingView):
            raise ObjectError(
                i, f"a set was expected, or a list of its elements; got {type(items).__name__}, which can be read "
                "once, or changes with a dict. Write set(...) of it."
            )  # fmt: skip
        try:
            columns.extend(numbers.setdefault(item, len(numbers)) for item in set(items))
        except TypeError as error:
            raise ObjectError(i, f"elements of a set must be hashable; {error}.") from None
        ends.append(len(columns))
    refuse_nan(numbers, objects, "an element of a set")
    matrix = sp.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(objects), len(numbers)))
    return Counts(matrix, Vocabulary(list(numbers)))


def _power_of_two(exponent: np.ndarray) -> np.ndarray:
    if exponent.max(initial=0.0) > MAX_LOG2:
        raise DataError(
            f"two sets share {exponent.max():.0f} elements, so 2^|A n B| is beyond double precision. Use "
            "Subsets(normalized=True)."
        )
    return np.exp2(exponent)


class Tanimoto(Unary):
    """c / (a + b - c) with a = k1(x, x), b = k1(x', x'), c = k1(x, x'): the share of features that two objects have in
    common, one for equal ones. Of counts or binary fingerprints of molecules, or with another kernel of its features.

    Two rows without any feature have similarity one.

    >>> Tanimoto()([[1, 1, 0], [1, 0, 0], [0, 0, 1]])
    array([[1. , 0.5, 0. ],
           [0.5, 1. , 0. ],
           [0. , 0. , 1. ]])
    """

    inner: Kernel = eqx.field(default=Linear(), converter=convert.as_kernel)

    def block(self, X: Rows, Z: Rows) -> Any:
        a, b, c = self.inner.block_diag(X)[:, None], self.inner.block_diag(Z)[None, :], self.inner.block(X, Z)
        rest, xp = a + b - c, namespace(a, b, c)
        return xp.where(rest > 0, c / xp.where(rest > 0, rest, 1.0), 1.0)

    def block_diag(self, X: Rows) -> Any:
        diagonal = self.inner.block_diag(X)
        return namespace(diagonal).ones_like(diagonal)

    stationary = isotropic = False

    @property
    def validity(self) -> Validity:
        # c / (a + b - c) = sum_p (c / (a + b))^p, and 1 / (a + b) is an integral of exp(-u a) exp(-u b).
        says = "a series of powers of k1 between equal factors (6.14, 6.15, 6.18)"
        return derive("6.15", says, repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        inside = "" if self.inner == Linear() else repr(self.inner)
        return f"Tanimoto({inside})" if self.name is None else f"Tanimoto({inside}, name={self.name!r})"
