"""Gaussian process regression with noise that varies with the inputs."""

import math
import time

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout
from mercer.core.errors import ParameterError
from mercer.core.inputs import count_rows, stack_rows
from mercer.core.parameters import evolve, slots_of
from mercer.core.random import entropy, generator, seed_of
from mercer.distributions import Distribution, Mixture, Normal
from mercer.gp.noise import Noise, VaryingNoise, as_noise
from mercer.inference.sampling.posterior import SampledPosterior
from mercer.inference.sites import Covariance
from mercer.inference.varying_noise import NoiseApproximation, sample_log_noise
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance
from mercer.kernels.stationary import White
from mercer.learning import heuristics
from mercer.learning.doubt import most_points
from mercer.learning.integrate import INTEGRATED
from mercer.learning.label_evidence import KeptCovariances
from mercer.learning.optimise import Learned, learn
from mercer.learning.progress import Progress
from mercer.learning.resolution import resolution
from mercer.learning.varying_noise import VaryingNoiseObjective
from mercer.models.doubt import stated_priors
from mercer.models.estimator import all_or_nothing
from mercer.models.records import recorded, restored_after_interruption, warn_of_interruption
from mercer.models.regression import GaussianProcessRegressor
from mercer.priors import Prior
from mercer.scores import CALIBRATED_LEVEL, MIN_CALIBRATION_ROWS, unbiased_factor, widening
from mercer.solvers.mixture import MixturePosterior

