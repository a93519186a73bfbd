"""Evidence by preconditioned conjugate gradients on a covariance that is never formed."""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.inputs import Inputs
from mercer.gp.mean import MeanFunction
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import random_pivots
from mercer.linalg.conjugate import Solution, conjugate_gradients, log_quadratic
from mercer.linalg.preconditioner import LowRankAndDiagonal
from mercer.linalg.trend import Trend
from mercer.solvers.base import Evaluation, Evidence, GivenNoise, left_out

MAX_DOUBLE_ROWS = 4000  # of more, the kernel is evaluated in single precision, from distances in double precision
MIN_PIVOT_SHARE = 1e-12  # of the largest variance: pivots are drawn until no more is left of any
PROBE_TOLERANCE = 1e-2  # relative residual of probes, at most: its square enters the log determinant


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Settings of the solver that determine its accuracy."""

    rank: int
    n_probes: int
    tolerance: float
    max_iterations: int
    seed: int

    def probes(self, n: int) -> np.ndarray:
        """Independent signs (n, s), the same at every theta."""
        return np.random.default_rng(self.seed).choice([-1.0, 1.0], size=(n, self.n_probes))

    def pivots(self, K: gram.Operator) -> np.ndarray:
        """Rows that the preconditioner is made of, drawn by randomly pivoted Cholesky (Chen et al. 2023)."""
        diagonal, rng = K.diagonal(), np.random.default_rng(self.seed + 1)
        n, rank = len(diagonal), min(self.rank, len(diagonal))
        taken = random_pivots(K.rows, diagonal, rank, MIN_PIVOT_SHARE * diagonal.max(initial=0.0), rng)[0]
        rest = np.setdiff1d(np.arange(n), taken)  # of a kernel with few directions, as given: others may have more
        return np.concatenate([taken, rng.choice(rest, rank - len(taken), replace=False)])


class System(NamedTuple):
    """C = K + diag(noise), noise without the white noise in K, and its preconditioner."""

    K: gram.Operator
    noise: np.ndarray
    near: LowRankAndDiagonal

    @classmethod
    def of(cls, K: gram.Operator, noise: np.ndarray, pivots: np.ndarray) -> "System | None":
        with np.errstate(all="ignore"):
            near = LowRankAndDiagonal.of(K.rows(pivots), pivots, K.diagonal(), noise + K.white)
        return None if near is None else cls(K, noise, near)

    def times(self, A: np.ndarray) -> np.ndarray:
        return self.K.times(A) + self.noise[:, None] * A


class SolvedColumns(NamedTuple):
    """C^-1 of the given columns, of those of the mean and of probes, and the estimates from the probes."""

    C_inv: np.ndarray  # (n, m)
    correction: np.ndarray  # x^T (b - C x) of each of these columns, which b^T x lacks of b^T C^-1 b: (m,)
    U: np.ndarray  # C^-1 z of the probes z: (n, s)
    V: np.ndarray  # M^-1 z: (n, s)
    log_det: float
    log_det_error: float  # standard error of that
    residuals: np.ndarray
    iterations: int


def solved(system: System, B: np.ndarray, accuracy: Accuracy, start: np.ndarray | None = None) -> SolvedColumns:
    """All at once. The probes z = M^1/2 w have the covariance of the preconditioner M, so that
    ln|C| = ln|M| + E w^T ln(M^-1/2 C M^-1/2) w, and C^-1 = E (C^-1 z) (M^-1 z)^T (Gardner et al. 2018)."""
    n, m = B.shape
    W = accuracy.probes(n)
    s = W.shape[1]
    Z = system.near.half(W)
    guess = None
    if start is not None and start.shape == B.shape:
        guess = np.column_stack([np.zeros(Z.shape), start])
    goal = np.append(np.full(s, max(accuracy.tolerance, PROBE_TOLERANCE)), np.full(m, accuracy.tolerance))
    found = conjugate_gradients(
        system.times, np.column_stack([Z, B]), system.near.solve, goal, accuracy.max_iterations, s, guess
    )
    logs = n * np.array([log_quadratic(found, i) for i in range(s)], dtype=float)  # None is NaN
    error = float(logs.std(ddof=1) / math.sqrt(s)) if s > 1 else math.nan
    X = found.X[:, s:]
    return SolvedColumns(
        X, np.einsum("nm,nm->m", X, found.left[:, s:]), found.X[:, :s], system.near.solve(Z),
        system.near.log_det() + float(logs.mean()), error, found.residuals[s:], found.iterations,
    )  # fmt: skip


def solve(system: System, B: np.ndarray, accuracy: Accuracy, start: np.ndarray | None = None) -> Solution:
    """C^-1 B."""
    goal = np.full(B.shape[1], accuracy.tolerance)
    return conjugate_gradients(system.times, B, system.near.solve, goal, accuracy.max_iterations, start=start)


def inverse_diagonal(near: LowRankAndDiagonal, U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Estimate of the diagonal of C^-1, from that of M^-1: E u v over E v^2, which errs little where M is near C."""
    exact, squares = near.inverse_diagonal(), np.einsum("ns,ns->n", V, V)
    ratio = np.einsum("ns,ns->n", U, V) / np.where(squares > 0, squares, 1.0)
    return exact * np.clip(ratio, MIN_RATIO, 1 / MIN_RATIO)


