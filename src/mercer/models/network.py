"""Networks of radial basis functions: fewer centres than points (PRML 6.3)."""

import copy
import reprlib

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import align_columns, count_rows, take_rows
from mercer.core.machine import require_memory
from mercer.core.parameters import evolve_at, slots_of
from mercer.core.random import generator
from mercer.core.text import number, rounded
from mercer.kernels.convert import as_kernel
from mercer.learning.basis_functions import BasisObjective, learn_basis
from mercer.learning.heuristics import centre_and_spread, radial_kernel
from mercer.linalg.forward import Ridge
from mercer.models.centers import Data, Placer, lengthscales_of, normalised, stretched
from mercer.models.estimator import Regressor, wholly
from mercer.scores import LeaveOneOut

CHOICES = ("ols", "kmeans", "random")
ROWS = 1500  # on which widths are compared and learned
ROWS_FOR_CENTRES = 20_000  # on which centres are chosen
LEARNING = 64  # centres while lengthscales are learned
STEP, FARTHEST = 2.0, 16.0  # between widths that are compared, and from the first of them


class RBFNetwork(Regressor):
    """y(x) = sum_j w_j k(x, c_j) + b with M < n centres, by regularised least squares (PRML 6.3).

    Parameters
    ----------
    n_centers : how many. "loo" takes as many as give the least leave-one-out error, up to 200. That error knows
        nothing of the search among many candidates, which finds some that fit the noise; so None, for "ols", charges
        every centre as two and a half parameters, as MARS does (Friedman 1991). Elsewhere None is "loo".
    centers : "ols" takes rows of X one after the other, each time the one that explains most of what is left
        (orthogonal least squares; Chen, Cowan and Grant 1991); "kmeans" their cluster centres on standardised inputs;
        "random" any rows; or the centres themselves.
    normalized : divide basis functions by their sum, h_j = k_j / sum_l k_l (PRML 6.41), so that they cover all of the
        input space. Beyond the reach of all centres the nearest one counts alone, or where the kernel has no
        lengthscale to say which is nearest, all count equally.
    kernel : the basis function, any kernel, valid or not. None is a Gaussian at the scale of the data.
    width : what lengthscales are multiplied by: a number; "loo" compares several by their leave-one-out error;
        "learned" moves all parameters of the kernel, one lengthscale per input for the default one, up the evidence of
        the network with its centres held (PRML 3.5), and keeps what is better by leave-one-out. None is "loo" for the
        default kernel, and takes a given kernel as it is.
    alpha : the penalty on the squared weights, or "loo": the largest whose leave-one-out error is, to 1%, the least.
    fit_intercept : whether the constant b is there, unpenalised.
    linear : whether linear terms are there too, (x - mean)^T v, all but unpenalised. None adds them to the default
        kernel if there are more than two rows for each input. They help where data have a trend, and beyond them.
    n_candidates : among how many rows, drawn at random, "ols" looks. None is all of them, but no more than make eight
        million kernel values.
    random_state : seed. None is 0: the same data, the same network.

    Fitted: ``centers_`` (M, d), in the units of X, or the rows themselves for inputs of other kinds;
    ``center_indices_``, which rows they are (None for centres that are not rows); ``coef_`` (M,) or (M, q);
    ``intercept_``; ``linear_coef_`` (d,) or (d, q), or None; ``kernel_``; ``alpha_``; ``path_`` (for "ols" and
    "random", of the basis as it is before it is normalised, with alpha = 0). The path costs 2 n N flops a centre for N
    candidates, the weights 6 n M^2.

    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> model = RBFNetwork(n_centers=5).fit(X, np.sin(X[:, 0]))
    >>> model.centers_.shape, bool(abs(model.predict([[1.5]])[0] - np.sin(1.5)) < 0.01)
    ((5, 1), True)
    """

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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @wholly
    def fit(self, X, y):
        """Choose centres and solve for the weights. y: (n,), or (n, q) for several targets."""
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        t = self._check_target(y, n, several=True)
        self._check_settings(n)
        rng = generator(self.random_state)
        data = self._standardised(X, t)
        kernel = radial_kernel(data.X) if self.kernel is None else as_kernel(self.kernel)
        some = data.some(ROWS, rng)
        placed = Placer(self, rng)
        width = ("loo" if self.kernel is None else 1.0) if self.width is None else self.width
        if width in ("loo", "learned"):
            kernel = self._width_by_loo(kernel, some, placed, must=width == "loo")
        else:
            kernel = kernel if width == 1.0 else stretched(kernel, float(width))
        if width == "learned":
            few = placed(kernel, some, min(LEARNING, max(1, len(some.T) // 4)) if self._count is None else None)
            objective = BasisObjective(kernel, some.X, some.T, few.centers, some.fixed, self.normalized)
            moved = learn_basis(objective)
            kernel = min(kernel, moved, key=lambda candidate: placed(candidate, some, None).error)
        self.kernel_ = kernel
        found = placed(kernel, data.some(ROWS_FOR_CENTRES, rng), None)
        self.centers_ = copy.deepcopy(found.centers)
        self.center_indices_ = found.indices
        self.path_ = found.path and found.path._replace(
            training_error=found.path.training_error * data.unit, loo_error=found.path.loo_error * data.unit
        )
        self._solve(data)
        return self

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self, n):
        whole = isinstance(self.n_centers, int | np.integer) and not isinstance(self.n_centers, bool)
        free = self.n_centers is None or (isinstance(self.n_centers, str) and self.n_centers == "loo")
        if not free and not (whole and self.n_centers >= 1):
            raise ParameterError(f"n_centers must be None, 'loo' or a positive integer; got {self.n_centers!r}.")
        self._count = None if free else int(self.n_centers)
        if isinstance(self.centers, str):
            if self.centers not in CHOICES:
                raise ParameterError(
                    f"centers must be one of {', '.join(map(repr, CHOICES))}, or the centres; got {self.centers!r}."
                )
            if self._count is not None and self._count > n:
                raise ParameterError(f"n_centers is {self._count}, but there are only {n} rows to choose from.")
        elif self._count not in (None, count_rows(self.centers)):
            raise ParameterError(
                f"n_centers is {self._count}, but {count_rows(self.centers)} centres are given. Leave it out."
            )
        for name, words in (("alpha", ("loo",)), ("width", ("loo", "learned"))):
            value = getattr(self, name)
            if (value is None and name == "width") or (isinstance(value, str) and value in words):
                continue
            plain = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not (plain and np.isfinite(value) and (value > 0 or (value == 0 and name == "alpha"))):
                said = " or ".join(map(repr, words))
                kind = "positive number" if name == "width" else "number that is not negative"
                raise ParameterError(f"{name} must be a {kind}, or {said}; got {reprlib.repr(value)}.")
        count = self.n_candidates
        if count is not None and (not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1):
            raise ParameterError(f"n_candidates must be None or a positive integer; got {count!r}.")

    def _standardised(self, X, t) -> "Data":
        """Inputs, targets of mean zero and unit variance, and the terms that are always there."""
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

    def _width_by_loo(self, kernel, data, placed, must: bool):
        """The best of several widths, each twice its neighbour, out from the first as long as it gets better."""
        if not lengthscales_of(kernel):
            if must:
                stretched(kernel, 1.0)  # says that it has no lengthscale
            return kernel
        errors = {}

        def at(factor):
            if factor not in errors:
                errors[factor] = placed(stretched(kernel, factor), data, None).error
            return errors[factor]

        for step in (1 / STEP, STEP):
            factor = 1.0
            while 1 / FARTHEST < factor < FARTHEST and at(factor * step) < at(factor):
                factor *= step
        return stretched(kernel, min(errors, key=errors.__getitem__))

    # -- weights -----------------------------------------------------------------------------------------------------

    def _solve(self, data):
        n, m = len(data.T), count_rows(self.centers_)
        what = f"a network of {m:,} basis functions on {n:,} rows"
        require_memory(5 * 8 * n * m, what, "Use fewer rows or fewer centres.")
        Phi = self._basis(data.X)
        ridge = Ridge(Phi, data.T, data.fixed)
        self.alpha_ = ridge.best()[0] if isinstance(self.alpha, str) else float(self.alpha)
        w = ridge.weights(self.alpha_)
        self.loo_residual_ = self._shaped(ridge.left_out(self.alpha_) * self._scale)
        # What the constant and the linear terms make of the rest.
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
        """Basis functions, some rows of X at a time, and which rows."""
        for part, K in gram.kept(self, self.kernel_, self.centers_).blocks(X):
            yield part, normalised(K, self.kernel_, take_rows(X, part), self.centers_) if self.normalized else K

    def _aligned(self, X):
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if self.kernel is None or self.linear_coef_ is not None:
            X = self._check_vectors(X)
        return align_columns(self.centers_, X, self.kernel_.needs_all_columns)

    def basis(self, X) -> np.ndarray:
        """The basis functions at the rows of X, normalised if the network's are (PRML Figure 6.2): (s, M)."""
        return self._basis(self._aligned(X))

    def predict(self, X) -> np.ndarray:
        """The network's output at the rows of X: (s,), or (s, q)."""
        X = self._aligned(X)
        out = np.empty((count_rows(X), *self.coef_.shape[1:]))
        for part, K in self._blocks(X):
            out[part] = K @ self.coef_
        if self.linear_coef_ is not None:
            out += (X - self.input_center_) @ self.linear_coef_
        return out + self.intercept_

    def loo(self) -> LeaveOneOut:
        """Every training row predicted by the network fitted without it, with the same centres, kernel and alpha: in
        closed form, from the leverages."""
        self._check_fitted()
        return LeaveOneOut(self.y_fit_ - self.loo_residual_, self.loo_residual_)

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        kind = "normalised basis functions" if self.normalized else "basis functions"
        chosen = self.centers if isinstance(self.centers, str) else "given"
        error = np.sqrt(np.mean(np.square(self.loo_residual_), axis=0))
        kernel = self.kernel_
        for slot in slots_of(kernel):
            kernel = evolve_at(kernel, slot.path, **{slot.field: rounded(slot.value)})
        beside = ["a constant"] * bool(self.fit_intercept) + ["linear terms"] * (self.linear_coef_ is not None)
        return "\n".join(
            [
                f"RBFNetwork, {len(self.coef_)} {kind} (centres: {chosen}) fitted to {len(self.y_fit_):,} rows",
                f"kernel: {kernel!r}" + (f", beside {' and '.join(beside)}" if beside else ""),
                f"alpha: {self.alpha_:.3g}",
                f"leave-one-out error (root mean square): {number(rounded(error))}",
            ]
        )
