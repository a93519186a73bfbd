"""Principal components in feature space (PRML 12.3)."""

import copy
import warnings
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import as_matrix, centre_and_spread, copy_rows, count_rows, holds_numbers, take_rows
from mercer.core.machine import at_most, keepable, require_memory
from mercer.core.random import generator
from mercer.core.text import table
from mercer.kernels import RBF, Linear
from mercer.kernels.algebra import Scale
from mercer.kernels.convert import as_covariance
from mercer.kernels.stationary import Isotropic
from mercer.learning.heuristics import radial_kernel
from mercer.learning.plan import Plan
from mercer.learning.progress import announce
from mercer.linalg import backend
from mercer.linalg.cholesky import random_root
from mercer.linalg.eigen import largest, signs_to_fix
from mercer.models.estimator import Transformer, all_or_nothing, is_integer, is_number
from mercer.models.ridge import KernelRidge
from mercer.models.ridge_lowrank import LowRankFeatures, as_low_rank, not_allowed, plan_of_form
from mercer.solvers.auto import Budget
from mercer.solvers.lowrank import LowRank

PCA_SOLVERS = ("auto", "dense", "iterative", "features", "lowrank")
MAX_DENSE_ROWS = 1000  # up to which "auto" stays with the dense solver
MAX_FEATURES = 3000  # beyond it, matrices between features are no cheaper than those between rows
MAX_ITERATIVE_ROWS = 50_000  # beyond, a product with the matrix takes longer than all of the low-rank solver
DENSE_COPIES, DENSE_FLOPS = 3, 9.0  # of the Gram matrix, and over n^3
MIN_PIVOTS = 256  # rows of the initial low-rank approximation
EXPECTED_PRODUCTS = 10  # of a block, for a plan
MAX_PRODUCTS = 100  # with the Gram matrix, in the iterative solver
MAX_STEPS = 100  # of the fixed-point iteration for pre-images
MAX_PREIMAGE_ROWS = 2000  # from which the inverse transform is learned


