"""Pictures. Every function draws on ``ax`` (or a new one) and returns it; matplotlib comes with ``mercer[plot]``."""

from mercer.plot.kernel import gram, profile
from mercer.plot.process import field, posterior, samples

__all__ = ["field", "gram", "posterior", "profile", "samples"]
