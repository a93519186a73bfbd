"""Kernels of places: on the sphere, and with a rotated lengthscale matrix in the plane (PRML 6.19, 6.20)."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix
from mercer.core.parameters import Positive, Real, evolve, show
from mercer.core.precision import Array, is_traced, namespace
from mercer.kernels.base import Kernel
from mercer.kernels.composite import Unary
from mercer.kernels.geometry import Geometry
from mercer.kernels.validity import Validity, derive


class OfPlaces(Unary):
    """A kernel of a function of two columns; a subclass says which."""

    needs_all_columns = True
    reads = "vectors"

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.inner.block(self._placed(X), self._placed(Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return self.inner.block_diag(self._placed(X))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return self.inner.geometry(self._placed(X), self._placed(Z))

    def feature_block(self, X: Rows) -> jax.Array:
        return self.inner.feature_block(self._placed(X))

    def rough_part(self, orders: tuple[int, ...] | int) -> Kernel | None:
        return self.inner.rough_part(orders if isinstance(orders, int) else sum(orders))

    @property
    def terms(self) -> "tuple[Kernel, ...] | None":
        """Terms of which it is the sum, where it is linear in k1; else None."""
        return None

    def _placed(self, X: Rows) -> Rows:
        """Rows prepared for the inner kernel, from those prepared for this one."""
        raise NotImplementedError

    def coordinates(self, X: Inputs) -> np.ndarray:
        """What the inner kernel sees of these inputs."""
        raise NotImplementedError


class OnSphere(OfPlaces):
    """k1 of points on a sphere in three dimensions, from longitude and latitude in degrees (PRML 6.19).

    k1 sees (cos b cos a, cos b sin a, sin b) times ``radius``, at longitude a and latitude b: distances are chords
    through the sphere, so that every kernel that is valid on vectors stays valid. A chord of c radii is an arc of
    2 asin(c / 2): for less than 30 degrees the two differ by about one percent at most.
    """

    radius: float = eqx.field(default=1.0, static=True, converter=lambda radius: _checked_radius(radius))

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self.inner.prepare(self.coordinates(X), index)

    def fit(self, X: Inputs) -> "OnSphere":
        return evolve(self, inner=self.inner.fit(self.coordinates(X)))

    def _placed(self, X: Rows) -> Rows:
        return X

    def coordinates(self, X: Inputs) -> Any:
        X = checked_places(X, "longitude and latitude, in degrees")
        if not is_traced(X):
            beyond = np.abs(X[:, 1]) > 90.0
            if beyond.any():
                row = int(beyond.argmax())
                swapped = " Longitude comes first, then latitude." if (np.abs(X[:, 0]) <= 90).all() else ""
                raise DataError(
                    f"latitudes lie between -90 and 90 degrees; row {row} has {X[row, 1]:g}"
                    f"{f', and {beyond.sum() - 1} more rows are outside' if beyond.sum() > 1 else ''}.{swapped}"
                )
        xp = namespace(X)
        # The remainder is exact, so that longitudes beyond 360 degrees lose no digits.
        a, b = xp.deg2rad(xp.fmod(X[:, 0], 360.0)), xp.deg2rad(X[:, 1])
        return self.radius * xp.stack([xp.cos(b) * xp.cos(a), xp.cos(b) * xp.sin(a), xp.sin(b)], axis=1)

    stationary = isotropic = None  # in longitude and latitude; on the sphere, that of k1

    @property
    def validity(self) -> Validity:
        return derive("6.19", "a valid kernel of points on the sphere", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method("on_sphere()" if self.radius == 1.0 else f"on_sphere(radius={self.radius:g})")


class Rotated(OfPlaces):
    """k1 with geometric anisotropy in the plane: of A (x - x'), with A a rotation and a stretch (PRML 6.19).

    The direction ``angle``, in degrees counter-clockwise from the first axis, keeps the lengthscale of k1; across it
    the lengthscale is ``ratio`` times that. Both are learned. The squared distance is (x - x')^T M (x - x') with the
    rotated matrix M = A^T A. The angle counts modulo 180, and (angle, ratio) is the same kernel as
    (angle + 90, 1 / ratio) with a lengthscale ``ratio`` times as long.
    """

    _transparent: ClassVar[bool] = False

    angle: Real = 0.0
    ratio: Positive = 0.5

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return checked_places(X, "coordinates in the plane"), index

    def _placed(self, X: Rows) -> Rows:
        places, index = X
        return self.inner.prepare(self._turned(places), index)

    def _turned(self, X: Any) -> jax.Array:
        turn = jnp.deg2rad(jnp.asarray(self.angle))
        c, s = jnp.cos(turn), jnp.sin(turn)
        return jnp.stack([c * X[:, 0] + s * X[:, 1], (c * X[:, 1] - s * X[:, 0]) / self.ratio], axis=1)

    def coordinates(self, X: Inputs) -> np.ndarray:
        return np.asarray(self._turned(checked_places(X, "coordinates in the plane")))

    @property
    def stationary(self) -> bool | None:
        return self.inner.stationary

    @property
    def isotropic(self) -> bool | None:
        return self.inner.isotropic and not is_traced(self.ratio) and bool(self.ratio == 1.0)

    @property
    def validity(self) -> Validity:
        return derive("6.19", "a valid kernel of rotated and stretched inputs", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method(f"rotate({show(self.angle)}, ratio={show(self.ratio)})")


def checked_places(X: Inputs, what: str) -> Any:
    """Inputs of two columns."""
    X = as_matrix(X)
    if X.shape[1] != 2:
        raise DataError(
            f"expected two columns, {what}; got {X.shape[1]}. Select them, as in "
            f"{'.on_sphere()' if 'longitude' in what else '.rotate()'}.on([0, 1])."
        )
    return X


def _checked_radius(radius: Any) -> float:
    if isinstance(radius, bool) or not isinstance(radius, int | float | np.number) or not 0 < radius < np.inf:
        raise ParameterError(
            f"radius must be a positive number, such as 6371.0 for kilometres on Earth; got {radius!r}."
        )
    return float(radius)
