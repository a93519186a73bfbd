"""Integrals over a Gaussian latent value by Gauss-Legendre quadrature on panels.

Panels end where integrands bend: a few standard deviations of the Gaussian, and a few widths of the likelihood, around
their centres. So narrow likelihoods, wide ones and those far away from the Gaussian are integrated equally well.
"""

from collections.abc import Sequence

import numpy as np

from mercer.distributions import LOG_2PI
from mercer.gp.likelihood import gauss_legendre

PANEL_NODES = 20
GAUSSIAN_STEPS = (-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0)  # edges of panels, in standard deviations
LIKELIHOOD_STEPS = (-25.0, -8.0, -3.0, 0.0, 3.0, 8.0, 25.0)  # in widths of the likelihood
HALF_WIDTH = GAUSSIAN_STEPS[-1]
MIN_DEVIATION = 1e-150


class Panels:
    """Nodes f (n, nodes), and the logarithms of their weights under N(mean, variance).

    ``marks`` are pairs of centre and width, (n,) each. ``inside`` cuts the range where the Gaussian ends; otherwise it
    extends to all marks, as a likelihood may move the mass there.
    """

    def __init__(
        self,
        mean: np.ndarray,
        variance: np.ndarray,
        marks: Sequence[tuple[np.ndarray, np.ndarray]] = (),
        inside: bool = False,
    ) -> None:
        deviation = np.maximum(np.sqrt(variance), MIN_DEVIATION)
        edges = [np.full(len(mean), step) for step in GAUSSIAN_STEPS]
        with np.errstate(over="ignore"):
            for centre, width in marks:
                edges += [(centre - mean + step * width) / deviation for step in LIKELIHOOD_STEPS]
        z_edges = np.clip(np.stack(edges, axis=1), -1e100, 1e100)
        if inside:
            z_edges = np.clip(z_edges, -HALF_WIDTH, HALF_WIDTH)
        z_edges.sort(axis=1)
        x, w = gauss_legendre(PANEL_NODES)
        length = np.diff(z_edges, axis=1)[:, :, None]
        z = (z_edges[:, :-1, None] + length * x).reshape(len(mean), PANEL_NODES * length.shape[1])
        self.f = mean[:, None] + deviation[:, None] * z
        with np.errstate(divide="ignore"):
            self.log_weights = np.log((length * w).reshape(z.shape)) - 0.5 * z**2 - 0.5 * LOG_2PI

    def expectation(self, values: np.ndarray) -> np.ndarray:
        """E of values at the nodes (..., n, nodes) under the Gaussian: (..., n)."""
        return np.sum(np.exp(self.log_weights) * values, axis=-1)
