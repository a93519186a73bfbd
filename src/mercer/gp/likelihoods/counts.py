"""Likelihoods of counts and shares: Poisson, negative binomial, binomial."""

import dataclasses
from typing import Self

import numpy as np
from scipy.special import bdtr, betainc, betaln, digamma, expit, gammaln, log_expit, pdtr

from mercer.core.errors import DataError
from mercer.core.parameters import Positive, evolve
from mercer.gp.likelihood import Derivatives, Expected
from mercer.gp.likelihoods.base import Target, TargetLikelihood, refuse, register

START_VARIANCES = (1.0, 0.1)  # of the latent function, for shares
MIN_LATENT_VARIANCE = 0.05  # of the latent function of counts, where learning starts
START_DISPERSIONS = (0.3, 0.03)
# At the upper end rates deviate by three times their mean. Any more fits counts that are nearly all zero, at any mean.
MIN_DISPERSION, MAX_DISPERSION = 1e-6, 10.0
INTEGER = "Give whole numbers 0, 1, 2, ...; for positive numbers use likelihood='gamma' or 'lognormal'."


class Counts(TargetLikelihood):
    """Counts with mean exposure x exp(f)."""

    discrete = True
    sides = ("exposure",)

    def checked(self, t: Target) -> Target:
        refuse(f"likelihood={self.label!r} is for counts", (t.y < 0) | (t.y != np.floor(t.y)), t.y, INTEGER)
        return t

    def completed(self, t: Target) -> Target:
        exposure = np.ones(len(t)) if t.exposure is None else t.exposure
        if not (exposure > 0).all():
            raise DataError(
                f"exposure must be positive; the smallest is {exposure.min():g}. Leave out rows that were not observed."
            )
        return dataclasses.replace(t, exposure=exposure, offset=t.offset + np.log(exposure))

    def support(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(t)), np.full(len(t), np.inf)

    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        exposure = 1.0 if t.exposure is None else t.exposure
        return float(np.log(max(t.y.sum(), 0.5) / np.sum(np.broadcast_to(exposure, t.y.shape)))), 1.0

    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        y = np.maximum(t.y, 0.0) + 0.5
        return np.log(y), 1 / np.sqrt(np.maximum(y, 1.0))

    def latent_variance(self, t: Target) -> float:
        """Of the logarithm of the rate, without what is due to counting."""
        exposure = np.ones_like(t.y) if t.exposure is None else t.exposure
        log_rate = np.log((t.y + 0.5) / exposure)
        return max(float(np.var(log_rate) - np.mean(1 / (t.y + 0.5))), MIN_LATENT_VARIANCE)


