"""A season: a periodic shape that changes slowly."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core import calendar
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix
from mercer.core.parameters import Positive, plain
from mercer.core.precision import Array
from mercer.kernels import states
from mercer.kernels.base import Kernel
from mercer.kernels.geometry import Geometry, unit_norms
from mercer.kernels.periodic import Periodic
from mercer.kernels.states import States
from mercer.kernels.stationary import Matern
from mercer.kernels.validity import Validity, derive

SMOOTHNESS = 1.5  # of the change of the shape


class Seasonal(Kernel):
    """A season whose shape changes slowly: exp(-2 sin^2(pi (u - u')) / l^2) (1 + s) e^-s, s = 3^1/2 |u - u'| / d.

    u counts periods, and ``decay`` d is in periods as well: seasons that far apart have little in common. The first
    factor is `Periodic`, of ``lengthscale`` l, the second a Matern function (a quasi-periodic kernel, RW06 5.4.3).
    ``period`` is a number in units of the input, u = x / period, and is not learned; or on dates one of "year",
    "quarter", "month", "week" and "day", by the calendar: leap years and months of any length are one period each.
    Numbers instead of dates are then decimal years, as dates are to all kernels. It reads one column: select it with
    ``.on("date")``.

    >>> season = Seasonal("year", decay=20.0)
    >>> season(np.array(["2019-03-01", "2020-03-01", "2020-09-01"], dtype="datetime64[D]")).round(2)[0].tolist()
    [1.0, 1.0, 0.13]
    """

    period: Any = eqx.field(default=1.0, static=True, converter=plain)
    lengthscale: Positive = 1.0
    decay: Positive = 10.0

    def __check_init__(self) -> None:
        given = self.period
        if isinstance(given, str):
            if given not in calendar.PERIODS:
                known = ", ".join(map(repr, calendar.PERIODS))
                raise ParameterError(f"Seasonal.period must be a positive number or one of {known}; got {given!r}.")
        elif isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 < given < np.inf:
            raise ParameterError(f"Seasonal.period must be a positive number or a word such as 'year'; got {given!r}.")

    def prepare(self, X: Inputs, index: Array) -> Rows:
        X = as_matrix(X)
        if X.shape[1] != 1:
            raise DataError(f"Seasonal reads one column, and X has {X.shape[1]}; select one, as in .on('date').")
        return calendar.count(self.period, X) if isinstance(self.period, str) else X / float(self.period)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jnp.asarray(Periodic(1.0, self.lengthscale).block(X, Z) * self._change().block(X, Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.ones_like(X[:, 0])

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return unit_norms(self.block(X, Z))

    def state_space(self, order: Any = None) -> States | None:
        word = self.period if isinstance(self.period, str) else None
        length = calendar.mean_length(word) if word else float(self.period)
        start = float(calendar.count(word, np.float64(1970.0))) - 1970.0 / length if word else 0.0

        def count(t: Array) -> Array:
            return calendar.count(word, t) if word else t / length

        return states.seasonal(count, length, start, states.matern(1, self.decay * length), self.lengthscale, order)

    def _change(self) -> Matern:
        return Matern(self.decay, nu=SMOOTHNESS)

    @property
    def stationary(self) -> bool | None:
        return not isinstance(self.period, str)  # calendar years have 365 or 366 days

    @property
    def isotropic(self) -> bool | None:
        return self.stationary

    @property
    def validity(self) -> Validity:
        parts = [Periodic(1.0, self.lengthscale).validity, self._change().validity]
        product = derive("6.18", "a product of a periodic and a Matern kernel", "k(u, u')", parts)
        return derive("6.19", "that kernel of the number of periods u(x)", repr(self), [product])
