"""Tests of a kernel on data: whether it is positive semidefinite there, and its eigenfunctions."""

import dataclasses
import textwrap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mercer.core.errors import DataError, InvalidKernelError, ParameterError
from mercer.core.inputs import Inputs, as_vector, copy_rows, count_rows
from mercer.core.text import table
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_kernel
from mercer.kernels.custom import Custom
from mercer.linalg import backend


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """Result of `check_kernel`. ``passed``: no violation was found on these inputs; prints as a short report."""

    kernel: Kernel
    n: int
    smallest_eigenvalue: float
    largest_eigenvalue: float
    tolerance: float
    asymmetry: float
    symmetric: bool
    witness: np.ndarray | None
    polynomials: int  # number that were projected out; 0 unless the kernel is conditionally valid

    def __bool__(self) -> bool:
        return self.passed

    @property
    def passed(self) -> bool:
        return self.symmetric and self.smallest_eigenvalue >= -self.tolerance

    @property
    def verdict(self) -> str:
        known = self.kernel.validity.valid
        if not self.symmetric:
            return "not a kernel: k(x, x') differs from k(x', x)"
        if not self.passed:
            return "not positive semidefinite (report.witness holds coefficients a with a^T K a < 0)"
        if self.polynomials:
            return f"conditionally positive semidefinite here, after removing {self.polynomials} polynomials"
        if known is True:
            return "positive semidefinite here, and valid by proof"
        if known is False:
            return "positive semidefinite on these inputs, but known not to be on others"
        return "positive semidefinite on these inputs, which is evidence, not a proof"

    def __str__(self) -> str:
        rows = [
            ["inputs", f"{self.n}"],
            ["smallest eigenvalue", f"{self.smallest_eigenvalue:.6g}"],
            ["largest eigenvalue", f"{self.largest_eigenvalue:.6g}"],
            ["tolerance", f"{self.tolerance:.3g}"],
            ["asymmetry", f"{self.asymmetry:.3g}"],
            ["known by rules", f"{self.kernel.validity.verdict} ({self.kernel.validity.proof})"],
            ["verdict", self.verdict],
        ]
        return table(["check of", textwrap.shorten(repr(self.kernel), 90, placeholder=" ...")], rows)

    __repr__ = __str__


def check_kernel(kernel: Any, X: Inputs) -> KernelReport:
    """Test numerically that a kernel is positive semidefinite on these inputs (PRML 6.2). O(n^3).

    Accepts a kernel, or any function of two inputs. The tolerance is n eps times the largest eigenvalue for rounding of
    the eigenvalues, and ten times that for rounding of the kernel's values. A violation proves that the kernel is not
    valid (``witness``: coefficients a with a^T K a < 0); passing is evidence only.
    A conditionally valid kernel is tested on coefficients orthogonal to its polynomials.

    >>> from mercer.kernels import Sigmoid
    >>> check_kernel(Sigmoid(a=1.0, b=-1.0), [[0.0], [1.0], [2.0]]).passed
    False
    """
    if not isinstance(kernel, Kernel):
        kernel = Custom(kernel) if callable(kernel) and not _is_convertible(kernel) else as_kernel(kernel)
    n = count_rows(X)
    if n == 0:
        raise DataError("check_kernel needs at least one input; X has no rows.")
    K = np.array(kernel(X))
    scale = np.abs(K).max()
    asymmetry = np.abs(K - K.T).max()
    K = (K + K.T) / 2
    P = np.empty((n, 0))
    if kernel.null_space is not None:
        P, Q = _range_and_complement(kernel.null_space(X, standardized=True))
        K = Q.T @ K @ Q
    else:
        Q = np.eye(n)
    if K.size == 0:
        raise DataError(f"{n} inputs are too few: nothing is left to test after removing {P.shape[1]} polynomials.")
    values, vectors = backend.eigenpairs(K)
    tolerance = 11 * n * np.finfo(float).eps * max(abs(values[0]), abs(values[-1]), scale if P.size else 0.0)
    witness = Q @ vectors[:, 0] if values[0] < -tolerance else None
    return KernelReport(
        kernel, n, float(values[0]), float(values[-1]), float(tolerance), float(asymmetry),
        bool(asymmetry <= 1e-10 * scale), witness, P.shape[1],
    )  # fmt: skip


