"""Kernels of one input whose variance changes along it: straight lines from an origin, and parts that begin or end."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Rows, check_width
from mercer.core.parameters import Positive, Real, plain
from mercer.kernels.base import Kernel
from mercer.kernels.distance import difference_of_squares, squared_distance
from mercer.kernels.geometry import Geometry
from mercer.kernels.validity import Validity, proved


class _OneFunction(Kernel):
    """f(x) f(x') for a function f of one input u = (x - start) / unit, which has parameters in these units.

    ``start`` and ``unit`` are not learned: learning is easiest where u runs from about zero to about one.
    """

    start: Any = eqx.field(default=0.0, static=True, converter=plain, kw_only=True)
    unit: Any = eqx.field(default=1.0, static=True, converter=plain, kw_only=True)

    def __check_init__(self) -> None:
        for name, positive in (("start", False), ("unit", True)):
            value = getattr(self, name)
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and np.isfinite(value)
            if not number or (positive and not value > 0):
                kind = "a positive number" if positive else "a number"
                raise ParameterError(f"{type(self).__name__}.{name} must be {kind}; got {value!r}.")

    def function(self, u: jax.Array) -> jax.Array:
        raise NotImplementedError

    def feature_block(self, X: Rows) -> jax.Array:
        check_width(X, 1, type(self).__name__)
        return self.function((X - float(self.start)) / float(self.unit))

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.feature_block(X) @ self.feature_block(Z).T

    def block_diag(self, X: Rows) -> jax.Array:
        return self.feature_block(X)[:, 0] ** 2

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        f, g = self.feature_block(X), self.feature_block(Z)
        return Geometry(f @ g.T, squared_distance(f, g), difference_of_squares(f, g))

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of one feature", repr(self))


class Line(_OneFunction):
    """(u - origin) (u' - origin), u = (x - start) / unit: straight lines through the origin. Times another kernel, its
    size grows in proportion to the distance from there, as a season grows with the level.

    >>> Line(origin=1.0)([1.0, 2.0, 3.0]).diagonal().tolist()
    [0.0, 1.0, 4.0]
    """

    origin: Real = 0.0

    def function(self, u: jax.Array) -> jax.Array:
        return u - self.origin


class Step(_OneFunction):
    """s(u) s(u'), s a logistic step from zero to one at ``location``, over a few times ``width``; with ``falling`` from
    one to zero. Times another kernel: a part that begins there, or ends. u = (x - start) / unit.

    >>> Step(location=5.0, width=0.1)([1.0, 5.0, 9.0]).diagonal().round(2).tolist()
    [0.0, 0.25, 1.0]
    """

    location: Real = 0.0
    width: Positive = 1.0
    falling: bool = eqx.field(default=False, static=True, converter=plain)

    def function(self, u: jax.Array) -> jax.Array:
        away = (u - self.location) / self.width
        return jax.nn.sigmoid(jnp.where(self.falling, -away, away))
