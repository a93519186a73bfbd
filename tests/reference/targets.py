"""Likelihoods and posteriors by brute force: SciPy's distributions, dense grids."""

import numpy as np
from scipy import stats
from scipy.integrate import quad


def log_density(name: str, y: float, f: float, **p: float) -> float:
    """ln p(y | f) from SciPy's distributions."""
    if name == "student":
        return float(stats.t.logpdf(y, p["dof"], loc=f, scale=p["scale"]))
    if name == "poisson":
        return float(stats.poisson.logpmf(y, p.get("exposure", 1.0) * np.exp(f)))
    if name == "negative_binomial":
        r, mean = 1 / p["dispersion"], p.get("exposure", 1.0) * np.exp(f)
        return float(stats.nbinom.logpmf(y, r, r / (r + mean)))
    if name == "binomial":
        return float(stats.binom.logpmf(y, p["trials"], 1 / (1 + np.exp(-f))))
    if name == "gamma":
        return float(stats.gamma.logpdf(y, p["shape"], scale=np.exp(f) / p["shape"]))
    deviation = np.sqrt(p["noise"])
    if name == "below":
        return float(stats.norm.logcdf(y, f, deviation))
    if name == "above":
        return float(stats.norm.logsf(y, f, deviation))
    return float(stats.norm.logpdf(y, f, deviation))


def expectation(g, mean: float, variance: float, points=()) -> float:
    """E g(f) for a Gaussian f, by adaptive quadrature."""
    deviation = np.sqrt(variance)
    low, high = mean - 12 * deviation, mean + 12 * deviation
    inside = [x for x in points if low < x < high]
    h = lambda f: g(f) * stats.norm.pdf(f, mean, deviation)
    return quad(h, low, high, points=inside or None, epsabs=1e-13, epsrel=1e-11, limit=500)[0]


def posterior_on_grid(K: np.ndarray, log_likelihood, half_width: float = 7.0, count: int = 121):
    """ln of the evidence, and mean and variance of f, of two or three rows: the sum over a grid in whitened
    coordinates. ``log_likelihood`` takes f (..., n)."""
    n = len(K)
    z = np.linspace(-half_width, half_width, count)
    Z = np.stack(np.meshgrid(*[z] * n, indexing="ij"), axis=-1)
    F = Z @ np.linalg.cholesky(K).T
    logs = log_likelihood(F) - 0.5 * np.sum(Z**2, axis=-1) - 0.5 * n * np.log(2 * np.pi)
    top = logs.max()
    weights = np.exp(logs - top)
    total = weights.sum()
    axes = tuple(range(n))
    mean = np.sum(weights[..., None] * F, axis=axes) / total
    variance = np.sum(weights[..., None] * (F - mean) ** 2, axis=axes) / total
    return top + np.log(total) + n * np.log(z[1] - z[0]), mean, variance
