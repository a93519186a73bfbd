"""Transitions that leave the posterior of a latent function invariant: elliptical slices, Hamiltonian trajectories."""

import math

import numpy as np

from mercer.inference.sampling.reference import Reference, State

TIME = math.pi / 2  # of a Hamiltonian trajectory: a quarter of the way round, where nothing is left of the start
MOST_LEAPS = 256
ACCEPTED = 0.8  # share of Hamiltonian moves that the step size is tuned for
MOST_TRIES = 200  # on one slice; the bracket is then below rounding


def _along(axes):
    """cos and sin of angles (k,), to multiply arrays with ``axes`` more axes."""
    return lambda angle: (part(angle).reshape(-1, *[1] * axes) for part in (np.cos, np.sin))


def elliptical(q: Reference, state: State, rng, power: float = 1.0) -> tuple[State, int]:
    """One elliptical slice for each chain (Murray, Adams and MacKay 2010), and how often the likelihood was evaluated.

    z and a draw v of the reference span an ellipse z cos a + v sin a. A height is drawn under the likelihood (to the
    ``power``, for annealing), then angles from a bracket that shrinks towards zero until one lies above it. f is linear
    in z, so that one product Q v serves the whole ellipse.
    """
    k, mix = len(state.value), _along(state.z.ndim - 1)
    v = rng.standard_normal(state.z.shape)
    here, there = state.f - q.mean, q.push(v, centred=True)
    height = power * state.value + np.log1p(-rng.random(k))
    angle = rng.uniform(0, 2 * math.pi, k)
    low, high = angle - 2 * math.pi, angle.copy()
    chosen, value = np.zeros(k), state.value.copy()
    left, evaluations = np.arange(k), 0
    for _ in range(MOST_TRIES):
        cos, sin = mix(angle[left])
        found = q.evaluate(q.mean + cos * here[left] + sin * there[left])[0]
        evaluations += len(left)
        good = power * found >= height[left]
        chosen[left[good]], value[left[good]] = angle[left[good]], found[good]
        left = left[~good]
        if not len(left):
            break
        # The bracket keeps zero inside, which is always above the height.
        back = angle[left] < 0
        low[left[back]], high[left[~back]] = angle[left[back]], angle[left[~back]]
        angle[left] = rng.uniform(low[left], high[left])
    cos, sin = mix(chosen)
    return State(cos * state.z + sin * v, q.mean + cos * here + sin * there, value, None), evaluations


def hamiltonian(q: Reference, state: State, step: float, leaps: int, rng) -> tuple[State, np.ndarray]:
    """One Hamiltonian trajectory for each chain, and the probabilities with which they were accepted: (k,).

    Under the reference alone, z and its momentum turn on a circle: that part is done exactly, and only p(t | f) over
    the sites kicks (split Hamiltonian Monte Carlo, Shahbaba and others 2014). Were it constant, every step size would
    be accepted.
    """
    momentum = rng.standard_normal(state.z.shape)
    cos, sin = math.cos(step), math.sin(step)

    def energy(s, p):
        axes = tuple(range(1, p.ndim))
        return s.value - 0.5 * np.sum(p * p + s.z * s.z, axis=axes)

    before, new, p = energy(state, momentum), state, momentum
    with np.errstate(all="ignore"):  # a trajectory that flies away is rejected
        for _ in range(leaps):
            assert new.slope is not None
            p = p + 0.5 * step * new.slope
            z, p = cos * new.z + sin * p, cos * p - sin * new.z
            new = q.state(z)
            assert new.slope is not None
            p = p + 0.5 * step * new.slope
        change = energy(new, p) - before
        accept = np.where(np.isnan(change), 0.0, np.exp(np.minimum(change, 0.0)))
    taken = rng.random(len(accept)) < accept
    return new.where(taken, state), accept


class StepSize:
    """Tuned in the warmup so that a share ACCEPTED of trajectories is accepted (Nesterov's dual averaging)."""

    def __init__(self):
        self.log_step = self.average = math.log(0.3)
        self.error, self.count = 0.0, 0

    def learn(self, accept: float):
        self.count += 1
        share = 1 / (self.count + 10)
        self.error += share * (ACCEPTED - accept - self.error)
        self.log_step = min(max(-math.sqrt(self.count) / 0.05 * self.error, math.log(1e-5)), math.log(TIME))
        self.average += self.count**-0.75 * (self.log_step - self.average)

    def draw(self, rng, tuning: bool) -> tuple[float, int]:
        """A step and a number of leaps, both jittered so that no trajectory closes on itself."""
        step = math.exp(self.log_step if tuning else self.average) * rng.uniform(0.85, 1.15)
        leaps = round(TIME * rng.uniform(0.7, 1.3) / step)
        return min(step, TIME), min(max(leaps, 1), MOST_LEAPS)


def move(q, state, size: StepSize, tuning: bool, rng) -> tuple[State, int]:
    """The move that the likelihood allows."""
    if state.slope is None:
        return elliptical(q, state, rng)
    step, leaps = size.draw(rng, tuning)
    state, accept = hamiltonian(q, state, step, leaps, rng)
    if tuning:
        size.learn(float(accept.mean()))
    return state, leaps * len(accept)
