"""Kernels that are products over groups of columns, so that their Gram matrix on a grid is a Kronecker product."""

import math
from collections.abc import Iterable, Sequence

from mercer.core.parameters import nodes_of
from mercer.core.precision import is_zero
from mercer.kernels.algebra import Nary, Power, Product, Scale
from mercer.kernels.base import Kernel
from mercer.kernels.composite import Unary
from mercer.kernels.stationary import RBF, Constant, Matern, Standard
from mercer.kernels.substitution import Normalize, On, positions_of

Groups = list[frozenset[int]]


def column_groups(kernel: Kernel, columns: Sequence[int]) -> Groups:
    """Groups of these columns over which a kernel is a product, k(x, x') = prod_g k_g(x_g, x_g'), as fine as its form
    shows. Columns that it does not read are in none.

    >>> from mercer.kernels import RBF, Matern
    >>> [sorted(group) for group in column_groups(2.0 * Matern().on([0, 1]) * RBF().on(2), range(3))]
    [[0, 1], [2]]
    >>> [sorted(group) for group in column_groups(RBF([1.0, 2.0]), range(2))]
    [[0], [1]]
    """
    if isinstance(kernel, Scale | Power | Normalize):
        return column_groups(kernel.inner, columns)
    if isinstance(kernel, On):
        return column_groups(kernel.inner, [columns[i] for i in positions_of(kernel.selection, len(columns))])
    if isinstance(kernel, Product):
        return _merged(group for part in kernel.parts for group in column_groups(part, columns))
    if isinstance(kernel, Constant):
        return []
    if _is_gaussian(kernel):
        return _merged(frozenset([column]) for column in columns)
    if isinstance(kernel, Nary):
        read = frozenset().union(*(group for part in kernel.parts for group in column_groups(part, columns)))
        return [read] if read else []
    if isinstance(kernel, Unary) and kernel.elementwise:
        read = frozenset().union(*column_groups(kernel.inner, columns))
        return [read] if read else []
    return [frozenset(columns)]


def coupling_term(kernel: Kernel) -> Kernel:
    """The part of a product, or the kernel itself, that is no product over groups of columns: the first that is no
    Gaussian."""
    if isinstance(kernel, Scale | Power | Normalize | On):
        return coupling_term(kernel.inner)
    if isinstance(kernel, Product):
        return next((coupling_term(part) for part in kernel.parts if not _is_gaussian(part)), kernel)
    return kernel


def reads_index(kernel: Kernel) -> Kernel | None:
    """A part, such as white noise in a product, that reads the index of rows; None if there is none."""
    for node in nodes_of(kernel):
        if not isinstance(node, Kernel) or isinstance(node, Constant) or list(node._kernels()):
            continue
        if not node.reads_values:
            return node
    return None


def _is_gaussian(kernel: Kernel) -> bool:
    """Whether it is exp(-sum_j (x_j - x_j')^2 / 2 l_j^2), times a constant."""
    if type(kernel) is Standard:
        smooth = kernel.nu is None or bool(math.isinf(float(kernel.nu)))
        return smooth and is_zero(kernel.theta2) and is_zero(kernel.theta3)
    return type(kernel) is RBF or (type(kernel) is Matern and math.isinf(float(kernel.nu)))


def _merged(groups: Iterable[frozenset[int]]) -> Groups:
    """Groups joined where they share a column, ordered by their first columns."""
    out: Groups = []
    for group in groups:
        shared = [other for other in out if other & group]
        out = [other for other in out if not other & group] + [group.union(*shared)]
    return sorted((group for group in out if group), key=min)
