"""Sampling the latent functions behind class labels."""

from typing import Any

from mercer import gram
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.latents import lower, rows, sample_latent, softmax_rows
from mercer.inference.sampling.parameters import sample_jointly
from mercer.inference.sampling.sites import laplace_sites, matched_sites, softmax_sites
from mercer.inference.sites import Covariance

MIXED = 1.1  # R-hat of what mixes worst, above which chains have not met


def draw_labels(kernels, X, codes, classes: int, likelihood, jointly: bool, **settings) -> Draws | None:
    """Of the latent functions behind class numbers ``codes``, at the kernels as they are or, ``jointly``, with the
    parameters of the one kernel there is. None where a kernel has no covariance matrix on these rows."""
    t, two = 2.0 * codes - 1, classes == 2
    target = rows(likelihood, t) if two else softmax_rows(codes, classes)
    if not two and len(kernels) == 1:
        settings["classes"] = classes
    if jointly:
        sites = matched_sites(likelihood, t) if two else softmax_sites(codes, classes)
        return sample_jointly(kernels[0], X, target, sites=sites, **settings)
    found = [lower(lambda careful, kernel=kernel: gram.within(kernel, X)) for kernel in kernels]
    whole = [each for each in found if each is not None]
    if len(whole) < len(found):
        return None
    if two:
        settings["sites"] = laplace_sites(likelihood, t)(Covariance(whole[0][0]))
    roots = [factor.lower for _, factor in whole]
    return sample_latent(roots[0] if len(roots) == 1 else roots, target, **settings)


def told(draws: Draws) -> dict[str, Any]:
    """How far draws can be trusted, by the latents and parameters that mix worst."""
    found: dict[str, Any] = {"draws": len(draws.latents), "chains": draws.chains}
    found |= {"effective_draws": float(draws.ess.min()), "rhat": float(draws.rhat.max())}
    found["converged"] = found["rhat"] < MIXED
    if draws.theta_ess is not None and draws.theta_rhat is not None:
        least, most = float(draws.theta_ess.min()), float(draws.theta_rhat.max())
        found |= {"effective_parameters": least, "rhat_parameters": most}
        found["converged"] &= most < MIXED
    return found
