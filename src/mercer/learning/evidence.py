"""The evidence ln p(y | theta) and its gradient (PRML 6.69, 6.70), for any kernel expression.

theta is the optimiser's vector: the free parameters of the kernel (`core.coordinates`) and, when it is learned, the
logarithm of the noise variance, last. Two routes give one answer: function space factorises C = K + noise (n, n);
weight space, for a kernel with M < n features, factorises I + Phi^T Phi / noise (M, M).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.linalg import backend
from mercer.linalg.cholesky import attempt
from mercer.linalg.trend import Trend
from mercer.scores import crps

LOG_2PI = math.log(2 * math.pi)


class Evaluation(NamedTuple):
    """The evidence at one theta, its gradient, and by what C would best be multiplied, y^T P y / (n - q)."""

    value: float
    gradient: np.ndarray | None
    scale: float


class Evidence:
    """ln p(y | theta) = -1/2 ln|C| - 1/2 y^T C^-1 y - n/2 ln 2 pi (PRML 6.69), with C(theta) = K + diag(noise).

    ``noise`` is one variance for each row, or None to learn a common one. ``H`` (n, q) has columns whose coefficients
    are unknown, with a flat prior: then it is the evidence of the n - q contrasts they do not reach, the restricted
    likelihood (`Trend`), and P takes the place of C^-1. A call answers with an `Evaluation`, or None where C is not
    positive definite in double precision or not finite: a step to be rejected. With ``profiled=True`` the evidence is
    that of the best multiple of C, which costs nothing extra (PRML 6.69 maximised over a common factor: C is multiplied
    by `scale`).
    """

    def __init__(self, kernel, X, y, noise=None, H=None):
        self.y, self.n = np.asarray(y, dtype=float), len(y)
        self.noise = noise
        self.H = np.zeros((self.n, 0)) if H is None else H
        self.contrasts = self.n - self.H.shape[1]
        self.jitter = 0.0
        self.diagonal = 1.0  # the mean of K's, as last seen: jitter is relative to it
        self.K: Any = self._representation(kernel, X)
        self.size = self.K.layout.size + (noise is None)

    def _representation(self, kernel, X):
        raise NotImplementedError

    def __call__(self, theta, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        raise NotImplementedError

    def left_out(self, theta) -> tuple[np.ndarray, np.ndarray] | None:
        """Residual and variance of each row predicted from all the others (RW06 5.12), unknown coefficients estimated
        anew without it: (n,), (n,). None where there is no value."""
        raise NotImplementedError

    def __enter__(self):
        self.K.__enter__()
        return self

    def __exit__(self, *error):
        self.K.__exit__(*error)

    def _split(self, theta):
        """The kernel's part of theta, and the variances on the diagonal: (n,)."""
        theta = np.asarray(theta, dtype=float)
        if self.noise is None:
            with np.errstate(over="ignore"):
                return theta[:-1], np.full(self.n, np.exp(theta[-1]) + self.jitter)
        return theta, self.noise + self.jitter

    def _answer(self, log_det, a, quadratic, profiled):
        """The value, a (rescaled if profiled) and the scale."""
        n = self.contrasts
        scale = quadratic / max(n, 1)
        if profiled:
            if not scale > 0:
                return None
            value = -0.5 * (log_det + n * math.log(scale) + n * (1 + LOG_2PI))
            a = a / math.sqrt(scale)
        else:
            value = -0.5 * (log_det + quadratic + n * LOG_2PI)
        return (value, a, scale) if math.isfinite(value) else None


