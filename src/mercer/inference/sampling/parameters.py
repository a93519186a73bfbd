"""Sampling a latent function together with the parameters of its kernel (Murray and Adams 2010)."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, NotPositiveDefiniteError, ParameterError
from mercer.core.inputs import Inputs
from mercer.core.parameters import slots_of
from mercer.core.precision import double
from mercer.inference.latent import LatentSpace
from mercer.inference.sampling.draws import Draws, Progress, Recorder
from mercer.inference.sampling.latents import threads_for
from mercer.inference.sampling.moves import MAX_SLICE_TRIES, StepSize, move
from mercer.inference.sampling.reference import LatentState, LogLikelihood, Reference
from mercer.inference.sampling.sites import SiteFunction
from mercer.inference.sites import LatentMatrix
from mercer.kernels.base import Kernel
from mercer.linalg.jitter import FIXED_JITTER

DEFAULT_PRIOR_SD = 2.0  # of the logarithm of a parameter without a prior
T_DEGREES_OF_FREEDOM = 5.0  # of the reference for theta
AUXILIARY_DRAWS = 15  # of the reference, in addition to z, while theta moves, if there are sites
LATENT_MOVES = 3  # for each move of theta


class ThetaPrior:
    """ln p(theta) in the optimiser's coordinates, up to a constant.

    A parameter with a prior has that, as a density of the logarithm if theta is one. Any other has a normal prior
    centred at its current value, with standard deviation DEFAULT_PRIOR_SD: of its logarithm, or, for a real parameter,
    in multiples of its magnitude if that exceeds one.
    """

    def __init__(self, kernel: Kernel) -> None:
        slots = [slot for slot in slots_of(kernel) if slot.free]
        counts = [int(np.sum(slot.moving)) for slot in slots]
        self.centre = np.asarray(to_free(kernel), dtype=float)
        logarithmic = np.repeat([slot.constraint.logarithmic for slot in slots], counts).astype(bool)
        has_prior = np.repeat([slot.prior is not None for slot in slots], counts).astype(bool)
        self.spread = DEFAULT_PRIOR_SD * np.where(logarithmic, 1.0, np.maximum(1.0, np.abs(self.centre)))
        self._default_precision = np.where(has_prior, 0.0, 1 / self.spread)  # its root
        ends = np.cumsum(counts)
        places = [(slot, slice(end - count, end)) for slot, count, end in zip(slots, counts, ends, strict=True)]

        def log_density(theta: jax.Array) -> jax.Array:
            total = jnp.zeros(())
            for slot, part in places:
                if slot.prior is not None:
                    value = slot.constraint.from_free(theta[part])
                    total += jnp.sum(slot.prior.log_density(value))
                    if slot.constraint.logarithmic:  # |d value / d theta| = value
                        total += jnp.sum(theta[part])
            return total

        self._log_density = jax.jit(log_density) if has_prior.any() else None

    def __call__(self, theta: np.ndarray) -> float:
        value = -0.5 * float(np.sum(((theta - self.centre) * self._default_precision) ** 2))
        if self._log_density is not None:
            with double():
                value += float(self._log_density(np.asarray(theta, dtype=float)))
        return value if math.isfinite(value) else -math.inf


class _Chain(NamedTuple):
    """State of one chain: theta, the reference there, and z, alone or with companions drawn from the reference."""

    theta: np.ndarray
    q: Reference
    state: LatentState
    offset: float  # ln p(theta) + log_z of the reference

    @property
    def log_target(self) -> float:
        """ln p(theta) plus that of p(t | f) p(f | theta) in z, averaged over z and its companions."""
        return self.offset + float(np.logaddexp.reduce(self.state.value)) - math.log(len(self.state.value))

    def with_companions(self, z: np.ndarray) -> "_Chain":
        return self._replace(state=self.q.state(np.concatenate([self.state.z, z]), with_slope=False))

    def select(self, rng: np.random.Generator) -> "_Chain":
        """One of z and its companions, with probability proportional to its weight, and its gradient."""
        weights = np.exp(self.state.value - self.state.value.max())
        chosen = rng.choice(len(weights), p=weights / weights.sum())
        return self._replace(state=self.q.state(self.state.z[chosen : chosen + 1]))


class _ThetaReference:
    """Multivariate t reference for theta, fitted during warmup, with tails as heavy as those of the posteriors."""

    def __init__(self, centre: np.ndarray, spread: np.ndarray) -> None:
        self.centre, self.root = centre, np.diag(spread)

    def fit(self, theta: np.ndarray) -> None:
        """From draws (m, p): twice their covariance, with correlations shrunk if draws are few."""
        m, p = theta.shape
        C = np.atleast_2d(np.cov(theta.T)) * (m / (m + 5.0 * p))
        C[np.diag_indices_from(C)] = theta.var(axis=0) + FIXED_JITTER
        self.centre, self.root = theta.mean(axis=0), math.sqrt(2) * np.linalg.cholesky(C)

    def log_density(self, x: np.ndarray) -> float:
        """In whitened coordinates, up to a constant."""
        return -0.5 * (T_DEGREES_OF_FREEDOM + len(x)) * math.log1p(float(x @ x) / T_DEGREES_OF_FREEDOM)

    def move(self, chain: _Chain, at: Callable[[np.ndarray], _Chain | None], rng: np.random.Generator) -> _Chain:
        """One elliptical slice move of theta; ``at(theta)`` is the chain there.

        A t variable is normal given its scale: on an ellipse of that scale through theta, only the ratio of target and
        t density varies.
        """
        x = np.linalg.solve(self.root, chain.theta - self.centre)
        degrees = T_DEGREES_OF_FREEDOM
        scale = 0.5 * (degrees + x @ x) / rng.standard_gamma(0.5 * (degrees + len(x)))
        v = rng.standard_normal(len(x)) * math.sqrt(scale)
        height = chain.log_target - self.log_density(x) + math.log1p(-rng.random())
        angle = rng.uniform(0, 2 * math.pi)
        low, high = angle - 2 * math.pi, angle
        for _ in range(MAX_SLICE_TRIES):
            y = math.cos(angle) * x + math.sin(angle) * v
            new = at(self.centre + self.root @ y)
            if new is not None and new.log_target - self.log_density(y) >= height:
                return new
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        return chain


def sample_jointly(
    kernel: Kernel, X: Inputs | LatentSpace, log_likelihood: LogLikelihood, n_samples: int = 1000, warmup: int = 400,
    rng: np.random.Generator | None = None, progress: Progress | None = None, *, sites: SiteFunction | None = None,
    classes: int | None = None, chains: int = 4,
) -> Draws:  # fmt: skip
    """Draws of f and of the kernel's free parameters theta from p(theta) N(f | 0, K(theta)) p(t | f). X are the rows,
    or the covariances of the kernel on them as a solver represents them.

    Priors are those of the kernel; a parameter without one has a normal prior on its logarithm, of standard deviation 2
    around its current value (`ThetaPrior`): a factor of seven either way, weak but proper.

    theta moves with z held fixed, f = mean(theta) + Q(theta) z. Without sites this whitens the prior, f = L z. With
    ``sites``, such as `matched_sites` or `softmax_sites`, f follows the posterior while theta moves: as with surrogate
    data (Murray and Adams 2010), but here the surrogate is the approximation at each theta, whose evidence is known in
    closed form. The error of the sites depends on z and would tie theta to it. So z has AUXILIARY_DRAWS, draws of the
    reference, and theta moves under the mean of all their weights, an unbiased estimate of p(t | theta) (Filippone and
    Girolami 2014; Murray and Graham 2016); one of them, with probability proportional to its weight, becomes z. On
    sonar data with five inputs, three seeds, the smallest effective size of theta was 19 to 80 of 400 draws around
    Laplace's sites without companions, and 174 to 194 with them and `matched_sites`, in a quarter more time.

    A move of theta is an elliptical slice around a t distribution fitted during warmup to all chains (Nishihara, Murray
    and Adams 2014): about four new theta, each of n^3/3 flops, or some six n^3 with sites. Then latents move
    LATENT_MOVES times, at n^2 flops a leapfrog step. Chains start at theta drawn from half the width of the prior. If
    the posterior of theta has several modes (from interchangeable inputs), check R-hat and lengthen the warmup. The
    latent functions of several ``classes`` share the kernel; with 60 rows of three classes, the smallest effective size
    of theta was 9 of 400 draws without sites, 119 with them.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    recorder = Recorder(n_samples, warmup, chains, progress)
    prior = ThetaPrior(kernel)
    if not len(prior.centre):
        raise ParameterError(
            f"{kernel!r} has no free parameter to sample. Keep them as they are (learning=None), or unfix one."
        )
    space = X if isinstance(X, LatentSpace) else LatentMatrix(kernel, X)
    reference, size = _ThetaReference(prior.centre, prior.spread), StepSize()
    companions = 0 if sites is None else AUXILIARY_DRAWS  # draws of the prior would have no weight
    recent: list[np.ndarray] = []
    with space, threads_for(space.n):

        def at(theta: np.ndarray, z: np.ndarray) -> _Chain | None:
            log_prior = prior(theta)
            if log_prior == -math.inf:
                return None
            with np.errstate(all="ignore"):
                found = space.rooted(theta)
                if found is None:
                    return None
                K, R = found
                here = None if sites is None else sites(K)
                if sites is not None and here is None:
                    return None
                try:
                    q = Reference(R, log_likelihood, here, classes)
                except NotPositiveDefiniteError:
                    return None
                chain = _Chain(theta, q, q.state(z, with_slope=False), log_prior + q.log_z)
            return chain if math.isfinite(chain.log_target) else None

        def start() -> _Chain:
            shape = (1, space.rank) if classes is None else (1, classes, space.rank)
            for width in (0.5, 0.5, 0.25, 0.1, 0.0):
                theta = prior.centre + width * prior.spread * rng.standard_normal(len(prior.centre))
                chain = at(theta, rng.standard_normal(shape) * (width > 0))
                if chain is not None:
                    return chain.select(rng)
            raise DataError(
                "the posterior has no finite value at the kernel's present parameters, where sampling begins; check "
                "the targets, the kernel and its priors."
            )

        states = [start() for _ in range(chains)]

        def step(i: int) -> tuple[np.ndarray, np.ndarray]:
            tuning = i < warmup
            # Five fits, each to the second half of the draws so far.
            if tuning and i and i % max(warmup // 6, 8) == 0:
                reference.fit(np.concatenate(recent[len(recent) // 2 :]))
            for c in range(chains):
                z = states[c].state.z
                chain = states[c].with_companions(rng.standard_normal((companions, *z.shape[1:])))
                chain = reference.move(chain, functools.partial(at, z=chain.state.z), rng).select(rng)
                state = chain.state
                for _ in range(LATENT_MOVES):
                    state = move(chain.q, state, size, tuning, rng)
                states[c] = chain._replace(state=state)
            theta = np.stack([chain.theta for chain in states])
            if tuning:
                recent.append(theta)
            return np.concatenate([chain.q.external(chain.state.f) for chain in states]), theta

        return recorder.run(step)
