"""The bound on the evidence of a regression whose log noise is a Gaussian process, from its formula, and that evidence
itself by brute force."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal


def bound(K, G, y, log_level, floor, mean, Sigma, H=None):
    """ln N(y | 0, K + R) - tr(Sigma) / 4 - KL(q || p) (Lazaro-Gredilla and Titsias 2011, eq 7); with columns H of
    unknown coefficients, the density of contrasts orthogonal to them in the first term."""
    n = len(y)
    C = K + np.diag(floor + np.exp(log_level + mean - np.diag(Sigma) / 2))
    if H is not None:
        contrasts = np.linalg.svd(H.T)[2][H.shape[1] :]
        C, y = contrasts @ C @ contrasts.T, contrasts @ y
    likelihood = multivariate_normal(np.zeros(len(y)), C).logpdf(y)
    G_inv = np.linalg.inv(G)
    log_dets = np.linalg.slogdet(G)[1] - np.linalg.slogdet(Sigma)[1]
    divergence = 0.5 * (log_dets + np.trace(G_inv @ Sigma) + mean @ G_inv @ mean - n)
    return likelihood - np.trace(Sigma) / 4 - divergence


def log_evidence(K, G, y, log_level, floor, draws, rng):
    """ln E_g N(y | 0, K + diag(floor + exp(ln level + g))), by draws of the prior of g, and its standard error."""
    g = rng.multivariate_normal(np.zeros(len(y)), G, size=draws)
    logs = np.array(
        [multivariate_normal(np.zeros(len(y)), K + np.diag(floor + np.exp(log_level + row))).logpdf(y) for row in g]
    )
    value = logsumexp(logs) - np.log(draws)
    return value, np.std(np.exp(logs - value)) / np.sqrt(draws)
