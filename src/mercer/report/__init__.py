"""Reports of fitted models."""

import functools

from mercer.core.errors import ParameterError
from mercer.models.classification import GaussianProcessClassifier
from mercer.models.outputs import MultiOutputGaussianProcessRegressor
from mercer.models.regression import GaussianProcessRegressor
from mercer.report import classification, outputs, regression
from mercer.report.page import Report


@functools.singledispatch
def report(model, X=None, y=None) -> Report:
    """Report of a fitted model, also on held-out rows ``X``, ``y`` if they are given."""
    raise ParameterError(f"report takes a Gaussian process regressor or classifier; got {type(model).__name__}.")


report.register(GaussianProcessRegressor, regression.report)
report.register(MultiOutputGaussianProcessRegressor, outputs.report)
report.register(GaussianProcessClassifier, classification.report)

__all__ = ["Report", "report"]
