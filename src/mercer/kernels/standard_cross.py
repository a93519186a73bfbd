"""Kernels of the standard form between many rows and a few centres, in NumPy: the counterpart of `cross.Cross`.

Nothing is compiled, and derivatives are matrix products, several times faster than those of the compiled program.
"""

import math

import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.inputs import Inputs, as_matrix, check_width
from mercer.kernels.base import Kernel
from mercer.kernels.standard import (
    FIELDS,
    MAX_DIFFERENCE_COLUMNS,
    MIN_RELATIVE_DISTANCE,
    SLOPES,
    StandardForm,
    of_squared_distance,
)
from mercer.kernels.stationary import Standard

TILE_ROWS = 256  # with a few hundred centres, a tile stays in the cache


class StandardCross:
    """As `cross.Cross`."""

    def __init__(self, kernel: Kernel, form: StandardForm, X: Inputs, centers: Inputs) -> None:
        self.layout, self.form = Layout.of(kernel), form
        X, Z = as_matrix(X), as_matrix(centers)
        lengths = "theta1" if type(kernel) is Standard else "lengthscale"
        for name, size in ((lengths, form.sizes[1]), ("shift", np.size(form.shift)), ("scale", np.size(form.scale))):
            if size > 1:
                check_width(X, size, name)
        shift = 0.0 if form.shift is None else form.shift
        self.scale = np.asarray(1.0 if form.scale is None else form.scale)
        self.X, self.Z = (X - shift) / self.scale, (Z - shift) / self.scale
        middle = self.Z.mean(axis=0)  # distances are more accurate around it
        self.centred, self.centers = self.X - middle, self.Z - middle
        self.n, self.m = len(X), len(Z)
        edges = np.cumsum([0, *form.sizes])
        self.where = [slice(*edges[i : i + 2]) for i in range(len(FIELDS))]
        self.tiles = [slice(i, min(i + TILE_ROWS, self.n)) for i in range(0, self.n, TILE_ROWS)]

    def at(self, theta: np.ndarray) -> "StandardCrossAt":
        return StandardCrossAt(self, np.asarray(theta, dtype=float))


