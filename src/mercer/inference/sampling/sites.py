"""Gaussian sites of the reference distribution, as functions of the prior covariance."""

from collections.abc import Callable

import numpy as np

from mercer.gp.likelihood import Likelihood, with_fast_integrals
from mercer.inference.ep import Sweep
from mercer.inference.laplace import laplace
from mercer.inference.latent import LatentCovariance
from mercer.inference.sampling.reference import Sites, contrasts
from mercer.inference.softmax.laplace import softmax_laplace

EP_SWEEPS, EP_STEP = 3, 0.7  # parallel updates with full steps would overshoot

SiteFunction = Callable[[LatentCovariance], Sites | None]


def laplace_sites(likelihood: Likelihood, t: np.ndarray) -> SiteFunction:
    """Sites of Laplace's approximation; None if K is not positive semidefinite.

    The iteration always starts from zero, so that the sites are a function of K alone.
    """

    def sites(K: LatentCovariance) -> Sites | None:
        found = laplace(K, t, likelihood, gradient=False)
        return None if found is None else (found.nu, found.S)

    return sites


def matched_sites(likelihood: Likelihood, t: np.ndarray) -> SiteFunction:
    """Laplace's sites after a few sweeps of expectation propagation; None if K is not positive semidefinite.

    Laplace's Gaussian is at the mode of a skewed posterior, and too narrow. Sweeps, of n^3 flops each, correct most of
    that: the spread of ln p(t | f) less the sites, in the posterior of theta for the sonar and crabs data, decreased
    from 2.9 and 25 to 1.1 and 2. The sites need not be converged, but must be a function of K alone.
    """
    cheap = with_fast_integrals(likelihood)

    def sites(K: LatentCovariance) -> Sites | None:
        found = laplace(K, t, likelihood, gradient=False)
        if found is None:
            return None
        S, nu = found.S, found.nu
        for _ in range(EP_SWEEPS):
            sweep = Sweep.at(K, S, nu, t, cheap)
            if sweep is None or not np.isfinite(sweep.change).all():
                break
            S, nu = np.maximum(S + EP_STEP * sweep.change[0], 0.0), nu + EP_STEP * sweep.change[1]
        return nu, S

    return sites


def softmax_sites(labels: np.ndarray, C: int) -> SiteFunction:
    """Sites of Laplace's approximation to the softmax model, with one K shared by all classes; None if K is not
    positive semidefinite.

    They are sites (nu, S), (C, n), of the contrasts g = U^T f of the classes: zero for the first, which softmax does
    not depend on; for the others the diagonal of U^T (diag pi - pi pi^T) U, and the same mode. They decouple theta from
    f. Latents alone mix as well around the prior, and better if variances are in the hundreds.
    """
    U = contrasts(C)

    def sites(K: LatentCovariance) -> Sites | None:
        found = softmax_laplace([K], labels, gradient=False, classes=C)
        if found is None:
            return None
        S = np.maximum(U.T**2 @ found.sites - (U.T @ found.sites) ** 2, 0.0)
        return S * (U.T @ found.mean) + U.T @ found.a, S

    return sites
