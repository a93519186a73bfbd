"""Kernels from generative models, written from their formulas: sums over components, paths and grids."""

import itertools
import math

import numpy as np


def normal(x, mean, covariance):
    """N(x | m, S) of one point."""
    away = np.atleast_1d(x) - np.atleast_1d(mean)
    S = np.atleast_2d(covariance)
    scale = math.sqrt((2 * math.pi) ** len(away) * np.linalg.det(S))
    return math.exp(-0.5 * away @ np.linalg.inv(S) @ away) / scale


def mixture(x, z, weights, densities):
    """sum_i p(i) p(x | i) p(z | i) (PRML 6.29)."""
    return sum(w * p(x) * p(z) for w, p in zip(weights, densities, strict=True))


def shared_path(x, z, initial, transition, emit):
    """sum over paths of p(x | path) p(z | path) p(path), the path as long as the longer sequence (PRML 6.31);
    ``emit(symbol, state)`` is a probability or density."""
    total = 0.0
    for path in itertools.product(range(len(initial)), repeat=max(len(x), len(z))):
        p = 1.0
        for t, state in enumerate(path):
            p *= initial[state] if t == 0 else transition[path[t - 1]][state]
        for sequence in (x, z):
            for state, symbol in zip(path, sequence, strict=False):
                p *= emit(symbol, state)
        total += p
    return total


def linear_gaussian(x, z, W, m, noise):
    """The density of (x, z) that share a latent vector: a joint Gaussian (PRML 6.30)."""
    d = len(m)
    shared = W @ W.T
    joint = np.block([[shared + np.diag(noise), shared], [shared, shared + np.diag(noise)]])
    return normal(np.concatenate([x, z]), np.concatenate([m, m]), joint) if d else 1.0
