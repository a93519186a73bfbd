"""Derivatives of a committee's predictions in the inputs, from those of its members."""

from typing import TYPE_CHECKING

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs, as_matrix, column_names
from mercer.gp.process import GP
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import by_position

if TYPE_CHECKING:
    from mercer.solvers.committee import CommitteePosterior


def slopes(posterior: "CommitteePosterior", Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of mean and variance: (s, d), (s, d).

    With precisions t = 1/v_0 + sum_i b_i (1/v_i - 1/v_0) and sums u = (1 - sum_i b_i) m_0/v_0 + sum_i b_i m_i/v_i, the
    mean is u / t and the variance 1 / t. Means m_i stand here beside the parts of them that follow coefficients.
    """
    names, values = column_names(Z), as_matrix(Z)
    kernel = posterior.kernel if names is None else by_position(posterior.kernel, names)
    said, H = posterior._opinions(Z), posterior.prior_mean.columns(Z)
    b = posterior._powers(said)
    pairs = zip(posterior.members, posterior.solved, strict=True)
    dm, dv = (np.stack(each) for each in zip(*(_member_slopes(*pair, kernel, values) for pair in pairs), strict=True))
    if posterior._has_base:
        dm, dv, dm0, dv0 = dm[1:], dv[1:], dm[0], dv[0]
    else:
        dm0, dv0 = np.zeros_like(dm[0]), gram.diagonal_slope(kernel, values)
    v, v0 = said.variance[..., None], said.base_variance[:, None]
    m = np.concatenate([said.mean[..., None], said.columns], axis=2)
    m0 = np.concatenate([said.base_mean[:, None], said.base_columns], axis=1)
    db = np.zeros_like(dv)
    if len(b) > 1 and posterior.weights in ("generalised", "robust"):
        db = 0.5 * (dv0 / v0 - dv / v)
        if posterior._has_base:
            db[0] = 0.0
    B = b[..., None]
    t = 1 / v0 + (B * (1 / v - 1 / v0)).sum(axis=0)
    dt = -dv0 / v0**2 + (db * (1 / v - 1 / v0) + B * (dv0 / v0**2 - dv / v**2)).sum(axis=0)
    left = 1 - B.sum(axis=0)
    u = left * m0 / v0 + (B * m / v).sum(axis=0)
    du = _with_inputs(m0, -db.sum(axis=0) / v0 - left * dv0 / v0**2) + left[..., None] * dm0 / v0[..., None]
    du += (_with_inputs(m, db / v - B * dv / v**2) + B[..., None] * dm / v[..., None]).sum(axis=0)
    slope = (du - _with_inputs(u / t, dt)) / t[..., None]
    dmean, dvariance = slope[:, 0], -dt / t**2
    dH = posterior.prior_mean.columns_slope(values, names)
    dmean = dmean + posterior.prior_mean.slope(values, names) + np.einsum("sqd,q->sd", dH, posterior.coefficients()[0])
    if posterior.trend_ is not None:
        S = posterior._of_trend(H, (u / t)[:, 1:])
        back = np.linalg.solve(posterior.trend_.root.T, S)
        dvariance = dvariance + 2 * np.einsum("sqd,qs->sd", dH - slope[:, 1:], back)
    return dmean, dvariance


def _with_inputs(m: np.ndarray, dv: np.ndarray) -> np.ndarray:
    """Products of values (..., c) and derivatives (..., d): (..., c, d)."""
    return m[..., :, None] * dv[..., None, :]


def _member_slopes(member: GP, C_inv_H: np.ndarray, kernel: Kernel, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of a member's mean and of what follows coefficients (s, 1 + q, d), and of its variance (s, d)."""
    observed, X = member.observations(), member.rows()
    both = np.column_stack([observed.a, C_inv_H])
    dm = np.stack([gram.slope(kernel, Z, X, np.broadcast_to(a, (len(Z), len(a)))) for a in both.T], axis=1)
    dvariance = gram.diagonal_slope(kernel, Z)
    for part, K in X.blocks(Z):
        dvariance[part] -= 2 * gram.slope(kernel, Z[part], X, observed.factor.solve(K.T).T)
    return dm, dvariance
