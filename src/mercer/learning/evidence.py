"""The evidence ln p(y | theta) and its gradient (PRML 6.69, 6.70), for any kernel expression.

theta is the optimiser's vector: the free parameters of the kernel (`core.coordinates`) and, when it is learned, the
logarithm of the noise variance, last. Two routes give one answer: function space factorises C = K + noise (n, n);
weight space, for a kernel with M < n features, factorises I + Phi^T Phi / noise (M, M).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.lapack import blas, lapack

LOG_2PI = math.log(2 * math.pi)


class Evaluation(NamedTuple):
    """The evidence at one theta, its gradient, and y^T C^-1 y / n, by which C would best be scaled."""

    value: float
    gradient: np.ndarray | None
    scale: float


class Evidence:
    """ln p(y | theta) = -1/2 ln|C| - 1/2 y^T C^-1 y - n/2 ln 2 pi (PRML 6.69), with C(theta) = K + diag(noise).

    ``noise`` is one variance for each row, or None to learn a common one. A call answers with an `Evaluation`, or None
    where C is not positive definite in double precision or not finite: a step to be rejected. With ``profiled=True``
    the evidence is that of the best multiple of C, which costs nothing extra (PRML 6.69 maximised over a common
    factor: C is multiplied by `scale`).
    """

    def __init__(self, kernel, X, y, noise=None):
        self.y, self.n = np.asarray(y, dtype=float), len(y)
        self.noise = noise
        self.jitter = 0.0
        self.diagonal = 1.0  # the mean of K's, as last seen: jitter is relative to it
        self.K: Any = self._representation(kernel, X)
        self.size = self.K.layout.size + (noise is None)

    def _representation(self, kernel, X):
        raise NotImplementedError

    def __call__(self, theta, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
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
        n = self.n
        scale = quadratic / n
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

    def __init__(self, kernel, X, y, noise=None):
        super().__init__(kernel, X, y, noise)
        self._matrix = np.empty((self.n, self.n))

    def _representation(self, kernel, X):
        return gram.Triangle(kernel, X)

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
        L, failed = lapack.dpotrf(M.T, lower=1, clean=0, overwrite_a=1)
        diagonal = np.diag(L)
        if failed or not (diagonal > 0).all():  # NaN may pass through potrf, but not through this
            return None
        a = lapack.dpotrs(L, self.y, lower=1)[0]
        answer = self._answer(2 * np.log(diagonal).sum(), a, float(self.y @ a), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        lapack.dpotri(L, lower=1, overwrite_c=1)
        slope = 0.5 * self.K.contract(theta, M, a)
        if self.noise is None:
            slope = np.append(slope, 0.5 * (a @ a - np.trace(M)) * (noise[0] - self.jitter))
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None


class WeightSpace(Evidence):
    """The same through the posterior of the weights (PRML 6.54, 6.55; Ex 6.21): n M^2 flops, n M of memory.

    With Phi and y divided by the noise's standard deviation, B = I + Phi^T Phi, w = B^-1 Phi^T y:
    ln|C| = ln|B| + sum ln noise, y^T C^-1 y = |y - Phi w|^2 + |w|^2, and a = C^-1 y is (y - Phi w) over the deviation.
    """

    def _representation(self, kernel, X):
        return gram.Features(kernel, X)

    def __call__(self, theta, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        theta, noise = self._split(theta)
        deviation = np.sqrt(noise)
        Phi = self.K.fill(theta) / deviation[:, None]
        y = self.y / deviation
        if not np.isfinite(Phi).all():
            return None
        B = blas.dsyrk(1.0, Phi, trans=1, lower=1)
        B[np.diag_indices_from(B)] += 1.0
        L, failed = lapack.dpotrf(B, lower=1, clean=1, overwrite_a=1)
        if failed:
            return None
        w = lapack.dpotrs(L, Phi.T @ y, lower=1)[0]
        residual = y - Phi @ w
        log_det = 2 * np.log(np.diag(L)).sum() + np.log(noise).sum()
        answer = self._answer(log_det, residual / deviation, float(residual @ residual + w @ w), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        # dL/dPhi = (a a^T - C^-1) Phi, with the noise's deviation taken out again.
        half = lapack.dtrtrs(L, Phi.T, lower=1)[0]
        C_inv_Phi = lapack.dtrtrs(L, half, lower=1, trans=1)[0].T / deviation[:, None]
        w = w / math.sqrt(scale) if profiled else w
        slope = self.K.contract(theta, a[:, None] * w[None, :] - C_inv_Phi)
        if self.noise is None:
            trace = np.sum((1 - np.einsum("ij,ij->j", half, half)) / noise)
            slope = np.append(slope, 0.5 * (a @ a - trace) * (noise[0] - self.jitter))
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None


def evidence(kernel, X, y, noise=None, method: str = "dense") -> Evidence:
    """The evidence by the route named: "dense" (function space) or "weights" (weight space)."""
    return (WeightSpace if method == "weights" else FunctionSpace)(kernel, X, y, noise)
