"""Gaussian process regression written from the formulas, with NumPy's plain solvers and nothing of the library."""

import numpy as np


def rbf(X, Z, variance, lengthscale):
    r2 = (((X[:, None] - Z[None]) / lengthscale) ** 2).sum(-1)
    return variance * np.exp(-r2 / 2)


def log_evidence(C, y):
    """PRML 6.69."""
    sign, log_det = np.linalg.slogdet(C)
    assert sign > 0
    return -0.5 * log_det - 0.5 * y @ np.linalg.solve(C, y) - 0.5 * len(y) * np.log(2 * np.pi)


def gradient(C, y, slopes):
    """PRML 6.70, with dC/dtheta given as matrices."""
    C_inv = np.linalg.inv(C)
    a = C_inv @ y
    return np.array([-0.5 * np.trace(C_inv @ S) + 0.5 * a @ S @ a for S in slopes])


def predict(C, K_s, K_ss, y):
    """PRML 6.66 and 6.67, over many test points; K_s is (n, s), noise is in C and K_ss."""
    C_inv = np.linalg.inv(C)
    return K_s.T @ C_inv @ y, K_ss - K_s.T @ C_inv @ K_s


def leave_one_out(C, y):
    """By n refits."""
    means, variances = [], []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        mean, variance = predict(C[np.ix_(rest, rest)], C[np.ix_(rest, [i])], C[i : i + 1, i : i + 1], y[rest])
        means.append(mean[0])
        variances.append(variance[0, 0])
    return np.array(means), np.array(variances)


def predict_with_unknown_mean(C, K_s, K_ss, y):
    """RW06 2.41 and 2.42 with one constant feature and a flat prior; ordinary kriging."""
    C_inv, one = np.linalg.inv(C), np.ones(len(y))
    A = one @ C_inv @ one
    constant = one @ C_inv @ y / A
    mean, cov = predict(C, K_s, K_ss, y - constant)
    R = 1 - K_s.T @ C_inv @ one
    return constant + mean, cov + np.outer(R, R) / A


def universal_kriging(C, K_s, K_ss, H, h, y):
    """The textbook system [[C, H], [H^T, 0]] [L; M] = [K_s; h^T] (Cressie 1993, 3.4.2): mean L^T y, and the covariance
    K_ss - L^T K_s - M^T h^T. H is (n, q), h is (s, q)."""
    n, q = H.shape
    system = np.block([[C, H], [H.T, np.zeros((q, q))]])
    found = np.linalg.solve(system, np.vstack([K_s, h.T]))
    L, M = found[:n], found[n:]
    return L.T @ y, K_ss - L.T @ K_s - M.T @ h.T


def restricted_log_evidence(C, y, H=None):
    """The density of n - q orthonormal contrasts of y, none of which sees the columns H (Patterson and Thompson 1971):
    without H, a constant."""
    H = np.ones((len(y), 1)) if H is None else H
    Q = np.linalg.svd(H)[0][:, H.shape[1] :]
    return log_evidence(Q.T @ C @ Q, Q.T @ y)
