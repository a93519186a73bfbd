"""Evidence in weight space: from the features of all rows, or from their products where these are enough."""

import functools
import math
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs
from mercer.core.parameters import node_at, slots_of
from mercer.kernels.algebra import Product, Scale, Sum
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import On
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt
from mercer.linalg.lowrank import MIN_QUADRATIC_SHARE
from mercer.linalg.trend import log_unit
from mercer.solvers.base import Evaluation, Evidence, left_out


class WeightSpace(Evidence):
    """Evidence from the posterior of the weights (PRML 3.53, 3.54, 3.86; Ex 6.21). About 4 n M^2 flops, O(n M) memory.

    With Phi and y divided by the noise's standard deviation, B = I + Phi^T Phi, w = B^-1 Phi^T y:
    ln|C| = ln|B| + sum ln noise, y^T C^-1 y = |y - Phi w|^2 + |w|^2, and a = C^-1 y is (y - Phi w) over the deviation.
    Columns with unknown coefficients are features with a prior of their own: if it is flat, no prior precision is added
    for them in B.
    """

    def _representation(self, kernel: Kernel, X: Inputs) -> gram.Features:
        return gram.on(kernel, X).feature_map()

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        deviation = np.sqrt(noise)
        q = self.H.shape[1]
        Phi = np.column_stack([self.K.fill(own), self.H]) / deviation[:, None]
        y, M = self._residual(theta) / deviation, Phi.shape[1] - q
        if not np.isfinite(Phi).all():
            return None
        B = backend.gram(Phi)
        B[range(M), range(M)] += 1.0
        precision = np.zeros((q, q)) if self.precision is None else self.precision
        B[M:, M:] += precision
        factor = attempt(B)
        if factor is None:
            return None
        w = factor.solve(Phi.T @ y)
        residual = y - Phi @ w
        log_det = factor.log_det() + np.log(noise).sum() - log_unit(self.H, self.precision)
        quadratic = float(residual @ residual + w[:M] @ w[:M] + w[M:] @ precision @ w[M:])
        answer = self._answer(log_det, residual / deviation, quadratic, profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        # dL/dPhi = (a a^T - C^-1) Phi, with the noise's deviation taken out again.
        half = factor.half_solve(Phi.T)
        C_inv_Phi = factor.half_solve(half, transposed=True).T / deviation[:, None]
        w = w / math.sqrt(scale) if profiled else w
        slope = self.K.contract(own, a[:, None] * w[None, :M] - C_inv_Phi[:, :M])
        diagonal = (1 - np.einsum("ij,ij->j", half, half)) / noise  # of C^-1, or of P
        self._left_out = left_out(a, diagonal)
        slope = self._slope(theta, slope, a, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self(theta) is None else self._left_out


def scaled_terms(kernel: Kernel) -> bool:
    """Whether every free parameter is the variance of one term of a sum, so that it multiplies features that are
    otherwise fixed."""
    for part in kernel.parts if isinstance(kernel, Sum) else (kernel,):
        free = [slot for slot in slots_of(part) if slot.free]
        for slot in free:
            above = [node_at(part, slot.path[:i]) for i in range(len(slot.path))]
            if not (isinstance(slot.node, Scale) and all(isinstance(node, Scale | On | Product) for node in above)):
                return False
        if len(free) > 1:
            return False
    return True


class Products(NamedTuple):
    """Of the features at unit variances and the columns of the trend, F (n, M + q): F^T F, F^T y and y^T y; and the
    parameter that scales each column, -1 for none. y is without its projection on columns with flat priors."""

    of_features: np.ndarray
    with_target: np.ndarray
    of_target: float
    owner: np.ndarray


class ScaledTerms(WeightSpace):
    """The same where parameters are one noise variance and variances v of terms (`scaled_terms`): the model of variance
    components, as of random effects. Products of features are computed once, n M^2 flops; an evaluation takes M^3.

    With s the square root of the variance of each column, B = I + s F^T F s / noise, c = s F^T y / noise, w = B^-1 c:
    y^T C^-1 y = y^T y / noise - w^T c; dL/d ln v = 1/2 sum_j (w_j^2 + (B^-1)_jj - 1) over the columns of the term.
    """

    @functools.cached_property
    def _products(self) -> Products:
        p = self._of_kernel.stop - self._of_kernel.start
        Phi = self.K.fill(np.zeros(p))
        # A variance of (j + 2)^2 in parameter j multiplies its columns by j + 2, and no others.
        length, longer = (np.linalg.norm(A, axis=0) for A in (Phi, self.K.fill(2 * np.log(np.arange(p) + 2.0))))
        owner = np.maximum(np.rint(longer / np.where(length > 0, length, 1.0)).astype(int) - 2, -1)  # -1 of no rows
        F, y = np.column_stack([Phi, self.H]), self._residual(np.zeros(self.size))
        if self.precision is None and self.H.shape[1]:
            y = y - self.H @ np.linalg.lstsq(self.H, y, rcond=None)[0]
        return Products(backend.gram(F), F.T @ y, float(y @ y), np.append(owner, np.full(self.H.shape[1], -1)))

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, free, noise = self._split(theta)
        G, g, yy, owner = self._products
        size, q = len(g), self.H.shape[1]
        with np.errstate(over="ignore"):
            s = np.where(owner >= 0, np.exp(np.append(own, 0.0)[owner] / 2), 1.0)
        prior = np.eye(size)
        prior[size - q :, size - q :] = 0.0 if self.precision is None else self.precision
        B = s[:, None] * G * s / noise[0] + prior
        factor = attempt(np.asfortranarray(B)) if np.isfinite(B).all() else None
        if factor is None:
            return None
        c = s * g / noise[0]
        w = factor.solve(c)
        quadratic = yy / noise[0] - float(w @ c)
        if quadratic < MIN_QUADRATIC_SHARE * yy / noise[0]:
            return super().__call__(theta, gradient, profiled)
        log_det = factor.log_det() + self.n * math.log(noise[0]) - log_unit(self.H, self.precision)
        answer = self._answer(log_det, w, quadratic, profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, w, scale = answer
        left = factor.inverse_diagonal()
        slope = np.zeros(self.size)
        slope[self._of_kernel] = (
            0.5
            * np.bincount(owner[: size - q] + 1, w[: size - q] ** 2 + left[: size - q] - 1, minlength=len(own) + 1)[1:]
        )
        # of the noise: 1/2 (a^T a - tr P), with a = (y - F s w) / noise, and P = (I - F s B^-1 s F^T / noise) / noise
        residual = quadratic / (scale if profiled else 1.0) - float(w @ prior @ w)
        kept = float(np.sum(left[: size - q])) + self._prior_share(factor, prior, q)
        total = 0.5 * (residual - (self.n - size + kept)) / noise[0]
        slope[self._of_noise] = self.noise.slope(free, self.rows, np.full(self.n, total / self.n))
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    @staticmethod
    def _prior_share(factor: Cholesky, prior: np.ndarray, q: int) -> float:
        """Trace of B^-1 times the prior precision, of the columns of the trend."""
        if not q or not prior[-q:, -q:].any():
            return 0.0
        last = factor.half_solve(np.eye(len(prior))[:, -q:])
        return float(np.sum((last.T @ last) * prior[-q:, -q:]))

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if super().__call__(theta) is None else self._left_out