class KernelPCA(Transformer):
    """Kernel PCA: directions of largest variance of phi(x) - mean phi, and coordinates along them (PRML 12.73-12.85).

    With the centred Gram matrix H K H = V diag(eigenvalue) V^T (PRML 12.85), the coordinate of x along direction i is
    sum_n a_ni (k(x, x_n) - mean), a_i = v_i / sqrt(eigenvalue_i) (PRML 12.82). On the training rows, coordinates are
    uncorrelated, with mean zero and variance eigenvalue / n.

    Parameters
    ----------
    n_components : number of directions. None keeps all with positive variance.
    kernel : any kernel, on any input it accepts. None is a Gaussian at the scale of the inputs.
    solver : "dense" decomposes the n x n Gram matrix, O(n^3). "iterative" finds few components of many rows by block
        Lanczos, O(n^2) per product, started from a low-rank approximation; if the matrix would take more than a quarter
        of the available memory, it is recomputed for every product, in O(n) memory. "features" uses the M x M
        covariance of an explicit feature space. "lowrank" uses the features of a few centres (Nystroem; Williams and
        Seeger 2001), n M^2 flops and no matrix of n rows; `mercer.solvers.LowRank` has its settings. Then ``X_fit_``
        are the centres, and ``dual_coef_`` (M, q) is theirs. "auto" chooses.
    tolerance : of the iterative solver: |K v - eigenvalue v| relative to the largest eigenvalue.
    random_state : seed of the iterative solver's start. None means 0.
    allow_invalid : accept a kernel known not to be positive semidefinite; directions of negative variance are dropped.
    max_memory, max_seconds : as for `GaussianProcessRegressor`.

    Fitted: ``eigenvalues_`` (q,) of the centred Gram matrix, in decreasing order; ``explained_variance_ratio_`` (q,);
    ``dual_coef_`` (n, q), the a above, each with its largest entry positive; ``kernel_``; ``solver_``; ``numerics_``,
    the largest residual and the number of products of the iterative solver.

    >>> import numpy as np
    >>> angle = np.linspace(0, 6, 50)
    >>> circles = np.concatenate([radius * np.column_stack([np.cos(angle), np.sin(angle)]) for radius in (1, 5)])
    >>> model = KernelPCA(2).fit(circles)
    >>> model.transform(circles).shape, model.explained_variance_ratio_.round(2)
    ((100, 2), array([0.25, 0.24]))
    """

    _middle: np.ndarray | None = None  # coefficients of the mean of the images, if not equal ones

    def __init__(
        self, n_components=None, kernel=None, solver="auto", *, tolerance=1e-10, random_state=None, allow_invalid=False,
        max_memory=None, max_seconds=600,
    ):  # fmt: skip
        self.n_components = n_components
        self.kernel = kernel
        self.solver = solver
        self.tolerance = tolerance
        self.random_state = random_state
        self.allow_invalid = allow_invalid
        self.max_memory = max_memory
        self.max_seconds = max_seconds

    @all_or_nothing
    def fit(self, X, y=None):
        """Find the directions. ``y`` is ignored."""
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        if n < 2:
            raise DataError(f"KernelPCA needs at least 2 samples; got n_samples = {n}.")
        self._check_settings(n)
        self.kernel_ = self._kernel_for(X)
        self.X_fit_ = copy_rows(X)
        self.solver_ = self._choose_solver(n)
        if self.solver_ == "lowrank" and self.solver == "auto":
            announce(self._plan(n).line)
        self.numerics_ = {"residual": 0.0, "products": 0}
        self._middle = None
        if self.solver_ == "lowrank":
            self._by_centers(as_low_rank(self.solver) or LowRank(), n)
            return self
        solve = {"dense": self._dense, "iterative": self._iterative, "features": self._by_features}[self.solver_]
        self._set_fitted(solve(n))
        return self

    def _kernel_for(self, X):
        kernel = radial_kernel(self._check_vectors(X)) if self.kernel is None else self.kernel
        return as_covariance(kernel, "kernel PCA", self.allow_invalid, X)

    def plan(self, X) -> Plan:
        """The solver for a fit to these rows, the memory and time it is expected to take here, and why."""
        new = copy.copy(self)
        X = new._check_inputs(X, reset=True)
        n = count_rows(X)
        new._check_settings(n)
        new.kernel_, new.X_fit_ = new._kernel_for(X), X
        with at_most(self.max_memory):
            new.solver_ = new._choose_solver(n)
            return new._plan(n)

    def _plan(self, n) -> Plan:
        name, limits, why = self.solver_, (self.max_memory, self.max_seconds), "it was asked for"
        matrix = 8.0 * DENSE_COPIES * n * n
        if self.solver == "auto":
            why = {
                "dense": "the matrix of all rows fits",
                "iterative": "few components of many rows are asked for",
                "features": "the kernel has few features",
                "lowrank": not_allowed("the matrix of all rows", Budget.of(*limits), matrix),
            }[name]
        if name == "lowrank":
            return plan_of_form(name, n, (as_low_rank(self.solver) or LowRank()).count(n), 1.0, 0.0, why, *limits)
        if name == "features":
            M = gram.count_features(self.kernel_, self._training_rows()) or 1
            return plan_of_form(name, n, M, 2.0, 2.0 * n * float(M) ** 2, why, *limits)
        if name == "iterative":
            kept = 8.0 * n * n <= keepable()
            columns = n if kept else 4 * MIN_PIVOTS
            return plan_of_form(name, n, columns, 1.0, EXPECTED_PRODUCTS * MIN_PIVOTS * float(n) ** 2, why, *limits)
        return plan_of_form(name, n, None, DENSE_COPIES, DENSE_FLOPS * float(n) ** 3, why, *limits)

    # -- settings -----------------------------------------------------------------------------------------------------

    def _check_settings(self, n):
        if as_low_rank(self.solver) is None:
            self._check_choice("solver", PCA_SOLVERS)
        q = self.n_components
        if q is not None and not (is_integer(q) and 1 <= q <= n):
            raise ParameterError(f"n_components must be None or an integer from 1 to the {n} rows; got {q!r}.")
        if not (is_number(self.tolerance) and 0 < self.tolerance < 1):
            raise ParameterError(f"tolerance must be a number between 0 and 1; got {self.tolerance!r}.")
        if self.solver == "iterative" and q is None:
            raise ParameterError("solver='iterative' finds a few components only; give n_components.")

    def _choose_solver(self, n) -> str:
        if as_low_rank(self.solver) is not None:
            return "lowrank"
        if self.solver in ("dense", "iterative"):
            return self.solver
        M = gram.count_features(self.kernel_, self._training_rows())
        if self.solver == "features":
            if M is None:
                raise ParameterError(
                    f"solver='features' needs a kernel with finitely many features; got {self.kernel_!r}. Use 'auto'."
                )
            return "features"
        if M is not None and n > M and M <= MAX_FEATURES:
            return "features"
        few = self.n_components is not None and 10 * self.n_components <= n
        if n <= MAX_DENSE_ROWS or not few:
            allowed = Budget.of(self.max_memory, self.max_seconds)
            return "dense" if allowed.allows(DENSE_COPIES * 8 * n * n, DENSE_FLOPS * float(n) ** 3) else "lowrank"
        return "iterative" if n <= MAX_ITERATIVE_ROWS else "lowrank"

    # -- solvers ------------------------------------------------------------------------------------------------------

    def _dense(self, n) -> "_Eigenpairs":
        """LAPACK on H K H: 4 n^3/3 flops for some vectors, 9 n^3 for all; three n x n matrices of memory."""
        what = f"kernel PCA of {n:,} rows by the dense solver"
        require_memory(DENSE_COPIES * 8 * n * n, what, "Set n_components to a few and use solver='iterative'.")
        K = self._training_rows().matrix()
        mean = K.mean(axis=0)
        K -= mean
        K -= K.mean(axis=1)[:, None]
        total = float(np.trace(K))
        q = n if self.n_components is None else int(self.n_components)
        values, V = backend.eigenpairs(K, last=q, in_place=True)
        return _Eigenpairs(values[::-1], V[:, ::-1], total, mean)

    def _iterative(self, n) -> "_Eigenpairs":
        """Block Lanczos on H K H, started from the eigenvectors of a low-rank root of K (randomly pivoted Cholesky)."""
        q, rng = int(self.n_components), generator(self.random_state)
        start, diagonal = self._initial_vectors(q, rng)
        K = self._training_rows()
        mean = K.times(np.ones(n)) / n

        def product(V):
            V = K.times(V - V.mean(axis=0))
            return V - V.mean(axis=0)

        found = largest(product, start, q, self.tolerance, MAX_PRODUCTS, rng)
        self.numerics_ = {"residual": float(found.residuals.max()), "products": found.products}
        if not found.converged:
            warnings.warn(
                f"{int((found.residuals > self.tolerance).sum())} of {q} components have not converged: the largest "
                f"residual is {found.residuals.max():.1e} of the largest eigenvalue, after {found.products} products. "
                "Use fewer components, a larger tolerance, or solver='dense'.",
                NumericalWarning,
                stacklevel=4,
            )
        return _Eigenpairs(found.values, found.vectors, float(diagonal.sum() - mean.sum()), mean)

    def _initial_vectors(self, q, rng):
        """Approximate leading eigenvectors from a few hundred rows of K, and its diagonal."""
        diagonal = self._training_rows().diagonal()
        R, _ = random_root(
            self._training_rows().some, diagonal, max_rank=min(len(diagonal), max(MIN_PIVOTS, 4 * q)),
            tolerance=1e-12 * float(diagonal.max()), rng=rng,
        )  # fmt: skip
        R -= R.mean(axis=0)
        values, E = backend.eigenpairs(R.T @ R) if R.shape[1] else (np.zeros(0), np.zeros((0, 0)))
        kept = min(3 * q + 20, int((values > 1e-12 * values.max(initial=0.0)).sum()))
        return R @ E[:, ::-1][:, :kept], diagonal

    def _by_features(self, n) -> "_Eigenpairs":
        """Eigenvectors of the covariance of centred features: n M^2 + 9 M^3 flops, memory for M^2 + n q numbers."""
        rows = self._training_rows()
        parts = gram.pieces(n, gram.count_features(self.kernel_, rows) or 1)
        phi = lambda part: gram.features(self.kernel_, rows[part])
        mean = np.sum([phi(part).sum(axis=0) for part in parts], axis=0) / n
        S = np.zeros((len(mean), len(mean)))
        for part in parts:
            centred = phi(part) - mean
            S += centred.T @ centred
        q = len(mean) if self.n_components is None else min(int(self.n_components), len(mean))
        values, W = backend.eigenpairs(S)
        values, W = values[::-1][:q], W[:, ::-1][:, :q]
        excess = 0 if self.n_components is None else int(self.n_components) - q  # beyond the features: zero variance
        values, W = np.pad(values, (0, excess)), np.pad(W, ((0, 0), (0, excess)))
        V = np.concatenate([(phi(part) - mean) @ W for part in parts])
        V /= np.maximum(np.linalg.norm(V, axis=0), np.finfo(float).tiny)
        return _Eigenpairs(values, V, float(np.trace(S)), mean, W)

    def _by_centers(self, solver, n) -> None:
        """Eigenvectors of the covariance of the features of centres: two passes over the rows."""
        rows = self._training_rows()
        found = LowRankFeatures.of(self.kernel_, rows, np.zeros((n, 1)), np.ones(n), solver, centred=True)
        most = len(found.values)
        q = most if self.n_components is None else min(int(self.n_components), most)
        values, W = found.values[::-1][:q], found.V[:, ::-1][:, :q]
        real = values > 10 * n * np.finfo(float).eps * max(values[0], 0.0)
        if self.n_components is None:
            kept = max(int(real.sum()), 1)
            values, W, real = values[:kept], W[:, :kept], real[:kept]
        else:  # beyond the centres: zero variance
            extra = int(self.n_components) - q
            values, W, real = np.pad(values, (0, extra)), np.pad(W, ((0, 0), (0, extra))), np.pad(real, (0, extra))
        coefficients = found.combination(W)
        signs = signs_to_fix(coefficients)
        self.eigenvalues_ = np.where(real, values, 0.0)
        self.dual_coef_ = np.where(real, signs * coefficients, 0.0)
        self.explained_variance_ratio_ = self.eigenvalues_ / found.total if found.total > 0 else np.zeros(len(values))
        self._n_features_out = len(values)
        self.centre_, self.weights_ = np.where(real, signs * (found.mean @ W), 0.0), None
        self.X_fit_ = copy_rows(found.centers)
        self._middle = found.combination(found.mean)
        self.numerics_["left"] = max(1 - float(found.values.sum()) / found.total, 0.0) if found.total > 0 else 0.0

    def _set_fitted(self, found):
        values, V = found.values, found.vectors
        n = len(V)
        # Smaller eigenvalues are rounding error, and their vectors arbitrary.
        real = values > 10 * n * np.finfo(float).eps * max(values[0], 0.0)
        if self.n_components is None:
            kept = max(int(real.sum()), 1)
            values, V, real = values[:kept], V[:, :kept], real[:kept]
        signs = signs_to_fix(V)
        self.eigenvalues_ = np.where(real, values, 0.0)
        # Columns that sum to exactly zero cancel whatever is common to k(x, x_n) for all n.
        self.dual_coef_ = np.where(real, signs * (V - V.mean(axis=0)) / np.sqrt(np.where(real, values, 1.0)), 0.0)
        self.explained_variance_ratio_ = self.eigenvalues_ / found.total if found.total > 0 else np.zeros(len(values))
        self._n_features_out = len(values)
        if found.weights is None:
            self.centre_, self.weights_ = found.mean @ self.dual_coef_, None
        else:
            self.centre_, self.weights_ = found.mean, np.where(real, signs * found.weights[:, : len(real)], 0.0)

    # -- pre-images ---------------------------------------------------------------------------------------------------

    def inverse_transform(self, X) -> np.ndarray:
        """Pre-images: inputs whose images lie near the points with these coordinates, for kernels on vectors: (s, d).

        Most points of feature space are not the image of any input (Mika et al. 1999). Pre-images are learned from at
        most two thousand training rows, by ridge regression of inputs on coordinates with a linear and a Gaussian part
        and a leave-one-out penalty (Bakir et al. 2004). For an isotropic kernel they are then refined to the z whose
        image is nearest to the point sum_n g_n phi(x_n): for a Gaussian by the fixed-point iteration
        z = sum_n g_n k(z, x_n) x_n / sum_n g_n k(z, x_n) (Mika et al. 1999), for others by gradient steps of the same
        scale. Steps that lead away are halved. For the linear kernel pre-images are exact.
        """
        self._check_fitted()
        B = as_matrix(X, "the coordinates")
        if B.shape[1] != self._n_features_out:
            raise DataError(f"expected {self._n_features_out} coordinates per row; got {B.shape[1]} columns.")
        if not holds_numbers(self.X_fit_):
            raise DataError("inverse_transform needs inputs that are numeric vectors; this model was fitted to others.")
        if isinstance(self.kernel_, Linear) and self.kernel_.A is None and self.weights_ is not None:
            return self.centre_ + B @ self.weights_.T
        inputs = as_matrix(self.X_fit_)
        Z = self._learned_preimages(inputs, B)
        middle = 1 / len(inputs) if self._middle is None else self._middle
        kernel = self.kernel_.inner if isinstance(self.kernel_, Scale) else self.kernel_
        if isinstance(kernel, Isotropic):
            for part in gram.pieces(len(B), len(inputs)):
                G = B[part] @ self.dual_coef_.T + middle
                Z[part] = _nearest_image(kernel, inputs, G, Z[part])
        return Z

    def _learned_preimages(self, inputs, B) -> np.ndarray:
        n = len(inputs)
        rows = np.arange(n)
        if n > MAX_PREIMAGE_ROWS:
            rows = np.sort(generator(self.random_state).choice(n, MAX_PREIMAGE_ROWS, replace=False))
        shift, spread = centre_and_spread(inputs)
        unit = float(np.sqrt(self.eigenvalues_.sum() / n)) or 1.0
        coordinates = self._coordinates(take_rows(self.X_fit_, rows)) / unit
        ridge = KernelRidge(100.0 * Linear() + RBF(1.0), alpha="loo").fit(coordinates, (inputs[rows] - shift) / spread)
        return np.asarray(ridge.predict(B / unit)) * spread + shift

    def _summary(self):
        shares = self.explained_variance_ratio_
        shown = range(min(len(shares), 8))
        rows = [[str(i + 1), f"{self.eigenvalues_[i]:.4g}", f"{shares[i]:.1%}", f"{shares[: i + 1].sum():.1%}"]
                for i in shown]  # fmt: skip
        lines = [
            f"KernelPCA, {len(shares)} components of {len(self.dual_coef_):,} rows ({self.solver_})",
            f"kernel: {self.kernel_!r}",
            table(["component", "eigenvalue", "share", "cumulative"], rows),
        ]
        return "\n".join([*lines, *(["..."] if len(shares) > len(shown) else [])])


