"""Co-kriging from its formula (PRML 6.62-6.67 over pairs of a place and a target), one pair at a time; unknown means
by generalised least squares (RW06 2.41, 2.42)."""

import numpy as np


def covariance(kernels, Bs, X, p, Z, q):
    """sum_q k_q(x, z) B_q[p, q] between measurements (x, p) and (z, q)."""
    K = np.zeros((len(X), len(Z)))
    for k, B in zip(kernels, Bs, strict=True):
        for i in range(len(X)):
            for j in range(len(Z)):
                K[i, j] += k(X[i], Z[j]) * B[p[i], q[j]]
    return K


def posterior(kernels, Bs, noise, X, p, y, Z, q):
    """Mean and covariance of the functions at (Z, q), each target with an unknown mean, and the restricted log
    likelihood of y, whose contrasts are along orthonormal directions."""
    P = len(noise)
    C = covariance(kernels, Bs, X, p, X, p) + np.diag(noise[p])
    H, h = np.eye(P)[p], np.eye(P)[q]
    Ci = np.linalg.inv(C)
    A = H.T @ Ci @ H
    beta = np.linalg.solve(A, H.T @ Ci @ y)
    Ks = covariance(kernels, Bs, Z, q, X, p)
    R = h - Ks @ Ci @ H
    mean = h @ beta + Ks @ Ci @ (y - H @ beta)
    V = covariance(kernels, Bs, Z, q, Z, q) - Ks @ Ci @ Ks.T + R @ np.linalg.solve(A, R.T)
    residual = y - H @ beta
    parts = np.linalg.slogdet(C)[1] + np.linalg.slogdet(A)[1] - np.linalg.slogdet(H.T @ H)[1]
    value = -0.5 * (parts + residual @ Ci @ residual + (len(y) - P) * np.log(2 * np.pi))
    return mean, V, value
