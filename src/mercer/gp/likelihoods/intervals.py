"""Likelihoods of values known to lie in an interval: censored measurements, and ordered grades.

With Gaussian noise of variance v around f, P(a < y <= b | f) = Phi((b - f) / s) - Phi((a - f) / s), s^2 = v. An
integral over a Gaussian f has the same form with its variance added to v.
"""

import dataclasses
from typing import Any, NamedTuple, Self

import equinox as eqx
import numpy as np
from scipy.special import erfcx, ndtr

from mercer.core.errors import DataError
from mercer.core.parameters import Positive, PositiveArray, Real, evolve
from mercer.distributions import LOG_2PI, Normal
from mercer.gp.likelihood import Derivatives, Tilted
from mercer.gp.likelihoods.base import Target, TargetLikelihood, refuse, register

NOISE_SHARES = (0.1, 0.003)  # of the variance of y, where the noise starts
MIN_NOISE_SHARE = 1e-8
MAX_GRADES = 50
MIN_INTERVAL = 1e-300


class _Interval(NamedTuple):
    """P = Phi(zb) - Phi(za), and k-th derivatives of Phi((b - f) / s) and Phi((a - f) / s) in f over P, k = 1 to 4."""

    log_p: np.ndarray
    upper: list[np.ndarray]
    lower: list[np.ndarray]

    def ratios(self) -> list[np.ndarray]:
        """P', P'', P''', P'''' over P."""
        return [b - a for b, a in zip(self.upper, self.lower, strict=True)]


def _interval(f: np.ndarray, a: np.ndarray, b: np.ndarray, s: np.ndarray | float) -> _Interval:
    with np.errstate(invalid="ignore"):
        za, zb = (a - f) / s, (b - f) / s
        flip = za + zb > 0  # to the left tail, where no digits are lost
    left, right = np.where(flip, -zb, za), np.where(flip, -za, zb)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # P = phi(x) (m(x) - m(w) phi(w) / phi(x)) with m = Phi / phi, x the end nearer to zero.
        x = np.where(np.isfinite(right), right, 0.0)
        gap = np.where(np.isfinite(left), np.exp(0.5 * (x - left) * (x + left)), 0.0)
        mass = _mills(x) - np.where(gap > 0, _mills(np.where(np.isfinite(left), left, -1.0)) * gap, 0.0)
        tail = np.log(np.maximum(mass, MIN_INTERVAL)) - 0.5 * x**2 - 0.5 * LOG_2PI
        direct = np.maximum(ndtr(right) - ndtr(left), MIN_INTERVAL)
        in_tail = right <= 0
        log_p = np.where(in_tail, tail, np.log(direct))

        def density(z: np.ndarray) -> np.ndarray:
            """phi(z) / P, zero at infinity."""
            return np.where(
                np.isfinite(z), np.exp(-0.5 * np.where(np.isfinite(z), z, 0.0) ** 2 - 0.5 * LOG_2PI - log_p), 0.0
            )

        # In the tail phi / P as one over m, so that hazards keep their digits.
        near = np.where(in_tail, 1 / np.maximum(mass, MIN_INTERVAL), density(right))
        far = np.where(in_tail, gap / np.maximum(mass, MIN_INTERVAL), density(left))
        near = np.where(np.isfinite(right), near, 0.0)
        phi_a, phi_b = np.where(flip, near, far), np.where(flip, far, near)
    return _Interval(log_p, _hermite(zb, phi_b, s), _hermite(za, phi_a, s))


def _mills(z: np.ndarray) -> np.ndarray:
    """Phi(z) / phi(z)."""
    return np.sqrt(np.pi / 2) * erfcx(-z / np.sqrt(2))


def _hermite(z: np.ndarray, phi: np.ndarray, s: np.ndarray | float) -> list[np.ndarray]:
    """First four derivatives of Phi((c - f) / s) in f, phi(z) being given: -He_k(z) phi(z) / s^(k + 1)."""
    z = np.where(np.isfinite(z), z, 0.0)
    return [-phi / s, -z * phi / s**2, -(z**2 - 1) * phi / s**3, -(z**3 - 3 * z) * phi / s**4]