NOISE_INFERENCES = ("variational", "mcmc")
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

    Parameters are those of `GaussianProcessRegressor`, without ``likelihood``, ``inference`` and ``budget``, except
    that:

    noise : typical noise variance, in units of y squared: the exponential of the mean of the log noise. None learns it,
        from the variance of a `White` term if the kernel has one; a prior learns it under that prior with
        learning="map".
    noise_kernel : covariance of the log noise. None takes a Matern 3/2 kernel with one lengthscale on inputs of unit
        spread for the default kernel, and the given ``kernel``, with parameters of its own, otherwise.
    learning : "mle", "map" or None.
    noise_inference : "variational", or "mcmc": samples of the log noise, at the parameters that the bound taught;
        ``n_samples`` are drawn, and some forty of them kept for prediction.
    checkpoint : of the fit with constant noise; learning how the noise varies is not resumed.
    max_seconds : of both fits together.

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

    def __init__(
        self, kernel=None, noise=None, noise_kernel=None, solver="auto", learning="mle", n_restarts=0, normalize=True,
        random_state=None, *, mean=None, noise_inference="variational", calibrate=None, optimizer="lbfgs",
        n_samples=1000, max_iterations=200, progress=True, checkpoint=None, allow_invalid=False, max_memory=None,
        max_seconds=600,
    ):  # fmt: skip
        super().__init__(
            kernel, noise, solver, learning, n_restarts, normalize, random_state, mean=mean, calibrate=calibrate,
            optimizer=optimizer, n_samples=n_samples, max_iterations=max_iterations, progress=progress,
            checkpoint=checkpoint, allow_invalid=allow_invalid, max_memory=max_memory, max_seconds=max_seconds,
        )  # fmt: skip
        self.noise_kernel = noise_kernel
        self.noise_inference = noise_inference

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X, y):
        """Learn the parameters and condition on the data. Ctrl-C keeps the best parameters found so far."""
        if np.ndim(self.noise) > 0:
            raise ParameterError(
                "noise is the typical variance of a noise that is inferred, one number, or None to learn it; for known "
                "variances, one per row, use GaussianProcessRegressor(noise=...)."
            )
        began = time.monotonic()
        super().fit(X, y)
        if self.posterior_.data[1].any() and len(self.y_train_) > 2:
            with restored_after_interruption(self, "the model has constant noise", 3):
                self._fit_noise(began)
        return self

    def _check_settings(self):
        super()._check_settings()
        self._check_choice("noise_inference", NOISE_INFERENCES)
        if self.learning in INTEGRATED:
            raise ParameterError(
                f"learning={self.learning!r} is not available where the noise varies; its own uncertainty is accounted "
                "for. Take 'mle' or 'map', or GaussianProcessRegressor for constant noise."
            )

    @property
    def noise_varies_(self) -> bool:
        """Whether the noise varies, or is constant because the data do not show that it does."""
        return isinstance(self._noise, VaryingNoise)

    @property
    def noise_kernel_(self):
        """Kernel of the log noise, with the parameters learned; None if the noise is constant."""
        return self._varying().kernel if self.noise_varies_ else None

    def _varying(self) -> VaryingNoise:
        """The fitted noise, which varies."""
        assert isinstance(self._noise, VaryingNoise)
        return self._noise

    def _fit_noise(self, began: float):
        """Let the noise vary, from the fit with constant noise, unless the data do not show it."""
        evaluations = self.n_evaluations_
        # Before calibration; without the priors that values of optima include.
        plain = self.optima_[0].value if self.optima_ and self.priors_ is None else self.log_marginal_likelihood_
        objective, learned, jitter = self._noise_objective(), None, 0.0
        theta = objective.start()
        if self.learning is not None and objective.size:
            settings = self._settings(self.plan_, began)
            learned = learn(objective, settings, generator(seed_of(self.random_state)))
            if not learned.optima:
                return
            if learned.interrupted:
                warn_of_interruption(learned.evaluations, 7, settings)
            theta, jitter = learned.theta, learned.jitter
            evaluations += learned.evaluations
        last = None if learned is None else learned.outcome
        kept = last.at(theta, jitter) if isinstance(last, KeptCovariances) else None
        found = self._approximation(objective, theta, jitter, kept)
        price = 0.5 * math.log(objective.n) * Layout.of(objective.noise.kernel).size
        if learned is None or found.log_evidence > plain + price:
            self._jitter = jitter
            self._set_varying(objective, theta, found, learned)
        self.n_evaluations_ = evaluations

    def _noise_objective(self) -> VaryingNoiseObjective:
        """Of the rows and the kernel fitted with constant noise; white noise that is a term of the kernel is a part of
        the noise that may vary."""
        X, target, noise = self.posterior_.data
        kernel, white = split_white(self.kernel_)
        if kernel is None:
            raise ParameterError(
                "a kernel of white noise alone has no function to tell from noise that varies; add a term to it, such "
                "as 1.0 * kernels.RBF()."
            )
        rows = gram.kept(self, kernel, X)
        floor = resolution(self.y_train_) ** 2 / 12 / self.scale_**2 if self.learning is not None else 0.0
        prior = self.noise if isinstance(self.noise, Prior) else None
        given = self.noise is not None and prior is None
        level = white + (float(self.noise) / self.scale_**2 if given else float(np.mean(noise)))
        level = max(level - floor, MIN_LEVEL_RATIO * float(np.mean(target**2)))
        own = VaryingNoise(  # type: ignore[call-arg]
            level=level, kernel=self._noise_kernel_for(kernel, rows), min_variance=floor, name="log_noise"
        )
        terms = [slot for slot in slots_of(self.kernel_) if isinstance(slot.node, White)]
        if not any(slot.free for slot in terms) if terms else given:
            own = own.fix("log_noise_level")
        elif prior is not None:
            (rescaled,) = (each for _, each in as_noise(prior, 1).scaled(self.scale_**-2).priors)
            own = own.with_priors(log_noise_level=rescaled)
        elif len(terms) == 1 and terms[0].prior is not None:
            own = own.with_priors(log_noise_level=terms[0].prior)
        return VaryingNoiseObjective(kernel, rows, target, own, self.posterior_.prior_mean, self.learning == "map")

    def _noise_kernel_for(self, kernel: Kernel, rows: gram.Gram):
        if self.noise_kernel is not None:
            return as_covariance(self.noise_kernel, "the log noise", self.allow_invalid, gram.raw(rows))
        if self.kernel is None and not self._mixed():
            standard = heuristics.standard_kernel(gram.raw(rows), one_each=False, constant=False)
            return evolve(standard, theta3=np.float64(0.0), nu=np.float64(NOISE_SMOOTHNESS))
        return heuristics.scaled_to_variance(heuristics.with_amplitudes(kernel), rows.of(kernel), 1.0)

    def _set_varying(
        self, objective: VaryingNoiseObjective, theta: np.ndarray, found: NoiseApproximation, learned: Learned | None
    ):
        """Set all fitted attributes from the optimum."""
        self.calibration_ = 1.0
        self._set_inferred(objective, theta, found)
        self.history_, self.optima_ = recorded(learned, lambda theta: objective.parameters(theta + self._units))
        self.priors_ = stated_priors(objective, self.scale_) if objective.use_priors and learned is not None else None
        if learned is not None and self._calibrates(objective.noise) and _amplitude(objective) is not None:
            self._calibrate(objective, theta, found)
        self._sample_if_asked(objective, theta, found)

    def _approximation(
        self, objective: VaryingNoiseObjective, theta: np.ndarray, jitter: float, kept: list[Covariance] | None = None
    ) -> NoiseApproximation:
        """At theta, from the covariances there, if they were ``kept``."""
        with objective.criterion() as criterion:
            criterion.jitter = jitter
            found = criterion.approximation(theta, kept or criterion.covariances(theta, accurate=True))
        assert found is not None, "there was a value at these parameters"
        return found

    def _set_inferred(self, objective: VaryingNoiseObjective, theta: np.ndarray, found: NoiseApproximation):
        """Set the posteriors of the function and of the log noise, inferred at theta, with the whole covariance
        multiplied by ``calibration_``. Inferred again with it, the noise would be what the data say it is, without the
        factor."""
        factor = self.calibration_
        shift = 0.0 if factor == 1 else math.log(factor) * np.asarray(_amplitude(objective))
        theta = theta + shift
        model = objective.at(theta)
        assert isinstance(model.noise, VaryingNoise)
        self.kernel_, self._units = model.kernel, objective.units(self.scale_)
        self.theta_, self.parameter_names_ = theta + self._units, objective.names()
        noise = factor * found.R + self._jitter
        K = Covariance(factor * found.target.K)  # a copy, which becomes the factor of the posterior
        rows = K.known_to(gram.on(self.kernel_, objective.rows), self._jitter)
        self._set_posterior(self._posterior(self.kernel_, rows, objective.target, noise, objective.mean))
        self.numerics_["converged"] = bool(found.sites.converged)
        own = model.noise.bounded_below(factor * model.noise.min_variance).scaled(self.scale_**2)
        assert found.sites.variance is not None
        variances = own.expected(found.sites.mean, found.sites.variance)[self._copies()]
        self._noise = evolve(own, priors=()).inferred(found.posterior(model.noise.kernel, gram.raw(objective.rows)))
        self.noise_ = variances
        if factor != 1:
            scaled = [Covariance(factor * found.target.K), Covariance(found.G.K)]
            found = self._approximation(objective, theta, self._jitter, scaled)
        self.log_marginal_likelihood_ = found.log_evidence

    def _calibrate(self, objective: VaryingNoiseObjective, theta: np.ndarray, found: NoiseApproximation):
        """Multiply the covariance, noise included, as `GaussianProcessRegressor` does."""
        chosen = self.kernel is None  # which counts as one parameter
        G = Covariance(found.G.K)  # with workspace of its own: that of the approximation holds its factor
        factor = unbiased_factor(objective.n, objective.size + chosen)
        if objective.n >= MIN_CALIBRATION_ROWS:
            factor *= widening(self._left_out_given(G).z(self._own_target()), CALIBRATED_LEVEL)
        self.calibration_, self._jitter = factor, factor * self._jitter
        self._set_inferred(objective, theta, found)

    def _sample_if_asked(self, objective: VaryingNoiseObjective, theta: np.ndarray, found: NoiseApproximation):
        if self.noise_inference == "mcmc":
            with restored_after_interruption(self, "the noise is inferred approximately, not sampled", 6):
                self._sample_noise(objective, theta, found)

    def _sample_noise(self, objective: VaryingNoiseObjective, theta: np.ndarray, found: NoiseApproximation):
        """Replace the approximate posterior of the log noise by draws: the function given each, in a mixture."""
        model, n, own = objective.at(theta), objective.n, self._varying()
        assert isinstance(model.noise, VaryingNoise)
        line = Progress(shown=bool(self.progress))
        try:
            kernel = model.noise.kernel
            draws = sample_log_noise(
                found, kernel, objective.rows.of(kernel), self.n_samples, generator(seed_of(self.random_state)), line
            )
        finally:
            line.close()
        kept = draws.latents[np.linspace(0, len(draws.latents) - 1, most_points(n)).round().astype(int)]
        X, factor = gram.raw(objective.rows), self.calibration_
        parts, noises = [], []
        for g in kept:
            variances = factor * (found.target.floor + np.exp(found.target.log_level + g)) + self._jitter
            parts.append(self._posterior(self.kernel_, objective.rows, objective.target, variances, objective.mean))
            noises.append(own.scaled(self.scale_**-2).inferred(SampledPosterior(kernel, X, g[None])))
        evidence = self.log_marginal_likelihood_
        self._set_posterior(MixturePosterior(tuple(parts), np.full(len(parts), 1 / len(parts)), tuple(noises)))
        self.log_marginal_likelihood_ = evidence
        self.numerics_ |= draws.numerics()
        sampled = own.min_variance + own.level * np.exp(draws.latents).mean(axis=0)
        self._noise, self.noise_ = own.inferred(SampledPosterior(kernel, X, kept)), sampled[self._copies()]

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_noise(self, X) -> np.ndarray:
        """Expected variance of the noise at new inputs, in units of y squared: (s,)."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        white = split_white(self.kernel_)[1] * self.scale_**2
        return np.broadcast_to(self._fitted_noise().at(X) + white, count_rows(X)).copy()

    def _predicted(self, X, include_noise) -> Distribution:
        if not self.noise_varies_ or not include_noise:
            return super()._predicted(X, include_noise)
        parts = [(weight, posterior.predict(X), noise) for weight, posterior, noise in self._components()]
        found = [
            (weight, *with_noise(function, noise, *noise.posterior.moments(X))) for weight, function, noise in parts
        ]
        weights = np.concatenate([weight * own for weight, own, _ in found])
        return Mixture(tuple(part for *_, own in found for part in own), weights).scaled(self.scale_, self.center_)

    def _components(self) -> list:
        """Weights, posteriors and noises of the mixture over draws, or what there is one of, in scaled units."""
        return self.posterior_.components(self._fitted_noise().scaled(self.scale_**-2))

    def _sample(self, X, n_samples, random_state, include_noise):
        if not self.noise_varies_ or not include_noise:
            return super()._sample(X, n_samples, random_state, include_noise)
        rng = np.random.default_rng(np.random.SeedSequence(entropy(random_state)).generate_state(4))
        components, out = self._components(), np.empty((n_samples, count_rows(X)))
        chosen = rng.choice(len(components), n_samples, p=[weight for weight, _, _ in components])
        for k in np.unique(chosen):
            _, posterior, noise = components[k]
            own = np.flatnonzero(chosen == k)
            f, g = (part.sample(X, len(own), int(rng.integers(2**31))) for part in (posterior, noise.posterior))
            variances = noise.min_variance + noise.level * np.exp(g)
            out[own] = f + rng.normal(size=f.shape) * np.sqrt(variances)
        return out.T * self.scale_ + self.center_

    # -- diagnostics -------------------------------------------------------------------------------------------------

    def _left_out(self) -> Distribution:
        """Of each row that counts given the others, in units of y. The function is predicted in closed form (RW06
        5.10-5.12), the noise from the approximate posterior of its logarithm without the row's own site; from draws, by
        importance sampling."""
        if not self.noise_varies_:
            return super()._left_out()
        if len(self._components()) > 1:  # draws
            return super()._left_out()
        posterior = self._varying().posterior
        return self._left_out_given(Covariance.of(posterior.kernel, posterior.rows()))

    def _left_out_given(self, G: Covariance) -> Distribution:
        """The same, where G is the prior covariance of the log noise."""
        mean, variance = self.posterior_.leave_one_out()
        variance = np.maximum(variance - self.posterior_.data[2], 0.0)
        function = Normal(mean, np.sqrt(variance)).scaled(self.scale_, self.center_)
        weights, parts = with_noise(function, self._noise, *self._varying().posterior.cavity(G))
        return Mixture(parts, weights)

    def _own_target(self) -> np.ndarray:
        """y of the rows that count, without copies."""
        return self.posterior_.data[1] * self.scale_ + self.center_

    def _objective(self):
        if not self.noise_varies_:
            return super()._objective()
        X, target, _ = self.posterior_.data
        rows, noise = gram.kept(self, self.kernel_, X), self._varying().scaled(self.scale_**-2)
        return VaryingNoiseObjective(self.kernel_, rows, target, noise, self.posterior_.prior_mean)

    # -- new data ----------------------------------------------------------------------------------------------------

    def update(self, X, y, noise=None, **given):
        """Condition on further measurements: the noise is inferred again from all rows, at O(n^3). Parameters, and the
        centre and scale of y, do not change."""
        if not self.noise_varies_:
            return super().update(X, y, noise, **given)
        self._check_fitted()
        if noise is not None:
            raise ParameterError("the noise of new rows is inferred with that of the others; leave noise out.")
        self._refuse_rows(given)
        X = self._check_inputs(X, reset=False)
        before = len(self.y_train_) + len(self.gaps_)
        X, y, _, gaps = self._without_gaps(X, y, {})
        self.gaps_ = np.concatenate([self.gaps_, before + gaps])
        if not len(y):
            return self
        old, target, _ = self.posterior_.data
        rows = gram.Gram(self.kernel_, stack_rows(old, X, self.kernel_.reads))
        target = np.concatenate([target, (y - self.center_) / self.scale_])
        own, factor = self._varying().scaled(self.scale_**-2), self.calibration_
        own = own.bounded_below(own.min_variance / factor)
        objective = VaryingNoiseObjective(self.kernel_, rows, target, own, self.posterior_.prior_mean)
        theta = objective.start()
        if factor != 1:  # as before calibration
            theta = theta - math.log(factor) * np.asarray(_amplitude(objective))
        self.copy_of_ = np.concatenate([self._copies(), self._copies().max() + 1 + np.arange(len(y))])
        self.y_train_ = np.concatenate([self.y_train_, y])
        found = self._approximation(objective, theta, self._jitter / factor)
        self._set_inferred(objective, theta, found)
        self._sample_if_asked(objective, theta, found)
        return self


def _amplitude(objective: VaryingNoiseObjective) -> np.ndarray | None:
    """Mask of the coordinates that, shifted together, multiply the covariance, noise included; None if there are
    none, or the level of the noise is fixed."""
    mask = heuristics.amplitude_mask(objective.model.kernel)
    if mask is None or "level" in objective.noise.fixed:
        return None
    return objective.layout.joined(kernels=mask, noise=np.arange(objective.noise.size) == 0)


def with_noise(
    function: Distribution, noise: Noise, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, tuple[Normal, ...]]:
    """Measurements of a function with a normal distribution, and a log noise relative to its level that is normal, (s,)
    each: weights and parts of a mixture of normals, by Gauss-Hermite quadrature."""
    assert isinstance(noise, VaryingNoise)
    nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    own = [noise.min_variance + noise.level * np.exp(mean + np.sqrt(variance) * node) for node in nodes]
    parts = tuple(Normal(function.mean, np.sqrt(function.deviation**2 + each)) for each in own)
    return weights / weights.sum(), parts
