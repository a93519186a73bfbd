"""Evidence of measurements on a grid, from the structure of the covariance of its cells."""

import dataclasses
from typing import Any, Self

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs
from mercer.kernels.base import Kernel
from mercer.linalg.cells import Cells, Structured
from mercer.linalg.kronecker import Kronecker, row_dots, row_products
from mercer.linalg.toeplitz import Toeplitz
from mercer.linalg.toeplitz_blocks import ToeplitzBlocks
from mercer.solvers.base import Evaluation, Evidence, left_out
from mercer.solvers.grid_rows import Lattice, find

SAME_VARIANCE = 1e-12  # relative difference of noise variances that is rounding


# -- the covariance of the cells -----------------------------------------------------------------------------------


class Lattices:
    """K of the cells of a grid for many values of theta, in structured form. Use it in a ``with`` block.

    The kernel is evaluated as it is, on few rows: `pair` are two measurements at the reference, whose covariance is
    [[k + w, k], [k, k + w]] with w the white noise in the kernel.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.pair = gram.Gram(lattice.kernel, np.repeat(lattice.reference, 2, axis=0)).varying()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def variances(self, theta: np.ndarray) -> tuple[float, float]:
        """k at the reference, and the white noise."""
        K = np.zeros((2, 2))
        self.pair.fill(theta, K, accurate=True)
        return float(K[0, 1]), float(K[0, 0] - K[0, 1])

    def at(self, theta: np.ndarray, noise: float) -> Structured | None:
        """K + noise I, without white noise; None if it is not positive definite."""
        raise NotImplementedError

    def contract(self, theta: np.ndarray, slopes: list[np.ndarray], in_white: float) -> np.ndarray:
        """Gradient in theta, from those in what `at` is made of and in the white noise."""
        raise NotImplementedError

    def cross(self, Z: np.ndarray, base: Any) -> np.ndarray:
        """Covariances of new rows with the cells, inward: (s, N)."""
        raise NotImplementedError

    def dots(self, Z: np.ndarray, base: Any, M: np.ndarray, squares: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """For the covariances b of each new row with the cells, b^T M for M inward (N, k), and b^T C^-1 b if
        ``squares``: (s, k), (s,)."""
        B = self.cross(Z, base)
        return B @ M, base.quadratic(B.T) if squares else np.zeros(0)

    def _in_pair(self, theta: np.ndarray, in_k: float, in_white: float) -> np.ndarray:
        """Gradient in theta from those in k and w of `pair`."""
        weights = np.array([[in_white, in_k - in_white], [in_k - in_white, in_white]]) / 2
        return self.pair.contract(theta, -weights, np.zeros(2))


class Slices(Lattices):
    """K = K_1 x ... x K_G of a kernel that is a product over groups of columns, by its slices S_g through a reference
    cell: K_1 = S_1 and K_g = S_g / k with k the variance at the reference."""

    def __init__(self, lattice: Lattice) -> None:
        super().__init__(lattice)
        self.grams = [gram.Gram(lattice.kernel, lattice.slice(g)) for g in range(len(lattice.values))]
        self.parts = [each.varying() for each in self.grams]
        self.factors: list[np.ndarray] = []  # as of the last call of `at`, and the variance at the reference
        self.unit = 1.0

    def __enter__(self) -> Self:
        for part in self.parts:
            part.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for part in self.parts:
            part.__exit__(*error)

    def at(self, theta: np.ndarray, noise: float) -> Kronecker | None:
        k, white = self.variances(theta)
        if not (k > 0 and np.isfinite(k)):
            return None
        self.factors, self.unit = [], k
        for part, n in zip(self.parts, self.lattice.shape, strict=True):
            S = np.empty((n, n))
            part.fill(theta, S, accurate=True, mirrored=True)
            S[np.diag_indices(n)] -= white
            self.factors.append(S / k if self.factors else S)
        return Kronecker.of(self.factors, noise)

    def contract(self, theta: np.ndarray, slopes: list[np.ndarray], in_white: float) -> np.ndarray:
        k, in_k, total = self.unit, 0.0, np.zeros(len(theta))
        for g, (part, W, K) in enumerate(zip(self.parts, slopes, self.factors, strict=True)):
            if g:
                in_k -= float(np.sum(W * K)) / k
                W = W / k
            in_white -= float(np.trace(W))
            total = total + part.contract(theta, np.ascontiguousarray(-W), np.zeros(len(W)))
        return total + self._in_pair(theta, in_k, in_white)

    def cross(self, Z: np.ndarray, base: Kronecker) -> np.ndarray:
        return row_products(self._across(Z, base))

    def dots(
        self, Z: np.ndarray, base: Kronecker, M: np.ndarray, squares: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        if M.shape[1] > base.shape[0]:  # then the covariances themselves are the smaller matrix
            return super().dots(Z, base, M, squares)
        across, inverse = self._across(Z, base), 1 / base.spectrum[:, None]
        return row_dots(across, M), row_dots([A**2 for A in across], inverse)[:, 0] if squares else np.zeros(0)

    def _across(self, Z: np.ndarray, base: Kronecker) -> list[np.ndarray]:
        """Factors of the covariances of new rows with the cells, inward: (s, n_g)."""
        out: list[np.ndarray] = []
        for g, (own, V) in enumerate(zip(self.grams, base.vectors, strict=True)):
            across = gram.between(own.kernel, self.lattice.along(g, Z[:, list(self.lattice.columns[g])]), own) @ V
            out.append(across / self.unit if g else across)
        return out


class Steps(Lattices):
    """K of a stationary kernel at equal steps, from its first row."""

    def __init__(self, lattice: Lattice) -> None:
        super().__init__(lattice)
        self.inputs = lattice.inputs()
        self.row = gram.FirstRow(lattice.kernel, self.inputs)

    def at(self, theta: np.ndarray, noise: float) -> Toeplitz | None:
        return Toeplitz.of(self.row.fill(theta), noise)

    def contract(self, theta: np.ndarray, slopes: list[np.ndarray], in_white: float) -> np.ndarray:
        return self.row.contract(theta, slopes[0]) + self._in_pair(theta, 0.0, in_white)

    def cross(self, Z: np.ndarray, base: Toeplitz) -> np.ndarray:
        return gram.between(self.lattice.kernel, Z, self.inputs)


class SliceAndSteps(Lattices):
    """K x T of a product kernel on places x equal steps: a slice through the reference, and the first row of the other,
    divided by the variance k at the reference."""

    def __init__(self, lattice: Lattice) -> None:
        super().__init__(lattice)
        self.grams = [gram.Gram(lattice.kernel, lattice.slice(g)) for g in range(2)]
        self.part, self.row = self.grams[0].varying(), gram.FirstRow(lattice.kernel, lattice.slice(1))
        self.unit, self.own = 1.0, np.zeros(0)  # as of the last call of `at`: k, and the first row over k

    def __enter__(self) -> Self:
        self.part.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.part.__exit__(*error)

    def at(self, theta: np.ndarray, noise: float) -> ToeplitzBlocks | None:
        (k, white), m = self.variances(theta), self.lattice.shape[0]
        if not (k > 0 and np.isfinite(k)):
            return None
        S = np.empty((m, m))
        self.part.fill(theta, S, accurate=True, mirrored=True)
        S[np.diag_indices(m)] -= white
        self.unit, self.own = k, self.row.fill(theta) / k
        return ToeplitzBlocks.of(S, self.own, noise)

    def contract(self, theta: np.ndarray, slopes: list[np.ndarray], in_white: float) -> np.ndarray:
        W, in_row = slopes
        total = self.part.contract(theta, np.ascontiguousarray(-W), np.zeros(len(W)))
        total = total + self.row.contract(theta, in_row / self.unit)
        return total + self._in_pair(theta, -float(in_row @ self.own) / self.unit, in_white - float(np.trace(W)))

    def _across(self, Z: np.ndarray, base: ToeplitzBlocks) -> list[np.ndarray]:
        """Factors of the covariances of new rows with the cells, inward: (s, m), (s, n)."""
        columns = self.lattice.columns
        own = [
            gram.between(each.kernel, self.lattice.along(g, Z[:, list(columns[g])]), each)
            for g, each in enumerate(self.grams)
        ]
        return [own[0] @ base.vectors, own[1] / self.unit]

    def cross(self, Z: np.ndarray, base: ToeplitzBlocks) -> np.ndarray:
        return row_products(self._across(Z, base))

    def dots(
        self, Z: np.ndarray, base: ToeplitzBlocks, M: np.ndarray, squares: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        A, B = self._across(Z, base)
        found = row_products([A, B]) @ M if M.shape[1] > len(base.values) else row_dots([A, B], M)
        if not squares:
            return found, np.zeros(0)
        return found, sum(A[:, i] ** 2 * block.quadratic(B.T) for i, block in enumerate(base.blocks))


def lattices(lattice: Lattice) -> Lattices:
    if lattice.step is None:
        return Slices(lattice)
    return Steps(lattice) if len(lattice.values) == 1 else SliceAndSteps(lattice)


# -- the covariance of the rows ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """C = Z K Z^T + diag(variances) of n measurements in the cells of a grid, Z (n, N) telling the cell of each.

    Measurements of one cell are as one, their mean weighted by precision, with the harmonic variance v_c:
    (C^-1 b)_i = v_c / v_i (C_c^-1 b_c)_c + (b_i - b_c) / v_i, with C_c = K + diag(v_c) and b_c the weighted mean.
    """

    cell: np.ndarray
    variances: np.ndarray
    share: np.ndarray  # v_c / v_i
    cells: Cells
    common: float  # variance of cells that are neither missing nor have one of their own
    log_det: float

    @classmethod
    def of(cls, K: Lattices, theta: np.ndarray, noise: np.ndarray) -> "Measured | None":
        """None where C is not positive definite. ``noise``: beside the white noise in the kernel."""
        cell, variances = K.lattice.cell, noise + K.variances(theta)[1]
        if not (np.isfinite(variances).all() and (variances > 0).all()):
            return None
        precision = np.bincount(cell, 1 / variances, K.lattice.size)
        there = precision > 0
        own = np.where(there, 1 / np.where(there, precision, 1.0), np.inf)
        common = most_common(own[there])
        other = np.flatnonzero(np.abs(own - common) > SAME_VARIANCE * common)
        base = K.at(theta, common)
        cells = None if base is None else Cells.of(base, other, own[other] - common)
        if cells is None:
            return None
        log_det = cells.log_determinant + float(np.log(variances).sum() - np.log(own[there]).sum())
        return cls(cell, variances, own[cell] / variances, cells, common, log_det)

    def summed(self, b: np.ndarray) -> np.ndarray:
        """Z^T b: (N, k)."""
        size = self.cells.base.size
        return np.stack([np.bincount(self.cell, column, size) for column in b.T], axis=1)

    def solve(self, b: np.ndarray) -> np.ndarray:
        """C^-1 b: (n, k)."""
        mean = self.summed(self.share[:, None] * b)
        solved = self.cells.solve(mean)
        return self.share[:, None] * solved[self.cell] + (b - mean[self.cell]) / self.variances[:, None]

    def times(self, b: np.ndarray) -> np.ndarray:
        """C b: (n, k)."""
        base, total = self.cells.base, self.summed(b)
        K_b = base.times(total) - self.common * total
        return K_b[self.cell] + self.variances[:, None] * b

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of C^-1: (n,)."""
        of_cells = self.cells.inverse_diagonal()[self.cell]
        return (1 - self.share) / self.variances + self.share**2 * of_cells


