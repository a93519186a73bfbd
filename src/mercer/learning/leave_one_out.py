"""Leave-one-out criteria for the widths of kernel estimators.

Three criteria over one matrix of kernel values: the likelihood of a row's target given its inputs (PRML 6.48), the
squared error of its mean (PRML 6.45), and the likelihood of the row itself (PRML 6.42). theta is the free parameters of
the kernel and then, where they are learned, the logarithms of the target's widths. Value and gradient cost O(n^2) and
one matrix.
"""

import abc
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.inputs import Inputs
from mercer.distributions import LOG_2PI
from mercer.kernels.base import Kernel
from mercer.solvers.base import Evaluation

MIN_TOTAL_WEIGHT = 1e-12  # of k(x, x), for all rows together: a row far from all others weighs them alike
MIN_TOTAL_DENSITY = 1e-100  # the same where densities of isolated rows matter
MIN_BLOCK_ROWS = 8  # worked on at a time
MIN_LOG_RATIO = -600.0  # of densities, which is clipped to this ratio
MIN_LIKELIHOOD = 1e-250  # of a target beyond `MIN_LOG_RATIO` of all others, which carries no information on its width

R = TypeVar("R")
Sums = tuple[np.ndarray, np.ndarray]  # of a block: over its columns, and over its rows


class LeaveOneOutCriterion(abc.ABC):
    """Function of the kernel values k_nm + f between different rows n and m, with a tiny f (`MIN_TOTAL_WEIGHT`).

    Rows carry weights c. ``own`` is the part of theta that is not the kernel's. ``_measure`` reads the matrix and gives
    the value and its slope in ``own``; ``_weigh`` gives G_nm + G_mn, G = d value / d k, for a block; `gram.Varying`
    contracts that with dK/dtheta.
    """

    floor = MIN_TOTAL_WEIGHT

    def __init__(self, kernel: Kernel, X: Inputs, weights: np.ndarray) -> None:
        self.c = np.asarray(weights, dtype=float)
        self.n, self.total = len(self.c), float(self.c.sum())
        self.K = gram.on(kernel, X).varying(compiled=True)
        self.own = 0  # number of parameters beside the kernel's
        self.jitter, self.diagonal = 0.0, 1.0
        self._matrix = np.empty((self.n, self.n))
        self._filled = False
        self._pool: ThreadPoolExecutor | None = None
        step = machine.rows_within(machine.CACHE_BYTES, self.n, MIN_BLOCK_ROWS)
        self._blocks = [(i, min(i + step, self.n)) for i in range(0, self.n, step)]

    @property
    def size(self) -> int:
        return self.K.layout.size + self.own

    def __enter__(self) -> Self:
        self.K.__enter__()
        if len(self._blocks) > 1:
            self._pool = ThreadPoolExecutor(machine.cores())
        return self

    def __exit__(self, *error: object) -> None:
        self.K.__exit__(*error)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        theta = np.asarray(theta, dtype=float)
        kernel, own = theta[: self.K.layout.size], theta[self.K.layout.size :]
        with np.errstate(all="ignore"):
            found = self._measure(kernel, own) if self._fill(kernel) else None
            if found is None or not math.isfinite(found[0]):
                return None
            value, slope = found
            if not gradient:
                return Evaluation(value, None, 1.0)
            slope = np.concatenate([self._slope(kernel, own), slope])
        return Evaluation(value, slope, 1.0) if np.isfinite(slope).all() else None

    @abc.abstractmethod
    def _measure(self, kernel: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray]:
        """The value, and its slope in ``own``."""

    @abc.abstractmethod
    def _weigh(self, own: np.ndarray, i: int, last: int) -> np.ndarray:
        """G_nm + G_mn for rows n in i:last and columns m from i on."""

    # -- the matrix --------------------------------------------------------------------------------------------------

    def _fill(self, kernel: np.ndarray) -> bool:
        """Write k + f above the diagonal, and zero elsewhere in the blocks on it. Whether all values are numbers, and
        none is negative."""
        if self._filled and not self.K.layout.size:
            return True
        M = self._matrix
        for accurate in (False, True):  # NaN marks tiles where fast distances lost digits
            self.K.fill(kernel, M, accurate)
            self.diagonal = float(np.mean(M.ravel()[:: self.n + 1]))
            f = self.floor * self.diagonal / self.total

            def lift(i: int, last: int, f: float = f) -> float:
                k = M[i:last, i:]
                k += f
                k[:, : last - i] = np.triu(k[:, : last - i], 1)
                return float(k.min())

            lowest = min(self._each(lift))
            self._filled = lowest >= 0  # NaN is not
            if self._filled:
                return True
            if lowest < 0:
                return False
        return False

    def _sums(self, measure: Callable[[np.ndarray, int, int], list[Sums]]) -> list[np.ndarray]:
        """sum_m v_nm for every row n, of matrices v whose sums ``measure(k, i, last)`` gives for a block above the
        diagonal."""

        def work(i: int, last: int) -> list[Sums]:
            return measure(self._matrix[i:last, i:], i, last)

        totals: list[np.ndarray] = []
        for (i, last), parts in zip(self._blocks, self._each(work), strict=True):
            totals = totals or [np.zeros((self.n, *rows.shape[1:])) for rows, _ in parts]
            for total, (rows, columns) in zip(totals, parts, strict=True):
                total[i:last] += rows
                total[i:] += columns
        return totals

    def _slope(self, kernel: np.ndarray, own: np.ndarray) -> np.ndarray:
        """sum_nm G_nm dk_nm/dtheta. Overwrites the matrix."""
        if not self.K.layout.size:
            return np.empty(0)
        M = self._matrix

        def write(i: int, last: int) -> float:
            G = self._weigh(own, i, last)
            G[:, : last - i] = np.triu(G[:, : last - i], 1)
            np.multiply(G, -0.5, out=M[i:last, i:])
            return float(G.sum())

        all_pairs = sum(self._each(write))  # multiplied by f, which follows the mean of the diagonal
        M.ravel()[:: self.n + 1] = -all_pairs * self.floor / (self.total * self.n)
        self._filled = False
        return self.K.contract(kernel, M, np.zeros(self.n))

    def _each(self, work: Callable[[int, int], R]) -> list[R]:
        """Results of all blocks."""
        return list((map if self._pool is None else self._pool.map)(lambda block: work(*block), self._blocks))


