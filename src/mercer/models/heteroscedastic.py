"""Gaussian process regression with noise that varies with the inputs."""

import math

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout
from mercer.core.errors import ParameterError
from mercer.core.inputs import count_rows, stack_rows
from mercer.core.parameters import evolve
from mercer.core.precision import as_float
from mercer.core.random import entropy, seed_of
from mercer.distributions import Distribution, Mixture, Normal
from mercer.gp.noise import Noise, VaryingNoise
from mercer.inference.sites import Covariance
from mercer.inference.varying_noise import NoiseApproximation
from mercer.kernels.algebra import split_white
from mercer.kernels.convert import as_covariance
from mercer.learning import heuristics
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.resolution import resolution
from mercer.learning.varying_noise import VaryingNoiseObjective
from mercer.models.estimator import all_or_nothing
from mercer.models.records import recorded, warn_of_interruption
from mercer.models.regression import CALIBRATED_LEVEL, MIN_CALIBRATION_ROWS, GaussianProcessRegressor
from mercer.scores import LeaveOneOut, unbiased_factor, widening

QUADRATURE_NODES = 15  # over the log noise: intervals at 99.9% to four digits for deviations of the log noise up to 2
NOISE_SMOOTHNESS = 1.5  # nu of the default kernel of the log noise
MIN_LEVEL_RATIO = 1e-8  # of the level of the noise to the variance of the target, where learning starts


