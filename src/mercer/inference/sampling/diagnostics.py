"""How far draws of several chains can be trusted: effective sizes and R-hat (Vehtari and others 2021)."""

import math

import numpy as np
from scipy.special import ndtri

from mercer.core.errors import DataError

FEWEST = 4  # draws of a chain that can be judged


def effective_size(x, ranked: bool = True) -> np.ndarray:
    """How many independent draws give means as good: (...) for x (chains, draws, ...).

    Each chain is cut in two, values are replaced by normal scores of their ranks unless ``ranked`` is False, and
    autocorrelations over all chains are summed up to where Geyer's pairs cease to be positive, made monotone (Vehtari
    and others 2021). A chain that has not found the others lowers it. A constant has as many as there are.
    """
    return _per_column(x, lambda part: _effective_size(_scores(part) if ranked else part))


def split_rhat(x) -> np.ndarray:
    """Spread over all chains relative to that within half-chains: (...) for x (chains, draws, ...); 1 when they agree.

    Of ranks, and of ranks of distances from the median: the larger (Vehtari and others 2021).
    """

    def worst(part):
        folded = np.abs(part - np.median(part, axis=(0, 1)))
        return np.maximum(_rhat(_scores(part)), _rhat(_scores(folded)))

    return _per_column(x, worst)


def _per_column(x, judge):
    """``judge`` on halves of chains, (2 chains, draws // 2, some columns) at a time."""
    x = np.asarray(x, dtype=float)
    if x.ndim < 2 or x.shape[1] < FEWEST:
        raise DataError(f"draws are (chains, draws, ...), at least {FEWEST} of each chain; got an array {x.shape}.")
    shape, half = x.shape[2:], x.shape[1] // 2
    x = x.reshape(*x.shape[:2], -1)
    out = np.empty(x.shape[2])
    for i in range(0, len(out), 256):
        part = x[:, :, i : i + 256]
        out[i : i + 256] = judge(np.concatenate([part[:, :half], part[:, -half:]]))
    return out.reshape(shape)


def _scores(x):
    """Normal scores of the ranks over all chains; a constant stays one."""
    flat = x.reshape(-1, x.shape[2])
    ranks = np.argsort(np.argsort(flat, axis=0, kind="stable"), axis=0, kind="stable") + 1.0
    scores = ndtri((ranks - 0.375) / (len(flat) + 0.25))
    return np.where(np.ptp(flat, axis=0) > 0, scores, 0.0).reshape(x.shape)


def _variances(x):
    """Within chains, and of all: (columns,), (columns,)."""
    draws = x.shape[1]
    within = x.var(axis=1, ddof=1).mean(axis=0)
    return within, within * (draws - 1) / draws + x.mean(axis=1).var(axis=0, ddof=1)


def _rhat(x):
    within, total = _variances(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Every chain constant, at different values: they will never meet.
        return np.where(total > 0, np.sqrt(total / within), 1.0)


def _effective_size(x):
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
    # Antithetic chains may be better than independent ones, but not without limit.
    times = np.maximum(2 * pairs.sum(axis=0) - 1, 1 / math.log10(max(chains * draws, 11)))
    return np.where(moving, chains * draws / times, chains * draws)
