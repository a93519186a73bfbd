"""Exact solutions in linear time for one input: the recursion over a kernel's states (Kalman filter and smoother)."""

import dataclasses
import math

import numpy as np

from mercer.core.inputs import Inputs, count_rows
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.inference.latent import LatentSpace
from mercer.kernels.base import Kernel
from mercer.linalg.statespace import Factor, Matrices, NotPositive
from mercer.linalg.trend import log_unit
from mercer.solvers.base import Cost, Evaluation, Evidence, GivenNoise, Solver, left_out, register
from mercer.solvers.state_posterior import MIN_RELATIVE_INNOVATION, StatePosterior
from mercer.solvers.state_sites import LatentStates, StateSites
from mercer.solvers.timeline import At, Timeline, form_of, refusal, required_form, times_of

ROW_FLOPS, STATE_FLOPS = 4000.0, 400.0  # of a row, and of a pair of states: loops are slower than matrix products
MIN_AUTO_ROWS = 1000  # with fewer, a matrix is as fast


@register
@dataclasses.dataclass(frozen=True)
class StateSpace(Solver):
    """Recursion over the rows in order of time, for kernels of one input with a state-space form: O(n m^2) for m
    states, and memory proportional to n."""

    name = "statespace"
    summary = "linear in the number of rows, by a recursion over the states of a kernel of time"
    parts = (StatePosterior, StateSites)
    auto_rows = MIN_AUTO_ROWS
    growth = 1
    several_latents = False
    auto_loss = 1e-6  # an error of 1e-9 of the kernel's variance, where noise is a thousandth of that

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        return refusal(kernel, X)

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n, form = count_rows(X), required_form(kernel)
        m, block = max(form.size, 1), max((size for _, size in form.groups), default=1)
        kept = min(8.0 * n * (m * m + 6 * m), 2.0**28)
        why = f"the kernel of one input has {m} state{'s' * (m > 1)}"
        return Cost(8 * 12 * n + kept, n * (ROW_FLOPS + STATE_FLOPS * m * m * block**0.5), (n, m), why)

    def approximation(self, kernel: Kernel) -> str | None:
        form = form_of(kernel)
        if form is None or form.accuracy is None:
            return None
        return f"approximates the kernel, to {form.accuracy:.0e} of its variance"

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> "TimeEvidence":
        return TimeEvidence(kernel, X, y, noise, mean)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> StatePosterior:
        return StatePosterior.given(kernel, X, y, noise, mean)

    def latent(self, kernel: Kernel, X: Inputs) -> LatentSpace:
        return LatentStates(kernel, X)


class TimeEvidence(Evidence):
    """The evidence by one pass over the rows, its gradient by one back: the adjoint of the recursion, and the
    derivatives of the kernel's transitions."""

    def _representation(self, kernel: Kernel, X: Inputs) -> Timeline:
        line = Timeline(kernel, self.n)
        t = times_of(line.form, X)
        self._order = np.argsort(t, kind="stable")
        self._t = t[self._order]
        return line

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        y, q, at = self._residual(theta), self.H.shape[1], self.K.at(own)
        if at is None or not np.isfinite(own).all() or not np.isfinite(noise).all():
            return None
        factor = self._factorised(at, noise, np.column_stack([y, self.H]), keep=gradient)
        if factor is None:
            return None
        A = factor.gram  # of y and H: all that the trend needs
        log_det, mix = factor.log_det, np.eye(1 + q)
        if q:
            inner = A[1:, 1:] + (0.0 if self.precision is None else self.precision)
            try:
                root = np.linalg.cholesky(inner)
            except np.linalg.LinAlgError:
                return None
            beta = np.linalg.solve(inner, A[1:, 0])
            mix[1:, 0] = -beta  # y - H beta
            mix[1:, 1:] = np.linalg.inv(root).T  # C^-1 H root^-T is `Trend.half`
            log_det += 2 * float(np.log(np.diag(root)).sum()) - log_unit(self.H, self.precision)
            quadratic = float(A[0, 0] - beta @ A[1:, 0])
        else:
            quadratic = float(A[0, 0])
        answer = self._answer(log_det, np.zeros(0), quadratic, profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, _, scale = answer
        unit = scale if profiled else 1.0
        mix[:, 0] /= math.sqrt(unit)
        slope = np.zeros(len(own))

        def pull(t: np.ndarray, gaps: np.ndarray, bars: Matrices) -> None:
            slope[:] += at.pull(t, gaps, bars)

        of_noise, of_columns = factor.slopes(mix, pull)
        slope += at.pull_white(float(of_noise.sum()))
        a, weights = np.empty(self.n), np.empty(self.n)
        a[self._order], weights[self._order] = -of_columns[:, 0], of_noise
        slope = self._slope(theta, slope, a, a**2 - 2 * weights, unit)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def _factorised(self, at: At, noise: np.ndarray, Y: np.ndarray, keep: bool) -> Factor | None:
        try:
            factor = Factor(
                at.chain,
                self._t,
                noise[self._order] + at.white,
                Y[self._order],
                keep,
                MIN_RELATIVE_INNOVATION,
            )
        except NotPositive:
            return None
        return factor if math.isfinite(factor.log_det) and np.isfinite(factor.gram).all() else None

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        own, _, noise = self._split(theta)
        y, at = self._residual(theta), self.K.at(own)
        factor = None if at is None else self._factorised(at, noise, np.column_stack([y, self.H]), keep=True)
        if factor is None:
            return None
        back = factor.backward()
        solved, diagonal = np.empty_like(back.a), np.empty(self.n)
        solved[self._order], diagonal[self._order] = back.a, back.diagonal
        a = solved[:, 0]
        if self.H.shape[1]:
            trend = self._trend(solved[:, 1:])
            if trend is None:
                return None
            a, diagonal = trend.contrasted(a, y), diagonal - np.einsum("ij,ij->i", trend.half, trend.half)
        return left_out(a, diagonal)
