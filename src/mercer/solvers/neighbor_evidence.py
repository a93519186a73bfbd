"""Evidence by conditioning every row on near rows before it (Vecchia's approximation), with its exact gradient."""

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs
from mercer.gp.mean import MeanFunction
from mercer.kernels.base import Kernel
from mercer.kernels.sets import on_sets, positions
from mercer.linalg.ordering import Sets, maximin_order, nearest_before
from mercer.linalg.vecchia import SetFactors
from mercer.solvers.base import Evaluation, Evidence, GivenNoise, left_out


def scaled_inputs(kernel: Kernel, X: Inputs) -> np.ndarray:
    """Inputs in the kernel's own units, where near rows are alike: (n, .)."""
    return positions(kernel, gram.raw(X))


class NeighborEvidence(Evidence):
    """ln p(y) = sum_i ln p(y_i | y_c(i)), where c(i) are near rows before i, noise included (response Vecchia).

    With z = (I - B)(y - H beta) the residuals of the regressions and D their variances, of -1/2 (ln |D| + z^T D^-1 z)
    the gradient is that of small covariances (`linalg.vecchia`). The quadratic form is stationary in beta, so beta is
    held; d ln |H^T C^-1 H| is that of the squares of H root^-T, so its columns stand beside the residual.
    """

    def __init__(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise, mean: MeanFunction | None,
        n_neighbors: int, grouped: bool,
    ) -> None:  # fmt: skip
        self._n_neighbors, self._grouped = n_neighbors, grouped
        super().__init__(kernel, X, y, noise, mean)

    def _representation(self, kernel: Kernel, X: Inputs) -> SetFactors:
        points = scaled_inputs(kernel, X)
        self.order = maximin_order(points)
        before = nearest_before(points[self.order], self._n_neighbors)
        rows = gram.on(kernel, X)[self.order]
        self._kernel = on_sets(kernel, rows.X, rows.rows)
        return SetFactors(Sets.grouped(before) if self._grouped else Sets.each(before))

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        y, H, order = self._residual(theta), self.H, self.order
        covariances = self._kernel.at(own)
        with np.errstate(all="ignore"):
            factor = self.K.factor(covariances, noise[order])
        if factor is None:
            return None
        self._factor, self.diagonal = factor, float(np.mean(factor.variance))
        C_inv = self._unordered(factor.times_precision(np.column_stack([y, H])[order]))
        a, trend, log_det, Z = C_inv[:, 0], None, factor.log_det(), y[:, None].copy()
        if H.shape[1]:
            trend = self._trend(C_inv[:, 1:])
            if trend is None:
                return None
            a, log_det = trend.contrasted(a, y), log_det + trend.log_det()
            Z = np.column_stack([y - H @ trend.coefficients(y), np.linalg.solve(trend.root, H.T).T])
        answer = self._answer(log_det, a, float(y @ a), profiled)
        self._last_trend, self._last_a = trend, a
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        Z[:, 0] /= np.sqrt(scale) if profiled else 1.0
        slope, of_noise = self.K.contract(covariances, noise[order], factor, Z[order])
        diagonal = a**2 - 2 * self._unordered(of_noise)  # of P, to `_slope`
        slope = self._slope(theta, slope, a, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def _unordered(self, values: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        out[self.order] = values
        return out

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Given all other rows in the approximate joint distribution, whose precision is sparse."""
        if self(theta, gradient=False) is None:
            return None
        diagonal = self._unordered(self._factor.diagonal())
        if self._last_trend is not None:
            diagonal = diagonal - np.einsum("ij,ij->i", self._last_trend.half, self._last_trend.half)
        return left_out(self._last_a, diagonal)
