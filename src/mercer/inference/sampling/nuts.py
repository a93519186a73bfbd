"""Hamiltonian Monte Carlo without U-turns (Hoffman and Gelman 2014), with multinomial trajectories (Betancourt 2017).

Trajectories are doubled, forwards or backwards at random, until they turn back on themselves; the next state is drawn
from all of their points, by their densities. Coordinates x = centre + root z make the metric the identity: root begins
at a covariance given by the caller and is estimated again during warmup, from all chains, as are step sizes.

Written in NumPy: a density that ends in LAPACK costs more as a callback from a compiled program than the program saves.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mercer.inference.sampling.diagnostics import MIN_DRAWS, effective_size, split_rhat
from mercer.linalg.jitter import SMALL_JITTER

MAX_DEPTH = 8  # doublings of a trajectory
MAX_ENERGY_ERROR = 1000.0  # beyond it a trajectory has diverged
TARGET_ACCEPTANCE = 0.8
METRIC_FITS = (0.25, 0.5)  # of the warmup, after which the metric is estimated again
FIRST_STEP = 0.5
# Dual averaging (Hoffman and Gelman 2014, 3.2): shrinkage, offset and decay.
GAMMA, T0, KAPPA = 0.05, 10.0, 0.75

LogDensity = Callable[[np.ndarray], tuple[float, np.ndarray] | None]  # value and gradient; None where there is none


class State(NamedTuple):
    """Position z, momentum, log density and its gradient in z."""

    z: np.ndarray
    momentum: np.ndarray
    value: float
    slope: np.ndarray

    @property
    def energy(self) -> float:
        return 0.5 * float(self.momentum @ self.momentum) - self.value


class Tree(NamedTuple):
    """A trajectory: its ends, the state drawn from it, the log of the sum of its weights, the sum of its momenta, the
    sum of acceptance probabilities, the number of steps, and whether it ended in a U-turn or diverged."""

    first: State
    last: State
    drawn: State
    log_weight: float
    momenta: np.ndarray
    accepted: float
    steps: int
    stopped: bool
    diverged: bool


@dataclasses.dataclass
class DualAveraging:
    """Step size whose mean acceptance probability tends to `TARGET_ACCEPTANCE`."""

    step: float = FIRST_STEP

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at the present step size."""
        self.anchor, self.error, self.count = math.log(10 * self.step), 0.0, 0
        self.log_mean = 0.0

    def update(self, acceptance: float) -> None:
        self.count += 1
        share = 1 / (self.count + T0)
        self.error = (1 - share) * self.error + share * (TARGET_ACCEPTANCE - acceptance)
        log_step = self.anchor - math.sqrt(self.count) / GAMMA * self.error
        decay = self.count**-KAPPA
        self.log_mean = decay * log_step + (1 - decay) * self.log_mean
        self.step = math.exp(min(log_step, 5.0))

    def finish(self) -> None:
        """Take the averaged step size."""
        if self.count:
            self.step = math.exp(self.log_mean)


class Sampler:
    """Moves of one density in coordinates x = centre + root z."""

    def __init__(self, log_density: LogDensity, centre: np.ndarray, root: np.ndarray) -> None:
        self.log_density, self.centre, self.root = log_density, centre, root
        self.size = DualAveraging()

    def state(self, x: np.ndarray) -> State | None:
        """At x, at rest; None where there is no density."""
        return self._at(np.linalg.solve(self.root, x - self.centre), np.zeros(len(x)))

    def position(self, state: State) -> np.ndarray:
        return self.centre + self.root @ state.z

    def _at(self, z: np.ndarray, momentum: np.ndarray) -> State | None:
        found = self.log_density(self.centre + self.root @ z)
        return None if found is None else State(z, momentum, found[0], self.root.T @ found[1])

    def _leap(self, state: State, step: float) -> State | None:
        half = state.momentum + 0.5 * step * state.slope
        new = self._at(state.z + step * half, half)
        return None if new is None else new._replace(momentum=half + 0.5 * step * new.slope)

    def move(self, state: State, rng: np.random.Generator) -> tuple[State, Tree]:
        """The next state, and the trajectory it was drawn from."""
        start = state._replace(momentum=rng.standard_normal(len(state.z)))
        tree = Tree(start, start, start, 0.0, start.momentum, 0.0, 0, stopped=False, diverged=False)
        for depth in range(MAX_DEPTH):
            forwards = bool(rng.random() < 0.5)
            sign = 1 if forwards else -1
            new = self._build(tree.last if forwards else tree.first, sign, depth, start.energy, rng)
            accepted, steps = tree.accepted + new.accepted, tree.steps + new.steps
            tree = tree._replace(accepted=accepted, steps=steps, diverged=new.diverged)
            if new.stopped:
                break
            # Later halves are preferred: the state moves far (Betancourt 2017, A.3.2).
            swap = rng.random() < math.exp(min(0.0, new.log_weight - tree.log_weight))
            tree = _joined(tree, new, forwards, new.drawn if swap else tree.drawn)
            if tree.stopped:
                break
        return tree.drawn, tree

    def _build(self, edge: State, sign: int, depth: int, energy: float, rng: np.random.Generator) -> Tree:
        """2^depth further steps from an end of a trajectory that began with this energy."""
        if depth == 0:
            new = self._leap(edge, sign * self.size.step)
            if new is None:
                return Tree(edge, edge, edge, -math.inf, edge.momentum, 0.0, 1, stopped=True, diverged=True)
            log_weight = energy - new.energy
            diverged = not log_weight > -MAX_ENERGY_ERROR
            accepted = math.exp(min(0.0, log_weight)) if math.isfinite(log_weight) else 0.0
            return Tree(new, new, new, log_weight, new.momentum, accepted, 1, diverged, diverged)
        one = self._build(edge, sign, depth - 1, energy, rng)
        if one.stopped:
            return one
        two = self._build(one.last if sign > 0 else one.first, sign, depth - 1, energy, rng)
        if two.stopped:
            return two._replace(accepted=one.accepted + two.accepted, steps=one.steps + two.steps)
        log_weight = float(np.logaddexp(one.log_weight, two.log_weight))
        drawn = two.drawn if rng.random() < math.exp(two.log_weight - log_weight) else one.drawn
        joined = _joined(one, two, sign > 0, drawn)
        return joined._replace(accepted=one.accepted + two.accepted, steps=one.steps + two.steps)


