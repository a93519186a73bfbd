"""Evidence of parts of the rows that are independent of each other, and have the same parameters."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import joblib  # type: ignore[import-untyped]  # comes with scikit-learn
import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.inputs import Inputs
from mercer.gp.mean import MeanFunction
from mercer.kernels.base import Kernel
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt
from mercer.solvers.base import Evaluation, Evidence, GivenNoise, left_out

PARTITION_SEED = 0


def partition(n: int, n_parts: int) -> list[np.ndarray]:
    """Indices of the rows of each part, in order: at random, sizes equal but for one row."""
    if n_parts == 1:
        return [np.arange(n)]
    order = np.random.default_rng(PARTITION_SEED).permutation(n)
    return [np.sort(part) for part in np.array_split(order, n_parts)]


def together(processes: bool, work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results of ``work`` for all jobs, by joblib: in threads, with one BLAS thread each, or in processes."""
    n_jobs = min(machine.cores(), len(jobs))
    if n_jobs <= 1:
        return [work(*job) for job in jobs]
    with machine.one_thread():
        parallel = joblib.Parallel(n_jobs=n_jobs, prefer="processes" if processes else "threads")
        return list(parallel(joblib.delayed(work)(*job) for job in jobs))


class Part:
    """K(theta) of one part. In another process, it is prepared again for each evaluation."""

    def __init__(self, rows: gram.Gram) -> None:
        self.rows = rows
        self.kept: Cholesky | None = None  # factor of C at the last theta
        self.diagonal = 1.0  # the mean of K's

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows, "kept": None, "diagonal": 1.0}

    @functools.cached_property
    def K(self) -> gram.Varying:
        return self.rows.varying(repeatedly=False)

    def factor(self, theta: np.ndarray, noise: np.ndarray, accurate: bool) -> Cholesky | None:
        C = np.empty((self.rows.n, self.rows.n))
        self.K.fill(theta, C, accurate)
        self.diagonal = float(np.trace(C)) / max(self.rows.n, 1)
        C.ravel()[:: self.rows.n + 1] += noise
        return attempt(C.T)

    def solve(
        self, theta: np.ndarray, noise: np.ndarray, right: np.ndarray, keep: bool
    ) -> tuple[float, float, np.ndarray] | None:
        """ln |C|, the mean of K's diagonal, and C^-1 of the columns of ``right``; None where C is not positive
        definite."""
        with np.errstate(all="ignore"):
            for accurate in (False, True):
                factor = self.factor(theta, noise, accurate)
                if factor is not None:
                    solved, log_det = factor.solve(np.asfortranarray(right)), factor.log_det()
                    if np.isfinite(log_det + solved.sum()):
                        self.kept = factor if keep else None
                        return log_det, self.diagonal, solved
        return None

    def slope(
        self, theta: np.ndarray, noise: np.ndarray, a: np.ndarray, half: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Twice the kernel's part of the gradient, and the diagonal of P = C^-1 - half half^T."""
        factor, self.kept = self.kept, None
        if factor is None:
            with np.errstate(all="ignore"):
                factor = self.factor(theta, noise, accurate=False) or self.factor(theta, noise, accurate=True)
        assert factor is not None, "it was factorised before"
        factor.invert()
        P = factor.lower
        if half.shape[1]:
            backend.subtract_squares(P, half)
        return self.K.contract(theta, P.T, a), np.diag(P).copy()


class CommitteeEvidence(Evidence):
    """ln p(y) = sum_i ln p(y_i): the covariance has a block for each part, and zeros elsewhere.

    Coefficients of the mean are common to all parts, so there are two passes over them: C_i^-1 y_i and C_i^-1 H_i make
    the trend, then each inverse is contracted with the derivatives. Factors are kept in between, if there is memory.
    """

    def __init__(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise, mean: MeanFunction | None, n_parts: int,
        processes: bool,
    ) -> None:  # fmt: skip
        self._n_parts, self._processes = n_parts, processes
        super().__init__(kernel, X, y, noise, mean)

    def _representation(self, kernel: Kernel, X: Inputs) -> "Parts":
        rows = gram.on(kernel, X)
        self._groups = partition(self.n, self._n_parts)
        self._keeps = not self._processes and 8 * sum(len(g) ** 2 for g in self._groups) <= machine.keepable()
        whole = len(self._groups) == 1
        return Parts([Part(rows if whole else rows[group]) for group in self._groups])

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        y, H, trend = self._residual(theta), self.H, None
        both = np.column_stack([y, H])
        jobs = [(part, own, noise[g], both[g], self._keeps) for part, g in zip(self.K.parts, self._groups, strict=True)]
        found = together(self._processes, Part.solve, jobs)
        if any(each is None for each in found):
            return None
        C_inv, log_det = np.empty_like(both), 0.0
        for group, (of_part, _, solved) in zip(self._groups, found, strict=True):
            C_inv[group], log_det = solved, log_det + of_part
        self.diagonal = float(np.mean([diagonal for _, diagonal, _ in found]))
        a, half = C_inv[:, 0], np.zeros((self.n, 0))
        if H.shape[1]:
            trend = self._trend(C_inv[:, 1:])
            if trend is None:
                return None
            a, log_det, half = trend.contrasted(a, y), log_det + trend.log_det(), trend.half
        answer = self._answer(log_det, a, float(y @ a), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, scaled, scale = answer
        jobs = [(part, own, noise[g], scaled[g], half[g]) for part, g in zip(self.K.parts, self._groups, strict=True)]
        found, diagonal = together(self._processes, Part.slope, jobs), np.empty(self.n)
        for group, (_, of_part) in zip(self._groups, found, strict=True):
            diagonal[group] = of_part
        self._last = a, diagonal
        slope = 0.5 * sum(of_kernel for of_kernel, _ in found)
        slope = self._slope(theta, slope, scaled, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Given the other rows of the part."""
        return None if self(theta) is None else left_out(*self._last)


class Parts:
    """The parts, to be used in a ``with`` block as what one solver has for all rows."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, *error: object) -> None:
        for part in self.parts:
            part.kept = None
