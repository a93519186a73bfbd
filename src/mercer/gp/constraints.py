"""Functions known to lie within limits, or to be monotone: expectation propagation for linear functionals in intervals.

Each constraint is a virtual observation, that a functional u of the function, its derivative at a point say, lies in
[a, b]: a site Phi((b - u)/nu) - Phi((a - u)/nu), with a small nu (Riihimaki and Vehtari 2010). The sites become
Gaussian measurements, on which the process is conditioned.
"""

import math

import numpy as np
from scipy.special import log_ndtr

SOFTNESS = 1e-3  # nu, relative to the prior deviation of the functional
MAX_SWEEPS, TOLERANCE = 200, 1e-6  # of expectation propagation; change of means in deviations
DAMPING = 0.8
MIN_SITE = 1e-8  # precision of a site relative to the prior's, below which it has no effect


def log_mass(low: float, high: float) -> float:
    """ln(Phi(high) - Phi(low)) for low < high."""
    if low > 0:
        low, high = -high, -low
    top, bottom = float(log_ndtr(high)), float(log_ndtr(low))
    return top + math.log1p(-math.exp(bottom - top)) if bottom < top else -math.inf


def tilted(mean: float, variance: float, low: float, high: float) -> tuple[float, float]:
    """First derivative of ln (Phi(beta) - Phi(alpha)) in the mean, and minus the second, with alpha = (low - mean) / s,
    beta = (high - mean) / s and s^2 the variance."""
    s = math.sqrt(variance)
    alpha, beta = (low - mean) / s, (high - mean) / s
    mass = log_mass(alpha, beta)
    at = [math.exp(min(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - mass, 700.0)) if math.isfinite(z) else 0.0
          for z in (alpha, beta)]  # fmt: skip
    first = (at[0] - at[1]) / s
    weighted = sum(sign * z * p for sign, z, p in ((1, alpha, at[0]), (-1, beta, at[1])) if math.isfinite(z))
    return first, first**2 - weighted / variance


def interval_sites(
    mean: np.ndarray, K: np.ndarray, low: np.ndarray, high: np.ndarray, softness: np.ndarray
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Precisions and precision-weighted means (m,) of Gaussian sites for u ~ N(mean, K) in [low, high], by sequential
    expectation propagation, and whether it converged. O(m^3) a sweep (RW06 Alg 3.5)."""
    m = len(mean)
    S, nu = np.zeros(m), np.zeros(m)
    Sigma, mu = K.copy(), mean.copy()
    scale = np.sqrt(np.diag(K))
    for _ in range(MAX_SWEEPS):
        before = mu.copy()
        for i in range(m):
            variance = max(Sigma[i, i], 1e-14 * scale[i] ** 2)
            left = 1 / variance - S[i]
            if left <= 1e-10 / scale[i] ** 2:
                continue
            v, c = 1 / left, (mu[i] / variance - nu[i]) / left  # cavity
            first, curvature = tilted(c, v + softness[i] ** 2, low[i], high[i])
            share = 1 - v * curvature
            if not (math.isfinite(first) and curvature > 0 and share > 1e-12):
                continue
            new_S = curvature / share
            new_nu = (first + curvature * c) / share
            dS, dnu = DAMPING * (new_S - S[i]), DAMPING * (new_nu - nu[i])
            S[i], nu[i] = S[i] + dS, nu[i] + dnu
            column = Sigma[:, i].copy()
            gain = dS / (1 + dS * column[i])
            mu += column * (dnu - gain * (mu[i] + dnu * column[i]))
            Sigma -= gain * np.outer(column, column)
        # Anew from the sites, as rank-one changes gather rounding errors (Alg 3.5 lines 13-15).
        root = np.sqrt(S)
        B = np.eye(m) + root[:, None] * K * root
        half = np.linalg.solve(np.linalg.cholesky(B), root[:, None] * K)
        Sigma = K - half.T @ half
        mu = mean + Sigma @ (nu - S * mean)
        if np.max(np.abs(mu - before) / scale) < TOLERANCE:
            return S, nu, True
    return S, nu, False