def _range_and_complement(P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the span of P's columns, and of its orthogonal complement."""
    U, singular, _ = np.linalg.svd(P)
    rank = int((singular > np.finfo(float).eps * max(P.shape) * singular.max(initial=0.0)).sum())
    return U[:, :rank], U[:, rank:]


def _is_convertible(kernel: Any) -> bool:
    """Whether `as_kernel` accepts it, or has a better message for it."""
    return isinstance(kernel, type) or as_kernel(kernel, or_none=True) is not None


@dataclasses.dataclass(frozen=True)
class MercerExpansion:
    """k(x, x') = sum_i lambda_i psi_i(x) psi_i(x'), truncated: ``eigenvalues`` (n,), ``eigenfunctions(Z)`` (m, n).

    Eigenfunctions are orthonormal under the measure of the inputs: sum_j w_j psi_i(x_j) psi_k(x_j) = delta_ik.
    """

    kernel: Kernel
    eigenvalues: np.ndarray
    _X: Inputs
    _coefficients: np.ndarray  # psi(z) = k(z, X) @ coefficients

    def eigenfunctions(self, Z: Inputs) -> np.ndarray:
        """psi_i at any inputs (m, n), by the Nystrom formula psi_i(z) = 1/lambda_i sum_j w_j k(z, x_j) psi_i(x_j)."""
        return self.kernel(Z, self._X) @ self._coefficients

    def features(self, Z: Inputs) -> np.ndarray:
        """sqrt(lambda_i) psi_i(z) (m, n): explicit features whose scalar product approximates the kernel."""
        return self.eigenfunctions(Z) * np.sqrt(self.eigenvalues)

    def __repr__(self) -> str:
        first = ", ".join(f"{v:.4g}" for v in self.eigenvalues[:5])
        return f"MercerExpansion of {self.kernel!r}: {len(self.eigenvalues)} eigenvalues [{first}, ...]"


def mercer_expansion(kernel: Any, X: Inputs, n: int, weights: ArrayLike | None = None) -> MercerExpansion:
    """Expand a kernel in its n leading eigenfunctions under the measure that X represents (Mercer's theorem).

    X is a sample from the measure, or the nodes of a quadrature rule with ``weights`` (which then sum to the total
    mass). The integral equation becomes the eigenproblem of W^1/2 K W^1/2; errors fall as 1/sqrt(N) for a sample and
    as fast as the rule converges for a quadrature. O(N^2 n) beyond the Gram matrix's N^2.
    """
    kernel = as_kernel(kernel)
    if kernel.validity.valid is False:
        raise InvalidKernelError(
            f"Mercer's theorem holds for positive semidefinite kernels; {kernel!r} is {kernel.validity.verdict}."
        )
    N = count_rows(X)
    if not isinstance(n, int | np.integer) or not 1 <= n <= N:
        raise ParameterError(f"n must be an integer between 1 and the number of inputs, {N}; got {n!r}.")
    w = np.full(N, 1 / N) if weights is None else as_vector(weights, N, "weights")
    if np.any(w < 0):
        raise ParameterError("weights must not be negative.")
    root = np.sqrt(w)
    K = np.array(kernel(X))
    K *= root[:, None] * root[None, :]
    values, vectors = backend.eigenpairs(K, last=n, in_place=True)
    values, vectors = values[::-1], vectors[:, ::-1]
    floor = N * np.finfo(float).eps * values[0]
    if values[-1] <= floor:
        kept = int(np.sum(values > floor))
        raise ParameterError(
            f"only {kept} eigenvalues exceed rounding errors on these inputs; n must be at most {kept}, got {n}."
        )
    # The largest component is made positive, so that signs do not depend on the eigensolver.
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(n)])
    return MercerExpansion(kernel, values, copy_rows(X), root[:, None] * vectors / values)
