"""The standard kernel on a few hundred rows, in NumPy: where the default fits begin.

The same numbers as the compiled program, without one: nothing to compile for a new width of the inputs, and derivatives
by matrix products. Only the upper triangle is worked on, in strips of rows that stay in the cache. Up to a few hundred
rows that is several times faster.
"""

import math

import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.inputs import as_matrix, check_width
from mercer.core.machine import one_thread
from mercer.kernels.stationary import Standard

MOST_ROWS = 600
FEW = 2  # columns up to which squared differences are kept
NEAR = 1e-3  # share of squared norms: smaller squared distances lose digits in the matrix product
STRIP = 128  # rows
FIELDS = ("theta0", "theta1", "theta2", "theta3")


def applies(kernel, n: int) -> bool:
    """Whether this is a standard kernel without fixed parameters, on few rows."""
    return type(kernel) is Standard and n <= MOST_ROWS and not kernel.fixed


class SmallTriangle:
    """What `gram.Triangle` is, for the standard kernel on few rows. About two matrices n x n of memory."""

    def __init__(self, kernel: Standard, X):
        self.layout, self._kernel = Layout.of(kernel), kernel
        X = as_matrix(X)
        for field in ("theta1", "shift", "scale"):
            if np.size(getattr(kernel, field)) > 1:
                check_width(X, np.size(getattr(kernel, field)), field)
        X = X if kernel.shift is None else X - kernel.shift
        self.X = np.ascontiguousarray(X if kernel.scale is None else X / kernel.scale)
        self.nu = math.inf if kernel.nu is None else float(kernel.nu)
        self._centred = self.X - self.X.mean(axis=0)
        sizes = {place.field: len(place.entries) for place in self.layout.places}
        edges = np.cumsum([0, *(sizes.get(field, 0) for field in FIELDS)])
        self._where = {field: slice(*edges[i : i + 2]) for i, field in enumerate(FIELDS)}
        n, d = self.X.shape
        # Strips of the upper triangle: some rows, and the columns from their first on.
        self._strips = [(slice(i, min(i + STRIP, n)), slice(i, n)) for i in range(0, n, STRIP)]
        self._half = np.triu(np.ones((STRIP, STRIP))) - 0.5 * np.eye(STRIP)  # a half of a square on the diagonal
        self._ones = np.ones(n)
        self._products = [self.X[rows] @ self.X[columns].T for rows, columns in self._strips]
        self._differences = None
        if d <= FEW:
            self._differences = [
                [(x[rows, None] - x[None, columns]) ** 2 for x in self.X.T] for rows, columns in self._strips
            ]
        self._last: tuple[bytes, list] | None = None

    def __enter__(self):
        self._threads = one_thread()  # NumPy's and SciPy's would wait for each other, longer than the work takes
        self._threads.__enter__()
        return self

    def __exit__(self, *error):
        self._threads.__exit__(*error)
        self._last = None

    def _at(self, theta):
        """theta0 ... theta3, and for each strip the radial function with its derivative in r2."""
        theta = np.asarray(theta, dtype=float)
        with np.errstate(all="ignore"):
            values = [np.exp(theta[self._where[field]]) for field in FIELDS]
            if self._last is None or self._last[0] != theta.tobytes():
                self._last = theta.tobytes(), [self._radial(r2) for r2 in self._squared_distances(values[1])]
        return *values, self._last[1]

    def _squared_distances(self, precision):
        """sum_j theta1_j (x_j - x'_j)^2 of each strip, with the digits of near rows."""
        if self._differences is not None:
            precision = np.broadcast_to(precision, self.X.shape[1])
            for squares in self._differences:
                yield sum(p * square for p, square in zip(precision, squares, strict=True))
            return
        A = self._centred * np.sqrt(precision)
        lengths = np.einsum("ij,ij->i", A, A)
        for rows, columns in self._strips:
            size = lengths[rows, None] + lengths[None, columns]
            r2 = A[rows] @ A[columns].T
            r2 *= -2
            r2 += size
            size *= NEAR
            near = np.flatnonzero(r2 < size)  # the diagonal, and what lies below it, too
            if len(near):
                i, j = np.divmod(near, r2.shape[1])
                away = self.X[rows][i] - self.X[columns][j]
                r2.ravel()[near] = np.square(away, out=away) @ np.broadcast_to(precision, away.shape[1])
            r2.ravel()[:: r2.shape[1] + 1] = 0.0
            yield r2

    def _radial(self, r2):
        """The radial function of the kernel, and its derivative in r2."""
        if math.isinf(self.nu):
            k = np.exp(np.multiply(r2, -0.5, out=r2), out=r2)
            return k, -0.5 * k
        s = np.sqrt(np.multiply(r2, 2 * self.nu, out=r2), out=r2)
        e = np.exp(-s)
        if self.nu == 0.5:
            return e, np.divide(-0.5 * e, s, out=np.zeros_like(s), where=s > 0)
        if self.nu == 1.5:
            s += 1
            return np.multiply(s, e, out=s), np.multiply(e, -1.5, out=e)
        slope = (1 + s) * e
        s *= s
        s *= e / 3
        s += slope
        return s, np.multiply(slope, -5 / 6, out=slope)

    def fill(self, theta, out, careful: bool = False):
        """Write K's upper triangle into ``out`` (n, n)."""
        theta0, _, theta2, theta3, radial = self._at(theta)
        with np.errstate(all="ignore"):
            for (rows, columns), (k, _), products in zip(self._strips, radial, self._products, strict=True):
                strip = out[rows, columns]
                np.multiply(k, theta0, out=strip)
                if theta3.size:
                    strip += theta3 * products
                if theta2.size:
                    strip += theta2

    def contract(self, theta, inverse, a) -> np.ndarray:
        """sum_ij (a_i a_j - inverse_ij) dK_ij/dtheta, over both triangles: (p,). Of ``inverse`` the upper triangle
        counts."""
        theta0, theta1, theta2, theta3, radial = self._at(theta)
        in_theta0 = in_theta2 = in_theta3 = 0.0
        moments = np.zeros(self.X.shape[1])
        with np.errstate(all="ignore"):
            for (rows, columns), (k, in_r2), products in zip(self._strips, radial, self._products, strict=True):
                G = np.outer(a[rows], a[columns])
                G -= inverse[rows, columns]
                square = G[:, : len(k)]
                square *= self._half[: len(k), : len(k)]
                in_theta0 += np.vdot(G, k)
                if theta2.size:
                    in_theta2 += G.sum()
                if theta3.size:
                    in_theta3 += np.vdot(G, products)
                G *= in_r2
                # sum_ij W_ij (x_i - x_j)^2, with x_i^2 and x_j^2 weighted by the sums of W's rows and columns.
                x, z = self._centred[rows], self._centred[columns]
                moments += (G @ self._ones[columns]) @ x**2 + (self._ones[rows] @ G) @ z**2
                moments -= 2 * np.einsum("ij,ij->j", x, G @ z)
            slope = np.zeros(self.layout.size)
            slope[self._where["theta0"]] = 2 * theta0 * in_theta0
            slope[self._where["theta1"]] = 2 * theta0 * theta1 * (moments.sum() if theta1.size == 1 else moments)
            slope[self._where["theta2"]] = 2 * theta2 * in_theta2
            slope[self._where["theta3"]] = 2 * theta3 * in_theta3
        return slope
