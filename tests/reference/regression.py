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


def restricted_log_evidence(C, y):
    """The density of n - 1 orthonormal contrasts of y, none of which sees a constant (Patterson and Thompson 1971)."""
    n = len(y)
    Q = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, : n - 1]]))[0][:, 1:]
    return log_evidence(Q.T @ C @ Q, Q.T @ y)