class StandardCrossAt:
    """As `cross.CrossAt`."""

    def __init__(self, cross: StandardCross, theta: np.ndarray) -> None:
        self.cross = cross
        with np.errstate(all="ignore"):
            values = np.exp(cross.form.offset + cross.form.matrix @ theta)
            self._thetas = [values[where] for where in cross.where]
            self._root = np.sqrt(self._thetas[1])
            self._B = cross.centers * self._root
            self._norms = np.einsum("ij,ij->i", self._B, self._B)

    def _radial(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Radial function between centred rows and the centres, and its derivative in r2 but for `SLOPES`: (h, m)."""
        A, B = x * self._root, self._B
        if A.shape[1] <= MAX_DIFFERENCE_COLUMNS:
            r2, work = np.zeros((len(A), len(B))), np.empty((len(A), len(B)))
            for a, b in zip(A.T, B.T, strict=True):
                np.subtract.outer(a, b, out=work)
                work *= work
                r2 += work
            return of_squared_distance(self.cross.form.nu, r2, work)
        r2 = A @ B.T
        r2 *= -2
        work = np.add.outer(np.einsum("ij,ij->i", A, A), self._norms)
        r2 += work
        work *= MIN_RELATIVE_DISTANCE
        close = np.flatnonzero(r2 < work)  # the matrix product lost digits
        if len(close):
            i, j = np.divmod(close, r2.shape[1])
            difference = A[i] - B[j]
            r2.ravel()[close] = np.einsum("ij,ij->i", difference, difference)
        return of_squared_distance(self.cross.form.nu, r2, work)

    def _fill(self, x: np.ndarray, X: np.ndarray, out: np.ndarray) -> bool:
        theta0, _, theta2, theta3, _ = self._thetas
        with np.errstate(all="ignore"):
            np.multiply(self._radial(x)[0], theta0, out=out)
            if theta3.size:
                out += (theta3 * X) @ self.cross.Z.T
            if theta2.size:
                out += theta2
            return bool(np.isfinite(out.sum()) or np.isfinite(out).all())

    def fill(self, tile: int, out: np.ndarray) -> bool:
        """Write k(x_i, z_j) of a tile into ``out`` (h, m); whether all are finite."""
        part = self.cross.tiles[tile]
        return self._fill(self.cross.centred[part], self.cross.X[part], out)

    def core(self) -> np.ndarray:
        """k(z_i, z_j): (m, m)."""
        out = np.empty((self.cross.m, self.cross.m))
        self._fill(self.cross.centers, self.cross.Z, out)
        return np.tril(out) + np.tril(out, -1).T  # symmetric to the last digit

    def diagonal(self, tile: int) -> np.ndarray:
        """k(x_i, x_i) of a tile, white noise included: (h,)."""
        theta0, _, theta2, theta3, theta4 = self._thetas
        X = self.cross.X[self.cross.tiles[tile]]
        with np.errstate(all="ignore"):
            found = np.full(len(X), float(theta0[0] + theta2.sum() + theta4.sum()))
            return found + theta3 * np.einsum("ij,ij->i", X, X) if theta3.size else found

    def white(self) -> tuple[float, np.ndarray]:
        """Variance of the white noise in the kernel, and its derivatives in theta."""
        theta4 = float(self._thetas[4].sum())
        return theta4, theta4 * self.cross.form.matrix[self.cross.where[4]].sum(axis=0)

    # -- derivatives -------------------------------------------------------------------------------------------------

    def _pull(self, x: np.ndarray, X: np.ndarray, G: np.ndarray) -> np.ndarray:
        theta0, theta1, theta2, theta3, theta4 = self._thetas
        z, nu = self.cross.centers, self.cross.form.nu
        with np.errstate(all="ignore"):
            k, in_r2 = self._radial(x)
            in_theta2 = G.sum() if theta2.size else 0.0
            in_theta3 = np.vdot(X, G @ self.cross.Z) if theta3.size else 0.0
            in_theta0 = np.vdot(G, k)
            W = G * (k if math.isinf(nu) else in_r2)
            in_theta1 = W.sum(axis=1) @ x**2 + W.sum(axis=0) @ z**2 - 2 * np.einsum("ij,ij->j", x, W @ z)
            in_theta1 = theta0 * theta1 * SLOPES[nu] * (in_theta1.sum() if theta1.size == 1 else in_theta1)
            parts = theta0 * in_theta0, in_theta1, theta2 * in_theta2, theta3 * in_theta3, 0.0 * theta4
            return np.concatenate(parts) @ self.cross.form.matrix

    def pull(self, tile: int, G: np.ndarray) -> np.ndarray:
        """sum_ij G_ij dk(x_i, z_j)/dtheta over a tile: (p,)."""
        part = self.cross.tiles[tile]
        return self._pull(self.cross.centred[part], self.cross.X[part], G)

    def pull_core(self, G: np.ndarray) -> np.ndarray:
        """sum_ij G_ij dk(z_i, z_j)/dtheta: (p,)."""
        return self._pull(self.cross.centers, self.cross.Z, G)

    def pull_diagonal(self, tile: int, weights: np.ndarray) -> np.ndarray:
        """sum_i weights_i dk(x_i, x_i)/dtheta over a tile: (p,)."""
        theta0, theta1, theta2, theta3, theta4 = self._thetas
        X, total = self.cross.X[self.cross.tiles[tile]], float(weights.sum())
        squares = float(weights @ np.einsum("ij,ij->i", X, X)) if theta3.size else 0.0
        parts = theta0 * total, 0.0 * theta1, theta2 * total, theta3 * squares, theta4 * total
        return np.concatenate(parts) @ self.cross.form.matrix

    def pull_centers(self, tile: int | None, G: np.ndarray) -> np.ndarray:
        """sum_i G_ij dk(x_i, z_j)/dz_j over a tile, or with None over the centres in place of the rows: (m, d)."""
        cross, (theta0, theta1, _, theta3, _) = self.cross, self._thetas
        part = slice(None) if tile is None else cross.tiles[tile]
        x, X = (cross.centers, cross.Z) if tile is None else (cross.centred[part], cross.X[part])
        with np.errstate(all="ignore"):
            k, in_r2 = self._radial(x)
            W = G * (k if math.isinf(cross.form.nu) else in_r2)
            found = 2 * theta0 * SLOPES[cross.form.nu] * theta1 * (W.sum(axis=0)[:, None] * cross.centers - W.T @ x)
            if theta3.size:
                found += theta3 * (G.T @ X)
        return found / cross.scale
