"""Likelihoods of targets, for ``likelihood=`` of `GaussianProcessRegressor` with parameters that are given or fixed.

>>> import mercer as mc
>>> model = mc.GaussianProcessRegressor(likelihood=mc.likelihoods.Student(dof=4.0).fix("dof"))
"""

from mercer.gp.likelihoods import Binomial, Censored, Gamma, NegativeBinomial, Ordinal, Poisson, Student

__all__ = ["Binomial", "Censored", "Gamma", "NegativeBinomial", "Ordinal", "Poisson", "Student"]
