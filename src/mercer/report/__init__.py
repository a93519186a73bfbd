"""Summaries to read, of fitted models."""

import functools

from mercer.core.errors import ParameterError
from mercer.models.classification import GaussianProcessClassifier
from mercer.models.regression import GaussianProcessRegressor
from mercer.report import classification, regression
from mercer.report.page import Report


@functools.singledispatch
def report(model, X=None, y=None) -> Report:
    """The report of a fitted model, also on held-out rows ``X``, ``y`` if they are given."""
    raise ParameterError(f"there is no report of a {type(model).__name__}.")


report.register(GaussianProcessRegressor, regression.report)
report.register(GaussianProcessClassifier, classification.report)

__all__ = ["Report", "report"]
