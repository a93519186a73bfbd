"""Exact interpolation by radial basis functions, one per point, and splines (PRML 6.3)."""

import copy
import dataclasses
import functools
import itertools
import math
import reprlib
import warnings
from typing import Any

import numpy as np

from mercer import gram
from mercer.basis import monomials
from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import (
    align_columns,
    as_matrix,
    as_objects,
    as_vector,
    count_rows,
    holds_numbers,
    select_columns,
    take_rows,
)
from mercer.core.machine import require_memory
from mercer.kernels.algebra import split_white
from mercer.kernels.convert import as_kernel
from mercer.kernels.splines import ThinPlate
from mercer.learning.heuristics import centre_and_spread
from mercer.linalg.saddle import MAX_RESIDUAL, Saddle, spread_of
from mercer.models.estimator import Regressor, wholly
from mercer.scores import LeaveOneOut

SAME = 1e-9  # of the spread of y: values at one place that differ by less are one value
UNLIKE = 10.0  # ratio of the spreads of inputs
DEPENDENT = 1e-12  # ratio of singular values below which rows do not determine the polynomials


class RBFInterpolator(Regressor):
    """f(x) = sum_n w_n k(x, x_n) + sum_j c_j p_j(x), through every point (PRML 6.38 without noise; 6.3).

    The weights solve (K + S) w + P c = y with P^T w = 0 (Wendland 2004, 8.5), S = diag(smoothing), P the polynomials
    that the kernel leaves unpenalised. They are eliminated, and a Cholesky factorisation solves the rest: n^3/3 flops,
    one n x n matrix. Predictions take n s kernel values, in pieces.

    Parameters
    ----------
    kernel : any kernel. None is the thin-plate spline, ``ThinPlate(power=2)``; power 1 is linear (in one dimension,
        straight lines between points), 3 cubic. A `White` term counts as smoothing.
    smoothing : added to the diagonal of K: zero passes through every point; larger values give way to rough data. One
        number, or one per row. The function is the mean of a Gaussian process with noise of that variance.
    degree : of the polynomials in all columns; -1 for none. None takes those the kernel needs: none for a positive
        definite kernel, degree ``power // 2`` for `ThinPlate`. Columns that are constant take no part in them.
    scale_inputs : whether columns are divided by their standard deviations first. Splines are isotropic: columns in
        unlike units should be brought to one scale, here or before. False takes distances as they are. None does that
        for a kernel of your own, and for the default one unless deviations are more than ten times apart.

    Fitted: ``coef_`` (m,) or (m, q), the weights w of the m sites; ``polynomial_coef_``, of monomials in the columns
    brought to [-1, 1]; ``kernel_``; ``sites_``, which of the m sites each row belongs to: rows at one place with equal
    values are one. ``numerics_``: the method, the jitter on the diagonal while solving (iterations take its effect out
    again), a lower bound of the condition number, the number of iterations, and the largest residual of the equations,
    as a share of the spread of y.

    >>> model = RBFInterpolator().fit([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 1.0, 1.0, 2.0])
    >>> model.predict([[0.5, 0.25]]).round(6)
    array([0.75])
    """

    def __init__(self, kernel=None, smoothing=0.0, degree=None, *, scale_inputs=None):
        self.kernel = kernel
        self.smoothing = smoothing
        self.degree = degree
        self.scale_inputs = scale_inputs

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @wholly
    def fit(self, X, y):
        """Solve for the weights. y: (n,), or (n, q) for several functions of the same points."""
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        t = self._check_target(y, n, several=True)
        self._check_degree()
        smoothing = self._check_smoothing(n)
        kernel = ThinPlate() if self.kernel is None else as_kernel(self.kernel)
        latent, white = split_white(kernel)
        if latent is None:
            raise ParameterError(f"{kernel!r} is noise alone: there is no function to interpolate with.")
        if self.kernel is None or self.scale_inputs:
            X = self._check_vectors(X)
        scaled = self._unlike(X) if self.scale_inputs is None else self.scale_inputs
        self.scale_ = centre_and_spread(X)[1] if scaled else None
        X = copy.deepcopy(X) if self.scale_ is None else X / self.scale_
        smoothing = smoothing + white
        self._several, Y = t.ndim == 2, t.reshape(n, -1)
        self.kernel_, self.y_fit_ = latent, t
        # Rows at one place are one site, unless smoothing tells them apart.
        kept, self.sites_ = _sites(X, Y, smoothing)
        self.X_fit_ = X if len(kept) == n else take_rows(X, kept)
        self.smoothing_ = smoothing[kept]
        found = self._system().solve(np.asfortranarray(Y[kept]))
        self.numerics_: dict[str, Any] = {
            "method": found.method, "jitter": found.jitter, "condition": found.condition,
            "steps": found.steps, "residual": found.share,
        }  # fmt: skip
        if not found.share <= MAX_RESIDUAL:
            self._tell_why(Y, kept)
        self.coef_ = found.w if self._several else found.w[:, 0]
        self.polynomial_coef_ = found.c if self._several else found.c[:, 0]
        return self

    def _unlike(self, X) -> bool:
        """Whether inputs of the default kernel come in units too unlike for one distance."""
        if self.kernel is not None:
            return False
        spreads = centre_and_spread(X)[1][np.ptp(X, axis=0) > 0]
        return len(spreads) > 1 and bool(spreads.max() > UNLIKE * spreads.min())

    def _check_degree(self):
        whole = isinstance(self.degree, int | np.integer) and not isinstance(self.degree, bool)
        if self.degree is not None and not (whole and self.degree >= -1):
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
            raise ParameterError(f"smoothing must be finite and not negative; got {reprlib.repr(given)}.")
        return values

    def _system(self) -> Saddle:
        m = count_rows(self.X_fit_)
        instead = "Use fewer points, or RBFNetwork, which has fewer basis functions than points."
        require_memory(8 * m * m, f"interpolating {m:,} points", instead)
        P = self._polynomials().checked(self.X_fit_)
        K = gram.within(self.kernel_, self.X_fit_)
        K[np.diag_indices_from(K)] += self.smoothing_
        return Saddle(K, P)

    def _polynomials(self) -> "Polynomials":
        return Polynomials.of(self.kernel_, self.degree, self.X_fit_)

    def _tell_why(self, Y, kept):
        """The equations are not solved: rows the kernel cannot tell apart are an error, the rest a warning."""
        twins = _twins(gram.within(self.kernel_, self.X_fit_), Y[kept], self.smoothing_)
        if twins is not None:
            i, j = (int(kept[row]) for row in twins)
            raise DataError(
                f"rows {i} and {j} are the same to {self.kernel_!r}, but their values differ: "
                f"{_shown(Y[i])} and {_shown(Y[j])}. No function passes through both. Give them smoothing above zero, "
                "or a kernel that tells them apart."
            )
        warnings.warn(
            f"the matrix of {len(kept)} points is singular to double precision for {self.kernel_!r}: the function "
            f"misses the data by up to {self.numerics_['residual']:.1e} of their spread. A shorter lengthscale, a "
            "rougher kernel (Matern, ThinPlate) or some smoothing makes the problem well-posed.",
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
        """Every row predicted from all the others, in closed form: its residual is w_i / G_ii, with G the upper left
        block of the inverse of the whole system, polynomials included (Rippa 1999). n^3 flops: nothing is kept.

        A row that shares its place and value with another is predicted by that one, without error.
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
                f"without row {row} the other rows do not determine the {system.p} polynomials, so nothing can predict "
                "it. Take a lower degree, or more rows."
            )
        copies = np.bincount(self.sites_)
        error = (self.coef_.T / G * (copies == 1)).T[self.sites_]
        return LeaveOneOut(self.y_fit_ - error, error)

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        m, n = len(self.coef_), len(self.y_fit_)
        exact = "smoothing" if self.smoothing_.any() else "interpolating"
        numerics = self.numerics_
        how = [numerics["method"]]
        how += [f"condition above {numerics['condition']:.0e}"] if numerics["condition"] else []
        how += [f"jitter {numerics['jitter']:.0e}"] if numerics["jitter"] else []
        return "\n".join(
            [
                f"{type(self).__name__}, {exact} {n:,} rows" + (f" at {m:,} places" if m < n else ""),
                f"kernel: {self.kernel_!r}, with {len(self.polynomial_coef_)} polynomials",
                f"largest residual: {numerics['residual']:.1e} of the spread of y ({', '.join(how)})",
            ]
        )


# -- polynomials ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomials:
    """Monomials in some columns, each brought to [-1, 1] by the training rows; one part for each term of a kernel.

    ``parts`` has (selections of columns, degree, exponents (p, d), shift (d,), scale (d,)).
    """

    parts: tuple

    @staticmethod
    def of(kernel, degree: int | None, X) -> "Polynomials":
        """Those up to a degree in all columns, or for None those in the null space of the kernel."""
        if degree is None:
            wanted = () if kernel.null_space is None else kernel.null_space.parts
        else:
            wanted = () if degree == -1 else ((degree, ()),)
        n, parts = count_rows(X), []
        seen_before: set[bytes] = set()
        for power, selections in wanted:
            seen = _seen(X, selections)
            low, high = seen.min(axis=0), seen.max(axis=0)
            shift, scale = low / 2 + high / 2, high / 2 - low / 2
            varying = np.flatnonzero(scale > 0)
            count = math.comb(len(varying) + power, power)
            if count > n:
                raise DataError(
                    f"{n} {'row does' if n == 1 else 'rows do'} not determine the {count} polynomials up to degree "
                    f"{power} in {len(varying)} columns: at least {count} are needed. {_instead(power)}"
                )
            exponents = np.zeros((count, seen.shape[1]), dtype=int)
            exponents[:, varying] = monomials(len(varying), power)
            part = (selections, power, exponents, shift, np.where(scale > 0, scale, 1.0))
            if len(wanted) > 1:  # terms in overlapping columns share some, the constant at least
                columns = [column.tobytes() for column in _monomials(part, X).T]
                part = (selections, power, exponents[[c not in seen_before for c in columns]], *part[3:])
                seen_before.update(columns)
            parts.append(part)
        return Polynomials(tuple(parts))

    def __call__(self, X) -> np.ndarray:
        """At the rows of X: (s, p)."""
        return np.column_stack([_monomials(part, X) for part in self.parts] or [np.zeros((count_rows(X), 0))])

    def checked(self, X) -> np.ndarray:
        """At the training rows; an error if these do not determine their coefficients."""
        P = self(X)
        n, p = P.shape
        if not p:
            return P
        size = max(float(np.abs(shift / scale).max(initial=0.0)) for *_, shift, scale in self.parts)
        tolerance = max(DEPENDENT, 100 * np.finfo(float).eps * size)
        singular = np.linalg.svd(P, compute_uv=False) if n >= p else np.zeros(1)
        if not singular[-1] > tolerance * singular[0]:
            degree = max(power for _, power, *_ in self.parts)
            shape = "a line or plane" if degree == 1 else "a curve or surface"
            raise DataError(
                f"the {n} rows do not determine the {p} polynomials up to degree {degree}: all of them lie on {shape} "
                f"where one of these polynomials vanishes. {_instead(degree)} Or leave out columns that follow from "
                "others."
            )
        return P


def _instead(degree) -> str:
    if degree < 1:
        return "Take degree=-1."
    return f"Take degree={degree - 1}, or a kernel that needs less: ThinPlate(power=1) a constant, a Gaussian nothing."


def _seen(X, selections) -> np.ndarray:
    return as_matrix(functools.reduce(select_columns, selections, X))


def _monomials(part, X) -> np.ndarray:
    selections, _, exponents, shift, scale = part
    seen = (_seen(X, selections) - shift) / scale
    out = np.ones((len(seen), len(exponents)))
    for column, powers in zip(out.T, exponents, strict=True):
        for i in np.flatnonzero(powers):
            column *= seen[:, i] ** powers[i]
    return out


# -- rows at one place ---------------------------------------------------------------------------------------------


def _sites(X, Y, smoothing):
    """Which rows to keep (m,), and to which of them each row belongs (n,)."""
    n = len(Y)
    groups = _groups(X)
    exact = smoothing == 0
    # Rows with smoothing are sites of their own.
    keys = np.where(exact, groups, n + np.arange(n))
    _, first, sites = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)  # sites in the order of the rows
    kept, sites = first[order], np.argsort(order)[sites]
    if len(kept) < n:
        apart = (np.abs(Y - Y[kept[sites]]) > SAME * spread_of(Y)).any(axis=1)
        if apart.any():
            j = int(np.flatnonzero(apart)[0])
            i = int(kept[sites[j]])
            raise DataError(
                f"rows {i} and {j} are at the same place, but their values differ: {_shown(Y[i])} and {_shown(Y[j])} "
                f"({int(apart.sum())} such rows in all). No function passes through both. Average them, or give them "
                "smoothing above zero."
            )
    return kept, sites


def _groups(X) -> np.ndarray:
    """A number for each row, equal for equal rows: (n,)."""
    n = count_rows(X)
    if holds_numbers(X):
        return np.unique(as_matrix(X) + 0.0, axis=0, return_inverse=True)[1].reshape(n)
    try:
        seen: dict = {}
        return np.array([seen.setdefault(row, len(seen)) for row in as_objects(X)])
    except TypeError:  # things that cannot be compared that way
        return np.arange(n)


def _twins(K, Y, smoothing):
    """Two rows that K cannot tell apart, without smoothing, whose values differ; or None."""
    rows = np.flatnonzero(smoothing == 0)
    order = rows[np.argsort(K[rows].sum(axis=1), kind="stable")]
    tolerance, spread = 1e-14 * np.abs(K).max(initial=0.0), spread_of(Y)
    for i, j in itertools.pairwise(order):
        if (np.abs(Y[i] - Y[j]) > MAX_RESIDUAL * spread).any() and np.abs(K[i] - K[j]).max() <= tolerance:
            return min(i, j), max(i, j)
    return None


def _shown(values) -> str:
    return f"{values[0]:.6g}" if len(values) == 1 else reprlib.repr(values.round(6).tolist())
