"""Scores of Gaussian predictions, and what they lose on new rows."""

import math

import numpy as np
from scipy.special import ndtr


def crps(y, mean, deviation) -> np.ndarray:
    """Continuous ranked probability score of N(mean, deviation^2) (Gneiting and Raftery 2007, eq 21): in the units of
    y, the lower the better; the absolute error where the deviation is zero."""
    y, mean, deviation = (np.asarray(value, dtype=float) for value in (y, mean, deviation))
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(deviation > 0, (y - mean) / deviation, np.inf)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    scored = deviation * (np.where(np.isfinite(z), z, 0.0) * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return np.where(deviation > 0, scored, np.abs(y - mean))


def optimism(n: int, parameters: int) -> float:
    """How much larger squared errors of new rows are than those of n rows that k parameters were learned from:
    (n + k) / (n - k), as in Akaike's final prediction error. k counts as half of the rows at most."""
    k = min(parameters, n // 2)
    return (n + k) / (n - k)