def inverse_diagonal_error(U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Standard error of `inverse_diagonal`, relative to it: (n,); infinite where the probes give no estimate."""
    s, squares = U.shape[1], np.einsum("ns,ns->n", V, V)
    products = np.einsum("ns,ns->n", U, V)
    told = (s > 1) & (products > MIN_RATIO * squares) & (MIN_RATIO * products < squares)
    ratio = np.divide(products, squares, out=np.ones_like(squares), where=told)
    away = np.sum((U * V - ratio[:, None] * V**2) ** 2, axis=1)
    return np.where(told, np.sqrt(away * s / max(s - 1, 1)) / np.where(told, products, 1.0), np.inf)


MIN_RATIO = 0.05  # of the diagonal of C^-1 to that of M^-1, below which the probes give no estimate


class IterativeEvidence(Evidence):
    """Value and gradient from one block of conjugate gradients: a few dozen products with K, n^2 each, and O(n r)
    memory. Probes and pivots are the same at every theta, so that both are smooth functions of it."""

    def __init__(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise, mean: MeanFunction | None, accuracy: Accuracy
    ) -> None:
        self._accuracy = accuracy
        super().__init__(kernel, X, y, noise, mean)

    def _representation(self, kernel: Kernel, X: Inputs) -> gram.Varying:
        varying = gram.on(kernel, X).varying(repeatedly=False)
        self._single = self.n > MAX_DOUBLE_ROWS
        self._pivots: np.ndarray | None = None
        self._start: np.ndarray | None = None  # the last solutions: those of a near theta are near
        self._given = np.asarray(to_free(kernel), dtype=float)
        return varying

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        y = self._residual(theta)
        if self._pivots is None:  # of the kernel as it was given, whatever theta comes first
            self._pivots = self._accuracy.pivots(self.K.at(self._given))
        K = self.K.at(own, self._single)
        system = System.of(K, noise, self._pivots)
        if system is None:
            return None
        self.diagonal = float(K.diagonal().mean()) + K.white
        found = solved(system, np.column_stack([y, self.H]), self._accuracy, self._start)
        if not (np.isfinite(found.C_inv).all() and math.isfinite(found.log_det)):
            return None
        self._start, self._found, self._near = found.C_inv, found, system.near
        a, log_det, trend = found.C_inv[:, 0], found.log_det, None
        quadratic = float(y @ a + found.correction[0])
        if self.H.shape[1]:
            trend = self._trend(found.C_inv[:, 1:])
            if trend is None:
                return None
            quadratic -= float(np.sum((trend.half.T @ y) ** 2))
            a, log_det = trend.contrasted(a, y), log_det + trend.log_det()
        self._last = a, trend
        answer = self._answer(log_det, a, quadratic, profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        slope = 0.5 * self.K.contract(own, precision(found, trend), a)
        diagonal = np.mean(found.U * found.V, axis=1)
        if trend is not None:
            diagonal = diagonal - np.einsum("ij,ij->i", trend.half, trend.half)
        slope = self._slope(theta, slope, a, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def memory(self) -> Mapping[str, np.ndarray]:
        """The last solutions, from which the next start."""
        return {} if self._start is None else {"solutions": self._start}

    def replayed(self, theta: np.ndarray, memory: Mapping[str, np.ndarray] | None) -> None:
        """As `Continuing.replayed`."""
        if memory:
            self._start = memory["solutions"]

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        start, self._start = self._start, None  # the same at any time
        found = self(theta, gradient=False)
        self._start = start
        if found is None:
            return None
        (a, trend), diagonal = self._last, inverse_diagonal(self._near, self._found.U, self._found.V)
        return left_out(a, without_trend(diagonal, trend))


def precision(found: SolvedColumns, trend: Trend | None) -> gram.Products:
    """Estimate of P, as `Varying.contract` reads it."""
    U, V = -found.U / found.U.shape[1], found.V
    if trend is not None:
        U, V = np.column_stack([U, trend.half]), np.column_stack([V, trend.half])
    return gram.Products(U, V)


def without_trend(diagonal: np.ndarray, trend: Trend | None) -> np.ndarray:
    """Diagonal of P, from that of C^-1."""
    if trend is None:
        return diagonal
    left = diagonal - np.einsum("ij,ij->i", trend.half, trend.half)
    return np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
