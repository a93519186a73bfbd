"""Sampling the posterior of a latent function at fixed kernel parameters (PRML 6.4.5; Neal 1997)."""

import contextlib

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
from mercer.inference.sites import factor_with_jitter
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky

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


def factor_kernel(kernel: Kernel, X: Inputs) -> tuple[np.ndarray, Cholesky] | None:
    """`factor_with_jitter` of the covariance of these rows, whose distances are always accurate."""
    return factor_with_jitter(lambda accurate: gram.within(kernel, X))
