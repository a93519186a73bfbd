"""Convergence diagnostics of several chains: effective sample size and R-hat (Vehtari and others 2021)."""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from mercer.core.errors import DataError

MIN_DRAWS = 4  # of a chain
BATCH_COLUMNS = 256  # diagnosed at a time


def effective_size(x: np.ndarray, ranked: bool = True) -> np.ndarray:
    """Number of independent draws whose mean is as accurate: (...) for x (chains, draws, ...).

    Each chain is split in two, values are replaced by normal scores of their ranks unless ``ranked`` is False, and
    autocorrelations over all chains are summed up to where Geyer's pairs cease to be positive, made monotone. Chains
    that disagree lower it. For a constant it is the number of draws.
    """
    return _per_column(x, lambda part: _effective_size(_scores(part) if ranked else part))


def split_rhat(x: np.ndarray) -> np.ndarray:
    """Spread over all chains relative to that within half-chains: (...) for x (chains, draws, ...); 1 if they agree.

    The larger of the values for ranks and for ranks of distances from the median.
    """

    def worst(part: np.ndarray) -> np.ndarray:
        folded = np.abs(part - np.median(part, axis=(0, 1)))
        return np.maximum(_rhat(_scores(part)), _rhat(_scores(folded)))

    return _per_column(x, worst)


def _per_column(x: np.ndarray, diagnose: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``diagnose`` on half-chains, (2 chains, draws // 2, columns), a batch of columns at a time."""
    x = np.asarray(x, dtype=float)
    if x.ndim < 2 or x.shape[1] < MIN_DRAWS:
        raise DataError(
            f"draws must be an array (chains, draws, ...) with at least {MIN_DRAWS} draws of each chain; got shape "
            f"{x.shape}."
        )
    shape, half = x.shape[2:], x.shape[1] // 2
    x = x.reshape(*x.shape[:2], -1)
    out = np.empty(x.shape[2])
    for i in range(0, len(out), BATCH_COLUMNS):
        part = x[:, :, i : i + BATCH_COLUMNS]
        out[i : i + BATCH_COLUMNS] = diagnose(np.concatenate([part[:, :half], part[:, -half:]]))
    return out.reshape(shape)


def _scores(x: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks over all chains; zero for a constant."""
    flat = x.reshape(-1, x.shape[2])
    ranks = np.argsort(np.argsort(flat, axis=0, kind="stable"), axis=0, kind="stable") + 1.0
    scores = ndtri((ranks - 0.375) / (len(flat) + 0.25))
    return np.where(np.ptp(flat, axis=0) > 0, scores, 0.0).reshape(x.shape)


def _variances(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variance within chains, and in total: (columns,), (columns,)."""
    draws = x.shape[1]
    within = x.var(axis=1, ddof=1).mean(axis=0)
    return within, within * (draws - 1) / draws + x.mean(axis=1).var(axis=0, ddof=1)


def _rhat(x: np.ndarray) -> np.ndarray:
    within, total = _variances(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Infinite for chains that are constant at different values.
        return np.where(total > 0, np.sqrt(total / within), 1.0)


def _effective_size(x: np.ndarray) -> np.ndarray:
    chains, draws, columns = x.shape
    centred = x - x.mean(axis=1, keepdims=True)
    size = 1 << (2 * draws - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    covariances = np.fft.irfft(spectrum, size, axis=1)[:, :draws].mean(axis=0) / (draws - 1)
    within, total = _variances(x)
    moving = total > 0
    rho = 1 - (within - covariances) / np.where(moving, total, 1.0)
    rho[0] = 1.0
    pairs = rho[: draws // 2 * 2].reshape(-1, 2, columns).sum(axis=1)
    pairs = np.where(np.logical_and.accumulate(pairs > 0, axis=0), pairs, 0.0)
    pairs = np.minimum.accumulate(pairs, axis=0)
    # Antithetic chains may be better than independent draws, within limits.
    times = np.maximum(2 * pairs.sum(axis=0) - 1, 1 / math.log10(max(chains * draws, 11)))
    return np.where(moving, chains * draws / times, chains * draws)