class _Eigenpairs(NamedTuple):
    """Eigenvalues (q,), vectors (n, q), the sum of all eigenvalues; the mean of K's rows (n,), or else of the features
    (M,), with the directions in feature space (M, q)."""

    values: np.ndarray
    vectors: np.ndarray
    total: float
    mean: np.ndarray
    weights: np.ndarray | None = None


def _nearest_image(kernel, X, G, Z) -> np.ndarray:
    """Maximise sum_n g_n k(z, x_n) over z from Z, for each row g of G: phi(z) is then nearest to sum_n g_n phi(x_n).

    k(z, z) must be one, k a function of |z - x| / l. Each step is l^2 times the gradient of the logarithm.
    """
    length = np.broadcast_to(np.asarray(kernel.lengthscale), Z.shape[1:])

    def value_and_step(G, Z):
        W = gram.between(kernel, Z, X) * G
        value = W.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if isinstance(kernel, RBF):
                return value, W @ X / value[:, None] - Z
            return value, length**2 * gram.slope(kernel, Z, X, G) / value[:, None]

    Z = Z.copy()
    value, step = value_and_step(G, Z)
    factor = np.ones(len(Z))
    active = np.flatnonzero(value > 0)
    for _ in range(MAX_STEPS):
        trial = factor[active, None] * step[active]
        moving = np.abs(trial / length).max(axis=1, initial=0.0) > 1e-6
        active, trial = active[moving], trial[moving]
        if not len(active):
            break
        new_value, new_step = value_and_step(G[active], Z[active] + trial)
        better = new_value > value[active]
        accepted = active[better]
        Z[accepted] += trial[better]
        value[accepted], step[accepted] = new_value[better], new_step[better]
        factor[active] *= np.where(better, 1.5, 0.5)
    return Z