def _joined(tree: Tree, new: Tree, forwards: bool, drawn: State) -> Tree:
    """Two neighbouring trajectories as one, with the criterion of a U-turn: the sum of momenta, and those of either
    part with the nearest step of the other, point along both ends (Betancourt 2017, A.4.2; as in Stan)."""
    left, right = (tree, new) if forwards else (new, tree)
    momenta = left.momenta + right.momenta
    turned = _turns(momenta, left.first, right.last)
    turned |= _turns(left.momenta + right.first.momentum, left.first, right.first)
    turned |= _turns(left.last.momentum + right.momenta, left.last, right.last)
    log_weight = float(np.logaddexp(tree.log_weight, new.log_weight))
    return tree._replace(
        first=left.first, last=right.last, drawn=drawn, log_weight=log_weight, momenta=momenta, stopped=turned
    )


def _turns(momenta: np.ndarray, first: State, last: State) -> bool:
    return bool(momenta @ first.momentum <= 0 or momenta @ last.momentum <= 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """Draws of all chains, (chains, draws, p), the steps they took, the share of moves that diverged, and whether the
    user ended them early."""

    draws: np.ndarray
    steps: int
    divergences: int
    interrupted: bool = False

    def diagnostics(self) -> dict[str, np.ndarray]:
        """Split R-hat, and effective numbers of draws of the bulk and of the tails (5% and 95%), of each coordinate
        (Vehtari and others 2021)."""
        x = self.draws
        tails = [
            effective_size((x <= np.quantile(x, q, axis=(0, 1))).astype(float), ranked=False) for q in (0.05, 0.95)
        ]
        return {"rhat": split_rhat(x), "effective_size": effective_size(x), "effective_tail_size": np.minimum(*tails)}


def sample(
    log_density: LogDensity,
    starts: Sequence[np.ndarray],
    centre: np.ndarray,
    root: np.ndarray,
    n_draws: int,
    warmup: int,
    rng: np.random.Generator,
    progress: Callable[[str], object] | None = None,
) -> Chains:
    """``n_draws`` draws of each of the chains that begin at ``starts``, where there must be a density, after ``warmup``
    moves; ``root`` (p, p) is one of the covariance expected. Ctrl-C ends it with the draws made so far, if each chain
    has four of them."""
    sampler = Sampler(log_density, centre, root)
    states = [state for state in (sampler.state(np.asarray(start, dtype=float)) for start in starts) if state]
    fits = {round(share * warmup) for share in METRIC_FITS}
    recent: list[np.ndarray] = []
    kept: list[np.ndarray] = []
    steps = divergences = 0
    interrupted = False
    try:
        for i in range(warmup + n_draws):
            if i in fits and i > 0 and len(recent) * len(states) > 5 * len(centre):
                positions = [sampler.position(state) for state in states]
                sampler.centre, sampler.root = _fitted(np.concatenate(recent))
                sampler.size.step = FIRST_STEP
                sampler.size.restart()
                states = [sampler.state(x) or state for x, state in zip(positions, states, strict=True)]
                recent = []
            if i == warmup:
                sampler.size.finish()
            moved = []
            for state in states:
                new, tree = sampler.move(state, rng)
                moved.append(new)
                if i < warmup:
                    sampler.size.update(tree.accepted / max(tree.steps, 1))
                else:
                    divergences += tree.diverged
                steps += tree.steps
            states = moved
            here = np.stack([sampler.position(state) for state in states])
            (recent if i < warmup else kept).append(here)
            if progress is not None:
                progress(f"sampling, {'warmup, ' if i < warmup else ''}{i + 1} of {warmup + n_draws}")
    except KeyboardInterrupt:
        if len(kept) < MIN_DRAWS:
            raise
        interrupted = True
    return Chains(np.stack(kept, axis=1), steps, divergences, interrupted)


def _fitted(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and a root of the covariance of draws (m, p), with correlations shrunk where draws are few."""
    m, p = draws.shape
    C = np.atleast_2d(np.cov(draws.T))
    C = C * (m / (m + 5.0)) + np.diag(np.diag(C)) * (5.0 / (m + 5.0))
    return draws.mean(axis=0), np.linalg.cholesky(C + SMALL_JITTER * np.trace(C) / p * np.eye(p))
