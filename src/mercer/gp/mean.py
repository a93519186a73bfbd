"""Prior mean of a process: a number, a function of the input, or a trend with unknown coefficients."""

import reprlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer import gram
from mercer.basis import Basis as BasisFunctions
from mercer.basis import Polynomial
from mercer.core.coordinates import Layout
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.parameters import Parametrized, Real, evolve
from mercer.core.precision import concretely, double
from mercer.kernels.base import Kernel
from mercer.kernels.functions import RowFunction
from mercer.means import Basis, Coefficients, Function, positions, row_slopes

UNKNOWN, LINEAR = "unknown", "linear"


class MeanFunction(Parametrized):
    """m(x), at many inputs: (n,); with a ``trend``, plus columns with unknown coefficients. A part of `Model`.

    Values of a ``function`` are divided by ``unit``, that of the target, and added to the constant.
    """

    constant: Real = 0.0
    function: RowFunction | Function | None = None
    trend: Basis | None = None
    unit: Any = 1.0
    fixed: frozenset[str] = eqx.field(default=frozenset(("constant",)), static=True, kw_only=True, repr=False)

    @classmethod
    def of(cls, mean: Any) -> "MeanFunction":
        """From user input: a number; a function of one input; with unknown coefficients UNKNOWN, a constant, LINEAR, a
        constant and all inputs, columns to be linear in, or a basis; or what `mercer.means` has."""
        if isinstance(mean, MeanFunction):
            return mean
        if isinstance(mean, Basis):
            return cls(trend=mean)
        if isinstance(mean, BasisFunctions):
            return cls(trend=Basis(mean))
        if isinstance(mean, Function):
            return cls(function=mean)
        if callable(mean) and not isinstance(mean, Kernel):
            return cls(function=RowFunction.of(mean))
        if isinstance(mean, str) and mean in (UNKNOWN, LINEAR):
            return cls(trend=Basis(Polynomial(0 if mean == UNKNOWN else 1)))
        if isinstance(mean, list | tuple) and mean and all(isinstance(c, str | int | np.integer) for c in mean):
            return cls(trend=Basis(Polynomial(1), columns=mean))
        try:
            value = np.nan if isinstance(mean, bool | np.bool_) else float(mean)
        except (TypeError, ValueError):
            value = np.nan
        if not np.isfinite(value):
            raise ParameterError(
                f"mean must be a finite number, a function of one input, {UNKNOWN!r} for a constant to be estimated "
                f"from the data, {LINEAR!r} for a linear trend in all inputs, a list of columns for one in these, a "
                f"basis from mercer.basis, or one of mercer.means; got {reprlib.repr(mean)}."
            )
        return cls(constant=value)

    @classmethod
    def restored(cls, unknown: bool = False, **fields: Any) -> "MeanFunction":
        """From the fields of a file; older ones hold whether there is an unknown constant."""
        made = cls(**fields)
        return evolve(made, trend=cls.of(UNKNOWN).fit(np.zeros((1, 1))).trend) if unknown is True else made

    def consistent(self) -> bool:
        """Whether its parts are of the right types, for `mercer.load`."""
        parts = (self.constant, float), (self.function, RowFunction | None), (self.trend, Basis | None)
        return all(isinstance(part, kind) for part, kind in (*parts, (self.unit, float)))

    # -- values --------------------------------------------------------------------------------------------------------

    def __call__(self, X: Inputs) -> np.ndarray:
        if self.function is None:
            return np.full(count_rows(X), self.constant)
        with concretely():
            values = np.asarray(self.function(self.function.prepare(gram.raw(X))))
        if values.shape[1] != 1 or not np.isfinite(values).all():
            raise DataError(
                f"the mean function {self.function!r} must return one finite number per input; it returned "
                f"{values.shape[1]}, {(~np.isfinite(values)).sum()} of them not finite."
            )
        return self.constant + values[:, 0] / self.unit

    def slope(self, Z: np.ndarray, names: list[str] | None) -> np.ndarray:
        """Derivatives with respect to the inputs, a matrix (s, d) with these column names: (s, d)."""
        out = np.zeros(Z.shape)
        if self.function is not None:
            which = positions(getattr(self.function, "columns", None), names, Z.shape[1])
            out[:, which] = row_slopes(self.function, Z[:, which], self.function)[..., 0] / self.unit
        return out

    def in_units(self, center: float, scale: float) -> "MeanFunction":
        """Mean of (y - center) / scale, of which this is that of y. An unknown constant takes up the center."""
        constant = self.constant if self.centred else np.float64((self.constant - center) / scale)
        return evolve(self, constant=constant, unit=float(self.unit * scale))

    # -- unknown coefficients ------------------------------------------------------------------------------------------

    @property
    def unknown(self) -> bool:
        """Whether there are unknown coefficients."""
        return self.trend is not None

    @property
    def centred(self) -> bool:
        """Whether the mean has an unknown constant, with a flat prior."""
        return self.trend is not None and self.trend.centred

    @property
    def linear(self) -> bool:
        """Whether it contains every linear function of the inputs, with flat priors."""
        degree = None if self.trend is None or self.trend.columns is not None else self.trend.degree
        return self.centred and degree is not None and degree >= 1

    @property
    def is_constant(self) -> bool:
        """Whether it is the same at every input."""
        return self.function is None and (self.trend is None or self.trend.degree == 0)

    @property
    def needs_all_columns(self) -> bool:
        """Whether it reads all columns of a frame."""
        part = self.function if self.trend is None else self.trend
        return not self.is_constant and getattr(part, "columns", None) is None

    def fit(self, X: Inputs) -> "MeanFunction":
        """A copy whose columns are conditioned on these rows, unless that was done before."""
        if self.trend is None or self.trend.fitted:
            return self
        return evolve(self, trend=self.trend.fit(X))

    def unfitted(self) -> "MeanFunction":
        """A copy that `fit` conditions on other rows."""
        return self if self.trend is None else evolve(self, trend=evolve(self.trend, transform=None))

    def columns(self, X: Inputs) -> np.ndarray:
        """Design matrix H (n, q) of the unknown coefficients."""
        return np.ones((count_rows(X), 0)) if self.trend is None else self.trend.design(gram.raw(X))

    def columns_slope(self, Z: np.ndarray, names: list[str] | None) -> np.ndarray:
        """Derivatives of `columns` with respect to the inputs: (s, q, d)."""
        return np.zeros((len(Z), 0, Z.shape[1])) if self.trend is None else self.trend.slope(Z, names)

    @property
    def precision(self) -> np.ndarray | None:
        """Prior precision (q, q) of the coefficients of `columns`; None if it is flat, or there are none."""
        return None if self.trend is None else self.trend.precision(self.unit)

    def coefficients(self, X: Inputs, estimate: np.ndarray, covariance: np.ndarray) -> Coefficients | None:
        """Coefficients on the natural scale, from those of `columns`; None if there are none."""
        return None if self.trend is None else self.trend.natural(self.trend.names(X), estimate, covariance)

    def __repr__(self) -> str:
        if self.trend is not None:
            trend = self.trend
            line = LINEAR if trend.columns is None else list(trend.columns)
            names: dict[int | None, Any] = {0: UNKNOWN, 1: line} if trend.variance is None else {}
            return repr(names.get(trend.degree, trend))
        return repr(float(self.constant)) if self.function is None else repr(self.function)


