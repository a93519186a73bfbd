"""The mean of a process before data: a number, or a function of the input."""

import dataclasses
import reprlib

import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import count_rows
from mercer.core.precision import concretely
from mercer.kernels.base import Kernel
from mercer.kernels.functions import RowFunction


@dataclasses.dataclass(frozen=True)
class MeanFunction:
    """m(x), evaluated at many inputs: (n,)."""

    constant: float = 0.0
    function: RowFunction | None = None

    @classmethod
    def of(cls, mean) -> "MeanFunction":
        if isinstance(mean, MeanFunction):
            return mean
        if callable(mean) and not isinstance(mean, Kernel):
            return cls(function=RowFunction.of(mean))
        try:
            value = float(mean)
        except (TypeError, ValueError):
            value = np.nan
        if not np.isfinite(value):
            raise ParameterError(f"mean must be a finite number or a function of one input; got {reprlib.repr(mean)}.")
        return cls(constant=value)

    def __call__(self, X) -> np.ndarray:
        if self.function is None:
            return np.full(count_rows(X), self.constant)
        with concretely():
            values = np.asarray(self.function(self.function.prepare(X)))
        if values.shape[1] != 1 or not np.isfinite(values).all():
            raise DataError(
                f"the mean function {self.function!r} must return one finite number per input; it returned "
                f"{values.shape[1]}, {(~np.isfinite(values)).sum()} of them not finite."
            )
        return values[:, 0].copy()

    def __repr__(self):
        return repr(self.constant) if self.function is None else repr(self.function)
