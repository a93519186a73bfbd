"""Pairs of points in feature space: scalar product, squared distance, and difference of squared norms.

With a = k(x,x), b = k(z,z) and c = k(x,z) these are c, a + b - 2c and a - b. Subtraction cancels for close points, so
each kernel computes the three as accurately as it can, and the rules below combine them without subtraction, by
a - c = (distance + difference)/2 and b - c = (distance - difference)/2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mercer.kernels.distance import uses_smooth_distances


class Geometry(NamedTuple):
    """Arrays (n, m), for all pairs of rows."""

    product: jax.Array
    distance: jax.Array
    difference: jax.Array

    def plus(self, other: "Geometry") -> "Geometry":
        """Of k1 + k2."""
        return Geometry(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def scaled(self, c: Any) -> "Geometry":
        """Of c k1."""
        return Geometry(*(c * mine for mine in self))

    def shifted(self, c: Any) -> "Geometry":
        """Of k1 + c."""
        return self._replace(product=self.product + c)

    def times(self, other: "Geometry") -> "Geometry":
        """Of k1 k2."""
        (c1, d1, e1), (c2, d2, e2) = self, other
        distance = 0.5 * d1 * d2 + c1 * d2 + c2 * d1 + 0.5 * e1 * e2
        difference = 0.5 * ((d1 + 2 * c1) * e2 + (d2 + 2 * c2) * e1)
        return Geometry(c1 * c2, not_negative(distance), difference)

    def power(self, n: int) -> "Geometry":
        """Of k1^n."""
        result = self
        for _ in range(n - 1):
            result = result.times(self)
        return result

    def exponential(self) -> "Geometry":
        """Of exp(k1)."""
        height = jnp.exp(self.product)
        up, down = (jnp.expm1(0.5 * (self.distance + sign * self.difference)) for sign in (1, -1))
        return Geometry(height, not_negative(height * (up + down)), height * (up - down))


def not_negative(distance: jax.Array) -> jax.Array:
    """Zero where rounding made a distance negative. Unlike `maximum`, it keeps the full derivative at zero."""
    if uses_smooth_distances():  # rounding must not hide derivatives at coincident points
        return distance
    return jnp.where(distance < 0, 0.0, distance)


def unit_norms(product: jax.Array) -> Geometry:
    """Of a kernel with k(x, x) = 1."""
    return Geometry(product, 2 * (1 - product), jnp.zeros_like(product))


def gaussian_of(r2: jax.Array) -> Geometry:
    """Of exp(-r2 / 2), accurate for small distances."""
    return Geometry(jnp.exp(-0.5 * r2), -2 * jnp.expm1(-0.5 * r2), jnp.zeros_like(r2))
