"""Newton's method for the mode of the softmax posterior."""

import math
from collections.abc import Callable

import numpy as np

from mercer.inference.softmax.factor import Joint, Processes

MOST_STEPS = 200
HALVINGS = 40
STUCK = 1e-7  # of the height: what may be left to gain where rounding ends the climb
FORCING = 0.03  # how well a direction solves Newton's equations
ROUGHLY = 3  # iterations for a direction where the factorisation stays, and the next one will do better


class Climb:
    """Newton's method for the maximum of ln p(labels | f) - f^T K^-1 f / 2, where f_c = K_c a_c; or of another concave
    ``likelihood(f)``, which gives its value, pi with the gradient targets - pi, and the sites of its curvature W.

    (I + W K) delta = targets - pi - a is solved by conjugate gradients in the inner product of K, with `Joint` at an
    earlier W to precondition them: right after a factorisation one iteration is exact, and as long as W moves little a
    few do, at 8 C n^2 flops each. When they have taken about as long as a factorisation, there is a new one. Any such
    direction ascends, Psi is concave and a step that does not raise it enough is halved: this cannot diverge.
    """

    def __init__(self, processes: Processes, room, factor: Joint | None = None, likelihood: Callable | None = None,
                 most: int = MOST_STEPS):  # fmt: skip
        self.processes, self.room, self.likelihood = processes, room, likelihood or processes.likelihood
        self.factor, self.fixed = factor, factor is not None
        self.budget = ROUGHLY if self.fixed else max(4, processes.n // 150)
        self.tolerance, self.most = 1e-6 if self.fixed else 1e-17, most
        self.steps, self.converged = 0, False

    def stand(self, a):
        """Begin at a."""
        self.a, self.f = a, self.processes.times(a)
        value, self.pi, self.sites = self.likelihood(self.f)
        self.height = value - 0.5 * float(np.vdot(self.a, self.f))
        return self

    def from_the_better(self, start) -> bool:
        """From the mode of ``start`` or from nothing, whatever is higher."""
        nothing = np.zeros_like(self.processes.targets)
        flat = -self.processes.n * math.log(self.processes.classes)
        if start is not None and start.a.shape == nothing.shape and self.stand(start.a).height > flat:
            return self.up()
        return self.stand(nothing).up(alike=self.processes.shared)

    def up(self, alike: bool = False) -> bool:
        """To the top; False where a factorisation fails."""
        processes, spent = self.processes, 0
        for _ in range(self.most):
            rho = processes.targets - self.pi - self.a
            if self.factor is None or (spent >= self.budget and not self.fixed):
                self.factor = Joint(processes, self.sites, self.room, alike and self.steps == 0)
                spent = 0
            if not self.factor.positive or not math.isfinite(self.height):
                return False
            direction, moved, iterations = self._direction(rho)
            spent += iterations
            promise = float(np.vdot(rho, moved))
            self.steps += 1
            risen = self._step(direction, moved, promise)
            scale = max(1.0, abs(self.height))
            self.converged = promise < (self.tolerance if risen else STUCK) * scale
            if self.converged or not risen:
                break
        return True

    def _step(self, direction, moved, promise) -> bool:
        share, slack = 1.0, 1e-13 * max(1.0, abs(self.height))
        for _ in range(HALVINGS):
            a, f = self.a + share * direction, self.f + share * moved
            value, pi, sites = self.likelihood(f)
            height = value - 0.5 * float(np.vdot(a, f))
            if height >= self.height + 0.1 * share * promise - slack:
                self.a, self.f, self.pi, self.sites, self.height = a, f, pi, sites, height
                return True
            share /= 2
        return False

    def _direction(self, rho):
        """delta, K delta and how many iterations it took."""
        K, R, s = self.processes, self.factor, self.sites
        assert R is not None
        delta, moved, p, Kp = (np.zeros_like(rho) for _ in range(4))
        r, Kr = rho, K.times(rho)
        first = last = 0.0
        total = s.sum(axis=0)
        for iteration in range(self.budget + 1):
            z = r - R.times(Kr)
            size = float(np.vdot(z, Kr))
            if iteration == 0 and not size > 0:  # lost in rounding, where K W is huge: along the gradient itself
                z, size = r, float(np.vdot(r, Kr))
            first = first or size
            if not size > FORCING**2 * first * (iteration > 0):
                break
            ratio = size / last if iteration else 0.0
            p, Kp = z + ratio * p, K.times(z) + ratio * Kp
            Ap = p + s * (Kp - (s * Kp).sum(axis=0) / total)
            curved = float(np.vdot(Kp, Ap))
            if not curved > 0:  # nothing is left but rounding
                break
            length = size / curved
            delta, moved = delta + length * p, moved + length * Kp
            r = r - length * Ap
            Kr, last = K.times(r), size
        return delta, moved, iteration