def most_common(variances: np.ndarray) -> float:
    """The variance that most cells have, to rounding."""
    values, counts = np.unique(np.round(np.log(variances), 11), return_counts=True)
    best = values[np.argmax(counts)]
    return float(variances[np.argmin(np.abs(np.log(variances) - best))])


# -- evidence --------------------------------------------------------------------------------------------------------


class GridEvidence(Evidence):
    """Evidence of measurements on a grid: sum_g n_g^3 + N sum_g n_g flops, or n^2 at equal steps of one input, and
    N q^2 for q cells that are missing or have a noise of their own."""

    def _representation(self, kernel: Kernel, X: Inputs) -> Lattices:
        found = find(kernel, X)
        assert isinstance(found, Lattice)
        return lattices(found)

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        y = self._residual(theta)
        with np.errstate(all="ignore"):
            measured = Measured.of(self.K, own, noise)
        if measured is None:
            return None
        self.diagonal = sum(self.K.variances(own))
        solved = measured.solve(np.column_stack([y, self.H]))
        a, log_det, half = solved[:, 0], measured.log_det, np.zeros((self.n, 0))
        if self.H.shape[1]:
            trend = self._trend(solved[:, 1:])
            if trend is None:
                return None
            a, log_det, half = trend.contrasted(a, y), log_det + trend.log_det(), trend.half
        answer = self._answer(log_det, a, float(y @ a), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        diagonal = measured.inverse_diagonal() - np.einsum("ij,ij->i", half, half)
        self._left_out = left_out(a, diagonal)
        both = measured.summed(np.column_stack([a, half]))
        slopes = measured.cells.slopes(both, np.ones(both.shape[1]))
        slope = self.K.contract(own, slopes, 0.5 * float(np.sum(a**2 - diagonal)))
        slope = self._slope(theta, slope, a, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self(theta) is None else self._left_out
