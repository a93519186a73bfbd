"""Exact solutions in function space: the covariance of all rows, factorised."""

import dataclasses
import warnings

import numpy as np

from mercer import gram
from mercer.core.errors import NumericalWarning
from mercer.core.inputs import Inputs, count_rows
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.gp.process import GP
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import attempt
from mercer.linalg.trend import log_unit
from mercer.solvers.base import (
    DENSE_OVERHEAD,
    Cost,
    Evaluation,
    Evidence,
    GivenNoise,
    KeptMatrix,
    Solver,
    left_out,
    register,
)


@register
@dataclasses.dataclass(frozen=True)
class Dense(Solver):
    """Cholesky factorisation of C = K + noise (n, n): n^3 flops an evaluation of the evidence, for any kernel."""

    name = "dense"
    summary = "exact, by Cholesky factorisation of the covariance of all rows"
    takes_operators = True

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> None:
        return None

    def serves(self, task: str) -> bool:
        return True

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n = count_rows(X)
        why = "the kernel has no finite feature space, or one about as large as the data, or there is no noise"
        return Cost(8 * 2 * n**2, DENSE_OVERHEAD * float(n) ** 3, (n, n), why)

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> "FunctionSpace":
        return FunctionSpace(kernel, X, y, noise, mean)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> GP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # `GP.numerics` has it
            return GP(kernel, 0.0 if mean is None else mean, allow_invalid=allow_invalid).condition(X, y, noise)


class FunctionSpace(Evidence):
    """One potrf, one potri and the contraction in tiles: n^3 + O(n^2) flops, one matrix of memory."""

    def _representation(self, kernel: Kernel, X: Inputs) -> gram.Varying:
        self._matrix = np.empty((self.n, self.n))
        self._diagonal: np.ndarray | None = None  # of K, where the last call left the rest of it
        self._both = np.asfortranarray(np.column_stack([self.y, self.H]))
        self._unit = log_unit(self.H, self.precision) if self.H.shape[1] else 0.0
        return gram.on(kernel, X).varying()

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        answer = self._evaluate(theta, gradient, profiled, accurate=False)
        # NaN marks tiles where fast distances lost precision; after any failure, recompute with the accurate formula.
        return self._evaluate(theta, gradient, profiled, accurate=True) if answer is None else answer

    def _evaluate(self, theta: np.ndarray, gradient: bool, profiled: bool, accurate: bool) -> Evaluation | None:
        M = self._matrix  # C above the diagonal, row by row: to LAPACK, its lower triangle
        own, _, noise = self._split(theta)
        y = self._both[:, 0] = self._residual(theta)
        mirrored = self.keeps and self.keeping  # LAPACK leaves the other triangle as it is
        self.K.fill(own, M, accurate, mirrored)
        diagonal = M.ravel()[:: self.n + 1]
        self.diagonal, self._diagonal = float(diagonal.sum()) / max(self.n, 1), diagonal.copy() if mirrored else None
        diagonal += noise
        factor = attempt(M.T)
        if factor is None:
            return None
        solved, trend, log_det = factor.solve(self._both), None, factor.log_det()
        a = solved[:, 0]
        if self.H.shape[1]:
            trend = self._trend(solved[:, 1:])
            if trend is None:
                return None
            a, log_det = trend.contrasted(a, y), log_det + trend.log_det(self._unit)
        answer = self._answer(log_det, a, float(y @ a), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        factor.invert()
        if trend is not None:
            trend.project(M.T)
        self._weights = a
        slope = 0.5 * self.K.contract(own, M, a)
        slope = self._slope(theta, slope, a, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def keep(self, theta: np.ndarray) -> None:
        if self._diagonal is not None:
            free = np.empty_like(self._matrix) if self.kept is None else self.kept.matrix
            self.kept, self._matrix = KeptMatrix(theta, self._diagonal, self._matrix), free

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        if self(theta) is None:
            return None
        return left_out(self._weights, np.diag(self._matrix))
