"""Plots. Every function draws on ``ax`` (or new axes) and returns it; matplotlib comes with ``mercer[plot]``."""

from mercer.plot.classification import decision, reliability
from mercer.plot.components import components
from mercer.plot.forecast import forecast
from mercer.plot.kernel import gram, profile
from mercer.plot.latent import latent
from mercer.plot.maps import map, variogram
from mercer.plot.process import field, posterior, samples
from mercer.plot.regression import calibration, predictions, relevance

__all__ = [
    "calibration", "components", "decision", "field", "forecast", "gram", "latent", "map", "posterior", "predictions",
    "profile", "relevance", "reliability", "samples", "variogram",
]  # fmt: skip
