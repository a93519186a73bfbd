"""Latent functions on few rows: their covariance, posteriors by brute force, and whether draws agree with them."""

import functools

import numpy as np
from scipy.special import logsumexp

from mercer.inference.sampling.diagnostics import effective_size

X = np.array([0.0, 0.7, 1.5, 1.6, 3.0])


def covariance(x=X, variance=4.0, lengthscale=1.0):
    return variance * np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2)


def agree(draws, mean, variance, most=4.5):
    """Means and variances of draws within so many standard errors, as their effective number says.

    Draws that miss the tails find squares spread too little: no less than those of a Gaussian are believed.
    """
    error = np.sqrt(variance / draws.ess)
    assert (np.abs(draws.latents.mean(axis=0) - mean) < most * error).all()
    squares = (draws.latents - mean) ** 2
    ess = effective_size(squares.reshape(draws.chains, -1, *squares.shape[1:]), ranked=False)
    error = np.maximum(squares.std(axis=0), np.sqrt(2) * np.asarray(variance)) / np.sqrt(ess)
    assert (np.abs(squares.mean(axis=0) - variance) < most * error).all()


@functools.cache
def grid(r):
    """Nodes of N(0, I) in r dimensions and logarithms of their weights, by brute force."""
    count = 100 if r < 3 else 36
    x, w = np.polynomial.hermite_e.hermegauss(count)
    w = np.log(w / w.sum())
    z, logs = (np.stack(np.meshgrid(*[part] * r, indexing="ij"), axis=-1).reshape(-1, r) for part in (x, w))
    return z, logs.sum(axis=1)


def by_quadrature(R, log_likelihood):
    """ln evidence, posterior mean and variance of f = R z."""
    z, logs = grid(R.shape[1])
    f = z @ R.T
    logs = logs + log_likelihood(f)
    w = np.exp(logs - logsumexp(logs))
    mean = w @ f
    return logsumexp(logs), mean, w @ (f - mean) ** 2
