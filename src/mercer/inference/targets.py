"""Inference for likelihoods of numbers: methods by name, and the Gaussian regression that a posterior amounts to."""

import numpy as np

from mercer.gp.likelihoods import TargetLikelihood
from mercer.inference.base import INFERENCES, Inference, InferTarget, named
from mercer.inference.sites import SiteApproximation

MAX_EP_ROWS = 1000  # up to which "auto" takes expectation propagation
MAX_NOISE_RATIO = 1e6  # of a site's variance to that of the prior, above which the row is uninformative


def names() -> tuple[str, ...]:
    """Registered methods that serve likelihoods of numbers."""
    return tuple(name for name, cls in INFERENCES.items() if cls.for_target is not Inference.for_target)


def method(name: str, likelihood: TargetLikelihood) -> InferTarget:
    """Inference by name for a likelihood; `ParameterError` where it does not apply."""
    return named(name).for_target(likelihood)


def automatic(likelihood: TargetLikelihood, n: int) -> str:
    """Method of inference="auto": for a log-concave likelihood expectation propagation, which is the most accurate, or
    Laplace's method where rows are many; for Student's t the variational bound, which cannot diverge."""
    if not likelihood.log_concave:
        return "variational"
    return "ep" if n <= MAX_EP_ROWS else "laplace"


def as_regression(found: SiteApproximation, prior_variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets and noise variances, (n,) each, of the Gaussian regression with the same posterior.

    A site exp(nu f - S f^2 / 2) is a measurement nu / S with noise 1 / S. Rows that say next to nothing get a large
    noise, and the target that keeps the posterior mean: nu = a + S m holds for any S.
    """
    floor = 1 / (MAX_NOISE_RATIO * np.maximum(prior_variance, np.finfo(float).tiny))
    S = np.maximum(found.S, floor)
    return found.mean + found.a / S, 1 / S
