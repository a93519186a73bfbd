"""Sampling the latent functions behind class labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer.core.coordinates import to_free
from mercer.gp.likelihood import Likelihood
from mercer.inference.latent import LatentSpace
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.latents import (
    log_likelihood_of,
    sample_latent,
    softmax_log_likelihood,
)
from mercer.inference.sampling.parameters import sample_jointly
from mercer.inference.sampling.sites import laplace_sites, matched_sites, softmax_sites
from mercer.kernels.base import Kernel


def sample_label_latents(
    spaces: Sequence[LatentSpace], kernels: list[Kernel], codes: np.ndarray, classes: int, likelihood: Likelihood,
    jointly: bool, **settings: Any,
) -> Draws | None:  # fmt: skip
    """Draws of the latent functions given class ``codes``, at the kernels as they are or ``jointly`` with the
    parameters of the only kernel; None if a covariance is not positive definite. ``spaces`` hold the covariances of the
    kernels on the training rows. ``settings`` go to the sampler."""
    t, two = 2.0 * codes - 1, classes == 2
    target = log_likelihood_of(likelihood, t) if two else softmax_log_likelihood(codes, classes)
    if not two and len(kernels) == 1:
        settings["classes"] = classes
    if jointly:
        sites = matched_sites(likelihood, t) if two else softmax_sites(codes, classes)
        return sample_jointly(kernels[0], spaces[0], target, sites=sites, **settings)
    roots = []
    for kernel, space in zip(kernels, spaces, strict=True):
        with space:
            found = space.rooted(np.asarray(to_free(kernel)), accurate=True)
        if found is None:
            return None
        K, R = found
        roots.append(R)
        if two:
            settings["sites"] = laplace_sites(likelihood, t)(K)
    return sample_latent(roots[0] if len(roots) == 1 else roots, target, **settings)
