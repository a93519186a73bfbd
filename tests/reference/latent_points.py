"""Latent variable models from their formulas, with plain loops."""

import math

import numpy as np


def log_evidence(K, Y, noise):
    """sum_d ln N(y_d | 0, K + noise I) over the rows where each column is measured (Lawrence 2005, eq. 7)."""
    total = 0.0
    for y in Y.T:
        rows = np.flatnonzero(np.isfinite(y))
        C = K[np.ix_(rows, rows)] + noise * np.eye(len(rows))
        total -= 0.5 * (y[rows] @ np.linalg.solve(C, y[rows]) + np.linalg.slogdet(2 * np.pi * C)[1])
    return total


def averaged(mean, variance, Z, lengthscale, scale, draws=100_000, seed=0):
    """psi1 (m,) and psi2 (m, m) of one row with q(x) = N(mean, diag(variance)), by sampling."""
    x = mean + np.sqrt(variance) * np.random.default_rng(seed).normal(size=(draws, len(mean)))
    k = scale * np.exp(-0.5 * (((x[:, None, :] - Z) / lengthscale) ** 2).sum(-1))
    return k.mean(0), k.T @ k / draws


def variational_bound(psi1, psi2, K_zz, psi0, Y, noise, mean, variance):
    """Titsias and Lawrence (2010), eq. 14 and 6, column by column, for complete columns."""
    n = len(psi1)
    beta, total = 1 / noise, 0.0
    A = K_zz + beta * psi2
    for y in Y.T:
        W = beta * np.eye(n) - beta**2 * psi1 @ np.linalg.solve(A, psi1.T)
        total += 0.5 * (n * math.log(beta) + np.linalg.slogdet(K_zz)[1] - n * math.log(2 * math.pi))
        total -= 0.5 * np.linalg.slogdet(A)[1] + 0.5 * y @ W @ y
        total += -0.5 * beta * psi0 + 0.5 * beta * np.trace(np.linalg.solve(K_zz, psi2))
    return total - 0.5 * (mean**2 + variance - np.log(variance) - 1).sum()


def mixture_log_density(Y, centres, noise):
    """ln 1/K sum_k N(y_n | centre_k, noise I) over measured columns: (n,)."""
    out = []
    for y in Y:
        seen = np.isfinite(y)
        logs = [-0.5 * ((y - c)[seen] ** 2).sum() / noise for c in centres]
        logs = np.array(logs) - 0.5 * seen.sum() * math.log(2 * math.pi * noise)
        out.append(np.log(np.mean(np.exp(logs))))
    return np.array(out)
