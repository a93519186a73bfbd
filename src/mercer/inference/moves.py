"""Moves that leave the posterior of a latent function what it is: elliptical slices and Hamiltonian trajectories.

All are made in coordinates z in which a Gaussian reference is N(0, I): the prior, f = R z with R R^T = K, or the prior
times Gaussian sites exp(nu f - S f^2 / 2), as Laplace's method or expectation propagation find them. What is left of
the posterior beside the reference, p(t | f) over the sites, is nearly constant, so that moves along ellipses, on which
the reference does not change, go far. Any sites leave the posterior what it is; good ones make it quick.

A likelihood here is a function of k latent vectors at once, (k, n) or (k, n, C): it answers with ln p(t | f), (k,), or
with that and its slope in f, of the shape of f. With a slope, moves are Hamiltonian; without, elliptical slices.
"""

import math
from typing import NamedTuple

import numpy as np

from mercer.core.errors import NotPositiveDefiniteError, ParameterError
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt

TIME = math.pi / 2  # of a Hamiltonian trajectory: a quarter of the way round, where nothing is left of the start
MOST_LEAPS = 256
ACCEPTED = 0.8  # share of Hamiltonian moves that the step size is tuned for
MOST_TRIES = 200  # on one slice; the bracket is then below rounding


class State(NamedTuple):
    """k chains: coordinates z, latents f, ln p(t | f) over the sites, and its slope in z or None."""

    z: np.ndarray
    f: np.ndarray
    value: np.ndarray
    slope: np.ndarray | None

    def where(self, chosen, other: "State") -> "State":
        """This state for the chains ``chosen``, the other one for the rest."""

        def pick(a, b):
            return None if a is None else np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        return State(*(pick(a, b) for a, b in zip(self, other, strict=True)))


def contrasts(C: int) -> np.ndarray:
    """An orthogonal matrix (C, C) whose first column is the same for all classes: softmax does not see it."""
    return np.linalg.qr(np.column_stack([np.ones(C), np.eye(C)[:, 1:]]))[0]


class Reference:
    """f = mean + Q z with z ~ N(0, I): the prior N(0, R R^T), times sites (nu, S) if there are any.

    With sites, A = I + R^T S R = M M^T, Q = R M^-T, mean = Q Q^T nu, and ``log_z`` is the logarithm of the integral of
    prior times sites, nu^T mean / 2 - ln|A| / 2. No K is inverted, so K may be singular.

    R is (n, r), shared by C latent functions if there are ``classes``, or (C, n, r); latents are (k, n) or (k, C, n)
    inside, (k, n, C) outside. Functions that share R may be turned: `contrasts` of them are as independent, and softmax
    sees all but the first. Sites (C, n) of several classes are sites of these.
    """

    def __init__(self, R, log_likelihood, sites=None, classes: int | None = None):
        self.R, self.log_likelihood, self.sites = R, log_likelihood, sites
        self.classes = len(R) if R.ndim == 3 else classes
        self.shape = (R.shape[-1],) if self.classes is None else (self.classes, R.shape[-1])
        self.M: Cholesky | None = None
        self.turn, self.log_z = None, 0.0
        self.mean: np.ndarray | float = 0.0
        if sites is not None and R.ndim == 3:
            raise ParameterError("sites are for one latent function, or classes that share a root; pass sites=None.")
        if sites is not None and self.classes is not None:
            parts = [Reference(R, None, each).explicitly() for each in zip(*sites, strict=True)]
            self.R, self.mean = np.stack([part.R for part in parts]), np.stack([part.mean for part in parts])
            self.log_z = sum(part.log_z for part in parts)
            self.turn = contrasts(self.classes)
        elif sites is not None:
            nu, S = sites
            scaled = np.sqrt(S)[:, None] * R
            A = backend.gram(scaled)
            A[np.diag_indices_from(A)] += 1.0
            self.M = attempt(A, clean=True)
            if self.M is None or not np.isfinite(A.sum()):
                raise NotPositiveDefiniteError("sites or covariance are not finite; check the kernel and the sites.")
            self.mean = self.push(self.pull(nu[None]), centred=True)[0]
            self.log_z = 0.5 * float(nu @ self.mean) - 0.5 * self.M.log_det()

    def explicitly(self) -> "Reference":
        """Q in place of R and M, for many moves: n r^2 flops once, half the work of every move after."""
        if self.M is not None:
            self.R = np.ascontiguousarray(self.M.half_solve(self.R.T).T)
            self.M = None
        return self

    def push(self, z, centred: bool = False) -> np.ndarray:
        """f, or f - mean, at z."""
        if self.M is not None:
            z = self.M.half_solve(z.T, transposed=True).T
        f = z @ self.R.T if self.R.ndim == 2 else (z[..., None, :] @ self.R.transpose(0, 2, 1))[..., 0, :]
        return f if centred else f + self.mean

    def pull(self, slope) -> np.ndarray:
        """A slope in z from one in f."""
        z = slope @ self.R if self.R.ndim == 2 else (slope[..., None, :] @ self.R)[..., 0, :]
        return z if self.M is None else self.M.half_solve(z.T).T

    def evaluate(self, f):
        """ln p(t | f) over the sites, and its slope in f or None. What is not a number is minus infinity."""
        with np.errstate(all="ignore"):
            found = self.log_likelihood(self.outside(f))
            value, slope = found if isinstance(found, tuple) else (found, None)
            slope = None if slope is None else self.inside(slope)
            if self.sites is not None:
                nu, S = self.sites
                pull = S * f
                value = value - np.sum((nu - 0.5 * pull) * f, axis=tuple(range(1, f.ndim)))
                slope = None if slope is None else slope - nu + pull
        return np.where(np.isfinite(value), value, -np.inf), slope

    def outside(self, f):
        """(k, n) or (k, n, C)."""
        if self.classes is None:
            return f
        f = np.swapaxes(f, -1, -2)
        return f if self.turn is None else f @ self.turn.T

    def inside(self, f):
        """The way back, of a slope too."""
        if self.classes is None:
            return f
        return np.swapaxes(f if self.turn is None else f @ self.turn, -1, -2)

    def coordinates(self, f) -> np.ndarray:
        """z of one latent vector (n,) or (n, C), once R is explicit; the nearest one, if K is singular."""
        f = self.inside(f) - self.mean
        if self.classes is None:
            return np.linalg.lstsq(self.R, f)[0]
        roots = self.R if self.R.ndim == 3 else [self.R] * self.classes
        return np.stack([np.linalg.lstsq(R, part)[0] for R, part in zip(roots, f, strict=True)])

    def weighed(self, z) -> State:
        """Without the slope."""
        f = self.push(z)
        return State(z, f, self.evaluate(f)[0], None)

    def state(self, z) -> State:
        f = self.push(z)
        value, slope = self.evaluate(f)
        return State(z, f, value, None if slope is None else self.pull(slope))


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


def stacked(R):
    """One root, or several of one shape: columns of zeros change nothing."""
    if isinstance(R, np.ndarray):
        return R
    rank = max(root.shape[1] for root in R)
    return np.stack([np.pad(root, ((0, 0), (0, rank - root.shape[1]))) for root in R])
