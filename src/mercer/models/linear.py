"""Bayesian linear regression on basis functions: the weight-space view of a Gaussian process (PRML 3.3, 6.4.1)."""

import math

import jax
import numpy as np

from mercer.basis import Polynomial
from mercer.core.errors import ParameterError
from mercer.core.random import as_key, normal
from mercer.distributions import Distribution
from mercer.kernels.custom import FeatureMap
from mercer.kernels.functions import RowFunction
from mercer.models.estimator import is_number
from mercer.models.records import PredictiveRegressor
from mercer.models.regression import GaussianProcessRegressor
from mercer.solvers.weights import WeightPosterior


class BayesianLinearRegression(PredictiveRegressor):
    """Bayesian linear regression y(x) = w^T phi(x), w ~ N(0, I / alpha), noise of precision beta (PRML 6.49-6.54).

    Equivalent to the Gaussian process with kernel phi(x)^T phi(x') / alpha and noise 1 / beta, but computed with M x M
    matrices.

    Parameters
    ----------
    basis : from `mercer.basis`, or any function of one input; its own parameters are not learned. None is a line.
    alpha, beta : precision of the weights and of the noise. None learns it by maximising the evidence (PRML 3.5).

    Fitted: ``coef_`` (M,) and ``coef_covariance_`` (M, M), the posterior of w; ``alpha_``, ``beta_``;
    ``log_marginal_likelihood_``; ``gamma_``, the effective number of well-determined parameters (PRML 3.91).

    >>> model = BayesianLinearRegression().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> model.coef_.round(2)
    array([1., 2.])
    """

    def __init__(self, basis=None, alpha=None, beta=None):
        self.basis = basis
        self.alpha = alpha
        self.beta = beta

    def fit(self, X, y):
        """Compute the posterior of the weights; maximise the evidence over alpha and beta if they are not given."""
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and np.isfinite(value) and value > 0):
                raise ParameterError(f"{name} is a precision: a positive number, or None to learn it; got {value!r}.")
        X = self._check_inputs(X, reset=True)
        twin = GaussianProcessRegressor(
            self._kernel(), noise=None if self.beta is None else 1 / self.beta, solver="weights", normalize=False,
            progress=False,
        )  # fmt: skip
        y = self._check_target(y, len(X))
        if y.any():
            twin.fit(X, y)
            self.alpha_, self.beta_ = float(twin.kernel_.alpha), 1 / float(twin.noise_)
        else:  # a target of zeros does not determine a scale
            self.alpha_, self.beta_ = float(self.alpha or 1.0), float(self.beta or 1e12)
        kernel = self._kernel(self.alpha_)
        self.posterior_ = WeightPosterior.given(kernel, X, y, 1 / self.beta_)
        root = math.sqrt(self.alpha_)  # the features carry 1 / sqrt(alpha), so that their weights are N(0, I)
        self.coef_ = self.posterior_.weights / root
        self.coef_covariance_ = self.posterior_.factor.solve(np.eye(len(self.coef_))) / self.alpha_
        self.gamma_ = len(self.coef_) - self.alpha_ * float(np.trace(self.coef_covariance_))
        self.log_marginal_likelihood_ = self.posterior_.log_evidence()
        return self

    def _kernel(self, alpha=None):
        """phi(x)^T phi(x') / alpha, with every parameter fixed except alpha, unless that is given."""
        phi = RowFunction.of(Polynomial(1) if self.basis is None else self.basis)
        kernel = FeatureMap(phi, alpha or self.alpha or 1.0)
        fixed = [name for name in kernel.parameters if name != "alpha" and not name.endswith("_alpha")]
        kernel = kernel.fix(*fixed) if fixed else kernel
        return kernel if self.alpha is None else kernel.fix()

    def _mean(self, X):
        return self.posterior_.mean(X)

    def _predicted(self, X, include_noise) -> Distribution:
        return self.posterior_.predict(X, 1 / self.beta_ if include_noise else 0.0)

    def _covariance(self, X, include_noise):
        K = self.posterior_.covariance(X)
        return K + (1 / self.beta_ if include_noise else 0.0) * np.eye(len(K))

    def sample_y(self, X, n_samples=1, random_state=0, include_noise=True):
        """Draws of measurements at the rows of X, or with ``include_noise=False`` of the function: (s, n_samples)."""
        self._check_fitted()
        first, second = jax.random.split(as_key(random_state))
        draws = self.posterior_.sample(self._check_inputs(X, reset=False), n_samples, first).T
        return draws + normal(second, draws.shape) / math.sqrt(self.beta_) if include_noise else draws
