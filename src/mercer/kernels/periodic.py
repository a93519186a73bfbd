"""Kernels of functions that repeat."""

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.inputs import check_width
from mercer.core.parameters import Positive, PositivePerInput
from mercer.kernels.distance import safe_sqrt, squared_distance
from mercer.kernels.stationary import Isotropic, Stationary
from mercer.kernels.validity import Proof, Validity, derive, gaussian_proof


class Periodic(Stationary):
    """exp(-2 sum_i sin^2(pi (x_i - x'_i) / p_i) / l_i^2) (RW06 4.31).

    Period and lengthscale are one for all inputs, or one per input.

    It is the Gaussian kernel on points of circles, u(x) = (cos 2 pi x/p, sin 2 pi x/p), since
    |u - u'|^2 = 4 sin^2(pi (x - x')/p): 2 n d sines instead of n^2 d, and a proof.
    """

    period: PositivePerInput = 1.0
    lengthscale: PositivePerInput = 1.0

    def _circle(self, X):
        # The remainder is exact in floating point, so inputs far from zero lose nothing.
        angle = 2 * jnp.pi * jnp.fmod(X, self.period) / self.period
        # The barrier makes the compiler do this once for each row, not again for every pair.
        return jax.lax.optimization_barrier(jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1))

    def _check(self, X):
        for name in ("period", "lengthscale"):
            if np.size(getattr(self, name)) > 1:
                check_width(X, np.size(getattr(self, name)), name)

    def block_diag(self, X):
        self._check(X)
        return super().block_diag(X)

    def block(self, X, Z):
        self._check(X)
        lengthscale = jnp.asarray(self.lengthscale)
        if lengthscale.ndim:
            lengthscale = jnp.tile(jnp.broadcast_to(lengthscale, X.shape[1:]), 2)
        return jnp.exp(-0.5 * squared_distance(self._circle(X), self._circle(Z), lengthscale))

    @property
    def validity(self) -> Validity:
        gaussian = gaussian_proof("exp(-|u-u'|^2 / 2 l^2)")
        return derive("6.19", "a Gaussian kernel of (cos 2 pi x/p, sin 2 pi x/p)", repr(self), [gaussian])


class RadialPeriodic(Isotropic):
    """exp(-2 sin^2(pi |x - x'| / p) / l^2): scikit-learn's ExpSineSquared.

    For one input it is `Periodic`. For several it is not a valid kernel in general, so nothing is claimed of it.
    """

    lengthscale: Positive = 1.0
    period: Positive = 1.0

    def block(self, X, Z):
        return self.of_squared_distance(squared_distance(X, Z))

    def of_squared_distance(self, r2):
        # sin^2(pi r/p) as r^2 (pi/p)^2 sinc^2(r/p), which is smooth in r^2 at zero.
        sine2 = r2 * (jnp.pi / self.period * jnp.sinc(safe_sqrt(r2) / self.period)) ** 2
        return jnp.exp(-2 * sine2 / jnp.square(self.lengthscale))

    @property
    def validity(self) -> Validity:
        return Validity(None, Proof("?", "valid for one input, where it is Periodic; not always for more", repr(self)))
