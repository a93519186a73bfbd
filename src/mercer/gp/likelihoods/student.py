"""Student's t distribution around the latent function: robust to outliers."""

from typing import Self

import numpy as np
from scipy.special import digamma, gammaln, stdtr

from mercer.core.parameters import Positive, evolve
from mercer.gp.likelihood import Derivatives
from mercer.gp.likelihoods.base import Target, TargetLikelihood, register

MIN_DOF, MAX_DOF = 2.1, 1e4  # learned: the variance is finite; to Gaussian to four digits
START_DOF = 4.0
NOISE_SHARES = (0.3, 0.03)  # of the variance of y, where the squared scale starts
MIN_SCALE_SHARE = 1e-3  # learned scale, relative to the spread of y
NORMAL_MAD = 0.6744897501960817  # median of |x| of a standard normal


@register
class Student(TargetLikelihood):
    """p(y | f) = t with ``dof`` degrees of freedom and this ``scale``, around f. Far tails: an outlier moves f little.

    Not log-concave: the posterior of f may have several modes.
    """

    label = "student"
    log_concave = False
    location = True
    constant_variance = 100.0

    scale: Positive = 1.0
    dof: Positive = START_DOF

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        nu, r = self.dof, t.y - f - t.offset
        A = nu * self.scale**2
        D = A + r**2
        value = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(np.pi * A) - (nu + 1) / 2 * np.log1p(r**2 / A)
        first = (nu + 1) * r / D
        return Derivatives(value, first, (nu + 1) * (r**2 - A) / D**2, -2 * (nu + 1) * r * (3 * A - r**2) / D**3)

    def precision(self, square: np.ndarray) -> np.ndarray:
        """Expected precision of y where (y - f)^2 has this value, as a scale mixture of normals: p(y | f) is above the
        Gaussian of this precision that touches it there."""
        return (self.dof + 1) / (self.dof * self.scale**2 + square)

    def all_slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        nu, r = self.dof, t.y - f - t.offset
        A = nu * self.scale**2
        D = A + r**2
        in_scale = (
            -1 + (nu + 1) * r**2 / D,
            -2 * (nu + 1) * r * A / D**2,
            -2 * A * (nu + 1) * (3 * r**2 - A) / D**3,
        )
        level = 0.5 * nu * (digamma((nu + 1) / 2) - digamma(nu / 2)) - 0.5
        in_dof = (
            level - 0.5 * nu * np.log1p(r**2 / A) + 0.5 * (nu + 1) * r**2 / D,
            nu * r / D - (nu + 1) * r * A / D**2,
            nu * (r**2 - A) / D**2 - (nu + 1) * A * (3 * r**2 - A) / D**3,
        )
        return np.stack([np.stack(np.broadcast_arrays(*part)) for part in (in_scale, in_dof)])

    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return t.y, np.full(np.shape(t.y), self.scale)

    @property
    def noise_variance(self) -> float:
        return float(self.scale**2 * self.dof / (self.dof - 2)) if self.dof > 2 else np.inf

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return eta, np.full(np.shape(eta), self.noise_variance)

    def moments(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return mean + t.offset, variance + self.noise_variance

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        return stdtr(self.dof, (y - eta) / self.scale)

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        return eta + self.scale * rng.standard_t(self.dof, np.shape(eta))

    def checked(self, t: Target) -> Target:
        return t

    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        """Median, and the median distance from it as of a normal: outliers do not count."""
        centre = float(np.median(t.y))
        away = np.abs(t.y - centre)
        spread = float(np.median(away)) / NORMAL_MAD
        if spread <= 1e-12 * float(np.abs(t.y).max()):
            spread = float(np.sqrt(np.mean(away**2)))
        return centre, spread or 1.0

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        _, spread = self.centre_and_scale(t)
        shares = NOISE_SHARES if "scale" not in self.fixed else NOISE_SHARES[:1]
        scales = [self.scale if "scale" in self.fixed else np.float64(spread * share**0.5) for share in shares]
        return [(evolve(self, scale=scale), spread**2) for scale in scales]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.log([MIN_SCALE_SHARE, MIN_DOF]), np.array([np.inf, np.log(MAX_DOF)])
        return low[self.moving()], high[self.moving()]

    def unit_exponents(self) -> np.ndarray:
        return np.array([1.0, 0.0])[self.moving()]

    def rescaled(self, scale: float) -> Self:
        return evolve(self, scale=np.float64(self.scale * scale))

    def with_noise(self, variance: float) -> Self:
        return evolve(self, scale=np.float64(variance**0.5), fixed=self.fixed | {"scale"})
