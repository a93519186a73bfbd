"""Prior mean of a process: a number, a function of the input, or an unknown constant."""

import reprlib
from typing import Any

import equinox as eqx
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.parameters import Parametrized, Real
from mercer.core.precision import concretely
from mercer.kernels.base import Kernel
from mercer.kernels.functions import RowFunction

UNKNOWN = "unknown"


class MeanFunction(Parametrized):
    """m(x), evaluated at many inputs: (n,). With ``unknown``, plus a constant with a flat prior. A part of `Model`."""

    constant: Real = 0.0
    function: RowFunction | None = None
    unknown: bool = eqx.field(default=False, static=True)
    fixed: frozenset[str] = eqx.field(default=frozenset(("constant",)), static=True, kw_only=True, repr=False)

    @classmethod
    def of(cls, mean: Any) -> "MeanFunction":
        """From user input: a number, a function of one input, UNKNOWN, or a `MeanFunction`."""
        if isinstance(mean, MeanFunction):
            return mean
        if callable(mean) and not isinstance(mean, Kernel):
            return cls(function=RowFunction.of(mean))
        if isinstance(mean, str) and mean == UNKNOWN:
            return cls(unknown=True)
        try:
            value = float(mean)
        except (TypeError, ValueError):
            value = np.nan
        if not np.isfinite(value):
            raise ParameterError(
                f"mean must be a finite number, a function of one input, or {UNKNOWN!r} for a constant to be estimated "
                f"from the data; got {reprlib.repr(mean)}."
            )
        return cls(constant=value)

    def __call__(self, X: Inputs) -> np.ndarray:
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

    def columns(self, X: Inputs) -> np.ndarray:
        """Design matrix H (n, q) of the unknown coefficients."""
        return np.ones((count_rows(X), int(self.unknown)))

    def __repr__(self) -> str:
        if self.unknown:
            return repr(UNKNOWN)
        return repr(float(self.constant)) if self.function is None else repr(self.function)