@register
class Poisson(Counts):
    """Counts with mean and variance exposure x exp(f)."""

    label = "poisson"

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        eta = f + t.offset
        with np.errstate(over="ignore"):
            rate = np.exp(eta)
        return Derivatives(t.y * eta - rate - gammaln(t.y + 1), t.y - rate, -rate, -rate)

    def expected(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Expected:
        """y m - exp(m + v / 2) - ln y!."""
        eta = mean + t.offset
        with np.errstate(over="ignore"):
            rate = np.exp(eta + 0.5 * variance)
        return Expected(t.y * eta - rate - gammaln(t.y + 1), t.y - rate, -0.5 * rate)

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            return np.exp(eta), np.exp(eta)

    def moments(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            first = np.exp(mean + t.offset + 0.5 * variance)
            return first, first + first**2 * np.expm1(variance)

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.where(y >= 0, pdtr(np.maximum(np.floor(y), 0.0), np.exp(eta)), 0.0)

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        return _poisson(np.exp(eta), rng)

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        return [(self, self.latent_variance(t))]


@register
class NegativeBinomial(Counts):
    """Counts with mean m = exposure x exp(f) and variance m + ``dispersion`` m^2: Poisson with a rate that varies."""

    label = "negative_binomial"
    dispersion: Positive = START_DISPERSIONS[0]

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        r, eta = 1 / self.dispersion, f + t.offset
        x = eta + np.log(self.dispersion)  # p = mean / (r + mean) = sigma(x)
        p, q = expit(x), expit(-x)
        bend = (r + t.y) * p * q
        # ln of the binomial coefficient (y + r - 1 over y), without differences of large numbers.
        coefficient = -np.log(r + t.y) - betaln(r, t.y + 1)
        value = coefficient + t.y * log_expit(x) + r * log_expit(-x)
        return Derivatives(value, t.y * q - r * p, -bend, -bend * (q - p))

    def all_slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        r, x = 1 / self.dispersion, f + t.offset + np.log(self.dispersion)
        p, q = expit(x), expit(-x)
        first = t.y * q - r * p
        # d / d ln r at fixed f; x falls by one with ln r.
        level = r * (digamma(t.y + r) - digamma(r) + log_expit(-x)) - first
        bend = (r + t.y) * p * q
        in_r = level, -r * p + bend, -r * p * q + bend * (q - p)
        return -np.stack(np.broadcast_arrays(*in_r))[None]

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            mean = np.exp(eta)
            return mean, mean + self.dispersion * mean**2

    def moments(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            first = np.exp(mean + t.offset + 0.5 * variance)
            return first, first + first**2 * (np.expm1(variance) + self.dispersion * np.exp(variance))

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        q = expit(-eta - np.log(self.dispersion))
        return np.where(y >= 0, betainc(1 / self.dispersion, np.maximum(np.floor(y), 0.0) + 1, q), 0.0)

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        r = 1 / self.dispersion
        return _poisson(np.exp(eta) * rng.gamma(r, 1 / r, np.shape(eta)), rng)

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        variance = self.latent_variance(t)
        shares = START_DISPERSIONS if "dispersion" not in self.fixed else (self.dispersion,)
        return [(evolve(self, dispersion=np.float64(share)), variance) for share in shares]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        moving = self.moving()
        return np.log([MIN_DISPERSION])[moving], np.log([MAX_DISPERSION])[moving]


@register
class Binomial(TargetLikelihood):
    """y successes in ``trials``, each with probability sigma(f)."""

    label = "binomial"
    discrete = True
    sides = ("trials",)

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        assert t.trials is not None
        eta = f + t.offset
        p, q = expit(eta), expit(-eta)
        bend, failures = t.trials * p * q, t.trials - t.y
        coefficient = -np.log1p(t.trials) - betaln(failures + 1, t.y + 1)
        value = coefficient + t.y * log_expit(eta) + failures * log_expit(-eta)
        return Derivatives(value, t.y * q - failures * p, -bend, -bend * (q - p))

    def checked(self, t: Target) -> Target:
        share = (t.y > 0) & (t.y < 1)
        refuse("likelihood='binomial' is for numbers of successes", share, t.y,
               "A share is y / trials: give fit(X, successes, trials=...).")  # fmt: skip
        refuse("likelihood='binomial' is for numbers of successes", (t.y < 0) | (t.y != np.floor(t.y)), t.y, INTEGER)
        assert t.trials is not None
        refuse("there are more successes than trials", t.y > t.trials, t.y, "Give fit(X, successes, trials=...).")
        return t

    def completed(self, t: Target) -> Target:
        trials = np.ones(len(t)) if t.trials is None else t.trials
        if not ((trials >= 1) & (trials == np.floor(trials))).all():
            raise DataError("trials must be whole numbers of at least one. Leave out rows without trials.")
        return dataclasses.replace(t, trials=trials)

    def support(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        assert t.trials is not None
        return np.zeros(len(t)), t.trials

    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        assert t.trials is not None
        successes, failures = t.y.sum() + 0.5, (t.trials - t.y).sum() + 0.5
        return float(np.log(successes / failures)), 1.0

    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        assert t.trials is not None
        successes, failures = np.maximum(t.y, 0.0) + 0.5, np.maximum(t.trials - t.y, 0.0) + 0.5
        return np.log(successes / failures), np.sqrt(1 / successes + 1 / failures)

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return t.trials * expit(eta), t.trials * expit(eta) * expit(-eta)

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        assert t.trials is not None
        floor = np.clip(np.floor(y), 0.0, t.trials)
        inside = np.where(
            floor < t.trials, bdtr(np.minimum(floor, t.trials - 1), t.trials.astype(int), expit(eta)), 1.0
        )
        return np.where(y >= 0, inside, 0.0)

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        assert t.trials is not None
        return rng.binomial(np.broadcast_to(t.trials, np.shape(eta)).astype(np.int64), expit(eta)).astype(float)

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        return [(self, variance) for variance in START_VARIANCES]


def _poisson(rate: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Poisson draws; beyond the range of 64-bit integers, where they are normal, rounded."""
    large = rate > 1e15
    found = rng.poisson(np.where(large, 1.0, rate)).astype(float)
    return np.where(large, np.maximum(np.round(rate + np.sqrt(rate) * rng.standard_normal(rate.shape)), 0.0), found)
