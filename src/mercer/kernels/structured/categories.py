"""Kernels on categories: equal or not."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from mercer.core.errors import ObjectError
from mercer.kernels.structured.rows import CountKernel, Counts, Vocabulary, is_missing
from mercer.kernels.validity import Validity, proved


class Categorical(CountKernel):
    """One if two categories are equal, else zero: every category has a level of its own, independent of the others.

    ``variance * Categorical() + constant`` is the exchangeable kernel, in which all pairs of different categories have
    the same positive similarity. A category is any hashable value: text, a number, a boolean (True is equal to 1), a
    date. One that no training row has is new: similar to itself alone.

    Several columns are one category, their combination: ``Categorical().on(["a", "b"])`` is the product
    ``Categorical().on("a") * Categorical().on("b")``, and their sum gives each its own effect. A missing value is
    refused, since it need not equal another missing one; where it means something, fill in a category for it.

    >>> Categorical()(["water", "ethanol", "water"], ["water", "hexane"])
    array([[1., 0.],
           [0., 0.],
           [1., 0.]])
    """

    joins_columns = True

    def counts(self, objects: np.ndarray) -> Counts:
        numbers: dict[Any, int] = {}
        columns = np.empty(len(objects), dtype=np.int64)
        for i, item in enumerate(objects):
            category = _category(i, item)
            try:
                columns[i] = numbers.setdefault(category, len(numbers))
            except TypeError as error:
                raise ObjectError(i, f"a category must be hashable, such as text or a number; {error}.") from None
        matrix = sp.csr_matrix(
            (np.ones(len(objects)), columns, np.arange(len(objects) + 1)), shape=(len(objects), len(numbers))
        )
        return Counts(matrix, Vocabulary(list(numbers)))

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of indicators, one for every category", repr(self))


def _category(row: int, item: Any) -> Any:
    """A value, or a tuple of several columns' values. Rows of one column are the same in every container."""
    if hasattr(item, "tolist"):  # numbers and rows of NumPy and JAX
        item = item.tolist()
    if isinstance(item, list) and len(item) == 1:
        item = item[0]
    if isinstance(item, list | tuple):
        return tuple(_category(row, part) for part in item)
    if is_missing(item):
        raise ObjectError(
            row,
            "a missing value, where a category was expected. Drop the row, or fill in a category for it, such as "
            "'missing'.",
        )
    return item