class FunctionSpace(Evidence):
    """One potrf, one potri and the contraction in tiles: n^3 + O(n^2) flops, one matrix of memory."""

    def __init__(self, kernel, X, y, noise=None, H=None):
        super().__init__(kernel, X, y, noise, H)
        self._matrix = np.empty((self.n, self.n))

    def _representation(self, kernel, X):
        return gram.triangle(kernel, X)

    def __call__(self, theta, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        answer = self._evaluate(theta, gradient, profiled, careful=False)
        # A tile that lost digits says so by NaN: then all of them are done carefully.
        return self._evaluate(theta, gradient, profiled, careful=True) if answer is None else answer

    def _evaluate(self, theta, gradient, profiled, careful):
        M = self._matrix  # C above the diagonal, row by row: to LAPACK, its lower triangle
        theta, noise = self._split(theta)
        self.K.fill(theta, M, careful)
        self.diagonal = float(np.mean(M.ravel()[:: self.n + 1]))
        M.ravel()[:: self.n + 1] += noise
        factor = attempt(M.T)
        if factor is None:
            return None
        a, trend, log_det = factor.solve(self.y), None, factor.log_det()
        if self.H.shape[1]:
            try:
                trend = Trend.of(self.H, factor.solve(self.H))
            except np.linalg.LinAlgError:
                return None
            a, log_det = trend.contrasted(a, self.y), log_det + trend.log_det()
        answer = self._answer(log_det, a, float(self.y @ a), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        factor.invert()
        if trend is not None:
            trend.project(M.T)
        self._weights = a
        slope = 0.5 * self.K.contract(theta, M, a)
        if self.noise is None:
            slope = np.append(slope, 0.5 * (a @ a - np.trace(M)) * (noise[0] - self.jitter))
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta):
        if self(theta) is None:
            return None
        return _left_out(self._weights, np.diag(self._matrix))


class WeightSpace(Evidence):
    """The same through the posterior of the weights (PRML 6.54, 6.55; Ex 6.21): n M^2 flops, n M of memory.

    With Phi and y divided by the noise's standard deviation, B = I + Phi^T Phi, w = B^-1 Phi^T y:
    ln|C| = ln|B| + sum ln noise, y^T C^-1 y = |y - Phi w|^2 + |w|^2, and a = C^-1 y is (y - Phi w) over the deviation.
    Columns with unknown coefficients are features without a prior: B has no unit on their diagonal.
    """

    def _representation(self, kernel, X):
        return gram.Features(kernel, X)

    def __call__(self, theta, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        theta, noise = self._split(theta)
        deviation = np.sqrt(noise)
        q = self.H.shape[1]
        Phi = np.column_stack([self.K.fill(theta), self.H]) / deviation[:, None]
        y, prior = self.y / deviation, np.repeat([1.0, 0.0], [Phi.shape[1] - q, q])
        if not np.isfinite(Phi).all():
            return None
        B = backend.gram(Phi)
        B[np.diag_indices_from(B)] += prior
        factor = attempt(B)
        if factor is None:
            return None
        w = factor.solve(Phi.T @ y)
        residual = y - Phi @ w
        log_det = factor.log_det() + np.log(noise).sum() - np.linalg.slogdet(self.H.T @ self.H)[1]
        answer = self._answer(log_det, residual / deviation, float(residual @ residual + w @ (prior * w)), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        # dL/dPhi = (a a^T - C^-1) Phi, with the noise's deviation taken out again.
        half = factor.half_solve(Phi.T)
        C_inv_Phi = factor.half_solve(half, transposed=True).T / deviation[:, None]
        w = w / math.sqrt(scale) if profiled else w
        M = len(w) - q
        slope = self.K.contract(theta, a[:, None] * w[None, :M] - C_inv_Phi[:, :M])
        diagonal = (1 - np.einsum("ij,ij->j", half, half)) / noise  # of C^-1, or of P
        self._left_out = _left_out(a, diagonal)
        if self.noise is None:
            slope = np.append(slope, 0.5 * (a @ a - diagonal.sum()) * (noise[0] - self.jitter))
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta):
        return None if self(theta) is None else self._left_out


def _left_out(a, diagonal):
    told = diagonal > 0
    diagonal = np.where(told, diagonal, 1.0)
    return np.where(told, a / diagonal, 0.0), np.where(told, 1 / diagonal, np.inf)


def left_out_score(evidence: Evidence, theta) -> float:
    """Minus the mean CRPS of rows left out one by one, at these parameters: the higher the better."""
    found = evidence.left_out(theta)
    if found is None or not (found[1] > 0).all():
        return -math.inf
    score = -float(np.mean(crps(found[0], 0.0, np.sqrt(found[1]))))
    return score if math.isfinite(score) else -math.inf


def evidence(kernel, X, y, noise=None, method: str = "dense", H=None) -> Evidence:
    """The evidence by the route named: "dense" (function space) or "weights" (weight space)."""
    return (WeightSpace if method == "weights" else FunctionSpace)(kernel, X, y, noise, H)
