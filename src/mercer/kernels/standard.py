"""The standard kernel, and others of its form, on one set of rows, in NumPy, for the hundreds of evaluations of a fit.

Compared with the compiled program of `gram.Triangle`, nothing is compiled for a new number of columns, and derivatives
by matrix products are several times faster. Only the upper triangle is computed, in strips of rows that fit the cache.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mercer.core.coordinates import Layout, to_free
from mercer.core.inputs import Inputs, as_matrix, check_width
from mercer.core.machine import cores, one_thread
from mercer.core.parameters import Path
from mercer.kernels.algebra import Scale, Sum
from mercer.kernels.base import Kernel
from mercer.kernels.dot import Linear
from mercer.kernels.stationary import RBF, Constant, Exponential, Matern, Standard, White

if TYPE_CHECKING:
    from mercer.kernels.standard_products import StandardOperator

MAX_SERIAL_ROWS = 400  # beyond it, strips are computed on all cores
MAX_SINGLE_THREAD_ROWS = 150  # beyond it, factorisations use all cores
MAX_KEPT_ROWS = 4000  # up to it, the radial function and its derivative are kept: one more matrix
MAX_DIFFERENCE_COLUMNS = 2  # up to it, distances are sums of squared differences
MIN_RELATIVE_DISTANCE = 1e-3  # to the sum of squared norms: smaller squared distances lose digits in the matrix product
STRIP_ROWS = 200  # fewer make more calls, more leave the cache
FIELDS = ("theta0", "theta1", "theta2", "theta3", "theta4")
# Constant factor of the radial function's derivative in r2, by smoothness; `of_squared_distance` computes the rest.
SLOPES = {0.5: -0.5, 1.5: -1.5, 2.5: -5 / 6, math.inf: -0.5}


class StandardForm(NamedTuple):
    """A kernel as theta0 radial(theta1 |x - x'|^2) + theta2 + theta3 x.x', plus theta4 on the diagonal.

    The logarithms of the thetas that are not zero are ``offset`` + ``matrix`` theta, for the free vector theta of the
    kernel itself.
    """

    nu: float
    sizes: tuple[int, ...]  # of each of `FIELDS`; zero where it is switched off
    offset: np.ndarray
    matrix: np.ndarray
    shift: Any = None
    scale: Any = None


def standard_form(kernel: Kernel) -> StandardForm | None:
    """Standard form of a kernel: of the standard kernel itself, or of a multiple of a Gaussian or Matern kernel (of
    order 1/2, 3/2 or 5/2) plus at most one each of a constant, a linear kernel and white noise. None for any other
    kernel. Parameters may be fixed.

    >>> from mercer.kernels import RBF, White
    >>> form = standard_form(2.0 * RBF(0.5) + White(0.1))
    >>> np.exp(form.offset + form.matrix @ to_free(2.0 * RBF(0.5) + White(0.1))).round(6)
    array([2. , 4. , 0.1])
    """
    thetas: dict[str, Any] = {}
    places: dict[tuple[Path, str], tuple[str, float]] = {}
    if type(kernel) is Standard:
        thetas |= {field: getattr(kernel, field) for field in FIELDS[:4]}
        places |= {((), field): (field, 1.0) for field in FIELDS[:4]}
        nu = math.inf if kernel.nu is None else float(kernel.nu)
        return _form(kernel, thetas, places, nu, kernel.shift, kernel.scale)
    nu, parts = math.inf, kernel.parts if type(kernel) is Sum else (kernel,)
    for i, part in enumerate(parts):
        path: Path = ((("parts", i)),) if type(kernel) is Sum else ()
        inner: Any = part
        below, variance = path, 1.0
        if type(part) is Scale:
            inner, below, variance = part.inner, (*path, ("inner", None)), part.variance
        order = {RBF: math.inf, Exponential: 0.5}.get(type(inner), getattr(inner, "nu", None))
        if type(inner) in (RBF, Exponential, Matern) and order in SLOPES:
            field, nu, thetas["theta1"] = "theta0", float(order), 1 / np.square(inner.lengthscale)
            places[below, "lengthscale"] = "theta1", -2.0
        elif type(inner) in (Constant, White):
            field = "theta2" if type(inner) is Constant else "theta4"
            variance, places[below, "variance"] = variance * inner.variance, (field, 1.0)
        elif type(inner) is Linear and inner.A is None:
            field = "theta3"
        else:
            return None
        if field in thetas:
            return None
        thetas[field] = variance
        if inner is not part:
            places[path, "variance"] = field, 1.0
    return _form(kernel, thetas, places, nu) if "theta0" in thetas else None


def _form(
    kernel: Kernel, thetas: dict[str, Any], places: dict[tuple[Path, str], tuple[str, float]], nu: float,
    shift: Any = None, scale: Any = None,
) -> StandardForm:  # fmt: skip
    """``places``: for every parameter of the kernel, the theta that it enters, and its exponent there."""
    values = [np.atleast_1d(np.asarray(thetas.get(field, 0.0), dtype=float)) for field in FIELDS]
    values = [value[value != 0] for value in values]
    edges = dict(zip(FIELDS, np.cumsum([0, *map(len, values[:-1])]), strict=True))
    free = np.asarray(to_free(kernel), dtype=float)
    matrix, column = np.zeros((sum(map(len, values)), len(free))), 0
    for place in Layout.of(kernel).places:
        field, power = places[place.path, place.field]
        for entry in place.entries:
            matrix[edges[field] + entry, column] = power
            column += 1
    offset = np.log(np.concatenate(values)) - matrix @ free
    return StandardForm(nu, tuple(map(len, values)), offset, matrix, shift, scale)


@functools.lru_cache(maxsize=8)
def _below_diagonal(n: int) -> np.ndarray:
    return np.tri(n, k=-1, dtype=bool)


def mirror(K: np.ndarray, rows: slice, columns: slice) -> None:
    """Copy these rows and columns of K, on or above the diagonal, to below it. Rows of a tile are few, so that it is in
    the cache."""
    if rows.start == columns.start:
        square = K[rows, rows]
        np.copyto(square, square.T, where=_below_diagonal(len(square)))
        columns = slice(rows.stop, columns.stop)
    for j in range(columns.start, columns.stop, STRIP_ROWS):
        part = slice(j, min(j + STRIP_ROWS, columns.stop))
        K[part, rows] = K[rows, part].T


def of_squared_distance(nu: float, r2: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Radial function and derivative, overwriting r2 and another matrix of its shape; the latter without
    its factor in `SLOPES`."""
    if math.isinf(nu):
        np.multiply(r2, -0.5, out=r2)
        return np.exp(r2, out=r2), other
    r2 *= 2 * nu
    s = np.sqrt(r2, out=r2)
    e = np.exp(np.negative(s, out=other), out=other)
    if nu == 0.5:
        s[s == 0] = math.inf  # the derivative at zero distance is not used
        return e, np.divide(e, s, out=s)
    if nu == 1.5:
        s += 1
        return np.multiply(s, e, out=s), e
    k = s * s
    k /= 3
    s += 1
    k += s
    k *= e
    return k, np.multiply(s, e, out=s)


class StandardTriangle:
    """`gram.Varying` for kernels with a standard form."""

    def __init__(self, kernel: Kernel, form: StandardForm, X: Inputs, keeps: bool = True):
        self.layout, self.form = Layout.of(kernel), form
        X = as_matrix(X)
        lengths = "theta1" if type(kernel) is Standard else "lengthscale"
        for name, size in ((lengths, form.sizes[1]), ("shift", np.size(form.shift)), ("scale", np.size(form.scale))):
            if size > 1:
                check_width(X, size, name)
        X = X if form.shift is None else X - form.shift
        self.X = np.ascontiguousarray(X if form.scale is None else X / form.scale)
        self.nu = form.nu
        self._centred = self.X - self.X.mean(axis=0)
        edges = np.cumsum([0, *form.sizes])
        self._where = [slice(*edges[i : i + 2]) for i in range(len(FIELDS))]
        n = len(self.X)
        # Strips of the upper triangle: some rows, and the columns from their first on.
        self._strips = [(slice(i, min(i + STRIP_ROWS, n)), slice(i, n)) for i in range(0, n, STRIP_ROWS)]
        # Weights of one triangle of a square on the diagonal.
        self._half = np.triu(np.ones((STRIP_ROWS, STRIP_ROWS))) - 0.5 * np.eye(STRIP_ROWS)
        self._ones = np.ones(n)
        self._parallel, self._keeps = n > MAX_SERIAL_ROWS and cores() > 1, keeps and n <= MAX_KEPT_ROWS
        self._pool: ThreadPoolExecutor | None = None
        self._threads = contextlib.ExitStack()
        self._local = threading.local()
        self._values_at: tuple[bytes, list[np.ndarray]] | None = None
        self._forget()

    def _forget(self) -> None:
        self._kept: list[Any] = [None] * len(self._strips)  # radial function and derivative of each strip
        self._kept_at: bytes | None = None  # the theta that they belong to

    def _memory(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Two matrices of the shape of strip ``i``: new memory has to be paged in, so it is reused, by the strip that
        keeps it or else by the thread."""
        if self._kept[i] is not None:
            return self._kept[i]
        rows, columns = self._strips[i]
        shape = rows.stop - rows.start, columns.stop - columns.start
        if self._keeps:
            return np.empty(shape), np.empty(shape)
        if not hasattr(self._local, "memory"):
            self._local.memory = np.empty((2, STRIP_ROWS * len(self.X)))
        one, other = self._local.memory[:, : shape[0] * shape[1]]
        return one.reshape(shape), other.reshape(shape)

    def __enter__(self) -> "StandardTriangle":
        if len(self.X) <= MAX_SINGLE_THREAD_ROWS:
            self._threads.enter_context(one_thread())
        elif self._parallel:
            self._pool = ThreadPoolExecutor(cores())
            self._threads.callback(self._pool.shutdown, cancel_futures=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool = None
        self._threads.close()
        self._forget()

    def _each(self, work: Callable[[int], Any]) -> list[Any]:
        """Results of ``work`` for every strip, in order."""
        strips = range(len(self._strips))
        if len(self.X) <= MAX_SINGLE_THREAD_ROWS:
            return [work(i) for i in strips]
        with one_thread():  # NumPy's threads and SciPy's would wait for each other, longer than the work takes
            return list((self._pool.map if self._pool else map)(work, strips))

    def _values(self, theta: np.ndarray) -> list[np.ndarray]:
        """The thetas of the standard form; empty if switched off."""
        key = theta.tobytes()
        if self._values_at is None or self._values_at[0] != key:  # `contract` comes after `fill`
            with np.errstate(all="ignore"):
                values = np.exp(self.form.offset + self.form.matrix @ theta)
            self._values_at = key, [values[where] for where in self._where]
        return self._values_at[1]

    def _radial(self, theta: np.ndarray, precision: np.ndarray) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        """Function of i: the radial function on strip i, and its derivative in r2 without the factor in `SLOPES`."""
        if theta.tobytes() == self._kept_at:
            return self._kept.__getitem__
        A = self._centred * np.sqrt(precision)  # rows whose Euclidean distances are the kernel's
        norms = np.einsum("ij,ij->i", A, A)
        self._kept_at = None

        def radial(i: int) -> tuple[np.ndarray, np.ndarray]:
            memory = self._memory(i)
            self._squared_distances(self._strips[i], A, norms, *memory)
            found = of_squared_distance(self.nu, *memory)
            if self._keeps:
                self._kept[i] = found
            return found

        return radial

    def _squared_distances(
        self, strip: tuple[slice, slice], A: np.ndarray, norms: np.ndarray, out: np.ndarray, work: np.ndarray
    ) -> None:
        """sum_j theta1_j (x_j - x'_j)^2 of a strip, accurate for close rows."""
        rows, columns = strip
        if A.shape[1] <= MAX_DIFFERENCE_COLUMNS:
            out[:] = 0.0
            for a in A.T:
                np.subtract.outer(a[rows], a[columns], out=work)
                work *= work
                out += work
            return
        np.matmul(A[rows], A[columns].T, out=out)
        out *= -2
        np.add.outer(norms[rows], norms[columns], out=work)
        out += work
        work *= MIN_RELATIVE_DISTANCE
        diagonal = out.ravel()[:: out.shape[1] + 1]
        diagonal[:] = math.inf  # it is known, and must not count as close
        close = np.flatnonzero(out < work)  # entries below the diagonal too
        if len(close):
            i, j = np.divmod(close, out.shape[1])
            difference = A[rows][i] - A[columns][j]
            out.ravel()[close] = np.einsum("ij,ij->i", difference, difference)
        diagonal[:] = 0.0

    def fill(self, theta: np.ndarray, out: np.ndarray, accurate: bool = False, mirrored: bool = False) -> None:
        theta0, theta1, theta2, theta3, theta4 = self._values(theta)
        radial = self._radial(theta, theta1)

        def work(i: int) -> None:
            rows, columns = self._strips[i]
            strip = out[rows, columns]
            with np.errstate(all="ignore"):
                np.multiply(radial(i)[0], theta0, out=strip)
                if theta3.size:
                    strip += (theta3 * self.X[rows]) @ self.X[columns].T
                if theta2.size:
                    strip += theta2
            if mirrored:
                mirror(out, rows, columns)

        self._each(work)
        if theta4.size:
            out.ravel()[:: len(out) + 1] += theta4
        self._kept_at = theta.tobytes() if self._keeps else None

    def at(self, theta: np.ndarray, single: bool = False) -> "StandardOperator":
        from mercer.kernels.standard_products import StandardOperator

        return StandardOperator(self, theta, single)

    def contract(self, theta: np.ndarray, inverse: Any, a: np.ndarray) -> np.ndarray:
        theta0, theta1, theta2, theta3, theta4 = self._values(theta)
        radial = self._radial(theta, theta1)

        def work(i: int) -> tuple[float, np.ndarray, float, float]:
            """Derivatives in theta0, theta1 (without the factors theta0 and that in `SLOPES`), theta2 and theta3."""
            rows, columns = self._strips[i]
            with np.errstate(all="ignore"):
                k, in_r2 = radial(i)
                G = np.multiply.outer(a[rows], a[columns])
                G -= inverse[rows, columns]
                G[:, : len(k)] *= self._half[: len(k), : len(k)]
                in_theta2 = G.sum() if theta2.size else 0.0
                in_theta3 = np.vdot(self.X[rows], G @ self.X[columns]) if theta3.size else 0.0
                if math.isinf(self.nu):
                    G *= k
                    in_theta0 = G.sum()
                else:
                    in_theta0 = np.vdot(G, k)
                    G *= in_r2
                G.ravel()[:: G.shape[1] + 1] = 0.0  # no distance, but rounding errors in the sums below
                # sum_ij W_ij (x_i - x_j)^2, with x_i^2 and x_j^2 weighted by the sums of W's rows and columns.
                x, z = self._centred[rows], self._centred[columns]
                in_theta1 = (G @ self._ones[columns]) @ x**2 + (self._ones[rows] @ G) @ z**2
                in_theta1 -= 2 * np.einsum("ij,ij->j", x, G @ z)
            return in_theta0, in_theta1, in_theta2, in_theta3

        in_theta0, in_theta1, in_theta2, in_theta3 = (sum(parts) for parts in zip(*self._each(work), strict=True))
        with np.errstate(all="ignore"):
            in_theta1 = theta0 * theta1 * SLOPES[self.nu] * (in_theta1.sum() if theta1.size == 1 else in_theta1)
            in_theta4 = 0.5 * float(np.sum(a**2 - inverse.diagonal())) if theta4.size else 0.0
            parts = theta0 * in_theta0, in_theta1, theta2 * in_theta2, theta3 * in_theta3, theta4 * in_theta4
            return 2 * np.concatenate(parts) @ self.form.matrix
