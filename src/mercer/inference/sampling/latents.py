"""Sampling the posterior of a latent function at fixed kernel parameters (PRML 6.4.5; Neal 1997)."""

import contextlib
from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax

from mercer import gram
from mercer.core.errors import DataError
from mercer.core.inputs import Inputs
from mercer.core.machine import one_thread
from mercer.gp.likelihood import Likelihood
from mercer.inference.sampling.draws import Draws, Progress, Recorder
from mercer.inference.sampling.moves import StepSize, move
from mercer.inference.sampling.reference import LogLikelihood, Reference, Sites, stack_roots
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky, attempt
from mercer.linalg.jitter import SAMPLING

MAX_SINGLE_THREAD_ROWS = 500  # up to which thousands of small products are fastest on one thread
OVERDISPERSION = 1.5  # of the initial states relative to a reference with sites


def log_likelihood_of(likelihood: Likelihood, t: np.ndarray) -> LogLikelihood:
    """ln p(t | f) and its gradient, for samplers: f is (k, n), t (n,)."""

    def log_likelihood(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = likelihood.derivatives(f, t)
        return found.value.sum(axis=-1), found.first

    return log_likelihood


def softmax_log_likelihood(labels: np.ndarray, C: int) -> LogLikelihood:
    """ln p(labels | f) of the softmax model and its gradient, for samplers: f is (k, n, C), labels (n,) in 0..C-1."""
    one_hot = np.eye(C)[np.asarray(labels)]

    def log_likelihood(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logs = log_softmax(f, axis=-1)
        return np.einsum("knc,nc->k", logs, one_hot), one_hot - np.exp(logs)

    return log_likelihood


def sample_latent(
    R: np.ndarray | list[np.ndarray], log_likelihood: LogLikelihood, n_samples: int = 1000, warmup: int = 200,
    rng: np.random.Generator | None = None, progress: Progress | None = None, *, sites: Sites | None = None,
    classes: int | None = None, chains: int = 4,
) -> Draws:  # fmt: skip
    """Draws of f from N(f | 0, K) p(t | f), K = R R^T.

    R (n, r) is a root of K (`linalg.cholesky.root`, for any K), or a list of C roots, one per class. One R with
    ``classes`` C is shared by C independent functions. ``n_samples`` is the number kept of all chains together, after
    ``warmup`` moves of each chain. Chains start at overdispersed draws of the reference. With ``sites`` (nu, S),
    moves are made around prior times sites: those of `laplace_sites` are as good as any.

    A leapfrog step of all chains is two products of 2 chains n r flops; with good sites a move needs one step, without
    sites up to a hundred. Measured on 200 to 250 rows of three data sets (crabs, Ripley's, sonar), the slowest latent
    gained 450 to 4600 effective draws a second around Laplace's sites, 400 to 1100 around the prior, and 4 to 360 by
    elliptical slices, which are for likelihoods without gradients.

    >>> from mercer.gp.likelihood import Probit
    >>> K, t = np.array([[4.0, 2.0], [2.0, 4.0]]), np.array([1.0, 1.0])
    >>> draws = sample_latent(np.linalg.cholesky(K), log_likelihood_of(Probit(), t), rng=np.random.default_rng(0))
    >>> draws.latents.shape, bool((draws.latents.mean(axis=0) > 1).all())
    ((1000, 2), True)
    """
    rng = np.random.default_rng(0) if rng is None else rng
    recorder = Recorder(n_samples, warmup, chains, progress)
    q = Reference(stack_roots(R), log_likelihood, sites, classes).explicit()
    z = rng.standard_normal((chains, *q.shape)) * (1.0 if sites is None else OVERDISPERSION)
    state = q.state(z)
    if not np.isfinite(state.value).all():  # a reference far wider than the posterior: start from its mean
        state = q.state(np.zeros_like(z))
    if not np.isfinite(state.value).all():
        raise DataError("the likelihood has no finite value where sampling begins; check the targets and the kernel.")
    size = StepSize()

    def step(i: int) -> tuple[np.ndarray, None]:
        nonlocal state
        state = move(q, state, size, i < warmup, rng)
        return q.external(state.f), None

    with threads_for(q.R.shape[-2]):
        return recorder.run(step)


def threads_for(n: int) -> contextlib.AbstractContextManager:
    """Context with the number of threads that is fastest for n rows."""
    return one_thread() if n <= MAX_SINGLE_THREAD_ROWS else contextlib.nullcontext()


def factor_with_jitter(fill: Callable[[bool], np.ndarray]) -> tuple[np.ndarray, Cholesky] | None:
    """K + jitter and its Cholesky factor L; None if it is not positive definite. n^3/3 flops.

    ``fill(accurate)`` returns a new K, in the upper triangle of a C-ordered array; distances are computed by the fast
    formula first and by the accurate one if that fails. Predictions from draws must use the jitter the draws were made
    with: if K is singular up to rounding, L^-1 f is bounded only then.
    """
    for accurate, jitter in [(False, SAMPLING.first), *((True, jitter) for jitter in SAMPLING(1))]:
        K = fill(accurate)
        K.ravel()[:: len(K) + 1] += jitter * float(np.mean(np.diag(K)) or 1.0)
        factor = attempt(K.T.copy(order="F"), clean=True)
        if factor is not None and np.isfinite(factor.lower.sum()):
            return K, factor
    return None


def factor_kernel(kernel: Kernel, X: Inputs) -> tuple[np.ndarray, Cholesky] | None:
    """`factor_with_jitter` of the covariance of these rows, whose distances are always accurate."""
    return factor_with_jitter(lambda accurate: gram.within(kernel, X))
