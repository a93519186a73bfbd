"""The standard kernel on a few hundred rows, in NumPy: where the default fits begin.

The same numbers as the compiled program, without one: nothing to compile for a new width of the inputs, and derivatives
by matrix products over all rows at once. Up to a few hundred rows that is several times faster.
"""

import math

import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.inputs import as_matrix, check_width
from mercer.core.lapack import one_thread
from mercer.kernels.stationary import Standard

MOST_ROWS = 500
FEW = 2  # columns up to which squared differences are kept
NEAR = 1e-2  # share of squared norms: smaller squared distances lose digits in the matrix product
FIELDS = ("theta0", "theta1", "theta2", "theta3")


def applies(kernel, n: int) -> bool:
    """Whether this is a standard kernel without fixed parameters, on few rows."""
    return type(kernel) is Standard and n <= MOST_ROWS and not kernel.fixed


class SmallTriangle:
    """What `gram.Triangle` is, for the standard kernel on few rows. About ten matrices n x n of memory."""

    def __init__(self, kernel: Standard, X):
        self.layout, self._kernel = Layout.of(kernel), kernel
        X = as_matrix(X)
        for field in ("theta1", "shift", "scale"):
            if np.size(getattr(kernel, field)) > 1:
                check_width(X, np.size(getattr(kernel, field)), field)
        X = X if kernel.shift is None else X - kernel.shift
        self.X = np.ascontiguousarray(X if kernel.scale is None else X / kernel.scale)
        self.nu = math.inf if kernel.nu is None else float(kernel.nu)
        self._products, self._centred = self.X @ self.X.T, self.X - self.X.mean(axis=0)
        sizes = {place.field: len(place.entries) for place in self.layout.places}
        edges = np.cumsum([0, *(sizes.get(field, 0) for field in FIELDS)])
        self._where = {field: slice(*edges[i : i + 2]) for i, field in enumerate(FIELDS)}
        d = self.X.shape[1]
        self._differences = [(x[:, None] - x[None, :]) ** 2 for x in self.X.T] if d <= FEW else None
        self._last: tuple[bytes, np.ndarray, np.ndarray] | None = None

    def __enter__(self):
        self._threads = one_thread()  # NumPy's and SciPy's would wait for each other, longer than the work takes
        self._threads.__enter__()
        return self

    def __exit__(self, *error):
        self._threads.__exit__(*error)
        self._last = None

    def _at(self, theta):
        """theta0 ... theta3, and the radial function with its derivative in r2."""
        with np.errstate(all="ignore"):
            values = [np.exp(theta[self._where[field]]) for field in FIELDS]
            if self._last is None or self._last[0] != theta.tobytes():
                self._last = theta.tobytes(), *self._radial(self._squared_distances(values[1]))
        return *values, *self._last[1:]

    def _squared_distances(self, precision):
        """sum_j theta1_j (x_j - x'_j)^2, with the digits of near rows."""
        if self._differences is not None:
            r2 = np.zeros_like(self._products)
            for p, squares in zip(np.broadcast_to(precision, len(self._differences)), self._differences, strict=True):
                r2 += p * squares
            return r2
        A = self._centred * np.sqrt(precision)
        lengths = np.einsum("ij,ij->i", A, A)
        size = lengths[:, None] + lengths[None, :]
        r2 = size - 2 * (A @ A.T)
        near = r2 < NEAR * size
        np.fill_diagonal(near, False)
        i, j = np.nonzero(near)
        if len(i):
            r2[i, j] = ((self.X[i] - self.X[j]) ** 2 * precision).sum(axis=1)
        np.fill_diagonal(r2, 0.0)
        return r2

    def _radial(self, r2):
        """The radial function of the kernel, and its derivative in r2."""
        if math.isinf(self.nu):
            k = np.exp(-0.5 * r2)
            return k, -0.5 * k
        s = np.sqrt(2 * self.nu * r2)
        e = np.exp(-s)
        if self.nu == 0.5:
            return e, np.where(s > 0, -0.5 * e / np.where(s > 0, s, 1.0), 0.0)
        if self.nu == 1.5:
            return (1 + s) * e, -1.5 * e
        return (1 + s * (1 + s / 3)) * e, (-5 / 6) * (1 + s) * e

    def fill(self, theta, out, careful: bool = False):
        """Write K into ``out`` (n, n)."""
        theta0, _, theta2, theta3, k, _ = self._at(np.asarray(theta, dtype=float))
        with np.errstate(all="ignore"):
            np.multiply(k, theta0, out=out)
            if theta3.size:
                out += theta3 * self._products
            if theta2.size:
                out += theta2

    def contract(self, theta, inverse, a) -> np.ndarray:
        """sum_ij (a_i a_j - inverse_ij) dK_ij/dtheta, over both triangles: (p,). Of ``inverse`` the upper triangle
        counts."""
        theta = np.asarray(theta, dtype=float)
        theta0, theta1, theta2, theta3, k, in_r2 = self._at(theta)
        upper = np.triu(inverse, 1)
        upper += upper.T.copy()
        G = np.outer(a, a)
        G -= upper
        G.ravel()[:: len(a) + 1] -= np.diag(inverse)
        slope = np.zeros(self.layout.size)
        with np.errstate(all="ignore"):
            slope[self._where["theta0"]] = theta0 * np.vdot(G, k)
            W = np.multiply(in_r2, G)
            W *= theta0
            # sum_ij W_ij (x_i - x_j)^2 = 2 (sum_i w_i x_i^2 - x^T W x), w the sums of the rows of W.
            moments = W.sum(axis=1) @ self._centred**2 - np.einsum("ij,ij->j", self._centred, W @ self._centred)
            one = theta1.size == 1
            slope[self._where["theta1"]] = 2 * theta1 * (moments.sum() if one else moments)
            slope[self._where["theta2"]] = theta2 * G.sum()
            slope[self._where["theta3"]] = theta3 * np.vdot(G, self._products)
        return slope
