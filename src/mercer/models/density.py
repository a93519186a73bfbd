"""Kernel density estimation with kernels whose integral is known (PRML 2.5.1, 6.42)."""

import math
import reprlib

import numpy as np
from scipy.special import gammaln, kve

from mercer.core import machine
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_matrix
from mercer.core.parameters import evolve
from mercer.core.precision import as_float
from mercer.core.random import entropy, generator
from mercer.core.text import number, rounded, table
from mercer.gp.process import check_size
from mercer.inference.mixtures import Mixtures
from mercer.kernels.algebra import Scale
from mercer.kernels.convert import as_kernel
from mercer.kernels.stationary import RBF, Exponential, Matern, RationalQuadratic
from mercer.learning import heuristics
from mercer.learning.bandwidths import learn_density_widths
from mercer.learning.optimise import Settings
from mercer.linalg import backend
from mercer.models.estimator import Estimator, all_or_nothing
from mercer.models.kernel_regression import merged
from mercer.models.records import warn_of_interruption

WIDTH_RULES = ("scott", "silverman", "loo")


class ParzenDensity(Estimator):
    """Parzen density p(x) = 1/N sum_n k((x - x_n) / l) / Z(l), with a kernel at each training row (PRML 6.42).

    `RBF`, `Exponential`, `Matern` and `RationalQuadratic` (alpha above half the number of inputs) have a known integral
    Z, and are scale mixtures of Gaussians, so sampling is exact.

    Parameters
    ----------
    kernel : one of the four; None is a Gaussian. An amplitude cancels.
    width : the lengthscale l. "scott" and "silverman" are the usual rules for Gaussians; other kernels get the same
        standard deviation. "loo" maximises the leave-one-out likelihood, with one width per input. Or a number, one
        number per input, or a function of X that returns either. None keeps the kernel's lengthscale.
    covariance : "diagonal", a width for each input; or "full", kernels with the correlations of the data, as in
        `scipy.stats.gaussian_kde`. Widths then multiply the standard deviations along principal axes.
    random_state : seed of the subset on which learning starts. None means 0, so that equal data give equal models.
    learning_rows : number of rows used by "loo". From more rows a random subset is taken, and widths shrink by the
        theoretical factor for the larger number.
    progress : whether to show progress on stderr when a fit takes longer than a second or two.

    Fitted: ``width_`` (d,); ``kernel_``, with those widths; ``covariance_`` (d, d), with the squared widths on its
    diagonal; ``X_train_``; ``weights_``, with sum one; ``n_evaluations_``.

    >>> model = ParzenDensity().fit([[0.0], [1.0], [3.0]])
    >>> model.density([[0.5]]).round(3), model.width_.round(3)
    (array([0.213]), array([1.226]))
    """

    _estimator_type = "density_estimator"

    def __init__(
        self, kernel=None, width="scott", covariance="diagonal", random_state=None, *, learning_rows=8000, progress=True
    ):
        self.kernel = kernel
        self.width = width
        self.covariance = covariance
        self.random_state = random_state
        self.learning_rows = learning_rows
        self.progress = progress

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.estimator_type = "density_estimator"
        return tags

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X, y=None, sample_weight=None):
        """Store the rows and choose the widths. ``y`` is ignored; weights multiply kernels."""
        self._check_choice("covariance", ("diagonal", "full"))
        X = self._check_vectors(self._check_inputs(X, reset=True)).copy()
        w = self._check_weights(sample_weight, len(X))
        X, w = X[w > 0], w[w > 0] / w.sum()
        shape = self._shape_for(X.shape[1])
        self.X_train_, self.weights_, self.n_evaluations_ = X, w, 0
        # Coordinates in which kernels are parallel to the axes, with the standard deviation along each.
        axes, spread = self._axes(X, w)
        widths = self._widths(X, axes, spread, shape)
        size = float(np.abs(axes).max() * np.max(widths))
        if not 1e-140 < size < 1e140:
            raise DataError(f"a width of {size:.2g} overflows or underflows when squared. Use other units for X.")
        self.covariance_ = axes * widths**2 @ axes.T
        self.width_ = np.sqrt(np.diag(self.covariance_))
        self.kernel_ = evolve(shape, lengthscale=as_float(self.width_))
        return self

    def _axes(self, X, w):
        """Axes A (d, d) in which x = A u, and the standard deviation of u along each, with divisor n_eff - 1."""
        d = X.shape[1]
        shift, spread = heuristics.centre_and_spread(X, w)
        unbiased = 1 - float(w @ w) if len(X) > 1 else 1.0
        if self.covariance == "diagonal":
            return np.eye(d), spread / math.sqrt(unbiased)
        U = (X - shift) / spread * np.sqrt(w / unbiased)[:, None]
        values, vectors = np.linalg.eigh(U.T @ U)
        if not values[0] > 1e-14 * d * values[-1]:
            raise DataError(
                f"these {len(X)} rows vary in fewer than {d} directions, so covariance='full' is singular. Drop inputs "
                "determined by others, or use covariance='diagonal'."
            )
        return spread[:, None] * vectors, np.sqrt(values)

    def _widths(self, X, axes, spread, shape):
        """Lengthscale along each axis: (d,)."""
        d = X.shape[1]
        if isinstance(self.width, str):
            if self.width not in WIDTH_RULES:
                raise ParameterError(
                    f"width must be one of {', '.join(map(repr, WIDTH_RULES))}, a number, one number per input, a "
                    f"function or None; got {self.width!r}."
                )
            n = 1 / float(self.weights_ @ self.weights_)  # effective number of rows
            factor = (n if self.width != "silverman" else n * (d + 2) / 4) ** (-1 / (d + 4))
            widths = factor * spread / _deviation(shape, d)
            if self.width == "loo" and len(X) > 1:
                return self._learn(np.linalg.solve(axes, X.T).T, widths, shape)
            return widths
        given = shape.lengthscale if self.width is None else self.width
        given = given(X) if callable(given) else given
        try:
            widths = np.broadcast_to(np.asarray(given, dtype=float), (d,)).copy()
        except (TypeError, ValueError):
            widths = np.full(d, np.nan)
        if not (np.isfinite(widths).all() and (widths > 0).all()):
            raise ParameterError(
                f"width must be a positive number, or one for each of {d} inputs; got {reprlib.repr(given)}."
            )
        return widths * spread if self.covariance == "full" else widths

    def _learn(self, U, start, shape):
        """Widths along the axes by leave-one-out likelihood, in units of the starting widths."""
        U = U / start
        kept, _, c = merged(U, np.empty((len(U), 0)), self.weights_ * len(U))
        U, d = U[kept], U.shape[1]
        if len(U) < 2:
            return start
        kernel = evolve(shape, lengthscale=np.ones(d), fixed=shape.fixed | {"alpha"})
        settings, rng = Settings(progress=bool(self.progress)), generator(self.random_state)
        widths, learned = learn_density_widths(kernel, U, c, settings, rng, self.learning_rows)
        self.n_evaluations_ = learned.evaluations
        if learned.interrupted:
            warn_of_interruption(learned.evaluations, stacklevel=5)
        return start * widths

    def _shape_for(self, d):
        """The kernel without its amplitude; an error if its integral is not known."""
        kernel = RBF() if self.kernel is None else as_kernel(self.kernel)
        while isinstance(kernel, Scale):
            kernel = kernel.inner
        if type(kernel) is Matern and math.isinf(kernel.nu):
            kernel = RBF(kernel.lengthscale)
        if type(kernel) not in (RBF, Exponential, Matern, RationalQuadratic):
            raise ParameterError(
                "ParzenDensity needs a kernel with a known integral: RBF, Exponential, Matern or RationalQuadratic; "
                f"got {kernel!r}."
            )
        if isinstance(kernel, RationalQuadratic) and not 2 * kernel.alpha > d:
            raise ParameterError(
                f"RationalQuadratic has a finite integral over {d} inputs only for alpha above {d / 2:g}; got alpha = "
                f"{float(kernel.alpha):g}."
            )
        return kernel

    # -- densities ---------------------------------------------------------------------------------------------------

    def log_density(self, X) -> np.ndarray:
        """ln p(x) of each row: (s,). Finite at any distance from the data. O(N d) per row."""
        self._check_fitted()
        return self._log_density(self._check_vectors(self._check_inputs(X, reset=False)))

    def score_samples(self, X) -> np.ndarray:
        """Alias of `log_density`, for scikit-learn."""
        return self.log_density(X)

    def density(self, X) -> np.ndarray:
        """p(x) of each row: (s,)."""
        return np.exp(self.log_density(X))

    def score(self, X, y=None) -> float:
        """Mean log density of the rows."""
        return float(np.mean(self.log_density(X)))

    def loo(self) -> np.ndarray:
        """Leave-one-out ln p(x_n) of each training row of positive weight: (n,)."""
        self._check_fitted()
        if len(self.X_train_) == 1:
            raise DataError("leave-one-out needs at least two rows; there is one.")
        return self._log_density(self.X_train_, left_out=True)

    def _log_density(self, X, left_out=False):
        n, d = self.X_train_.shape
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights_)
        if isinstance(self.kernel_, RBF) and not left_out:
            return self._mixture().log_density(X[None])[0]
        # Whiten: kernels of unit lengthscale.
        root = np.asfortranarray(np.linalg.cholesky(self.covariance_))
        U, V = (backend.half_solve(root, A.T).T for A in (X, self.X_train_))
        constant = _log_integral(self.kernel_, d) + np.log(np.diag(root)).sum()
        out, size = np.empty(len(U)), machine.rows_within(machine.ARRAY_BYTES, n)
        for i in range(0, len(U), size):
            e = np.zeros((len(U[i : i + size]), n))
            for u, v in zip(U[i : i + size].T, V.T, strict=True):
                e += np.subtract.outer(u, v) ** 2
            e = _log_profile(self.kernel_, e) + logs
            if left_out:
                here = np.arange(i, i + len(e))
                e[np.arange(len(e)), here] = -np.inf
            highest = e.max(axis=1, keepdims=True)
            out[i : i + size] = np.log(np.exp(e - highest).sum(axis=1)) + highest[:, 0] - constant
        return out - np.log1p(-self.weights_) if left_out else out

    def _mixture(self) -> Mixtures:
        full = self.covariance == "full"
        return Mixtures(self.weights_[None], self.X_train_, self.covariance_[None] if full else self.width_**2)

    def cdf(self, X) -> np.ndarray:
        """P(x' <= x) for one input and a Gaussian: (s,)."""
        X = self._one_gaussian_input("cdf")._check_inputs(X, reset=False)
        return self._mixture().cdf(as_matrix(X)[None])[0, :, 0]

    def quantile(self, q) -> np.ndarray:
        """x with P(x' <= x) = q for one input and a Gaussian: a number, or (L,) for a list of L."""
        found = self._one_gaussian_input("quantile")._mixture().quantile(q)[0, :, 0]
        return found[0] if np.ndim(q) == 0 else found

    def _one_gaussian_input(self, what):
        self._check_fitted()
        if self.X_train_.shape[1] != 1 or not isinstance(self.kernel_, RBF):
            d, kind = self.X_train_.shape[1], type(self.kernel_).__name__
            raise ParameterError(f"{what} needs one input and a Gaussian; this model has {d} inputs and {kind}.")
        return self

    def sample(self, n_samples=1, random_state=0) -> np.ndarray:
        """Draws from the density: (n_samples, d)."""
        self._check_fitted()
        check_size(n_samples)
        rng, d = np.random.default_rng(entropy(random_state)), self.X_train_.shape[1]
        which = rng.choice(len(self.weights_), size=n_samples, p=self.weights_)
        # Each draw is from a Gaussian of random width (PRML 2.160 for RationalQuadratic).
        z = rng.standard_normal((n_samples, d)) * np.sqrt(_scales(self.kernel_, d, n_samples, rng))[:, None]
        return self.X_train_[which] + z @ np.linalg.cholesky(self.covariance_).T

    def _summary(self):
        rule = self.width if isinstance(self.width, str) else "given"
        names = getattr(self, "feature_names_in_", range(len(self.width_)))
        rows = [[str(name), number(rounded(w))] for name, w in zip(names, self.width_, strict=True)]
        head = f"{type(self).__name__}, {type(self.kernel_).__name__} at each of {len(self.weights_):,} rows"
        return "\n".join([head, f"width: {rule}, {self.covariance}", "", table(["input", "width"], rows[:20])])


