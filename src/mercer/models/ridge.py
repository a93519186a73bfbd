"""Kernel ridge regression, in its dual or its primal form (PRML 6.1)."""

import copy
import reprlib
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError, rows_of
from mercer.core.inputs import copy_rows, count_rows, take_rows
from mercer.core.machine import at_most, require_memory
from mercer.core.text import number
from mercer.kernels.convert import as_covariance
from mercer.learning.heuristics import radial_kernel
from mercer.learning.plan import Plan
from mercer.learning.progress import announce
from mercer.linalg import backend
from mercer.linalg.cholesky import factor
from mercer.linalg.complement import Complement
from mercer.linalg.spectrum import RidgePath, Spectrum, eigenpairs_orthogonal_to
from mercer.models.estimator import Regressor, all_or_nothing
from mercer.models.ridge_lowrank import LowRankFeatures, as_low_rank, not_allowed, plan_of_form
from mercer.scores import LeaveOneOut
from mercer.solvers.auto import Budget
from mercer.solvers.lowrank import LowRank

RIDGE_SOLVERS = ("auto", "dual", "primal", "lowrank")
DUAL_COPIES = {False: 1, True: 4}  # of the Gram matrix in the dual form; with alpha="loo"
DUAL_FLOPS = {False: 0.5, True: 9.0}  # over n^3
ALPHAS = np.geomspace(1e-8, 1e3, 50)  # compared, in units of the mean diagonal of the centred Gram matrix


