"""Laplace's approximation: a Gaussian at the mode of the posterior (PRML 6.4.6; RW06 Alg 3.1, 5.1)."""

from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres

from mercer.gp.likelihood import LatentLikelihood
from mercer.inference.latent import LatentCovariance, SiteFactor
from mercer.inference.sites import SiteApproximation

MAX_STEPS = 100
MAX_HALVINGS = 40
# Expected gain of a Newton step, relative to Psi, at which the mode is found. Newton's method doubles the digits, so
# the step itself makes it exact to rounding. If rounding keeps Psi from rising, more may be left.
TOLERANCE, STALLED_TOLERANCE = 1e-11, 1e-7


def laplace(
    K: LatentCovariance,
    t: Any,
    likelihood: LatentLikelihood,
    start: SiteApproximation | None = None,
    gradient: bool = True,
) -> SiteApproximation | None:
    """Mode of Psi(f) = ln p(t | f) - f^T K^-1 f / 2 by Newton's method, and the evidence there (PRML 6.80-6.90).

    n^3/3 flops a step, about six steps from zero and two from a neighbouring mode. Differs from (6.83): W may vanish
    in the tails of a probit, so B = I + W^1/2 K W^1/2 is factorised; and a step that does not raise Psi is halved. Psi
    is concave and rises along Newton's direction, so the iteration cannot diverge. None if K is not positive
    semidefinite.

    Where the likelihood is not log-concave, as Student's t for outliers, a negative W counts as zero in steps and in
    the determinant: the row adds no information, where the exact W would take some away.
    """
    a, f = np.zeros(K.n), np.zeros(K.n)
    found = likelihood.derivatives(f, t)
    psi = found.value.sum()
    if start is not None and start.a.shape == a.shape:
        a_, f_ = start.a, K.times(start.a)
        found_ = likelihood.derivatives(f_, t)
        psi_ = found_.value.sum() - 0.5 * a_ @ f_
        if psi_ > psi:
            a, f, found, psi = a_, f_, found_, psi_
    for iterations in range(1, MAX_STEPS + 1):  # noqa: B007
        W = np.maximum(-found.second, 0.0)
        factor = K.factor(W)
        if factor is None or not np.isfinite(psi):
            return None
        da = factor.weights(W * f + found.first) - a
        df = K.times(da)
        gain = float((found.first - a) @ df)  # slope of Psi along the step, twice the expected gain
        step = 1.0
        for _ in range(MAX_HALVINGS):
            new = likelihood.derivatives(f + step * df, t)
            new_psi = new.value.sum() - 0.5 * (a + step * da) @ (f + step * df)
            if new_psi >= psi - 1e-12 * abs(psi):
                break
            step /= 2
        else:
            step = 0.0
        # Without an acceptable step the iteration ends: converged, if Newton expects a gain that rounding would hide.
        tolerance = (TOLERANCE if step == 1 else STALLED_TOLERANCE) * max(1.0, abs(psi))
        converged = step in (0, 1) and gain < tolerance
        a, f, found, psi = a + step * da, f + step * df, new if step else found, max(new_psi, psi)
        if converged or step == 0:
            break
    # The last step changed W negligibly, but the determinant must be that of B at the mode itself.
    W = np.maximum(-found.second, 0.0)
    factor = K.factor(W)
    if factor is None:
        return None
    result = SiteApproximation(
        float(psi) - 0.5 * factor.log_det, a, f, W, W * f + found.first, factor, iterations, bool(converged)
    )
    if gradient:
        # d ln Z / df at the mode, through W alone (PRML 6.91-6.94): Sigma_ii d3_i / 2.
        bends = (-found.second > 0) if not likelihood.log_concave else np.ones(K.n, bool)
        variance = factor.variance()
        slope = 0.5 * variance * np.where(bends, found.third, 0.0)
        u = _through_mode(K, factor, slope, np.maximum(found.second, 0.0))
        result.through_mode = u, found.first
        if likelihood.size:
            level, first, second = np.moveaxis(likelihood.slopes(f, t), 1, 0)
            result.likelihood_slope = (level + 0.5 * variance * np.where(bends, second, 0.0) + K.times(u) * first).sum(
                axis=1
            )
    return result


def _through_mode(K: LatentCovariance, factor: SiteFactor, slope: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """K^-1 (K^-1 + W)^-1 slope, where W = S - excess has negative entries, if any: the mode moves by the exact W.

    With A = K^-1 + S, (A - E) x = b is x - A^-1 E x = A^-1 b, solved iteratively at O(n^2) a step: at a mode the
    eigenvalues of A^-1 E are below one.
    """
    if not excess.any():
        return factor.weights(slope)
    solve = lambda v: K.times(factor.weights(v))
    operator = LinearOperator((K.n, K.n), matvec=lambda v: v - solve(excess * v), dtype=float)
    x, _ = gmres(operator, solve(slope), rtol=1e-10, atol=0.0, restart=50, maxiter=20)
    return factor.weights(slope + excess * x)
