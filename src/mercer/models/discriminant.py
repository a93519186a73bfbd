"""Fisher's linear discriminant in feature space (PRML 4.1.4-4.1.6; Mika et al. 1999; Baudat and Anouar 2000)."""

import reprlib
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import copy_rows, count_rows
from mercer.core.machine import require_memory
from mercer.core.text import number, rounded
from mercer.kernels.convert import as_covariance
from mercer.learning.heuristics import radial_kernel
from mercer.linalg import backend
from mercer.linalg.complement import Complement
from mercer.linalg.eigen import signs_to_fix
from mercer.linalg.spectrum import Spectrum, eigenpairs_orthogonal_to
from mercer.models.estimator import Classifier, Transformer, all_or_nothing, is_integer, is_number

ALPHAS = np.geomspace(1e-8, 1e2, 41)  # compared, in units of the mean diagonal of the centred Gram matrix
LENGTHSCALE_FACTORS = (0.25, 0.5, 1.0, 2.0)  # compared for the default kernel
MAX_LENGTHSCALE_ROWS = 300  # rows on which they are compared


class KernelFisherDiscriminant(Classifier, Transformer):
    """Kernel Fisher discriminant: directions in feature space that separate the classes relative to their scatter, and
    Gaussian classes with a common covariance along them.

    Directions w maximise w^T S_B w / w^T (S_W + alpha I) w, where S_B and S_W are the scatters between and within
    classes (PRML 4.45, 4.46) of phi(x). This is ridge regression on class indicators with penalty alpha (PRML 4.1.5;
    optimal scoring): C fitted functions, and a C x C eigenproblem. Coordinates have mean zero, and the within-class
    covariance, (S_W + alpha I) / (n - C), is the identity.

    Parameters
    ----------
    kernel : any kernel, on any input it accepts. None is a Gaussian at the scale of the inputs; with alpha="loo" also
        at a quarter, half and twice that scale, whichever has the least leave-one-out error.
    alpha : the penalty, a positive number; "loo" minimises the exact leave-one-out error of the indicators over 41
        values from 1e-8 to 100 times the mean diagonal of the centred Gram matrix.
    n_components : number of directions to keep and predict with, at most C - 1. None means C - 1.
    priors : class probabilities, (C,). None takes the class frequencies.
    calibrate : whether to take the means and covariance of the classes from leave-one-out coordinates, which are exact
        for the ridge regression and free. Coordinates of the training rows are so concentrated in a rich feature space
        that probabilities become 0 or 1. False is textbook discriminant analysis.
    allow_invalid : accept a kernel known not to be positive semidefinite; negative eigenvalues are set to zero.

    Fitted: ``dual_coef_`` (n, q); ``eigenvalues_`` (q,), the fraction of the variance along a direction, penalty
    included, that lies between classes; ``means_`` (C, q) and ``covariance_`` (q, q); ``priors_``; ``alpha_``;
    ``loo_error_``, the mean squared leave-one-out error of an indicator; ``kernel_``, ``classes_``. About 9 n^3 flops
    and four n x n matrices, or 10 n M^2 with M < n features; the default kernel adds four fits of 300 rows.

    >>> X, y = [[0.0], [1.0], [2.0], [5.0], [6.0], [7.0]], list("aaabbb")
    >>> model = KernelFisherDiscriminant().fit(X, y)
    >>> model.predict([[0.5], [6.5]]), model.transform(X).shape
    (array(['a', 'b'], dtype='<U1'), (6, 1))
    """

    def __init__(
        self, kernel=None, alpha="loo", n_components=None, *, priors=None, calibrate=True, allow_invalid=False
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.n_components = n_components
        self.priors = priors
        self.calibrate = calibrate
        self.allow_invalid = allow_invalid

    @all_or_nothing
    def fit(self, X, y):
        """Find the directions, and the class distributions along them."""
        X = self._check_inputs(X, reset=True)
        codes = self._check_labels(y, count_rows(X))
        n, C = len(codes), len(self.classes_)
        q = self._check_settings(C)
        counts = np.bincount(codes)
        self.priors_ = counts / n if self.priors is None else self._check_priors(C)
        Y = np.eye(C)[codes]
        self.X_fit_ = copy_rows(X)
        self.kernel_, found = self._kernel_for(X, Y)
        found = found or _spectrum(self.kernel_, self._training_rows(), Y)
        alpha = self.alpha_ = float(self.alpha) if self.alpha != "loo" else _best_alpha(found.spectrum)[0]
        loo_residual = found.spectrum.left_out(alpha)
        self.loo_error_ = float(np.mean(loo_residual**2))
        self._set_fitted(codes, counts, found, alpha, loo_residual, q)
        return self

    # -- settings -----------------------------------------------------------------------------------------------------

    def _check_settings(self, C) -> int:
        q = self.n_components
        if q is not None and not (is_integer(q) and 1 <= q < C):
            raise ParameterError(f"n_components must be None or from 1 to {C - 1} for {C} classes; got {q!r}.")
        if not (isinstance(self.alpha, str) and self.alpha == "loo") and not (
            is_number(self.alpha) and np.isfinite(self.alpha) and self.alpha > 0
        ):
            raise ParameterError(f"alpha must be 'loo' or a positive number; got {reprlib.repr(self.alpha)}.")
        return C - 1 if q is None else int(q)

    def _check_priors(self, C) -> np.ndarray:
        try:
            priors = np.asarray(self.priors, dtype=float)
        except (TypeError, ValueError):
            priors = np.array(np.nan)
        if priors.shape != (C,) or not (priors > 0).all() or not np.isclose(priors.sum(), 1.0):
            raise ParameterError(
                f"priors must be {C} positive numbers that sum to one, in the order of classes_; "
                f"got {reprlib.repr(self.priors)}."
            )
        return priors

    def _kernel_for(self, X, Y):
        """The kernel, and its decomposition on these rows, or None if not computed yet."""
        if self.kernel is not None:
            return as_covariance(self.kernel, "a discriminant", self.allow_invalid, X), None
        X = self._check_vectors(X)
        if self.alpha != "loo":
            return radial_kernel(X), None
        candidates = [radial_kernel(X, factor) for factor in LENGTHSCALE_FACTORS]
        rows = np.arange(len(X))
        if len(X) > MAX_LENGTHSCALE_ROWS:
            rows = np.random.default_rng(0).choice(len(X), MAX_LENGTHSCALE_ROWS, replace=False)
        found = [_spectrum(kernel, X[rows], Y[rows]) for kernel in candidates]
        best = int(np.argmin([_best_alpha(one.spectrum)[1] for one in found]))
        return candidates[best], found[best] if len(rows) == len(X) else None

    # -- directions ---------------------------------------------------------------------------------------------------

    def _set_fitted(self, codes, counts, found, alpha, loo_residual, q):
        """Scaled directions from the fitted indicators, and the classes along them."""
        n, C, spectrum = len(codes), len(counts), found.spectrum
        Y = spectrum.target - spectrum.target.mean(axis=0)
        # D^-1/2 Y^T (I - smoother) Y D^-1/2 without the direction in which indicators sum to one: 1 - eigenvalue.
        root = 1 / np.sqrt(counts)
        within = alpha * root[:, None] * (Y.T @ spectrum.coefficients(alpha)) * root
        B = Complement.of(np.sqrt(counts)[:, None]).vectors(np.eye(C - 1))
        inside, E = backend.eigenpairs(B.T @ ((within + within.T) / 2) @ B)
        inside, scores = np.clip(inside[:q], np.finfo(float).eps, 1.0), root[:, None] * (B @ E[:, :q])
        self.eigenvalues_ = 1 - inside
        # w^T (S_W + alpha I) w = eigenvalue (1 - eigenvalue) before scaling. Coinciding means have no direction.
        separated = self.eigenvalues_ > 1e-12
        size = np.where(separated, self.eigenvalues_ * inside, 1.0)
        scores = np.where(separated, scores * np.sqrt(max(n - C, 1) / size), 0.0)
        # Eigenvalues that are zero to rounding would only add noise divided by alpha.
        real = spectrum.values > n * np.finfo(float).eps * spectrum.values.max(initial=0.0)
        inner = np.where(real, 1 / (spectrum.values + alpha), 0.0)[:, None] * spectrum.coordinates @ scores
        dual = spectrum.V @ inner
        fitted = spectrum.V @ (spectrum.values[:, None] * inner)  # coordinates of the training rows
        left_out = (Y - loo_residual) @ scores
        signs = signs_to_fix(_means(fitted, codes, C)[::-1])
        self.dual_coef_ = signs * dual
        if found.right is None:
            self.centre_, self.weights_ = found.mean @ self.dual_coef_, None
        else:
            self.centre_ = found.mean
            self.weights_ = signs * (found.right.T @ (np.sqrt(spectrum.values)[:, None] * inner))
        self._n_features_out = q
        if self.calibrate and counts.min() > 1:
            self.means_ = _means(signs * left_out, codes, C)
            R = signs * left_out - self.means_[codes]
            self.covariance_ = R.T @ R / (n - C)
        else:
            self.means_, self.covariance_ = _means(signs * fitted, codes, C), np.eye(q)

    # -- classes ------------------------------------------------------------------------------------------------------

    def _log_joint(self, X) -> np.ndarray:
        """ln p(class) - (z - mean)^T covariance^-1 (z - mean) / 2, up to a term common to all classes: (s, C)."""
        self._check_fitted()
        Z = self._coordinates(self._check_inputs(X, reset=False))
        values, vectors = backend.eigenpairs(self.covariance_)
        # The covariance vanishes if leave-one-out coordinates equal their class means to the last digit.
        floor = 1e-12 * (values.max(initial=0.0) + np.square(self.means_).max(initial=0.0)) or 1.0
        white = vectors / np.sqrt(np.maximum(values, floor))
        Z, means = Z @ white, self.means_ @ white
        return Z @ means.T - 0.5 * np.sum(means**2, axis=1) + np.log(self.priors_)

    def decision_function(self, X) -> np.ndarray:
        """Log odds of the second class: (s,); for more than two classes, ln p(class | x) up to a constant: (s, C)."""
        scores = self._log_joint(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X) -> np.ndarray:
        """p(class | x): (s, C)."""
        scores = self._log_joint(X)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def predict(self, X) -> np.ndarray:
        """The most probable class: (s,)."""
        scores = self._log_joint(X)
        return self.classes_[scores.argmax(axis=1)]

    def _summary(self):
        chosen = " (by leave-one-out)" if self.alpha == "loo" else ""
        return "\n".join([
            f"KernelFisherDiscriminant, {len(self.classes_)} classes of {len(self.dual_coef_):,} rows",
            f"kernel: {self.kernel_!r}",
            f"alpha: {number(rounded(self.alpha_))}{chosen}; leave-one-out error of an indicator "
            f"{self.loo_error_**0.5:.3g}",
            f"fraction of the variance between classes, by direction: {number(rounded(self.eigenvalues_, 3))}",
        ])  # fmt: skip


class _Decomposed(NamedTuple):
    """Ridge regression on Y for every alpha; the mean of K's rows (n,), or else of the features (M,), with the right
    singular vectors of the centred features (r, M)."""

    spectrum: Spectrum
    mean: np.ndarray
    right: np.ndarray | None


def _spectrum(kernel, X, Y) -> _Decomposed:
    n = len(Y)
    M = gram.count_features(kernel, X)
    if M is not None and n > M:
        Phi = gram.features(kernel, X)
        mean = Phi.mean(axis=0)
        U, s, right = backend.svd(Phi - mean)
        real = s > np.finfo(float).eps * n * s.max(initial=0.0)
        return _Decomposed(Spectrum("primal", s[real] ** 2, U[:, real], Y, np.ones(n), mean, True), mean, right[real])
    require_memory(
        4 * 8 * n * n,
        f"a discriminant of {n:,} rows",
        "Use fewer rows, or a kernel with a finite number of features (Linear, Polynomial, FeatureMap).",
    )
    K = gram.within(kernel, X)
    mean = K.mean(axis=0)
    values, V = eigenpairs_orthogonal_to(K, np.ones(n))
    return _Decomposed(Spectrum("dual", values, V, Y, np.ones(n), mean, True), mean, None)


def _best_alpha(spectrum) -> tuple[float, float]:
    """The alpha with the least leave-one-out error over all indicators, and that error."""
    alphas = ALPHAS * (spectrum.scale or 1.0)
    errors = spectrum.errors(alphas)[0].mean(axis=1)
    return float(alphas[errors.argmin()]), float(errors.min())


def _means(Z, codes, C) -> np.ndarray:
    return np.stack([Z[codes == c].mean(axis=0) for c in range(C)])
