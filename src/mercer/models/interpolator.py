"""Exact interpolation by splines and radial basis functions, one per point (PRML 6.3)."""

import dataclasses
import functools
import itertools
import math
import reprlib
import warnings
from typing import Any

import numpy as np

from mercer.basis import monomials
from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import (
    align_columns,
    as_matrix,
    as_objects,
    as_vector,
    centre_and_spread,
    copy_rows,
    count_rows,
    holds_numbers,
    select_columns,
    take_rows,
)
from mercer.core.machine import require_memory
from mercer.kernels.algebra import split_white
from mercer.kernels.convert import as_kernel
from mercer.kernels.splines import ThinPlate
from mercer.linalg.saddle import MAX_RESIDUAL, Saddle, spread_of
from mercer.models.estimator import Regressor, all_or_nothing, is_integer
from mercer.scores import LeaveOneOut

VALUE_TOLERANCE = 1e-9  # of the spread of y: values at one point that differ by less are equal
MAX_SCALE_RATIO = 10.0  # of the inputs' standard deviations, beyond which the default kernel scales them
MIN_SINGULAR_RATIO = 1e-12  # of singular values, below which the rows do not determine the polynomials


class RBFInterpolator(Regressor):
    """Interpolant f(x) = sum_n w_n k(x, x_n) + sum_j c_j p_j(x) through every point (PRML 6.38 without noise; 6.3).

    The weights solve (K + S) w + P c = y with P^T w = 0 (Wendland 2004, 8.5), S = diag(smoothing), P the polynomials
    that the kernel leaves unpenalised. These are eliminated, and a Cholesky factorisation solves the rest: n^3/3 flops,
    one n x n matrix. Predictions take n s kernel values, in blocks.

    Parameters
    ----------
    kernel : any kernel. None is the thin-plate spline, ``ThinPlate(power=2)``; power 1 is linear (in one dimension,
        straight lines between points), 3 cubic. A `White` term counts as smoothing.
    smoothing : added to the diagonal of K: one number, or one per row. Zero interpolates exactly; larger values give a
        smoother function, the mean of a Gaussian process with noise of that variance.
    degree : of the polynomials in all columns; -1 for none. None takes what the kernel needs: none for a positive
        definite kernel, degree ``power // 2`` for `ThinPlate`. Constant columns are ignored.
    scale_inputs : whether to divide columns by their standard deviations. Splines are isotropic, so columns in
        different units should be scaled, here or beforehand. None scales only for the default kernel, if standard
        deviations differ more than tenfold.

    Fitted: ``coef_`` (m,) or (m, q), the weights w of the m sites; ``polynomial_coef_``, of monomials in the columns
    scaled to [-1, 1]; ``kernel_``; ``sites_``, the site of each row: rows at the same point with equal values share
    one. ``numerics_``: the method, the jitter while solving (removed again by iterative refinement), a lower bound of
    the condition number, the number of refinement steps, and the largest residual relative to the spread of y.

    >>> model = RBFInterpolator().fit([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 1.0, 1.0, 2.0])
    >>> model.predict([[0.5, 0.25]]).round(6)
    array([0.75])
    """

    _multi_output = True

    def __init__(self, kernel=None, smoothing=0.0, degree=None, *, scale_inputs=None):
        self.kernel = kernel
        self.smoothing = smoothing
        self.degree = degree
        self.scale_inputs = scale_inputs

    @all_or_nothing
    def fit(self, X, y):
        """Solve for the weights. y: (n,), or (n, q) for several functions at the same points."""
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        t = self._check_target(y, n, several=True)
        self._check_degree()
        smoothing = self._check_smoothing(n)
        kernel = ThinPlate() if self.kernel is None else as_kernel(self.kernel).fitted(X)
        latent, white = split_white(kernel)
        if latent is None:
            raise ParameterError(f"{kernel!r} is pure noise; interpolation needs a kernel other than White.")
        if self.kernel is None or self.scale_inputs:
            X = self._check_vectors(X)
        scaled = self._needs_scaling(X) if self.scale_inputs is None else self.scale_inputs
        self.scale_ = centre_and_spread(X)[1] if scaled else None
        X = copy_rows(X) if self.scale_ is None else X / self.scale_
        smoothing = smoothing + white
        self._several, Y = t.ndim == 2, t.reshape(n, -1)
        self.kernel_, self.y_fit_ = latent, t
        # Rows at the same point share a site, unless they have smoothing.
        kept, self.sites_ = _sites(X, Y, smoothing)
        self.X_fit_ = X if len(kept) == n else take_rows(X, kept)
        self.smoothing_ = smoothing[kept]
        found = self._system().solve(np.asfortranarray(Y[kept]))
        self.numerics_: dict[str, Any] = {
            "method": found.method, "jitter": found.jitter, "condition": found.condition,
            "steps": found.steps, "residual": found.share,
        }  # fmt: skip
        if not found.share <= MAX_RESIDUAL:
            self._explain_residual(Y, kept)
        self.coef_ = found.w if self._several else found.w[:, 0]
        self.polynomial_coef_ = found.c if self._several else found.c[:, 0]
        return self

    def _needs_scaling(self, X) -> bool:
        """Whether the default kernel should scale inputs, because their standard deviations differ too much."""
        if self.kernel is not None:
            return False
        spreads = centre_and_spread(X)[1][np.ptp(X, axis=0) > 0]
        return len(spreads) > 1 and bool(spreads.max() > MAX_SCALE_RATIO * spreads.min())

    def _check_degree(self):
        if self.degree is not None and not (is_integer(self.degree) and self.degree >= -1):
            raise ParameterError(
                f"degree must be None (what the kernel needs), -1 (no polynomials) or a larger integer; "
                f"got {self.degree!r}."
            )

    def _check_smoothing(self, n) -> np.ndarray:
        given = self.smoothing
        try:
            values = np.full(n, float(given)) if np.ndim(given) == 0 else as_vector(given, n, "smoothing")
        except (TypeError, ValueError):
            raise ParameterError(
                f"smoothing must be one number, or one for each of {n} rows; got {reprlib.repr(given)}."
            ) from None
        if not np.isfinite(values).all() or (values < 0).any():
            raise ParameterError(f"smoothing must be finite and non-negative; got {reprlib.repr(given)}.")
        return values

    def _system(self) -> Saddle:
        m = count_rows(self.X_fit_)
        remedy = "Use fewer points, or RBFNetwork, which has fewer basis functions than points."
        require_memory(8 * m * m, f"interpolating {m:,} points", remedy)
        P = self._polynomials().checked(self.X_fit_)
        K = self._training_rows().matrix()
        K[np.diag_indices_from(K)] += self.smoothing_
        return Saddle(K, P)

    def _polynomials(self) -> "Polynomials":
        return Polynomials.of(self.kernel_, self.degree, self.X_fit_)

    def _explain_residual(self, Y, kept):
        """Raise if the kernel cannot distinguish two rows of different values; warn otherwise."""
        pair = _indistinguishable(self._training_rows().matrix(), Y[kept], self.smoothing_)
        if pair is not None:
            i, j = (int(kept[row]) for row in pair)
            raise DataError(
                f"rows {i} and {j} are the same to {self.kernel_!r}, but their values differ: {_shown(Y[i])} and "
                f"{_shown(Y[j])}. No function passes through both. Use smoothing above zero, or a kernel that "
                "distinguishes these rows."
            )
        warnings.warn(
            f"the matrix of {len(kept)} points is singular to double precision for {self.kernel_!r}: the function "
            f"misses the data by up to {self.numerics_['residual']:.1e} of their spread. Use a shorter lengthscale, a "
            "rougher kernel (Matern, ThinPlate) or some smoothing.",
            NumericalWarning,
            stacklevel=4,
        )

    def predict(self, X) -> np.ndarray:
        """f at the rows of X: (s,), or (s, q)."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        X = self._check_vectors(X) / self.scale_ if self.scale_ is not None else X
        X = align_columns(self.X_fit_, X, self.kernel_.needs_all_columns)
        values = self._training_rows().across(X, self.coef_)
        if len(self.polynomial_coef_):
            values += self._polynomials()(X) @ self.polynomial_coef_
        return values

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions in closed form: residual i is w_i / G_ii, with G the upper left block of the
        inverse of the whole system, polynomials included (Rippa 1999). n^3 flops, since fit keeps no matrix.

        A row that shares its point and value with another is predicted by that one, without error.
        """
        self._check_fitted()
        system = self._system()
        system.factor(self.numerics_["method"], self.numerics_["jitter"])
        G = system.inverse_diagonal()
        _, w = np.unique(self.sites_, return_index=True)
        alone = np.flatnonzero(np.abs(G) <= 1e-13 * np.abs(G).max(initial=0.0))
        if len(alone) or system.p == system.n:
            row = w[alone[0]] if len(alone) else 0
            raise DataError(
                f"without row {row} the other rows do not determine the {system.p} polynomials, so it cannot be "
                "predicted. Use a lower degree, or more rows."
            )
        copies = np.bincount(self.sites_)
        error = (self.coef_.T / G * (copies == 1)).T[self.sites_]
        return LeaveOneOut(self.y_fit_ - error, error)

    def _summary(self):
        m, n = len(self.coef_), len(self.y_fit_)
        exact = "smoothing" if self.smoothing_.any() else "interpolating"
        numerics = self.numerics_
        details = [numerics["method"]]
        details += [f"condition above {numerics['condition']:.0e}"] if numerics["condition"] else []
        details += [f"jitter {numerics['jitter']:.0e}"] if numerics["jitter"] else []
        return "\n".join(
            [
                f"{type(self).__name__}, {exact} {n:,} rows" + (f" at {m:,} points" if m < n else ""),
                f"kernel: {self.kernel_!r}, with {len(self.polynomial_coef_)} polynomials",
                f"largest residual: {numerics['residual']:.1e} of the spread of y ({', '.join(details)})",
            ]
        )