def weighted_sums(v: np.ndarray, c: np.ndarray, i: int, last: int) -> Sums:
    """Sums of a block over its columns and over its rows, with the weights of what is summed over."""
    return v @ c[i:], c[i:last] @ v


class ConditionalLikelihood(LeaveOneOutCriterion):
    """sum_n c_n ln sum_{m != n} w_nm N(t_n | t_m, diag h^2), w_nm = c_m k_nm / sum_{m != n} c_m k_nm (PRML 6.48).

    ``t`` (n, q). ``width`` (q,) is h where it is given; None learns it: h^2 = least^2 + exp(2 eta). Two exponentials
    for each pair of rows, of the target once more for the gradient.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Inputs,
        t: np.ndarray,
        weights: np.ndarray,
        width: np.ndarray | None = None,
        least: np.ndarray | float = 0.0,
    ) -> None:
        super().__init__(kernel, X, weights)
        self.t = np.asarray(t, dtype=float)
        self.width, self.least = width, np.broadcast_to(np.asarray(least, dtype=float), self.t.shape[1:])
        self.own = 0 if width is not None else self.t.shape[1]

    def widths(self, own: np.ndarray) -> np.ndarray:
        """h (q,) from its coordinates."""
        return np.hypot(self.least, np.exp(own)) if self.width is None else self.width

    def _measure(self, kernel: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray]:
        h, c = self.widths(own), self.c
        u = self.t / h
        learns = self.width is None

        def measure(k: np.ndarray, i: int, last: int) -> list[Sums]:
            g, squares = self._closeness(u, i, last, separately=learns)
            parts = [weighted_sums(k, c, i, last)]
            g *= k
            parts.append(weighted_sums(g, c, i, last))
            for r2 in squares:
                r2 *= g
                parts.append(weighted_sums(r2, c, i, last))
            return parts

        S, A, *spreads = self._sums(measure)
        self._one_over_S, self._one_over_A = 1 / S, 1 / A
        value = float(c @ (np.log(A) - np.log(S))) - self.total * (float(np.log(h).sum()) + len(h) * LOG_2PI / 2)
        if not learns:
            return value, np.empty(0)
        seen = c * (A > MIN_LIKELIHOOD)
        slope = np.array([seen @ (r2 / A) for r2 in spreads]) - self.total
        return value, slope * np.exp(2 * own) / h**2

    def _closeness(
        self, u: np.ndarray, i: int, last: int, separately: bool = False
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """exp(-|u_n - u_m|^2 / 2) of a block, and the squared differences of each target if ``separately``."""
        squares: list[np.ndarray] = []
        total: np.ndarray | None = None
        for column in u.T:
            r2 = np.subtract.outer(column[i:last], column[i:])
            np.square(r2, out=r2)
            squares.append(r2)
            if total is None:
                total = r2 if not separately else r2.copy()
            else:
                total += r2
        assert total is not None
        total *= -0.5
        np.maximum(total, MIN_LOG_RATIO, out=total)
        return np.exp(total, out=total), squares if separately else []

    def _weigh(self, own: np.ndarray, i: int, last: int) -> np.ndarray:
        G, _ = self._closeness(self.t / self.widths(own), i, last)
        G *= np.add.outer(self._one_over_A[i:last], self._one_over_A[i:])
        G -= np.add.outer(self._one_over_S[i:last], self._one_over_S[i:])
        G *= self.c[i:last, None]
        G *= self.c[i:]
        return G


class SquaredError(LeaveOneOutCriterion):
    """-C/2 sum_j ln(sum_n c_n (t_nj - y_nj)^2 / C), y_n = sum_{m != n} w_nm t_m (PRML 6.45), C the sum of weights.

    The logarithm makes it a likelihood, in nats, of Gaussian errors whose variance is the best there is.
    """

    def __init__(self, kernel: Kernel, X: Inputs, t: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(kernel, X, weights)
        self.t = np.asarray(t, dtype=float)

    def _measure(self, kernel: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray]:
        c = self.c
        B = np.column_stack([c, c[:, None] * self.t])  # one product for sums of weights and of targets
        (sums,) = self._sums(lambda k, i, last: [(k @ B[i:], k.T @ B[i:last])])
        S = sums[:, :1]
        mean = sums[:, 1:] / S
        missed = self.t - mean
        Q = c @ missed**2
        a = c[:, None] * missed / S * (self.total / np.maximum(Q, np.finfo(float).tiny))
        # sum_j a_nj (t_mj - y_nj) c_m, and the same with n and m exchanged
        ct, rest, c = c[:, None] * self.t, np.sum(a * mean, axis=1, keepdims=True), c[:, None]
        self._left, self._right = np.hstack([a, -rest, ct, -c]), np.hstack([ct, c, a, rest])
        value = -0.5 * self.total * float(np.log(np.maximum(Q / self.total, np.finfo(float).tiny)).sum())
        return value, np.empty(0)

    def _weigh(self, own: np.ndarray, i: int, last: int) -> np.ndarray:
        return self._left[i:last] @ self._right[i:].T


class DensityLikelihood(LeaveOneOutCriterion):
    """sum_n c_n ln (sum_{m != n} c_m k_nm / sum_{m != n} c_m) - C sum_i ln l_i, up to a constant (PRML 6.42).

    For kernels whose only free parameters are lengthscales l_i, one for each input: the integral of k is their product
    times a constant. In theta, l^2 = least^2 + exp(2 eta). A row with nothing within twenty lengthscales counts as no
    farther.
    """

    floor = MIN_TOTAL_DENSITY

    def __init__(self, kernel: Kernel, X: Inputs, weights: np.ndarray, least: np.ndarray | float = 0.0) -> None:
        super().__init__(kernel, X, weights)
        self.least = least

    def widths(self, theta: np.ndarray) -> np.ndarray:
        """l (d,) from its coordinates."""
        return np.hypot(self.least, np.exp(theta))

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        widths = self.widths(theta)
        found = super().__call__(np.log(widths), gradient)
        if found is None or found.gradient is None:
            return found
        return found._replace(gradient=found.gradient * np.exp(2 * np.asarray(theta)) / widths**2)

    def _measure(self, kernel: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray]:
        (S,) = self._sums(lambda k, i, last: [weighted_sums(k, self.c, i, last)])
        self._left = np.column_stack([self.c / S, self.c])
        others = np.log(self.total - self.c)
        return float(self.c @ (np.log(S) - others)) - self.total * float(kernel.sum()), np.empty(0)

    def _weigh(self, own: np.ndarray, i: int, last: int) -> np.ndarray:
        return self._left[i:last] @ self._left[i:, ::-1].T

    def _slope(self, kernel: np.ndarray, own: np.ndarray) -> np.ndarray:
        return super()._slope(kernel, own) - self.total