def _log_derivatives(r: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Derivatives of ln P from those of P over P."""
    h, p2, p3, p4 = r
    return (
        h,
        p2 - h**2,
        p3 - 3 * h * p2 + 2 * h**3,
        p4 - 4 * h * p3 - 3 * p2**2 + 12 * h**2 * p2 - 6 * h**4,
    )


@register
class Censored(TargetLikelihood):
    """y = f + Gaussian noise of variance ``noise``; rows with y <= lower, or y >= upper, are known to be no more."""

    label = "censored"
    location = True
    sides = ("lower", "upper")
    constant_variance = 100.0
    noise: Positive = 1.0

    def _derivatives(self, f: np.ndarray, t: Target, variance: Any) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """ln p with this noise variance, and four derivatives."""
        eta, s = f + t.offset, np.sqrt(variance)
        assert t.lower is not None
        assert t.upper is not None
        below, above = t.y <= t.lower, t.y >= t.upper
        r = (t.y - eta) / variance
        value = -0.5 * (t.y - eta) * r - 0.5 * np.log(variance) - 0.5 * LOG_2PI
        exact = (r, -1 / variance, 0.0, 0.0)
        if not (below.any() or above.any()):
            return value, tuple(np.broadcast_arrays(*exact, value)[:4])
        a, b = np.where(above, t.upper, -np.inf), np.where(below, t.lower, np.inf)
        found = _interval(eta, a, b, s)
        limited, inside = below | above, _log_derivatives(found.ratios())
        return (
            np.where(limited, found.log_p, value),
            tuple(np.where(limited, part, known) for part, known in zip(inside, exact, strict=True)),
        )

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        value, (first, second, third, _) = self._derivatives(f, t, self.noise)
        return Derivatives(value, first, second, third)

    def all_slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        """p solves the heat equation: dp / d noise = p'' / 2."""
        _, (h1, h2, h3, h4) = self._derivatives(f, t, self.noise)
        half = 0.5 * self.noise
        return half * np.stack([h2 + h1**2, h3 + 2 * h1 * h2, h4 + 2 * h2**2 + 2 * h1 * h3])[None]

    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Tilted:
        value, (first, second, _, _) = self._derivatives(mean, t, self.noise + variance)
        return Tilted(value, first, second)

    def tilted_slopes(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> np.ndarray:
        _, (first, second, _, _) = self._derivatives(mean, t, self.noise + variance)
        return (0.5 * self.noise * (second + first**2))[None][self.moving()]

    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        assert t.lower is not None
        assert t.upper is not None
        return np.clip(t.y, t.lower, t.upper), np.full(np.shape(t.y), np.sqrt(self.noise))

    @property
    def noise_variance(self) -> float:
        return float(self.noise)

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return eta, np.full(np.shape(eta), self.noise)

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        return ndtr((y - eta) / np.sqrt(self.noise))

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        return eta + np.sqrt(self.noise) * rng.standard_normal(np.shape(eta))

    def predict(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Normal:
        """Of the value itself, be it within the limits or not."""
        return Normal(mean + t.offset, np.sqrt(variance + self.noise))

    def checked(self, t: Target) -> Target:
        assert t.lower is not None
        assert t.upper is not None
        if (t.lower >= t.upper).any():
            i = int(np.flatnonzero(t.lower >= t.upper)[0])
            raise DataError(
                f"lower must be below upper; row {i} has lower {t.lower[i]:g} and upper {t.upper[i]:g}. lower is the "
                "limit below which, upper the limit above which a value is not measured."
            )
        return t

    def completed(self, t: Target) -> Target:
        lower = np.full(len(t), -np.inf) if t.lower is None else t.lower
        upper = np.full(len(t), np.inf) if t.upper is None else t.upper
        # At a limit, whatever was written down for a value beyond it.
        return dataclasses.replace(t, lower=lower, upper=upper, y=np.clip(t.y, lower, upper))

    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        size = float(np.abs(t.y).max()) or 1.0
        spread = float(np.std(t.y / size)) * size
        return float(np.mean(t.y)), spread if spread > 1e-14 * size else 1.0

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        variance = float(np.var(t.y)) or 1.0
        if "noise" in self.fixed:
            return [(self, variance)]
        return [(evolve(self, noise=np.float64(share * variance)), variance) for share in NOISE_SHARES]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        moving = self.moving()
        return np.log([MIN_NOISE_SHARE])[moving], np.array([np.inf])[moving]

    def unit_exponents(self) -> np.ndarray:
        return np.array([2.0])[self.moving()]

    def rescaled(self, scale: float) -> Self:
        return evolve(self, noise=np.float64(self.noise * scale**2))

    def with_noise(self, variance: float) -> Self:
        return evolve(self, noise=np.float64(variance), fixed=self.fixed | {"noise"})


@register
class Ordinal(TargetLikelihood):
    """Ordered grades: y is the grade in which f + noise lies, between cut points (Chu and Ghahramani 2005).

    Noise has variance one, which is the unit of f. The first cut point is ``first``, the distances between
    neighbouring ones are ``steps``. ``grades`` are the values of y, in order; with two of them this is the probit
    classifier, and there are no steps.
    """

    label = "ordinal"
    discrete = True
    first: Real = 0.0
    steps: PositiveArray = eqx.field(default_factory=lambda: np.ones(1))
    grades: tuple[float, ...] = eqx.field(default=(), static=True)

    @property
    def _two(self) -> bool:
        return len(self.grades) == 2

    def cuts(self) -> np.ndarray:
        """(K - 1,)."""
        steps = np.zeros(0) if self._two else np.asarray(self.steps)
        return self.first + np.concatenate([[0.0], np.cumsum(steps)])

    def _ends(self, t: Target) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut points below and above each row, and its code."""
        code = np.searchsorted(self.grades, t.y)
        ends = np.concatenate([[-np.inf], self.cuts(), [np.inf]])
        return ends[code], ends[code + 1], code

    def _found(self, f: np.ndarray, t: Target, variance: Any) -> _Interval:
        a, b, _ = self._ends(t)
        return _interval(f + t.offset, a, b, np.sqrt(variance))

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        found = self._found(f, t, 1.0)
        first, second, third, _ = _log_derivatives(found.ratios())
        return Derivatives(found.log_p, first, second, third)

    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Tilted:
        found = self._found(mean, t, 1 + variance)
        first, second, _, _ = _log_derivatives(found.ratios())
        return Tilted(found.log_p, first, second)

    def _in_ends(self, found: _Interval) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of ln P, and of its first two derivatives in f, in the cut points below and above: (3, ...)."""
        h, p2, _, _ = found.ratios()

        def through(end: list[np.ndarray], sign: float) -> np.ndarray:
            # A cut point moves as f does, in the opposite direction: dP / db = -(its part of) P'.
            e1, e2, e3 = (sign * part for part in end[:3])
            first = -e2 + h * e1
            return np.stack([-e1, first, -e3 + p2 * e1 - 2 * h * first])

        return through(found.lower, -1.0), through(found.upper, 1.0)

    def _in_parameters(self, below: np.ndarray, above: np.ndarray, code: np.ndarray) -> np.ndarray:
        """From slopes in the ends to those in first and ln steps: (P, 3, ...)."""
        count = len(self.cuts())
        steps = np.asarray(self.steps)
        parts = []
        for j in range(count):  # how the j-th parameter moves cut points j, j + 1, ...
            # The end below grade ``code`` is cut point code - 1, the one above is cut point code.
            moved = np.where(code - 1 >= j, below, 0.0) + np.where((code >= j) & (code < count), above, 0.0)
            parts.append(moved * (1.0 if j == 0 else steps[j - 1]))
        if self._two:
            parts.append(np.zeros_like(parts[0]))
        return np.stack(parts)

    def all_slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        return self._in_parameters(*self._in_ends(self._found(f, t, 1.0)), self._ends(t)[2])

    def tilted_slopes(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> np.ndarray:
        found = self._in_parameters(*self._in_ends(self._found(mean, t, 1 + variance)), self._ends(t)[2])
        return found[:, 0][self.moving()]

    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        a, b, _ = self._ends(t)
        a, b = np.where(np.isfinite(a), a, b), np.where(np.isfinite(b), b, a)
        return 0.5 * (a + b), 1 + 0.5 * (b - a)

    def probabilities(self, eta: np.ndarray, variance: np.ndarray | float = 0.0) -> np.ndarray:
        """Of every grade, given the latent value, or its mean and variance: (..., K)."""
        s = np.sqrt(1 + np.asarray(variance))[..., None]
        levels = ndtr((self.cuts() - eta[..., None]) / s)
        ends = np.zeros((*levels.shape[:-1], 1))
        return np.diff(np.concatenate([ends, levels, ends + 1], axis=-1), axis=-1)

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return self._grade_moments(self.probabilities(eta))

    def _grade_moments(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grades = np.asarray(self.grades)
        mean = p @ grades
        return mean, np.sum(p * (grades - mean[..., None]) ** 2, axis=-1)

    def moments(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return self._grade_moments(self.probabilities(mean + t.offset, variance))

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        return self._level(y, eta, 1.0)

    def _level(self, y: np.ndarray, eta: np.ndarray, s: np.ndarray | float) -> np.ndarray:
        code = np.searchsorted(self.grades, np.asarray(y) + 0.0, side="right") - 1
        ends = np.concatenate([[-np.inf], self.cuts(), [np.inf]])
        return ndtr((ends[np.clip(code + 1, 0, len(ends) - 1)] - eta) / s)

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        code = np.searchsorted(self.cuts(), eta + rng.standard_normal(np.shape(eta)))
        return np.asarray(self.grades)[code]

    def predict(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> "Any":
        from mercer.gp.likelihoods.grades import Grades

        return Grades(np.asarray(self.grades), self.probabilities(mean + t.offset, variance))

    def checked(self, t: Target) -> Target:
        remedy = "Number the grades in their order, as 1, 2, 3."
        refuse("likelihood='ordinal' is for grades", t.y != np.floor(t.y), t.y, remedy)
        if self.grades:
            refuse(f"the grades fitted are {_listed(self.grades)}", ~np.isin(t.y, self.grades), t.y, "Fit with them.")
        return t

    def of_grades(self, y: np.ndarray) -> Self:
        """With cut points for these grades: those of the shares of y, for f ~ N(0, 1)."""
        from scipy.special import ndtri

        grades, counts = np.unique(y, return_counts=True)
        if not 2 <= len(grades) <= MAX_GRADES:
            raise DataError(
                f"likelihood='ordinal' is for 2 to {MAX_GRADES} ordered grades; y has {len(grades)} different values. "
                "Use likelihood='gaussian' for numbers."
            )
        cuts = np.sqrt(2.0) * ndtri(np.cumsum(counts)[:-1] / len(y))
        steps = np.maximum(np.diff(cuts), 1e-3) if len(cuts) > 1 else np.ones(1)
        fixed = self.fixed | {"steps"} if len(cuts) == 1 else self.fixed
        return evolve(self, first=np.float64(cuts[0]), steps=steps, grades=tuple(grades.tolist()), fixed=fixed)

    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        return 0.0, 1.0  # the cut points are learned

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        return [(self, 1.0), (self, 10.0)]

    def support(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(t), self.grades[0]), np.full(len(t), self.grades[-1])


def _listed(grades: tuple[float, ...]) -> str:
    return ", ".join(f"{grade:g}" for grade in grades)