# -- polynomials ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomials:
    """Monomials in selected columns, scaled to [-1, 1] over the training rows; one part for each term of a kernel.

    ``parts`` holds (column selections, degree, exponents (p, d), shift (d,), scale (d,)).
    """

    parts: tuple

    @staticmethod
    def of(kernel, degree: int | None, X) -> "Polynomials":
        """Polynomials up to a degree in all columns, or for None those in the null space of the kernel."""
        if degree is None:
            wanted = () if kernel.null_space is None else kernel.null_space.parts
        else:
            wanted = () if degree == -1 else ((degree, ()),)
        n, parts = count_rows(X), []
        known: set[bytes] = set()
        for power, selections in wanted:
            selected = _selected(X, selections)
            low, high = selected.min(axis=0), selected.max(axis=0)
            shift, scale = low / 2 + high / 2, high / 2 - low / 2
            varying = np.flatnonzero(scale > 0)
            count = math.comb(len(varying) + power, power)
            if count > n:
                raise DataError(
                    f"{n} {'row does' if n == 1 else 'rows do'} not determine the {count} polynomials up to degree "
                    f"{power} in {len(varying)} columns: at least {count} are needed. {_remedy(power)}"
                )
            exponents = np.zeros((count, selected.shape[1]), dtype=int)
            exponents[:, varying] = monomials(len(varying), power)
            part = (selections, power, exponents, shift, np.where(scale > 0, scale, 1.0))
            if len(wanted) > 1:  # terms share at least the constant
                columns = [column.tobytes() for column in _monomials(part, X).T]
                part = (selections, power, exponents[[c not in known for c in columns]], *part[3:])
                known.update(columns)
            parts.append(part)
        return Polynomials(tuple(parts))

    def __call__(self, X) -> np.ndarray:
        """Values at the rows of X: (s, p)."""
        return np.column_stack([_monomials(part, X) for part in self.parts] or [np.zeros((count_rows(X), 0))])

    def checked(self, X) -> np.ndarray:
        """Values at the training rows; an error if these do not determine the coefficients."""
        P = self(X)
        n, p = P.shape
        if not p:
            return P
        size = max(float(np.abs(shift / scale).max(initial=0.0)) for *_, shift, scale in self.parts)
        tolerance = max(MIN_SINGULAR_RATIO, 100 * np.finfo(float).eps * size)
        singular = np.linalg.svd(P, compute_uv=False) if n >= p else np.zeros(1)
        if not singular[-1] > tolerance * singular[0]:
            degree = max(power for _, power, *_ in self.parts)
            shape = "a line or plane" if degree == 1 else "a curve or surface"
            raise DataError(
                f"the {n} rows do not determine the {p} polynomials up to degree {degree}: all of them lie on {shape} "
                f"where one of these polynomials vanishes. {_remedy(degree)} Or drop columns determined by others."
            )
        return P


