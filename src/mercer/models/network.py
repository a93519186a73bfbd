"""Radial basis function networks, with fewer centres than points (PRML 6.3)."""

import reprlib

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import align_columns, centre_and_spread, copy_rows, count_rows, take_rows
from mercer.core.machine import require_memory
from mercer.core.random import generator
from mercer.core.text import number, rounded
from mercer.kernels.convert import as_kernel
from mercer.learning.basis_functions import BasisObjective, learn_basis
from mercer.learning.choice import quoted
from mercer.learning.heuristics import radial_kernel
from mercer.linalg.forward import Ridge
from mercer.models.centers import Data, Placer, lengthscales_of, normalised, stretched
from mercer.models.estimator import Regressor, all_or_nothing, is_integer, is_number
from mercer.scores import LeaveOneOut

CENTER_METHODS = ("ols", "kmeans", "random")
MAX_WIDTH_ROWS = 1500  # rows on which widths are compared and learned
MAX_CENTER_ROWS = 20_000  # rows from which centres are chosen
MAX_LEARNING_CENTERS = 64  # centres while lengthscales are learned
WIDTH_RATIO, MAX_WIDTH_FACTOR = 2.0, 16.0  # between neighbouring widths compared, and from the first to the last


class RBFNetwork(Regressor):
    """Radial basis function network y(x) = sum_j w_j k(x, c_j) + b with M < n centres, by regularised least squares
    (PRML 6.3).

    Parameters
    ----------
    n_centers : number of centres. "loo" minimises the leave-one-out error, up to 200 centres. That error ignores the
        search among many candidates, some of which fit the noise; so None, with "ols", charges every centre as 2.5
        parameters, as MARS does (Friedman 1991), and otherwise means "loo".
    centers : "ols" selects rows of X one by one, each explaining most of the remaining variance (orthogonal least
        squares; Chen, Cowan and Grant 1991); "kmeans" uses cluster centres of the standardised inputs; "random" uses
        random rows; an array gives the centres themselves.
    normalized : divide basis functions by their sum, h_j = k_j / sum_l k_l (PRML 6.41), so that they cover the whole
        input space. Far from all centres only the nearest counts, or all equally if the kernel has no lengthscale.
    kernel : the basis function, any kernel, valid or not. None is a Gaussian at the scale of the data.
    width : factor on the lengthscales: a number; "loo" compares several by leave-one-out error; "learned" maximises the
        evidence of the network over all kernel parameters with its centres held (PRML 3.5), one lengthscale per input
        for the default kernel, and keeps the result if it has the lower leave-one-out error. None is "loo" for the
        default kernel and 1 for a given one.
    alpha : penalty on the squared weights, or "loo": the largest within 1% of the least leave-one-out error.
    fit_intercept : whether to add the unpenalised constant b.
    linear : whether to add linear terms (x - mean)^T v, almost unpenalised. They help with trends, and when
        extrapolating. None adds them for the default kernel if there are more than two rows per input.
    n_candidates : number of random rows among which "ols" selects. None takes all, up to eight million kernel values.
    random_state : seed. None means 0, so that equal data give equal networks.

    Fitted: ``centers_`` (M, d), in the units of X, or the rows themselves if inputs are not vectors;
    ``center_indices_``, their row indices (None if they are not rows); ``coef_`` (M,) or (M, q); ``intercept_``;
    ``linear_coef_`` (d,) or (d, q), or None; ``kernel_``; ``alpha_``; ``path_`` (for "ols" and "random": of the basis
    before normalisation, with alpha = 0). The path costs 2 n N flops per centre for N candidates, the weights 6 n M^2.

    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> model = RBFNetwork(n_centers=5).fit(X, np.sin(X[:, 0]))
    >>> model.centers_.shape, bool(abs(model.predict([[1.5]])[0] - np.sin(1.5)) < 0.01)
    ((5, 1), True)
    """

    _multi_output = True

    def __init__(
        self, n_centers=None, centers="ols", normalized=False, *, kernel=None, width=None, alpha="loo",
        fit_intercept=True, linear=None, n_candidates=None, random_state=None,
    ):  # fmt: skip
        self.n_centers = n_centers
        self.centers = centers
        self.normalized = normalized
        self.kernel = kernel
        self.width = width
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.linear = linear
        self.n_candidates = n_candidates
        self.random_state = random_state

    @all_or_nothing
    def fit(self, X, y):
        """Choose centres and solve for the weights. y: (n,), or (n, q) for several targets."""
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        t = self._check_target(y, n, several=True)
        n_centers = self._check_settings(n)
        rng = generator(self.random_state)
        data = self._standardised(X, t)
        kernel = radial_kernel(data.X) if self.kernel is None else as_kernel(self.kernel)
        subset = data.subset(MAX_WIDTH_ROWS, rng)
        place = Placer(
            self.centers, n_centers, self.n_centers is None, self.normalized, self.n_candidates, self.alpha,
            rng.integers(2**31, size=2),
        )  # fmt: skip
        width = ("loo" if self.kernel is None else 1.0) if self.width is None else self.width
        if width in ("loo", "learned"):
            kernel = self._width_by_loo(kernel, subset, place, required=width == "loo")
        else:
            kernel = kernel if width == 1.0 else stretched(kernel, float(width))
        if width == "learned":
            count = min(MAX_LEARNING_CENTERS, max(1, len(subset.T) // 4)) if n_centers is None else None
            placed = place(kernel, subset, count)
            objective = BasisObjective(kernel, subset.X, subset.T, placed.centers, subset.fixed, self.normalized)
            learned = learn_basis(objective)
            kernel = min(kernel, learned, key=lambda candidate: place(candidate, subset, None).error)
        self.kernel_ = kernel
        found = place(kernel, data.subset(MAX_CENTER_ROWS, rng), None)
        self.centers_ = copy_rows(found.centers)
        self.center_indices_ = found.indices
        self.path_ = found.path and found.path._replace(
            training_error=found.path.training_error * data.unit, loo_error=found.path.loo_error * data.unit
        )
        self._solve(data)
        return self

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self, n) -> int | None:
        """Check the settings for n rows. Number of centres; None where it is chosen."""
        free = self.n_centers is None or (isinstance(self.n_centers, str) and self.n_centers == "loo")
        if not free and not (is_integer(self.n_centers) and self.n_centers >= 1):
            raise ParameterError(f"n_centers must be None, 'loo' or a positive integer; got {self.n_centers!r}.")
        n_centers = None if free else int(self.n_centers)
        if isinstance(self.centers, str):
            if self.centers not in CENTER_METHODS:
                allowed = ", ".join(map(repr, CENTER_METHODS))
                raise ParameterError(f"centers must be one of {allowed}, or an array of centres; got {self.centers!r}.")
            if n_centers is not None and n_centers > n:
                raise ParameterError(f"n_centers is {n_centers}, but there are only {n} rows to choose from.")
        elif n_centers not in (None, count_rows(self.centers)):
            raise ParameterError(
                f"n_centers is {n_centers}, but {count_rows(self.centers)} centres are given. Leave it out."
            )
        for name, words in (("alpha", ("loo",)), ("width", ("loo", "learned"))):
            value = getattr(self, name)
            if (value is None and name == "width") or (isinstance(value, str) and value in words):
                continue
            if not (is_number(value) and np.isfinite(value) and (value > 0 or (value == 0 and name == "alpha"))):
                kind = "positive" if name == "width" else "non-negative"
                others = " or ".join(map(repr, words))
                raise ParameterError(f"{name} must be a {kind} number, or {others}; got {reprlib.repr(value)}.")
        count = self.n_candidates
        if count is not None and not (is_integer(count) and count >= 1):
            raise ParameterError(f"n_candidates must be None or a positive integer; got {count!r}.")
        return n_centers

    def _standardised(self, X, t) -> "Data":
        """Inputs, targets of mean zero and unit variance, and inputs for the linear terms."""
        n = count_rows(X)
        linear = self.linear
        if self.kernel is None:
            X = self._check_vectors(X)
            linear = n > 2 * X.shape[1] if linear is None else linear
        inputs, self.input_center_ = None, None
        if linear:
            inputs = self._check_vectors(X)
            self.input_center_, self._spread = centre_and_spread(inputs)
            inputs = (inputs - self.input_center_) / self._spread
        Y = t.reshape(n, -1)
        self._several, self.y_fit_ = t.ndim == 2, t
        center, scale = centre_and_spread(Y)
        if not self.fit_intercept:
            center, scale = np.zeros(Y.shape[1]), np.sqrt(np.mean((Y / scale) ** 2, axis=0)) * scale
            scale = np.where(scale > 0, scale, 1.0)
        self._center, self._scale = center, scale
        unit = float(scale[0]) if Y.shape[1] == 1 else 1.0
        return Data(X, (Y - center) / scale, inputs, self.fit_intercept, unit)

    # -- widths ------------------------------------------------------------------------------------------------------

    def _width_by_loo(self, kernel, data, place, required: bool):
        """The best width by a search outward from the first, in steps of `WIDTH_RATIO`, while the error falls."""
        if not lengthscales_of(kernel):
            if required:
                stretched(kernel, 1.0)  # raises, since there is no lengthscale
            return kernel
        errors = {}

        def error(factor):
            if factor not in errors:
                errors[factor] = place(stretched(kernel, factor), data, None).error
            return errors[factor]

        for ratio in (1 / WIDTH_RATIO, WIDTH_RATIO):
            factor = 1.0
            while 1 / MAX_WIDTH_FACTOR < factor < MAX_WIDTH_FACTOR and error(factor * ratio) < error(factor):
                factor *= ratio
        return stretched(kernel, min(errors, key=errors.__getitem__))

    # -- weights -----------------------------------------------------------------------------------------------------

    def _solve(self, data):
        n, m = len(data.T), count_rows(self.centers_)
        what = f"a network of {m:,} basis functions on {n:,} rows"
        require_memory(5 * 8 * n * m, what, "Use fewer rows or fewer centres.")
        Phi = self._basis(data.prepared(self.kernel_))
        ridge = Ridge(Phi, data.T, data.fixed)
        self.alpha_ = ridge.best()[0] if isinstance(self.alpha, str) else float(self.alpha)
        w = ridge.weights(self.alpha_)
        self.loo_residual_ = self._shaped(ridge.left_out(self.alpha_) * self._scale)
        # Fit the constant and the linear terms to the residuals.
        A, rest = data.terms, data.augmented(data.T - Phi @ w)
        terms = np.linalg.lstsq(A, rest)[0] if A.shape[1] else np.zeros((0, w.shape[1]))
        intercept = self._center + (terms[0] * self._scale if self.fit_intercept else 0.0)
        self.coef_ = self._shaped(w * self._scale)
        self.intercept_ = intercept if self._several else float(intercept[0])
        self.linear_coef_ = None
        if data.inputs is not None:
            slopes = terms[int(self.fit_intercept) :] * self._scale / self._spread[:, None]
            self.linear_coef_ = self._shaped(slopes)

    def _shaped(self, values):
        return values if self._several else values[:, 0]

    def _basis(self, X) -> np.ndarray:
        return np.concatenate([K.copy() for _, K in self._blocks(X)])

    def _blocks(self, X):
        """Blocks of rows of X, with their basis functions."""
        for part, K in gram.kept(self, self.kernel_, self.centers_).blocks(X):
            yield part, normalised(K, self.kernel_, take_rows(X, part), self.centers_) if self.normalized else K

    def _aligned(self, X):
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if self.kernel is None or self.linear_coef_ is not None:
            X = self._check_vectors(X)
        return align_columns(self.centers_, X, self.kernel_.needs_all_columns)

    def basis(self, X) -> np.ndarray:
        """Basis functions at the rows of X, normalised if the network's are (PRML Figure 6.2): (s, M)."""
        return self._basis(self._aligned(X))

    def predict(self, X) -> np.ndarray:
        """Output of the network at the rows of X: (s,), or (s, q)."""
        X = self._aligned(X)
        out = np.empty((count_rows(X), *self.coef_.shape[1:]))
        for part, K in self._blocks(X):
            out[part] = K @ self.coef_
        if self.linear_coef_ is not None:
            out += (X - self.input_center_) @ self.linear_coef_
        return out + self.intercept_

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions with the same centres, kernel and alpha, in closed form from the leverages."""
        self._check_fitted()
        return LeaveOneOut(self.y_fit_ - self.loo_residual_, self.loo_residual_)

    def _summary(self):
        kind = "normalised basis functions" if self.normalized else "basis functions"
        chosen = self.centers if isinstance(self.centers, str) else "given"
        error = np.sqrt(np.mean(np.square(self.loo_residual_), axis=0))
        terms = ["a constant"] * bool(self.fit_intercept) + ["linear terms"] * (self.linear_coef_ is not None)
        return "\n".join(
            [
                f"RBFNetwork, {len(self.coef_)} {kind} (centres: {chosen}) fitted to {len(self.y_fit_):,} rows",
                f"kernel: {quoted(self.kernel_)!r}" + (f", with {' and '.join(terms)}" if terms else ""),
                f"alpha: {self.alpha_:.3g}",
                f"leave-one-out error (root mean square): {number(rounded(error))}",
            ]
        )
