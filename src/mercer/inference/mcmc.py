"""Sampling the posterior of a latent function (PRML 6.4.5; Neal 1997), by the moves of `moves`."""

import contextlib
import dataclasses
import time
from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax

from mercer.core.errors import DataError, ParameterError
from mercer.core.machine import one_thread
from mercer.inference import softmax
from mercer.inference.diagnostics import FEWEST, effective_size, split_rhat
from mercer.inference.ep import Sweep
from mercer.inference.laplace import laplace
from mercer.inference.latent import Covariance
from mercer.inference.moves import Reference, StepSize, contrasts, move, stacked
from mercer.inference.probits import quick
from mercer.linalg.cholesky import Cholesky, attempt, jitters

JITTER = 1e-10  # relative to the mean of the diagonal: at least this is always there
SWEEPS, STEP = 3, 0.7  # after Laplace: sites that move together overshoot by a whole step
FEW_ROWS = 500  # up to which one thread does the thousands of small products quickest


def rows(likelihood, t) -> Callable:
    """ln p(t | f) of all rows together, and its slope, as the samplers take it: f is (k, n), t (n,)."""

    def log_likelihood(f):
        found = likelihood.derivatives(f, t)
        return found.value.sum(axis=-1), found.first

    return log_likelihood


def softmax_rows(labels, C: int) -> Callable:
    """ln p(labels | f) of all rows together, by softmax, and its slope: f is (k, n, C), labels (n,) in 0..C-1."""
    labels = np.asarray(labels)
    one_hot = np.eye(C)[labels]

    def log_likelihood(f):
        logs = log_softmax(f, axis=-1)
        return np.einsum("knc,nc->k", logs, one_hot), one_hot - np.exp(logs)

    return log_likelihood


def laplace_sites(likelihood, t) -> Callable:
    """Sites (nu, S) of Laplace's approximation, as a function of a `Covariance`; None where it has none.

    From the same start every time, so that they depend on nothing but K.
    """

    def sites(K: Covariance):
        found = laplace(K, t, likelihood, gradient=False)
        return None if found is None else (found.nu, found.S)

    return sites


def matched_sites(likelihood, t) -> Callable:
    """Laplace's sites after a few sweeps of expectation propagation, as a function of a `Covariance`; None without any.

    Laplace's Gaussian sits at the mode of a skewed posterior, and is too narrow. A sweep, of n^3 flops, mends most of
    that: the spread of ln p(t | f) over the sites, in the posterior of theta for sonar and crabs data, fell from 2.9
    and 25 to 1.1 and 2. They need not be stationary: only a function of K.
    """
    cheap = quick(likelihood)

    def sites(K: Covariance):
        found = laplace(K, t, likelihood, gradient=False)
        if found is None:
            return None
        S, nu = found.S, found.nu
        for _ in range(SWEEPS):
            sweep = Sweep.at(K, S, nu, t, cheap)
            if sweep is None or not np.isfinite(sweep.change).all():
                break
            S, nu = np.maximum(S + STEP * sweep.change[0], 0.0), nu + STEP * sweep.change[1]
        return nu, S

    return sites


