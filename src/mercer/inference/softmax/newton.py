"""Newton's method for concave functions of the C latent functions, such as the log posterior of the softmax model."""

import math
from collections.abc import Callable

import numpy as np

from mercer.inference.softmax.factor import JointSites, SoftmaxModel

MAX_STEPS = 200
MAX_HALVINGS = 40
# Expected gain, relative to Psi, at which the maximum is found: to rounding; with a fixed factor; if rounding keeps Psi
# from rising.
TOLERANCE, FIXED_TOLERANCE, STALLED_TOLERANCE = 1e-17, 1e-6, 1e-7
FORCING_TERM = 0.03  # relative residual to which Newton's equations are solved
FIXED_CG_ITERATIONS = 3  # a step, with a fixed factor; the next one improves on it

# f -> value, pi with the gradient targets - pi, and sites of the curvature
LogLikelihood = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]


class NewtonAscent:
    """Maximise Psi = ln p(labels | f) - f^T K^-1 f / 2 over f_c = K_c a_c, by Newton's method.

    ``likelihood`` may be another concave function of f: it returns its value, pi with the gradient targets - pi, and
    the sites of its curvature W.

    (I + W K) delta = targets - pi - a is solved by conjugate gradients in the inner product of K, preconditioned by a
    `JointSites` at an earlier W: right after a factorisation one iteration is exact, and while W changes little a few
    are enough, at 8 C n^2 flops each. When they have cost about as much as a factorisation, there is a new one, unless
    a fixed ``factor`` was given. Psi is concave, every such direction ascends, and a step that does not raise Psi
    enough is halved: the iteration cannot diverge.
    """

    def __init__(
        self, model: SoftmaxModel, workspace: np.ndarray, factor: JointSites | None = None,
        likelihood: LogLikelihood | None = None, max_steps: int = MAX_STEPS,
    ) -> None:  # fmt: skip
        self.model, self.workspace, self.likelihood = model, workspace, likelihood or model.likelihood
        self.factor, self.fixed = factor, factor is not None
        self.cg_iterations = FIXED_CG_ITERATIONS if self.fixed else max(4, model.n // 150)
        self.tolerance, self.max_steps = FIXED_TOLERANCE if self.fixed else TOLERANCE, max_steps
        self.steps, self.converged = 0, False

    def start_at(self, a: np.ndarray) -> "NewtonAscent":
        self.a, self.f = a, self.model.times(a)
        value, self.pi, self.sites = self.likelihood(self.f)
        self.psi = value - 0.5 * float(np.vdot(self.a, self.f))
        return self

    def maximise_from(self, a: np.ndarray | None) -> bool:
        """Maximise from ``a`` or from zero, whichever has the larger Psi; False if a factorisation fails."""
        zero = np.zeros_like(self.model.targets)
        psi_at_zero = -self.model.n * math.log(self.model.classes)
        if a is not None and a.shape == zero.shape and self.start_at(a).psi > psi_at_zero:
            return self.maximise()
        return self.start_at(zero).maximise(equal_classes=self.model.shared)

    def maximise(self, equal_classes: bool = False) -> bool:
        """Maximise from the current point; False if a factorisation fails. ``equal_classes``: all have the same sites
        and covariance there."""
        model, iterations_since = self.model, 0
        for _ in range(self.max_steps):
            rho = model.targets - self.pi - self.a
            if self.factor is None or (iterations_since >= self.cg_iterations and not self.fixed):
                self.factor = model.factor(self.sites, self.workspace, equal_classes and self.steps == 0)
                iterations_since = 0
            if not self.factor.positive or not math.isfinite(self.psi):
                return False
            da, df, iterations = self._direction(self.factor, rho)
            iterations_since += iterations
            gain = float(np.vdot(rho, df))  # slope of Psi along the step, twice the expected gain
            self.steps += 1
            risen = self._step(da, df, gain)
            scale = max(1.0, abs(self.psi))
            self.converged = gain < (self.tolerance if risen else STALLED_TOLERANCE) * scale
            if self.converged or not risen:
                break
        return True

    def _step(self, da: np.ndarray, df: np.ndarray, gain: float) -> bool:
        """Move along the direction, by the largest of 1, 1/2, 1/4, ... that raises Psi enough; False if none does."""
        step, rounding = 1.0, 1e-13 * max(1.0, abs(self.psi))
        for _ in range(MAX_HALVINGS):
            a, f = self.a + step * da, self.f + step * df
            value, pi, sites = self.likelihood(f)
            psi = value - 0.5 * float(np.vdot(a, f))
            if psi >= self.psi + 0.1 * step * gain - rounding:
                self.a, self.f, self.pi, self.sites, self.psi = a, f, pi, sites, psi
                return True
            step /= 2
        return False

    def _direction(self, R: JointSites, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """delta, K delta and the number of conjugate gradient iterations."""
        K, s = self.model, self.sites
        delta, K_delta, p, Kp = (np.zeros_like(rho) for _ in range(4))
        r, Kr = rho, K.times(rho)
        first = last = 0.0
        total = s.sum(axis=0)
        for iteration in range(self.cg_iterations + 1):
            z = r - R.times(Kr)
            size = float(np.vdot(z, Kr))
            if iteration == 0 and not size > 0:  # lost in rounding, if K W is huge: the gradient itself
                z, size = r, float(np.vdot(r, Kr))
            first = first or size
            if not size > FORCING_TERM**2 * first * (iteration > 0):
                break
            ratio = size / last if iteration else 0.0
            p, Kp = z + ratio * p, K.times(z) + ratio * Kp
            Ap = p + s * (Kp - (s * Kp).sum(axis=0) / total)
            curvature = float(np.vdot(Kp, Ap))
            if not curvature > 0:  # rounding
                break
            length = size / curvature
            delta, K_delta = delta + length * p, K_delta + length * Kp
            r = r - length * Ap
            Kr, last = K.times(r), size
        return delta, K_delta, iteration