class KernelRidge(Regressor):
    """Kernel ridge regression y(x) = sum_n a_n k(x, x_n) + b, minimising sum_n w_n (y(x_n) - t_n)^2 + alpha a^T K a
    (PRML 6.2-6.9).

    The coefficients solve (K + alpha W^-1) a + b = t with sum a = 0 (PRML 6.8, where there is no b). With alpha
    equal to the variance of the noise and without intercept, the prediction is the mean of a Gaussian process.

    Parameters
    ----------
    kernel : any kernel. None is a Gaussian at half the scale of the inputs, of variance 10.
    alpha : the penalty: one number, or one per target. "loo" minimises the exact leave-one-out error of each target
        over ``alphas``, by one eigendecomposition for all of them.
    fit_intercept : whether to add the unpenalised constant b.
    alphas : values to choose from. None is fifty from 1e-8 to 1e3 times the mean diagonal of the centred Gram matrix,
        and a search between the best and its neighbours.
    solver : "dual" solves for n coefficients, n^3/3 flops; "primal" for the weights of M features, n M^2; "auto" takes
        the cheaper. "loo" takes about 9 n^3 flops, or 10 n M^2. "lowrank" restricts the function to the span of a few
        centres, n M^2 flops and no matrix of n rows (Falkon's objective; Rudi et al. 2017); `mercer.solvers.LowRank`
        has its settings. "auto" takes it where the dual form does not fit ``max_memory`` and ``max_seconds``; then
        ``X_fit_`` are the centres, and ``dual_coef_`` their coefficients (M,).
    allow_invalid : accept a kernel known not to be positive semidefinite.
    max_memory, max_seconds : as for `GaussianProcessRegressor`.

    Fitted: ``dual_coef_`` (n,) or (n, q); ``intercept_``; ``alpha_``; ``kernel_``; ``solver_``; ``path_`` (with
    "loo"); ``jitter_`` on the diagonal of a matrix singular to rounding (zero unless alpha is).

    >>> model = KernelRidge(alpha="loo").fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 9.0])
    >>> model.predict([[1.5]]).round(1)
    array([2.2])
    """

    dual_coef_: np.ndarray
    intercept_: Any
    left_out_: np.ndarray | None = None  # residuals (n, q), in the low-rank form
    _multi_output = True

    def __init__(
        self, kernel=None, alpha=1.0, fit_intercept=True, *, alphas=None, solver="auto", allow_invalid=False,
        max_memory=None, max_seconds=600,
    ):  # fmt: skip
        self.kernel = kernel
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.alphas = alphas
        self.solver = solver
        self.allow_invalid = allow_invalid
        self.max_memory = max_memory
        self.max_seconds = max_seconds

    @all_or_nothing
    def fit(self, X, y=None, sample_weight=None):
        """Solve for the coefficients. ``sample_weight`` multiplies squared errors; rows of weight zero are dropped."""
        if as_low_rank(self.solver) is None:
            self._check_choice("solver", RIDGE_SOLVERS)
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        t = self._check_target(y, n, several=True)
        w = self._check_weights(sample_weight, n)
        kept = np.arange(n)
        if not w.all():
            kept = np.flatnonzero(w)
            X, t, w = take_rows(X, kept), t[kept], w[kept]
        with rows_of(kept.tolist()):
            return self._fit(X, t, w)

    def _fit(self, X, t, w):
        """Solve with these rows, of positive weight."""
        self.kernel_ = self._kernel_for(X, w)
        self._several = t.ndim == 2
        self.X_fit_, self.y_fit_, self.weights_ = copy_rows(X), t.reshape(len(t), -1), w
        alpha = self._check_alpha(self.y_fit_.shape[1])
        low_rank = self._low_rank(alpha is None, len(t))
        if low_rank is not None:
            if self.solver == "auto":
                announce(self._plan(self._training_rows()).line)
            return self._solve_low_rank(low_rank, alpha)
        self.left_out_ = None
        if alpha is None:
            path = self._choose_alpha()
        else:
            self._solve(alpha)
        self.dual_coef_ = self._shaped(self.dual_coef_)
        self.intercept_ = self._shaped(self.intercept_)
        if alpha is None:
            self.path_ = self._shaped_path(path)
        elif hasattr(self, "path_"):
            del self.path_
        return self

    def _kernel_for(self, X, w):
        if self.kernel is None:
            return 10.0 * radial_kernel(self._check_vectors(X), 0.5, w)
        return as_covariance(self.kernel, "ridge regression", self.allow_invalid, X)

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_alpha(self, q) -> np.ndarray | None:
        """One penalty per target: (q,); None for "loo"."""
        if isinstance(self.alpha, str) and self.alpha == "loo":
            return None
        try:
            alpha = np.asarray(self.alpha, dtype=float)
        except (TypeError, ValueError):
            alpha = np.array(np.nan)
        if alpha.shape not in ((), (q,)) or not np.isfinite(alpha).all() or (alpha < 0).any():
            raise ParameterError(
                f"alpha must be 'loo', a non-negative number, or one for each of {q} targets; "
                f"got {reprlib.repr(self.alpha)}."
            )
        return np.broadcast_to(alpha, (q,)).copy()

    def _primal_features(self) -> int | None:
        """Number of features of the primal form; None for the dual form."""
        if self.solver == "dual":
            return None
        rows = self._training_rows()
        M, n = gram.count_features(self.kernel_, rows), rows.n
        if self.solver == "primal" and M is None:
            raise ParameterError(f"solver='primal' needs a kernel with finitely many features; got {self.kernel_!r}.")
        return M if M is not None and (self.solver == "primal" or n > M) else None

    # -- few centres -------------------------------------------------------------------------------------------------

    def _low_rank(self, loo: bool, n: int) -> LowRank | None:
        """Settings of the low-rank form, where it is asked for, or the dual form does not fit."""
        if self.solver != "auto":
            return as_low_rank(self.solver)
        allowed = Budget.of(self.max_memory, self.max_seconds)
        if allowed.allows(8 * n * n * DUAL_COPIES[loo], DUAL_FLOPS[loo] * float(n) ** 3):
            return None
        if self._primal_features() is not None:
            return None
        return LowRank()

    def plan(self, X) -> Plan:
        """The form for a fit to these rows, the memory and time it is expected to take here, and why."""
        if as_low_rank(self.solver) is None:
            self._check_choice("solver", RIDGE_SOLVERS)
        new = copy.copy(self)
        X = new._check_inputs(X, reset=True)
        new.kernel_ = new._kernel_for(X, np.ones(count_rows(X)))
        new.X_fit_ = X
        with at_most(self.max_memory):
            return new._plan(gram.Gram(new.kernel_, X))

    def _plan(self, rows: gram.Gram) -> Plan:
        n, loo = rows.n, isinstance(self.alpha, str)
        low_rank, limits = self._low_rank(loo, n), (self.max_memory, self.max_seconds)
        why = "it was asked for"
        if low_rank is not None:
            if self.solver == "auto":
                why = not_allowed("the dual form", Budget.of(*limits), 8.0 * n * n * DUAL_COPIES[loo])
            return plan_of_form("lowrank", n, low_rank.count(n), 1.0, 0.0, why, *limits)
        M = self._primal_features()
        if self.solver == "auto":
            why = "the kernel has " + ("no fewer features than there are rows" if M is None else f"{M:,} features")
        if M is not None:
            return plan_of_form("primal", n, M, 2.0, (10.0 if loo else 1.0) * n * float(M) ** 2, why, *limits)
        return plan_of_form("dual", n, None, DUAL_COPIES[loo], DUAL_FLOPS[loo] * float(n) ** 3, why, *limits)

    def _solve_low_rank(self, solver, alpha):
        """Coefficients of the centres: two passes over the rows, and a third for alpha="loo"."""
        rows, T, w = self._training_rows(), self.y_fit_, self.weights_
        found = LowRankFeatures.of(self.kernel_, rows, T, w, solver, bool(self.fit_intercept))
        if hasattr(self, "path_"):
            del self.path_
        chosen = alpha
        if alpha is None:
            alphas = ALPHAS * (found.scale or 1.0) if self.alphas is None else _positive(self.alphas)
            errors = found.left_out_errors(alphas, bool(self.fit_intercept))
            chosen = alphas[errors.argmin(axis=0)]
        v = np.column_stack([found.weights(a)[:, j] for j, a in enumerate(chosen)])
        self.left_out_ = found.left_out(chosen, bool(self.fit_intercept)) if (chosen > 0).all() else None
        self.solver_, self.jitter_ = "lowrank", 0.0
        self.X_fit_ = copy_rows(found.centers)
        self.dual_coef_ = self._shaped(found.combination(v))
        self.intercept_ = self._shaped(found.target - found.mean @ v)
        self.alpha_ = chosen if self._several else float(chosen[0])
        return self

    # -- one alpha ---------------------------------------------------------------------------------------------------

    def _solve(self, alpha):
        if self._primal_features() is not None and alpha.all():
            self._solve_primal(alpha)
        else:
            self._solve_dual(alpha)
        self.alpha_ = alpha if self._several else float(alpha[0])

    def _solve_dual(self, alpha):
        """Solve (K + alpha W^-1) a + b = t in the complement of the intercept: n^3/3 flops for each distinct alpha."""
        n, q = self.y_fit_.shape
        self.solver_, self.jitter_ = "dual", 0.0
        s = np.sqrt(self.weights_)
        coef = np.empty((n, q))
        for value in np.unique(alpha):
            same = alpha == value
            B, mean, down, up = self._reduced_gram(s)
            target = down(s[:, None] * self.y_fit_[:, same])
            B[np.diag_indices_from(B)] += value
            L = factor(B)
            self.jitter_ = max(self.jitter_, L.jitter)
            coef[:, same] = s[:, None] * up(L.solve(target))
        self._set_coefficients(coef, mean)

    def _weighted_gram(self, s):
        """S K S, and the mean of K's rows."""
        _check_memory(len(s), copies=1)
        K = self._training_rows().matrix()
        mean = K @ self.weights_ / self.weights_.sum()
        if (s != 1).any():
            K *= s[:, None]
            K *= s[None, :]
        return K, mean

    def _reduced_gram(self, s):
        """S K S, with an intercept in the complement of s; the mean of K's rows; and maps to that space and back."""
        K, mean = self._weighted_gram(s)
        if not self.fit_intercept:
            return K, mean, lambda Y: Y, lambda Z: Z
        rest = Complement.of(s[:, None])
        return rest.compress(K), mean, rest.coordinates, rest.vectors

    def _solve_primal(self, alpha):
        """Solve (Phi^T W Phi + alpha I) w = Phi^T W t on centred features: n M^2 flops."""
        self.solver_, self.jitter_ = "primal", 0.0
        s = np.sqrt(self.weights_)
        Phi, mean, target = self._reduced_features(s)
        coef = np.empty(self.y_fit_.shape)
        B = Phi.T @ Phi
        for value in np.unique(alpha):
            same = alpha == value
            C = B.copy()
            C[np.diag_indices_from(C)] += value
            L = factor(C)
            self.jitter_ = max(self.jitter_, L.jitter)
            residual = target[:, same] - Phi @ L.solve(Phi.T @ target[:, same])
            coef[:, same] = s[:, None] * residual / value
        self._set_coefficients(coef, mean)

    def _reduced_features(self, s):
        """S Phi and S t, projected orthogonal to s if there is an intercept; and the mean of K's rows."""
        Phi = gram.features(self.kernel_, self._training_rows())
        mean = Phi @ (self.weights_ @ Phi) / self.weights_.sum()
        Phi, target = s[:, None] * Phi, s[:, None] * self.y_fit_
        if self.fit_intercept:
            unit = s / np.linalg.norm(s)
            Phi, target = (A - np.outer(unit, unit @ A) for A in (Phi, target))
        return Phi, mean, target

    def _set_coefficients(self, coef, mean):
        self.dual_coef_, self.intercept_ = coef, self._intercept(coef, mean)

    def _intercept(self, coef, mean):
        """Intercept for which weighted residuals sum to zero, from the mean of K's rows: (..., n, q) to (..., q)."""
        if not self.fit_intercept:
            return np.zeros((*coef.shape[:-2], coef.shape[-1]))
        return np.average(self.y_fit_, axis=0, weights=self.weights_) - np.einsum("n,...nq->...q", mean, coef)

    # -- every alpha -------------------------------------------------------------------------------------------------

    def _choose_alpha(self):
        """Choose the best alpha for each target from one eigendecomposition."""
        spectrum = self._spectrum()
        alphas = ALPHAS * (spectrum.scale or 1.0) if self.alphas is None else _positive(self.alphas)
        path = spectrum.path(alphas)
        best = path.loo_error.argmin(axis=0)
        chosen = alphas[best]
        if self.alphas is None:
            chosen = np.array([spectrum.refined(alphas, i, target) for target, i in enumerate(best)])
        coef = np.column_stack([spectrum.coefficients(a)[:, target] for target, a in enumerate(chosen)])
        self.solver_, self.jitter_ = spectrum.solver, 0.0
        self._set_coefficients(coef, spectrum.mean)
        self.alpha_ = chosen if self._several else float(chosen[0])
        return path._replace(intercept=self._intercept(path.dual_coef, spectrum.mean))

    def _spectrum(self):
        s = np.sqrt(self.weights_)
        n = len(s)
        if self._primal_features() is not None:
            Phi, mean, target = self._reduced_features(s)
            U, singular, _ = backend.svd(Phi)
            inside = singular > np.finfo(float).eps * max(Phi.shape) * singular.max(initial=0.0)
            return Spectrum("primal", singular[inside] ** 2, U[:, inside], target, s, mean, self.fit_intercept)
        _check_memory(n, copies=4)
        K, mean = self._weighted_gram(s)
        if self.fit_intercept:
            values, V = eigenpairs_orthogonal_to(K, s)
        else:
            values, V = backend.eigenpairs(K, in_place=True)
        return Spectrum("dual", np.maximum(values, 0.0), V, s[:, None] * self.y_fit_, s, mean, self.fit_intercept)

    def path(self, alphas) -> RidgePath:
        """Exact solutions and leave-one-out errors for any values of alpha, from one eigendecomposition."""
        self._check_fitted()
        if self.solver_ == "lowrank":
            raise ParameterError("the path over alpha needs all rows, which solver='lowrank' does not keep.")
        spectrum = self._spectrum()
        found = spectrum.path(_positive(alphas))
        return self._shaped_path(found._replace(intercept=self._intercept(found.dual_coef, spectrum.mean)))

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict(self, X) -> np.ndarray:
        """sum_n a_n k(x, x_n) + b (PRML 6.9): (s,), or (s, q) for several targets."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return self._training_rows().across(X, self.dual_coef_) + self.intercept_

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions at ``alpha_`` in closed form, for rows of positive weight.

        The error of row i is a_i / G_ii, where a = G t. O(n^3), since fit keeps no matrix.
        """
        self._check_fitted()
        alpha = np.atleast_1d(self.alpha_)
        if not (alpha > 0).all():
            raise ParameterError("leave-one-out in closed form needs alpha above zero.")
        if self.left_out_ is not None:
            return LeaveOneOut(self._shaped(self.y_fit_ - self.left_out_), self._shaped(self.left_out_))
        spectrum = self._spectrum()
        residual = np.column_stack([spectrum.left_out(a)[:, target] for target, a in enumerate(alpha)])
        return LeaveOneOut(self._shaped(self.y_fit_ - residual), self._shaped(residual))

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _shaped(self, values):
        """Drop the axis of targets if y was a vector."""
        return values if self._several else (values[..., 0] if np.ndim(values) > 1 else float(values[0]))

    def _shaped_path(self, path: RidgePath) -> RidgePath:
        if self._several:
            return path
        kept = {name: getattr(path, name)[..., 0] for name in ("loo_error", "dual_coef", "intercept")}
        return path._replace(**kept)

    def _summary(self):
        lines = [
            f"KernelRidge, fitted to {len(self.y_fit_):,} rows in its {self.solver_} form"
            + (f", {len(self.dual_coef_):,} centres" if self.solver_ == "lowrank" else ""),
            f"kernel: {self.kernel_!r}",
            f"alpha: {number(np.asarray(self.alpha_))}" + (" (by leave-one-out)" if hasattr(self, "path_") else ""),
        ]
        if hasattr(self, "path_"):
            error = np.sqrt(np.min(self.path_.loo_error, axis=0))
            lines.append(f"leave-one-out error (root mean square): {number(np.round(error, 6))}")
        return "\n".join(lines)


def _positive(alphas) -> np.ndarray:
    try:
        values = np.atleast_1d(np.asarray(alphas, dtype=float))
    except (TypeError, ValueError):
        values = np.array([np.nan])
    if values.ndim != 1 or not values.size or not np.isfinite(values).all() or (values <= 0).any():
        raise ParameterError(f"alphas must be positive numbers; got {reprlib.repr(alphas)}.")
    return values


def _check_memory(n: int, copies: int):
    require_memory(
        8 * n * n * copies,
        f"ridge regression of {n:,} rows in its dual form",
        "Use solver='lowrank', or a kernel with a finite number of features (Linear, Polynomial, FeatureMap).",
    )