def _remedy(degree) -> str:
    if degree < 1:
        return "Use degree=-1."
    return f"Use degree={degree - 1}, or a kernel that needs fewer: ThinPlate(power=1) a constant, a Gaussian none."


def _selected(X, selections) -> np.ndarray:
    return as_matrix(functools.reduce(select_columns, selections, X))


def _monomials(part, X) -> np.ndarray:
    selections, _, exponents, shift, scale = part
    U = (_selected(X, selections) - shift) / scale
    out = np.ones((len(U), len(exponents)))
    for column, powers in zip(out.T, exponents, strict=True):
        for i in np.flatnonzero(powers):
            column *= U[:, i] ** powers[i]
    return out


# -- rows at the same point ----------------------------------------------------------------------------------------


def _sites(X, Y, smoothing):
    """The row kept for each site (m,), and the site of each row (n,)."""
    n = len(Y)
    # Rows with smoothing are sites of their own.
    keys = np.where(smoothing == 0, _groups(X), n + np.arange(n))
    _, first, sites = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)  # sites in the order of the rows
    kept, sites = first[order], np.argsort(order)[sites]
    if len(kept) < n:
        conflicting = (np.abs(Y - Y[kept[sites]]) > VALUE_TOLERANCE * spread_of(Y)).any(axis=1)
        if conflicting.any():
            j = int(np.flatnonzero(conflicting)[0])
            i = int(kept[sites[j]])
            raise DataError(
                f"rows {i} and {j} are at the same point, but their values differ: {_shown(Y[i])} and {_shown(Y[j])} "
                f"({int(conflicting.sum())} such rows in all). No function passes through both. Average them, or use "
                "smoothing above zero."
            )
    return kept, sites


def _groups(X) -> np.ndarray:
    """Group index of each row; equal rows share one: (n,)."""
    n = count_rows(X)
    if holds_numbers(X):
        return np.unique(as_matrix(X) + 0.0, axis=0, return_inverse=True)[1].reshape(n)
    try:
        seen: dict = {}
        return np.array([seen.setdefault(row, len(seen)) for row in as_objects(X)])
    except TypeError:  # not hashable
        return np.arange(n)


def _indistinguishable(K, Y, smoothing):
    """Two rows without smoothing that K cannot distinguish and whose values differ; or None."""
    rows = np.flatnonzero(smoothing == 0)
    order = rows[np.argsort(K[rows].sum(axis=1), kind="stable")]
    tolerance, spread = 1e-14 * np.abs(K).max(initial=0.0), spread_of(Y)
    for i, j in itertools.pairwise(order):
        if (np.abs(Y[i] - Y[j]) > MAX_RESIDUAL * spread).any() and np.abs(K[i] - K[j]).max() <= tolerance:
            return min(i, j), max(i, j)
    return None


def _shown(values) -> str:
    return f"{values[0]:.6g}" if len(values) == 1 else reprlib.repr(values.round(6).tolist())
