"""Likelihoods of numbers, by name."""

from typing import Any

from mercer.core.errors import ParameterError
from mercer.gp.likelihoods.base import SIDES, Target, TargetLikelihood
from mercer.gp.likelihoods.counts import Binomial, NegativeBinomial, Poisson
from mercer.gp.likelihoods.intervals import Censored, Ordinal
from mercer.gp.likelihoods.positive import Gamma
from mercer.gp.likelihoods.student import Student

LIKELIHOODS: dict[str, type[TargetLikelihood]] = {
    cls.label: cls for cls in (Student, Poisson, NegativeBinomial, Binomial, Ordinal, Gamma, Censored)
}

__all__ = ["LIKELIHOODS", "SIDES", "Binomial", "Censored", "Gamma", "NegativeBinomial", "Ordinal", "Poisson", "Student",
           "Target", "TargetLikelihood", "as_likelihood"]  # fmt: skip


def as_likelihood(given: Any, names: tuple[str, ...] = ()) -> TargetLikelihood:
    """A likelihood by its name, or as an object. ``names`` are others that the caller takes."""
    if isinstance(given, TargetLikelihood):
        return given
    if isinstance(given, str) and given in LIKELIHOODS:
        return LIKELIHOODS[given]()
    known = ", ".join(map(repr, (*names, *LIKELIHOODS)))
    raise ParameterError(f"likelihood must be one of {known}, or one of mercer.likelihoods; got {given!r}.")
