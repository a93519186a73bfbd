"""Base class of kernels made from one other kernel."""

from typing import ClassVar

import equinox as eqx

from mercer.core.inputs import Inputs, Rows
from mercer.core.precision import Array
from mercer.kernels import convert
from mercer.kernels.base import Kernel


class Unary(Kernel):
    """A kernel made from another by a rule; stationary and isotropic if that one is, unless a subclass differs."""

    _transparent: ClassVar[bool] = True

    inner: Kernel = eqx.field(converter=convert.as_kernel)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self.inner.prepare(X, index)

    @property
    def stationary(self) -> bool | None:
        return self.inner.stationary

    @property
    def isotropic(self) -> bool | None:
        return self.inner.isotropic

    def _method(self, call: str) -> str:
        """Expression of a method call on the inner kernel, for `repr`."""
        return named(self, f"({self.inner!r}).{call}" if self.inner._precedence < 4 else f"{self.inner!r}.{call}")


def named(kernel: Kernel, expression: str) -> str:
    """Expression with the kernel's name, for `repr`."""
    return expression if kernel.name is None else f"({expression}).named({kernel.name!r})"
