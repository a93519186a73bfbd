"""Sampling a latent function together with the parameters of its kernel (Murray and Adams 2010)."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, NotPositiveDefiniteError, ParameterError
from mercer.core.inputs import count_rows
from mercer.core.precision import double
from mercer.inference.sampling.draws import Draws, Record
from mercer.inference.sampling.latents import lower, threads_for
from mercer.inference.sampling.moves import MOST_TRIES, StepSize, move
from mercer.inference.sampling.reference import Reference, State
from mercer.inference.sites import Covariance

SPREAD = 2.0  # of the logarithms of parameters without a prior of their own
TAIL = 5.0  # degrees of freedom of the reference for theta
COMPANIONS = 15  # of z while theta moves, where there are sites
LATENT_MOVES = 3  # for each move of theta


class ThetaPrior:
    """ln p(theta) in the optimiser's coordinates, up to a constant.

    Parameters with a prior have it, as a density of the logarithm where theta is one. Any other has a normal one
    around where it is now, with standard deviation SPREAD: its logarithm, or a real parameter by multiples of its
    size, if that is over one.
    """

    def __init__(self, kernel):
        slots = [slot for slot in kernel._slots() if slot.free]
        counts = [int(np.sum(slot.moving)) for slot in slots]
        self.centre = np.asarray(to_free(kernel), dtype=float)
        logarithmic = np.repeat([slot.constraint.logarithmic for slot in slots], counts).astype(bool)
        own = np.repeat([slot.prior is not None for slot in slots], counts).astype(bool)
        self.spread = np.where(logarithmic, SPREAD, SPREAD * np.maximum(1.0, np.abs(self.centre)))
        self._plain = np.where(own, 0.0, 1 / self.spread)
        ends = np.cumsum(counts)
        places = [(slot, slice(end - count, end)) for slot, count, end in zip(slots, counts, ends, strict=True)]

        def carried(theta):
            total = jnp.zeros(())
            for slot, part in places:
                if slot.prior is not None:
                    value = slot.constraint.from_free(theta[part])
                    total += jnp.sum(slot.prior.log_density(value))
                    if slot.constraint.logarithmic:  # |d value / d theta| = value
                        total += jnp.sum(theta[part])
            return total

        self._carried = jax.jit(carried) if own.any() else None

    def __call__(self, theta) -> float:
        value = -0.5 * float(np.sum(((theta - self.centre) * self._plain) ** 2))
        if self._carried is not None:
            with double():
                value += float(self._carried(np.asarray(theta, dtype=float)))
        return value if math.isfinite(value) else -math.inf


class _Chain(NamedTuple):
    """Where one chain is: theta, the reference there, and z, alone or with companions drawn from the reference."""

    theta: np.ndarray
    q: Reference
    state: State
    rest: float  # ln p(theta) + ln of the reference's integral

    @property
    def log_target(self) -> float:
        """ln p(theta), and of p(t | f) p(f | theta) in z, its mean over all z if there are several."""
        return self.rest + float(np.logaddexp.reduce(self.state.value)) - math.log(len(self.state.value))

    def joined(self, others) -> "_Chain":
        """With companions."""
        return self._replace(state=self.q.weighed(np.concatenate([self.state.z, others])))

    def alone(self, rng) -> "_Chain":
        """One of the companions, in proportion to what it weighs, with its slope."""
        share = np.exp(self.state.value - self.state.value.max())
        chosen = rng.choice(len(share), p=share / share.sum())
        return self._replace(state=self.q.state(self.state.z[chosen : chosen + 1]))


class _ThetaReference:
    """A multivariate t for theta, fitted in the warmup, with as heavy tails as any posterior met here."""

    def __init__(self, centre, spread):
        self.centre, self.root = centre, np.diag(spread)

    def fit(self, theta):
        """From draws (m, p): twice their covariance, with correlations shrunk where draws are few."""
        m, p = theta.shape
        C = np.atleast_2d(np.cov(theta.T)) * (m / (m + 5.0 * p))
        variances = theta.var(axis=0) + 1e-8
        C[np.diag_indices_from(C)] = variances
        self.centre, self.root = theta.mean(axis=0), math.sqrt(2) * np.linalg.cholesky(C)

    def log_density(self, x):
        return -0.5 * (TAIL + len(x)) * math.log1p(float(x @ x) / TAIL)

    def move(self, chain, at: Callable, rng):
        """One elliptical slice of theta; ``chain`` and what ``at(theta)`` gives have ``theta`` and ``log_target``.

        Given its scale, a t is a normal: on an ellipse of that scale, through theta, only target over t changes.
        """
        x = np.linalg.solve(self.root, chain.theta - self.centre)
        scale = 0.5 * (TAIL + x @ x) / rng.standard_gamma(0.5 * (TAIL + len(x)))
        v = rng.standard_normal(len(x)) * math.sqrt(scale)
        height = chain.log_target - self.log_density(x) + math.log1p(-rng.random())
        angle = rng.uniform(0, 2 * math.pi)
        low, high = angle - 2 * math.pi, angle
        for _ in range(MOST_TRIES):
            y = math.cos(angle) * x + math.sin(angle) * v
            new = at(self.centre + self.root @ y)
            if new is not None and new.log_target - self.log_density(y) >= height:
                return new
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        return chain


def sample_jointly(
    kernel, X, log_likelihood, n_samples: int = 1000, warmup: int = 400, thin: int = 1, rng=None, progress=None,
    *, sites=None, classes: int | None = None, chains: int = 4,
) -> Draws:  # fmt: skip
    """Draws of f and of the kernel's free parameters theta from p(theta) N(f | 0, K(theta)) p(t | f).

    Priors are those the kernel carries; a parameter without one has a normal prior on its logarithm, of standard
    deviation 2 around its present value (`ThetaPrior`): a factor of seven either way, weak but proper.

    theta moves with z held fixed, f = mean(theta) + Q(theta) z. Without sites this whitens the prior, f = L z. With
    ``sites``, a function of K such as `matched_sites` or `softmax_sites`, f follows what the data say while theta
    moves: as with surrogate data (Murray and Adams 2010), but here the surrogate is the approximation at each theta,
    whose evidence is known in closed form. What the sites miss depends on z and would tie theta to it. So z has
    COMPANIONS, draws of the reference, and theta moves under the mean of all their weights, an unbiased estimate of
    p(t | theta) (Filippone and Girolami 2014; Murray and Graham 2016); one of them, in proportion to its weight, is
    then z. On sonar data with five inputs, three seeds, the least effective size of theta was 19 to 80 of 400 draws
    around Laplace's sites without companions, and 174 to 194 with them and `matched_sites`, in a quarter more time.

    A move of theta is an elliptical slice around a t distribution fitted in the warmup to all chains (Nishihara, Murray
    and Adams 2014): about four new theta, each of n^3/3 flops, or some six n^3 with sites. Then latents move
    LATENT_MOVES times, of n^2 flops a leap. Chains begin at theta drawn half as wide as the prior. Where the posterior
    of theta has several modes (inputs that can stand for each other), look at R-hat and lengthen the warmup. The latent
    functions of several ``classes`` share the kernel; of 60 rows in three, the least effective size of theta was 9 of
    400 draws without sites, 119 with them.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    record = Record(n_samples, warmup, thin, chains, progress)
    prior = ThetaPrior(kernel)
    if not len(prior.centre):
        raise ParameterError(
            f"{kernel!r} has no free parameter to sample. Keep them as they are (learning=None), or unfix one."
        )
    n = count_rows(X)
    reference, size = _ThetaReference(prior.centre, prior.spread), StepSize()
    companions = 0 if sites is None else COMPANIONS  # draws of the prior would weigh nothing
    recent: list[np.ndarray] = []
    with gram.Triangle(kernel, X) as triangle, threads_for(n):

        def fill(theta, careful):
            K = np.empty((n, n))
            triangle.fill(theta, K, careful)
            return K

        def at(theta, z) -> _Chain | None:
            log_prior = prior(theta)
            if log_prior == -math.inf:
                return None
            with np.errstate(all="ignore"):
                record.factorisations += 1
                found = lower(functools.partial(fill, theta))
                if found is None:
                    return None
                K, factor = found
                found = None if sites is None else sites(Covariance(K))
                if sites is not None and found is None:
                    return None
                try:
                    q = Reference(factor.lower, log_likelihood, found, classes)
                except NotPositiveDefiniteError:
                    return None
                record.evaluations += len(z)
                chain = _Chain(theta, q, q.weighed(z), log_prior + q.log_z)
            return chain if math.isfinite(chain.log_target) else None

        def begin() -> _Chain:
            shape = (1, n) if classes is None else (1, classes, n)
            for share in (0.5, 0.5, 0.25, 0.1, 0.0):
                theta = prior.centre + share * prior.spread * rng.standard_normal(len(prior.centre))
                chain = at(theta, rng.standard_normal(shape) * (share > 0))
                if chain is not None:
                    return chain.alone(rng)
            raise DataError(
                "the posterior has no finite value at the kernel's present parameters, where sampling begins; check "
                "the targets, the kernel and its priors."
            )

        states = [begin() for _ in range(chains)]

        def step(i):
            tuning = i < warmup
            # Five fits, each to the later half of what there is.
            if tuning and i and i % max(warmup // 6, 8) == 0:
                reference.fit(np.concatenate(recent[len(recent) // 2 :]))
            for c in range(chains):
                z = states[c].state.z
                chain = states[c].joined(rng.standard_normal((companions, *z.shape[1:])))
                record.evaluations += companions
                chain = reference.move(chain, functools.partial(at, z=chain.state.z), rng).alone(rng)
                state = chain.state
                for _ in range(LATENT_MOVES):
                    state, evaluations = move(chain.q, state, size, tuning, rng)
                    record.evaluations += evaluations
                states[c] = chain._replace(state=state)
            theta = np.stack([chain.theta for chain in states])
            if tuning:
                recent.append(theta)
            return np.concatenate([chain.q.outside(chain.state.f) for chain in states]), theta

        record.run(step)
    return record.draws()
