"""Transitions that leave the posterior of a latent function invariant: elliptical slices, Hamiltonian trajectories."""

import math

import numpy as np

from mercer.inference.sampling.reference import LatentState, Reference

TRAJECTORY_TIME = math.pi / 2  # of a Hamiltonian move: a quarter turn, after which nothing is left of the start
MAX_LEAPFROG_STEPS = 256
TARGET_ACCEPTANCE = 0.8  # of Hamiltonian moves, to which the step size is tuned
MIN_STEP, FIRST_STEP = 1e-5, 0.3
MAX_SLICE_TRIES = 200  # after which the bracket is below rounding


def elliptical_slice(q: Reference, state: LatentState, rng: np.random.Generator, power: float = 1.0) -> LatentState:
    """One elliptical slice move for each chain (Murray, Adams and MacKay 2010).

    z and a draw v of the reference span an ellipse z cos a + v sin a. A height is drawn under the likelihood (to the
    ``power``, for annealing), then angles from a bracket that shrinks towards zero until one lies above it. f is linear
    in z, so one product Q v serves the whole ellipse.
    """
    k, axes = len(state.value), [1] * (state.z.ndim - 1)
    v = rng.standard_normal(state.z.shape)
    here, there = state.f - q.mean, q.deviations(v)
    height = power * state.value + np.log1p(-rng.random(k))
    angle = rng.uniform(0, 2 * math.pi, k)
    low, high = angle - 2 * math.pi, angle.copy()
    chosen, value = np.zeros(k), state.value.copy()
    active = np.arange(k)
    for _ in range(MAX_SLICE_TRIES):
        a = angle[active].reshape(-1, *axes)
        found = q.evaluate(q.mean + np.cos(a) * here[active] + np.sin(a) * there[active])[0]
        good = power * found >= height[active]
        chosen[active[good]], value[active[good]] = angle[active[good]], found[good]
        active = active[~good]
        if not len(active):
            break
        # The bracket keeps zero inside, which is always above the height.
        negative = angle[active] < 0
        low[active[negative]], high[active[~negative]] = angle[active[negative]], angle[active[~negative]]
        angle[active] = rng.uniform(low[active], high[active])
    a = chosen.reshape(-1, *axes)
    cos, sin = np.cos(a), np.sin(a)
    return LatentState(cos * state.z + sin * v, q.mean + cos * here + sin * there, value, None)


def hamiltonian(
    q: Reference, state: LatentState, step: float, leaps: int, rng: np.random.Generator
) -> tuple[LatentState, np.ndarray]:
    """One Hamiltonian trajectory for each chain, and their acceptance probabilities (k,).

    Under the reference alone, z and its momentum move on a circle, which is followed exactly; only p(t | f) divided by
    the sites changes the momentum (split Hamiltonian Monte Carlo, Shahbaba and others 2014). If that were constant,
    every step size would be accepted.
    """
    p = momentum = rng.standard_normal(state.z.shape)
    cos, sin = math.cos(step), math.sin(step)

    def log_density(s: LatentState, p: np.ndarray) -> np.ndarray:
        return s.value - 0.5 * np.sum(p * p + s.z * s.z, axis=tuple(range(1, p.ndim)))

    new = state
    with np.errstate(all="ignore"):  # a trajectory that diverges is rejected
        for _ in range(leaps):
            assert new.slope is not None
            p = p + 0.5 * step * new.slope
            z, p = cos * new.z + sin * p, cos * p - sin * new.z
            new = q.state(z)
            assert new.slope is not None
            p = p + 0.5 * step * new.slope
        change = log_density(new, p) - log_density(state, momentum)
        accept = np.where(np.isnan(change), 0.0, np.exp(np.minimum(change, 0.0)))
    return new.where(rng.random(len(accept)) < accept, state), accept


class StepSize:
    """Step size tuned during warmup to TARGET_ACCEPTANCE, by Nesterov's dual averaging."""

    def __init__(self) -> None:
        self.log_step = self.average = math.log(FIRST_STEP)
        self.error, self.count = 0.0, 0

    def tune(self, accept: float) -> None:
        self.count += 1
        weight = 1 / (self.count + 10)
        self.error += weight * (TARGET_ACCEPTANCE - accept - self.error)
        log_step = -math.sqrt(self.count) / 0.05 * self.error
        self.log_step = min(max(log_step, math.log(MIN_STEP)), math.log(TRAJECTORY_TIME))
        self.average += self.count**-0.75 * (self.log_step - self.average)

    def draw(self, rng: np.random.Generator, tuning: bool) -> tuple[float, int]:
        """A step and a number of steps, both jittered so that no trajectory is periodic."""
        step = math.exp(self.log_step if tuning else self.average) * rng.uniform(0.85, 1.15)
        leaps = round(TRAJECTORY_TIME * rng.uniform(0.7, 1.3) / step)
        return min(step, TRAJECTORY_TIME), min(max(leaps, 1), MAX_LEAPFROG_STEPS)


def move(q: Reference, state: LatentState, size: StepSize, tuning: bool, rng: np.random.Generator) -> LatentState:
    """A Hamiltonian move if there are gradients, otherwise an elliptical slice."""
    if state.slope is None:
        return elliptical_slice(q, state, rng)
    step, leaps = size.draw(rng, tuning)
    state, accept = hamiltonian(q, state, step, leaps, rng)
    if tuning:
        size.tune(float(accept.mean()))
    return state