# -- the four kernels as densities, at unit lengthscale ------------------------------------------------------------


def _log_profile(kernel, r2) -> np.ndarray:
    """ln k as a function of the squared distance."""
    if isinstance(kernel, RBF):
        return -0.5 * r2
    if isinstance(kernel, RationalQuadratic):
        return -kernel.alpha * np.log1p(r2 / (2 * kernel.alpha))
    nu = _order(kernel)
    s = np.sqrt(2 * nu * r2)
    p = nu - 0.5
    if p == int(p):  # a polynomial times exp(-s) (RW06 4.16)
        p = int(p)
        terms = [math.comb(p, i) * math.factorial(p + i) / math.factorial(2 * p) for i in range(p + 1)]
        total = np.zeros_like(s)
        for term in terms:  # of (2 s)^(p - i), the highest power first
            total = total * (2 * s) + term
        return np.log(total) - s
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (1 - nu) * math.log(2) - gammaln(nu) + nu * np.log(s) + np.log(kve(nu, s)) - s
    return np.where(s < 1e-150, 0.0, value)


def _order(kernel) -> float:
    return 0.5 if isinstance(kernel, Exponential) else float(kernel.nu)


def _log_integral(kernel, d) -> float:
    """ln of the integral of k over d inputs."""
    if isinstance(kernel, RBF):
        return 0.5 * d * math.log(2 * math.pi)
    if isinstance(kernel, RationalQuadratic):  # Student's t with 2 alpha - d degrees of freedom
        a = float(kernel.alpha)
        return float(gammaln(a - d / 2) - gammaln(a)) + 0.5 * d * math.log(2 * math.pi * a)
    nu = _order(kernel)  # its spectral density at zero (RW06 4.15)
    return float(gammaln(nu + d / 2) - gammaln(nu)) + 0.5 * d * math.log(2 * math.pi / nu)


def _deviation(kernel, d) -> float:
    """Standard deviation of the density along one axis; one if it is infinite."""
    if isinstance(kernel, RBF):
        return 1.0
    if isinstance(kernel, RationalQuadratic):
        rest = 2 * float(kernel.alpha) - d - 2
        return math.sqrt(2 * float(kernel.alpha) / rest) if rest > 0 else 1.0
    return math.sqrt(1 + d / (2 * _order(kernel)))


def _scales(kernel, d, size, rng) -> np.ndarray:
    """Random variances v for which N(0, v I) has the kernel's density."""
    if isinstance(kernel, RBF):
        return np.ones(size)
    if isinstance(kernel, RationalQuadratic):
        a = float(kernel.alpha)
        return a / rng.gamma(a - d / 2, size=size)
    nu = _order(kernel)  # variance-gamma
    return rng.gamma(nu + d / 2, size=size) / nu
