"""Laplace's approximation: the posterior of f by a Gaussian at its mode (PRML 6.4.6; RW06 Alg 3.1, 5.1)."""

import numpy as np

from mercer.inference.sites import Covariance, SiteApproximation

MOST_STEPS = 100
HALVINGS = 40
STUCK = 1e-7  # what may be left where rounding ends the climb
ENOUGH = 1e-11  # of Psi: Newton doubles the digits, so the mode is then exact to rounding


def laplace(K: Covariance, t, likelihood, start: SiteApproximation | None = None, gradient: bool = True):
    """The mode of Psi(f) = ln p(t | f) - f^T K^-1 f / 2 by Newton's method, and the evidence there (PRML 6.80-6.90).

    n^3/3 flops a step, about six steps from nothing and two from a neighbouring mode. Differs from (6.83): W may vanish
    in a probit's tails, so B = I + W^1/2 K W^1/2 is factorised; and a step that does not raise Psi is halved. Psi is
    concave and rises along Newton's direction, so this cannot diverge. None where K is not positive semidefinite.
    """
    a, f = np.zeros(K.n), np.zeros(K.n)
    found = likelihood.derivatives(f, t)
    height = found.value.sum()
    if start is not None and start.a.shape == a.shape:
        a_, f_ = start.a, K.times(start.a)
        found_ = likelihood.derivatives(f_, t)
        height_ = found_.value.sum() - 0.5 * a_ @ f_
        if height_ > height:
            a, f, found, height = a_, f_, found_, height_
    for iterations in range(1, MOST_STEPS + 1):  # noqa: B007
        W = np.maximum(-found.second, 0.0)
        factor = K.factor(W)
        if factor is None or not np.isfinite(height):
            return None
        direction = factor.weights(W * f + found.first) - a
        moved = K.times(direction)
        promise = float((found.first - a) @ moved)  # the slope of Psi along the step, twice what Newton expects to gain
        share = 1.0
        for _ in range(HALVINGS):
            there = likelihood.derivatives(f + share * moved, t)
            new = there.value.sum() - 0.5 * (a + share * direction) @ (f + share * moved)
            if new >= height - 1e-12 * abs(height):
                break
            share /= 2
        else:
            share = 0.0
        # A step that cannot be taken ends it, well or, where Newton expects to gain more than rounding hides, not.
        enough = (ENOUGH if share == 1 else STUCK) * max(1.0, abs(height))
        converged = share in (0, 1) and promise < enough
        a, f, found, height = a + share * direction, f + share * moved, there if share else found, max(new, height)
        if converged or share == 0:
            break
    # The last step moved W by nothing that counts, but the determinant is of B at the mode itself.
    W = np.maximum(-found.second, 0.0)
    factor = K.factor(W)
    if factor is None:
        return None
    result = SiteApproximation(
        float(height) - 0.5 * factor.log_det, a, f, W, W * f + found.first, factor, iterations, bool(converged)
    )
    if gradient:
        # d ln Z / df at the mode, through W alone (PRML 6.91-6.94): Sigma_ii d3_i / 2.
        log_slope = 0.5 * factor.variance() * found.third
        u = log_slope - factor.s * factor.solve(factor.s * K.times(log_slope))
        result.through = u, found.first
    return result
