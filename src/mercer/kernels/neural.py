"""Covariances of neural networks with infinitely many hidden units (PRML 6.4.7; Williams 1998)."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.inputs import Rows, check_width
from mercer.core.parameters import Positive, PositivePerInput
from mercer.kernels.base import Kernel
from mercer.kernels.distance import squared_distance
from mercer.kernels.geometry import not_negative
from mercer.kernels.validity import Validity, derive, gaussian_proof, proved


class ArcSine(Kernel):
    """Probit hidden units erf(w.x~), x~ = (1, x), w ~ N(0, Sigma) (Williams 1998, eq. 10):

        (2/pi) arcsin( 2 x~.S.x~' / sqrt((1 + 2 x~.S.x~) (1 + 2 x~'.S.x~')) )

    Sigma is diagonal: ``bias`` is the variance of the bias weight, ``weight`` of the input weights (one, or one per
    input). Not stationary: it saturates far from the origin, as a network does.
    """

    bias: Positive = 1.0
    weight: PositivePerInput = 1.0

    def _squared_norm(self, X: jax.Array) -> jax.Array:
        if np.size(self.weight) > 1:
            check_width(X, np.size(self.weight), "weight")
        return jnp.sum(self.weight * X * X, axis=1)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        u2, v2, uv = self._squared_norm(X)[:, None], self._squared_norm(Z)[None, :], (self.weight * X) @ Z.T
        a, b, c = self.bias + u2, self.bias + v2, self.bias + uv
        # arcsin loses half the digits near 1, that is for inputs far from the origin. With numerator N = 2c and
        # denominator D, arcsin(N/D) = arctan(N / sqrt(D^2 - N^2)), and D^2 - N^2 = 1 + 2a + 2b + 4 (ab - c^2), where
        # ab - c^2 = bias |x - x'|^2 + |u|^2 |v|^2 - (u.v)^2 for u and v without the bias (Lagrange's identity). The
        # last two terms cancel for one input. For more they do not change when the longer of u and v is replaced by its
        # difference from the shorter (or their sum), which avoids cancellation.
        scale = 1 / jnp.sqrt(jnp.asarray(self.weight))
        minus = squared_distance(X, Z, scale, what="weight")  # |u - v|^2
        determinant = self.bias * minus
        if X.shape[1] > 1:
            plus = squared_distance(X, -Z, scale, what="weight")
            short = jnp.where(u2 <= v2, u2, v2)  # not `minimum`, whose derivative at a tie is an average
            w2, uw = jnp.where(uv > 0, minus, plus), jnp.where(uv > 0, uv - short, uv + short)
            determinant = determinant + not_negative(short * w2 - uw**2)
        return 2 / jnp.pi * jnp.arctan2(2 * c, jnp.sqrt(1 + 2 * a + 2 * b + 4 * determinant))

    def block_diag(self, X: Rows) -> jax.Array:
        a = self.bias + self._squared_norm(X)
        return 2 / jnp.pi * jnp.arctan2(2 * a, jnp.sqrt(1 + 4 * a))

    smoothness = math.inf

    @property
    def validity(self) -> Validity:
        return proved("6.1", "an expectation of products of hidden units (6.4.7; Williams 1998, 10)", repr(self))


class GaussianNetwork(Kernel):
    """Gaussian hidden units exp(-|x - u|^2 / 2 g^2) with centres u ~ N(0, s^2 I) (Williams 1998, eq. 13).

    g is the ``width``, s the ``spread``: a Gaussian kernel that decays away from the origin,
    (e/s)^d exp(-|x|^2/2m^2) exp(-|x-x'|^2/2q^2) exp(-|x'|^2/2m^2)
    with 1/e^2 = 2/g^2 + 1/s^2, q^2 = 2g^2 + g^4/s^2, m^2 = 2s^2 + g^2.
    """

    width: Positive = 1.0
    spread: Positive = 1.0

    def _constants(self, d: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(e/s)^d, q and m, without squares, which may under- or overflow."""
        g, s, root = self.width, self.spread, 2**0.5
        return jnp.hypot(1.0, root * s / g) ** -d, g * jnp.hypot(root, g / s), jnp.hypot(root * s, g)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        height, q, m = self._constants(X.shape[1])
        edge = jnp.sum((X / m) ** 2, axis=1)[:, None] + jnp.sum((Z / m) ** 2, axis=1)[None, :]
        return height * jnp.exp(-0.5 * (edge + squared_distance(X / q, Z / q)))

    def block_diag(self, X: Rows) -> jax.Array:
        height, _, m = self._constants(X.shape[1])
        return height * jnp.exp(-jnp.sum((X / m) ** 2, axis=1))

    smoothness = math.inf

    @property
    def validity(self) -> Validity:
        gaussian = gaussian_proof("exp(-|x-x'|^2 / 2 q^2)")
        return derive("6.14", "a Gaussian kernel between two equal factors (Williams 1998, 13)", repr(self), [gaussian])
