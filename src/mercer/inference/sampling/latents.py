"""Sampling the posterior of a latent function (PRML 6.4.5; Neal 1997)."""

import contextlib
from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax

from mercer.core.errors import DataError
from mercer.core.machine import one_thread
from mercer.inference.sampling.draws import Draws, Record
from mercer.inference.sampling.moves import StepSize, move
from mercer.inference.sampling.reference import Reference, stacked
from mercer.linalg.cholesky import Cholesky, attempt, jitters

JITTER = 1e-10  # relative to the mean of the diagonal: at least this is always there
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
