"""What all kernels made of kernels share."""

from typing import ClassVar

from mercer.kernels import convert
from mercer.kernels.base import Kernel


class Unary(Kernel):
    """One kernel changed by a rule. Unless said otherwise it is stationary and isotropic where its part is."""

    _transparent: ClassVar[bool] = True

    inner: Kernel

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "inner", convert.as_kernel(self.inner))

    def prepare(self, X, index):
        return self.inner.prepare(X, index)

    @property
    def stationary(self):
        return self.inner.stationary

    @property
    def isotropic(self):
        return self.inner.isotropic

    def _method(self, call):
        return named(self, f"({self.inner!r}).{call}" if self.inner._strength < 4 else f"{self.inner!r}.{call}")


def named(kernel, expression: str) -> str:
    return expression if kernel.name is None else f"({expression}).named({kernel.name!r})"