class LearnedMean:
    """Values of a mean on fixed rows as a function of its free parameters, and the gradient of what depends on them."""

    def __init__(self, mean: MeanFunction, X: Inputs) -> None:
        self.layout, function = Layout.of(mean), mean.function
        if not isinstance(function, Function):
            self._fixed: np.ndarray | None = mean(X)
            return
        self._fixed = None
        rows = function.prepare(X)
        program = function.program(rows.shape[1])

        def values(theta: jax.Array) -> jax.Array:
            placed: Any = self.layout.placed(mean, theta).function
            return mean.constant + program(placed, jnp.asarray(rows))[:, 0] / mean.unit

        self._values: Callable = jax.jit(values)
        self._pull: Callable = jax.jit(lambda theta, a: jax.vjp(values, theta)[1](a)[0])
        self._jacobian: Callable = jax.jit(jax.jacfwd(values))

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """m at these parameters: (n,)."""
        if self._fixed is not None:
            return self._fixed
        with double():
            return np.asarray(self._values(np.asarray(theta, dtype=float)))

    def slope(self, theta: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Gradient in theta of a^T m."""
        if self._fixed is not None:
            return np.zeros(0)
        with double():
            return np.asarray(self._pull(np.asarray(theta, dtype=float), np.asarray(a)))

    def jacobian(self, theta: np.ndarray) -> np.ndarray:
        """dm/dtheta: (n, p)."""
        if self._fixed is not None:
            return np.zeros((len(self._fixed), 0))
        with double():
            return np.asarray(self._jacobian(np.asarray(theta, dtype=float)))