def softmax_sites(labels, C: int) -> Callable:
    """Sites of Laplace's approximation to the softmax model, as a function of a `Covariance` that all classes share;
    None where it has none.

    They are sites (nu, S), (C, n), of contrasts g = U^T f of the classes: of the first, which softmax does not see,
    nothing; of the others the diagonal of U^T (diag pi - pi pi^T) U, and the same mode. They free theta of f; latents
    alone mix as well around the prior, and better where variances are in the hundreds.
    """
    U = contrasts(C)

    def sites(K: Covariance):
        found = softmax.laplace([K], labels, gradient=False, classes=C)
        if found is None:
            return None
        S = np.maximum(U.T**2 @ found.sites - (U.T @ found.sites) ** 2, 0.0)
        return S * (U.T @ found.mean) + U.T @ found.a, S

    return sites


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all chains, one chain after the other, and how far they can be trusted.

    ``latents`` (S, n) or (S, n, C); ``theta`` (S, p), in the optimiser's coordinates, or None. ``ess`` and ``rhat`` are
    of each latent, ``theta_ess`` and ``theta_rhat`` of each parameter. ``n_evaluations`` of the likelihood;
    ``n_factorisations`` of a covariance matrix. ``interrupted`` says that not all that was asked for was drawn.
    """

    latents: np.ndarray
    theta: np.ndarray | None
    chains: int
    ess: np.ndarray
    rhat: np.ndarray
    theta_ess: np.ndarray | None = None
    theta_rhat: np.ndarray | None = None
    seconds: float = 0.0
    n_evaluations: int = 0
    n_factorisations: int = 0
    interrupted: bool = False

    def __str__(self):
        lines = [
            f"{len(self.latents)} draws of {self.chains} chains in {self.seconds:.3g} s"
            + (", interrupted" if self.interrupted else "")
        ]
        for name, ess, rhat in [("latents", self.ess, self.rhat), ("parameters", self.theta_ess, self.theta_rhat)]:
            if ess is not None and rhat is not None:
                lines.append(
                    f"{name}: effective draws at least {ess.min():.0f}, median {np.median(ess):.0f}; "
                    f"R-hat at most {rhat.max():.3f}"
                )
        return "\n".join(lines)


class Record:
    """Collects draws of all chains together, until there are enough or someone interrupts."""

    def __init__(self, n_samples, warmup, thin, chains, progress):
        for name, value, least in [("n_samples", n_samples, 1), ("warmup", warmup, 0), ("thin", thin, 1)]:
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ParameterError(f"{name} must be a whole number, at least {least}; got {value!r}.")
        if not isinstance(chains, int | np.integer) or chains < 1:
            raise ParameterError(f"chains must be a whole number, at least 1; got {chains!r}.")
        self.each = max(FEWEST, -(-n_samples // chains))  # a few more than asked, where chains do not divide it
        self.warmup, self.thin, self.chains, self.progress = warmup, thin, int(chains), progress
        self.latents: list[np.ndarray] = []
        self.theta: list[np.ndarray] = []
        self.evaluations = self.factorisations = 0
        self.interrupted = False
        self.started = time.monotonic()

    def run(self, step: Callable[[int], tuple]):
        """``step(i)`` gives f (chains, ...) and theta (chains, p) or None after iteration i."""
        total = self.warmup + self.each * self.thin
        try:  # interrupted in the middle of a step, the draws before it are whole
            for i in range(total):
                f, theta = step(i)
                if i >= self.warmup and (i - self.warmup + 1) % self.thin == 0:
                    if theta is not None:
                        self.theta.append(theta)
                    self.latents.append(f)
                if self.progress is not None:
                    self.progress(f"sampling, {'warmup, ' if i < self.warmup else ''}{i + 1} of {total}")
        except KeyboardInterrupt:
            if len(self.latents) < FEWEST:
                raise
            self.interrupted = True

    def draws(self) -> Draws:
        seconds = time.monotonic() - self.started
        latents = np.stack(self.latents, axis=1)  # (chains, draws, ...)
        theta = np.stack(self.theta[: len(self.latents)], axis=1) if self.theta else None
        return Draws(
            latents.reshape(-1, *latents.shape[2:]),
            None if theta is None else theta.reshape(-1, theta.shape[2]),
            self.chains,
            effective_size(latents),
            split_rhat(latents),
            None if theta is None else effective_size(theta),
            None if theta is None else split_rhat(theta),
            seconds,
            self.evaluations,
            self.factorisations,
            self.interrupted,
        )


def sample_latent(
    R, log_likelihood, n_samples: int = 1000, warmup: int = 200, thin: int = 1, rng=None, start=None, progress=None,
    *, sites=None, classes: int | None = None, chains: int = 4,
) -> Draws:  # fmt: skip
    """Draws of f from N(f | 0, K) p(t | f), K = R R^T.

    R (n, r) is a root of K (`linalg.cholesky.root`, for any K), or one for each class: a list of C of them. One R with
    ``classes`` C is shared by C independent functions. ``n_samples`` is the number kept of all chains together, every
    ``thin``-th, after ``warmup`` moves of each chain. Chains begin at draws of the reference, half as wide again if it
    has sites, or all at ``start``, values of f. With ``sites`` (nu, S), moves are made around prior times sites: those
    of `laplace_sites` serve as well as any.
    A leap of all chains is two products of 2 chains n r flops; good sites need one leap a move, none at all may need a
    hundred. Measured on 200 to 250 rows of three data sets (crabs, Ripley's, sonar), the slowest latent gained 450 to
    4600 effective draws a second around Laplace's sites, 400 to 1100 around the prior, and 4 to 360 by elliptical
    slices, which serve likelihoods without slopes.

    >>> from mercer.gp.likelihood import Probit
    >>> K, t = np.array([[4.0, 2.0], [2.0, 4.0]]), np.array([1.0, 1.0])
    >>> draws = sample_latent(np.linalg.cholesky(K), rows(Probit(), t), rng=np.random.default_rng(0))
    >>> draws.latents.shape, bool((draws.latents.mean(axis=0) > 1).all())
    ((1000, 2), True)
    """
    rng = np.random.default_rng(0) if rng is None else rng
    record = Record(n_samples, warmup, thin, chains, progress)
    q = Reference(stacked(R), log_likelihood, sites, classes).explicitly()
    if start is None:
        z = rng.standard_normal((chains, *q.shape)) * (1.0 if sites is None else 1.5)
    else:
        z = np.broadcast_to(q.coordinates(np.asarray(start, dtype=float)), (chains, *q.shape)).copy()
    state = q.state(z)
    if not np.isfinite(state.value).all():  # the reference is wide of what has a probability: then from its middle
        state = q.state(np.zeros_like(z))
    if not np.isfinite(state.value).all():
        raise DataError("the likelihood has no finite value where sampling begins; check the targets and the kernel.")
    size = StepSize()

    def step(i):
        nonlocal state
        state, evaluations = move(q, state, size, i < warmup, rng)
        record.evaluations += evaluations
        return q.outside(state.f), None

    with threads_for(q.R.shape[-2]):
        record.run(step)
    return record.draws()


def threads_for(n):
    return one_thread() if n <= FEW_ROWS else contextlib.nullcontext()


def lower(fill) -> tuple[np.ndarray, Cholesky] | None:
    """K + jitter and its Cholesky factor L; ``fill(careful)`` gives a fresh K, in the upper triangle in C's order.

    None where there is none. n^3/3 flops. What is drawn with a jitter has to be predicted from with the same: where K
    is singular but for rounding, L^-1 f is bounded only so.
    """
    for careful, jitter in [(False, JITTER), *((True, jitter) for jitter in jitters(1, first=JITTER))]:
        K = fill(careful)
        K.ravel()[:: len(K) + 1] += jitter * float(np.mean(np.diag(K)) or 1.0)
        factor = attempt(K.T.copy(order="F"), clean=True)
        if factor is not None and np.isfinite(factor.lower.sum()):
            return K, factor
    return None
