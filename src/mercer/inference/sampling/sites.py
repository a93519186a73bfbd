"""Gaussian sites around which samplers move."""

from collections.abc import Callable

import numpy as np

from mercer.gp.likelihood import with_fast_integrals
from mercer.inference.ep import Sweep
from mercer.inference.laplace import laplace
from mercer.inference.sampling.reference import contrasts
from mercer.inference.sites import Covariance
from mercer.inference.softmax.laplace import softmax_laplace

SWEEPS, STEP = 3, 0.7  # after Laplace: sites that move together overshoot by a whole step


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
    cheap = with_fast_integrals(likelihood)

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
        found = softmax_laplace([K], labels, gradient=False, classes=C)
        if found is None:
            return None
        S = np.maximum(U.T**2 @ found.sites - (U.T @ found.sites) ** 2, 0.0)
        return S * (U.T @ found.mean) + U.T @ found.a, S

    return sites
