"""Base class of kernels made from one other kernel, and what the parts of an expression share."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.inputs import Inputs, Rows
from mercer.core.parameters import bare, nodes_of
from mercer.core.precision import Array, is_traced
from mercer.kernels import convert
from mercer.kernels.base import Kernel


class Unary(Kernel):
    """A kernel made from another by a rule; stationary and isotropic if that one is, unless a subclass differs."""

    _transparent: ClassVar[bool] = True

    inner: Kernel = eqx.field(converter=convert.as_kernel)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return prepared(self.inner, X, index)

    @property
    def stationary(self) -> bool | None:
        return self.inner.stationary

    @property
    def isotropic(self) -> bool | None:
        return self.inner.isotropic

    def _method(self, call: str) -> str:
        """Expression of a method call on the inner kernel, for `repr`."""
        return named(self, f"({self.inner!r}).{call}" if self.inner._precedence < 4 else f"{self.inner!r}.{call}")


# -- preparation -----------------------------------------------------------------------------------------------------

# What was prepared so far while one expression is: by what it depends on.
_SHARED: contextvars.ContextVar[dict[Any, tuple[Inputs, Array, Rows]] | None] = contextvars.ContextVar(
    "shared", default=None
)


def preparation(kernel: Kernel) -> tuple[Any, ...]:
    """All that prepared rows may depend on: the expression, which of its parameters are free, and the values of the
    others, which a kernel may use while it prepares."""
    leaves, structure = jax.tree.flatten(bare(kernel))
    free = set(Layout.of(kernel).leaf_numbers)
    constants = (np.asarray(leaf) for i, leaf in enumerate(leaves) if i not in free)
    return structure, tuple(sorted(free)), tuple((c.shape, c.tobytes()) for c in constants)


def prepared(part: Kernel, X: Inputs, index: Array) -> Rows:
    """Rows prepared for a part of an expression, once for all parts that prepare them alike (`sharing`)."""
    shared = _SHARED.get()
    if shared is None:
        return part.prepare(X, index)
    key = preparation(part), id(X), id(index)
    if key not in shared:
        shared[key] = X, index, part.prepare(X, index)  # which keeps X and the index, and with them their identity
    return shared[key][2]


@contextlib.contextmanager
def sharing(kernel: Kernel) -> Iterator[None]:
    """While ``kernel`` prepares rows, its equal parts share them. Traced parameters cannot be compared."""
    kinds = [type(node) for node in nodes_of(kernel)]
    if _SHARED.get() is not None or len(set(kinds)) == len(kinds) or is_traced(kernel):
        yield
        return
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def named(kernel: Kernel, expression: str) -> str:
    """Expression with the kernel's name, for `repr`."""
    return expression if kernel.name is None else f"({expression}).named({kernel.name!r})"