class HeteroscedasticGaussianProcessRegressor(GaussianProcessRegressor):
    """Gaussian process regression whose noise varies with the inputs: the logarithm of its variance is a second
    Gaussian process (Goldberg, Williams and Bishop 1998).

    Both are inferred together, the log noise as a Gaussian approximation that takes its own uncertainty into account,
    and all parameters are learned by a lower bound on the evidence (Lazaro-Gredilla and Titsias 2011). Predictions are
    mixtures of Gaussians over the uncertain noise. First `GaussianProcessRegressor` is fitted: if the bound does not
    exceed its evidence by ln(n)/2 for each parameter of the varying noise, the noise is constant and the model is that
    one (``noise_varies_``).

    Parameters are those of `GaussianProcessRegressor`, and:

    noise : typical noise variance, in units of y squared: the exponential of the mean of the log noise. None learns it.
    noise_kernel : covariance of the log noise. None takes a Matern 3/2 kernel with one lengthscale on inputs of unit
        spread for the default kernel, and the given ``kernel``, with parameters of its own, otherwise.
    solver : "auto" or "dense".

    The noise is at least what rounding of y to its resolution explains. ``noise_kernel_`` has the parameters learned;
    ``noise_`` is the variance of the noise at each training row.

    >>> rng = np.random.default_rng(0)
    >>> X = np.linspace(0, 1, 100)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + rng.normal(size=100) * np.where(X[:, 0] < 0.5, 0.05, 0.5)
    >>> model = HeteroscedasticGaussianProcessRegressor(progress=False).fit(X, y)
    >>> quiet, loud = np.sqrt(model.predict_noise([[0.2], [0.8]]))
    >>> bool(quiet < 0.1), bool(loud > 0.3)
    (True, True)
    """

    noise_posterior_ = None  # of the log noise, relative to that of its level; None if the noise is constant

    def __init__(
        self, kernel=None, noise=None, noise_kernel=None, solver="auto", learning="mle", n_restarts=0, normalize=True,
        random_state=None, *, calibrate=None, optimizer="lbfgs", max_iterations=200, progress=True, checkpoint=None,
        allow_invalid=False,
    ):  # fmt: skip
        super().__init__(
            kernel, noise, solver, learning, n_restarts, normalize, random_state, calibrate=calibrate,
            optimizer=optimizer, max_iterations=max_iterations, progress=progress, checkpoint=checkpoint,
            allow_invalid=allow_invalid,
        )  # fmt: skip
        self.noise_kernel = noise_kernel

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X, y):
        """Learn the parameters and condition on the data. Ctrl-C keeps the best parameters found so far."""
        if not (self.noise is None or np.ndim(self.noise) == 0):
            raise ParameterError(
                "noise is the typical variance of a noise that is inferred, one number, or None to learn it; for known "
                "variances, one per row, use GaussianProcessRegressor(noise=...)."
            )
        self.noise_posterior_ = None
        super().fit(X, y)
        if self.posterior_.data[1].any() and len(self.y_train_) > 2:
            self._fit_noise()
        return self

    @property
    def noise_varies_(self) -> bool:
        """Whether the noise varies, or is constant because the data do not show that it does."""
        return self.noise_posterior_ is not None

    def _fit_noise(self):
        """Let the noise vary, from the fit with constant noise, unless the data do not show it."""
        plain, evaluations = self.log_marginal_likelihood_, self.n_evaluations_
        if self.optima_:  # before calibration
            plain = self.optima_[0].value
        objective = self._noise_objective()
        learned = None
        theta = objective.start()
        if self.learning is not None and objective.size:
            settings = Settings(self.optimizer, self.n_restarts, self.max_iterations, bool(self.progress))
            seed = seed_of(self.random_state)
            learned = learn(objective, settings, np.random.default_rng(seed))
            if not learned.optima:
                return
            if learned.interrupted:
                warn_of_interruption(learned.evaluations, stacklevel=5)
            theta = learned.theta
            price = 0.5 * math.log(objective.n) * Layout.of(objective.noise.kernel).size
            if learned.optima[0].value < plain + price:
                self.n_evaluations_ = evaluations + learned.evaluations
                return
        self._set_varying(objective, theta, learned)
        self.n_evaluations_ += evaluations

    def _noise_objective(self) -> VaryingNoiseObjective:
        """Of the rows and the kernel fitted with constant noise."""
        X, target, noise = self.posterior_.data
        rows = gram.kept(self, self.kernel_, X)
        floor = resolution(self.y_train_) ** 2 / 12 / self.scale_**2 if self.learning is not None else 0.0
        level = float(np.mean(noise)) if self.noise is None else float(self.noise) / self.scale_**2
        level = max(level - floor, MIN_LEVEL_RATIO * float(np.mean(target**2)))
        own = VaryingNoise(level, self._noise_kernel_for(rows), min_variance=floor, name="log_noise")
        if self.noise is not None:
            own = own.fix("log_noise_level")
        return VaryingNoiseObjective(self.kernel_, rows, target, own, self.posterior_.unknown, self.learning == "map")

    def _noise_kernel_for(self, rows):
        if self.noise_kernel is not None:
            return as_covariance(self.noise_kernel, "the log noise", self.allow_invalid, gram.raw(rows))
        if self.kernel is None and not self._mixed():
            kernel = heuristics.standard_kernel(gram.raw(rows), one_each=False, constant=False)
            return evolve(kernel, theta3=np.float64(0.0), nu=np.float64(NOISE_SMOOTHNESS))
        kernel = split_white(self.kernel_)[0]
        if kernel is None:
            raise ParameterError(
                "a kernel of white noise only tells nothing of how the noise varies; give noise_kernel."
            )
        return heuristics.scaled_to_variance(heuristics.with_amplitudes(kernel), rows.of(kernel), 1.0)

    def _set_varying(self, objective: VaryingNoiseObjective, theta: np.ndarray, learned: Learned | None):
        """Set all fitted attributes from the optimum."""
        self.calibration_, self._jitter = 1.0, 0.0 if learned is None else learned.jitter
        found = self._approximation(objective, theta)
        self._set_noise_posterior(objective, theta, found)
        self.history_, self.optima_ = recorded(learned, lambda theta: objective.parameters(theta + self._units))
        self.n_evaluations_ = 0 if learned is None else learned.evaluations
        if learned is not None and self._calibrates(objective.noise):
            mask = heuristics.amplitude_mask(objective.model.kernel)
            if mask is not None:
                self._calibrate(objective, theta, mask, found)

    def _approximation(self, objective: VaryingNoiseObjective, theta: np.ndarray) -> NoiseApproximation:
        with objective.criterion() as criterion:
            criterion.jitter = self._jitter
            found = criterion.approximation(theta) or criterion.approximation(theta, accurate=True)
        assert found is not None, "there was a value at these parameters"
        return found

    def _set_noise_posterior(
        self, objective: VaryingNoiseObjective, theta: np.ndarray, found: NoiseApproximation, factor: float = 1.0
    ):
        """Set the posteriors of the function and of the log noise at theta, with all noise ``factor`` times as large as
        when it was inferred."""
        model = objective.at(theta)
        assert isinstance(model.noise, VaryingNoise)
        self.kernel_, self.noise_kernel_ = model.kernel, model.noise.kernel
        X = gram.raw(objective.rows)
        self._set_posterior(
            self._posterior(self.kernel_, objective.rows, objective.target, factor * found.R + self._jitter)
        )
        self.log_marginal_likelihood_ = found.log_evidence
        self.noise_posterior_ = found.posterior(self.noise_kernel_, X)
        self.numerics_["converged"] = bool(found.sites.converged)
        own = model.noise.bounded_below(factor * model.noise.min_variance).scaled(self.scale_**2)
        assert found.sites.variance is not None
        self._set_noise(own, own.expected(found.sites.mean, found.sites.variance)[self._copies()])
        self._units = objective.units(self.scale_)
        self.theta_ = theta + self._units
        self.parameter_names_ = objective.names()

    def _set_noise(self, noise: Noise, variances: np.ndarray | None = None):
        self._noise, self.noise_ = noise, as_float(noise.noise) if variances is None else variances

    def _calibrate(self, objective: VaryingNoiseObjective, theta: np.ndarray, mask: np.ndarray, found):
        """Multiply the covariance, noise included, as `GaussianProcessRegressor` does."""
        chosen = self.kernel is None  # which counts as one parameter
        factor = unbiased_factor(objective.n, objective.size + chosen)
        if objective.n >= MIN_CALIBRATION_ROWS:
            factor *= widening(self._left_out().z(self._own_target()), CALIBRATED_LEVEL)
        shift = objective.layout.joined(kernels=mask, noise=np.arange(objective.noise.size) == 0)
        theta = theta + math.log(factor) * shift
        self._set_noise_posterior(objective, theta, found, factor)
        self._jitter *= factor
        # Inferred again at these parameters, the noise would be what the data say it is, without the factor.
        self.calibration_, self.log_marginal_likelihood_ = factor, self._approximation(objective, theta).log_evidence

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_noise(self, X) -> np.ndarray:
        """Expected variance of the noise at new inputs, in units of y squared: (s,)."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return np.broadcast_to(self._fitted_noise().at(X), count_rows(X)).copy()

    def _fitted_noise(self) -> Noise:
        noise = super()._fitted_noise()
        return noise if self.noise_posterior_ is None else noise.given(self.noise_posterior_.moments)

    def _predicted(self, X, include_noise) -> Distribution:
        if self.noise_posterior_ is None or not include_noise:
            return super()._predicted(X, include_noise)
        function = self.posterior_.predict(X).scaled(self.scale_, self.center_)
        return with_noise(function, super()._fitted_noise(), *self.noise_posterior_.moments(X))

    def sample_y(self, X, n_samples=1, random_state=0, include_noise=True):
        """Joint draws from the predictive distribution at the rows of X: (s, n_samples). With ``include_noise=False``
        draws of the function itself."""
        if self.noise_posterior_ is None or not include_noise:
            return super().sample_y(X, n_samples, random_state, include_noise)
        draws = super().sample_y(X, n_samples, random_state, include_noise=False)
        X = self._check_inputs(X, reset=False)
        rng = np.random.default_rng([*np.random.SeedSequence(entropy(random_state)).generate_state(3)])
        g = self.noise_posterior_.sample(X, n_samples, int(rng.integers(2**31))).T
        noise = super()._fitted_noise()
        return draws + rng.normal(size=draws.shape) * np.sqrt(noise.min_variance + noise.level * np.exp(g))

    # -- diagnostics -------------------------------------------------------------------------------------------------

    def _left_out(self) -> Distribution:
        """Of each row that counts given the others, in units of y; the log noise without its own site."""
        mean, variance = self.posterior_.leave_one_out()
        noise = super()._fitted_noise()
        variance = np.maximum(variance - self.posterior_.data[2], 0.0)
        function = Normal(mean, np.sqrt(variance)).scaled(self.scale_, self.center_)
        K = Covariance.of(
            self.noise_kernel_, gram.kept(self.noise_posterior_, self.noise_kernel_, self.noise_posterior_.X)
        )
        return with_noise(function, noise, *self.noise_posterior_.cavity(K))

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions at the learned parameters. The function is predicted in closed form (RW06
        5.10-5.12), the noise from the approximate posterior of its logarithm without the row."""
        self._check_fitted()
        if self.noise_posterior_ is None:
            return super().loo()
        predicted, copies = self._left_out(), self._copies()
        log_score = predicted.log_density(self._own_target())
        return LeaveOneOut(
            predicted.mean[copies], variance=predicted.deviation[copies] ** 2, log_score=log_score[copies]
        )

    def _own_target(self) -> np.ndarray:
        """y of the rows that count, without copies."""
        return self.posterior_.data[1] * self.scale_ + self.center_

    def _objective(self):
        if self.noise_posterior_ is None:
            return super()._objective()
        X, target, _ = self.posterior_.data
        noise = super()._fitted_noise().scaled(self.scale_**-2)
        rows = gram.kept(self, self.kernel_, X)
        return VaryingNoiseObjective(self.kernel_, rows, target, noise, self.posterior_.unknown)

    # -- new data ----------------------------------------------------------------------------------------------------

    def update(self, X, y, noise=None):
        """Condition on further measurements: the noise is inferred again from all rows, at O(n^3). Parameters, and the
        centre and scale of y, do not change."""
        if self.noise_posterior_ is None:
            return super().update(X, y, noise)
        self._check_fitted()
        if noise is not None:
            raise ParameterError("the noise of new rows is inferred with that of the others; leave noise out.")
        X = self._check_inputs(X, reset=False)
        m = count_rows(X)
        y = self._check_target(y, m)
        old, target, _ = self.posterior_.data
        rows = gram.Gram(self.kernel_, stack_rows(old, X, self.kernel_.reads))
        target = np.concatenate([target, (y - self.center_) / self.scale_])
        objective = VaryingNoiseObjective(
            self.kernel_, rows, target, super()._fitted_noise().scaled(self.scale_**-2), self.posterior_.unknown
        )
        self.copy_of_ = np.concatenate([self._copies(), self._copies().max() + 1 + np.arange(m)])
        self.y_train_ = np.concatenate([self.y_train_, y])
        theta = objective.start()
        self._set_noise_posterior(objective, theta, self._approximation(objective, theta))
        return self


def with_noise(function: Distribution, noise: VaryingNoise, mean: np.ndarray, variance: np.ndarray) -> Distribution:
    """Of measurements of a function with a normal distribution, with a log noise relative to its level that is normal:
    (s,) each. A mixture of normals, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    own = [noise.min_variance + noise.level * np.exp(mean + np.sqrt(variance) * node) for node in nodes]
    return Mixture(
        tuple(Normal(function.mean, np.sqrt(function.deviation**2 + each)) for each in own), weights / weights.sum()
    )
