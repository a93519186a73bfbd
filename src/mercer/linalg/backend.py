"""Dense CPU linear algebra, in place, by SciPy's BLAS and LAPACK. Code outside `mercer.linalg` uses these functions for
large matrices.

A symmetric matrix is the lower triangle of a Fortran-ordered array; its upper triangle is not read. In C order that is
the upper triangle, which kernels write.

Factorisations and inversions call LAPACK by its address. SciPy's wrappers admit one thread at a time; called directly,
two threads that factorise a matrix each take half the time.
"""

import ctypes
from collections.abc import Callable

import numpy as np
from scipy import linalg
from scipy.linalg import blas, cython_lapack, lapack


def _lower(name: str, options: int) -> Callable[[np.ndarray], int]:
    """LAPACK subroutine on the lower triangle of a square matrix, in place, which returns LAPACK's ``info``.
    ``options``: number of its character arguments."""
    capsule, api = cython_lapack.__pyx_capi__[name], ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    integer = ctypes.POINTER(ctypes.c_int)
    letters = (b"L", b"N")[:options]
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_char_p] * options, integer, ctypes.c_void_p, integer, integer)(address)

    def run(A: np.ndarray) -> int:
        if A.dtype != float or not A.flags.f_contiguous or not A.flags.writeable:  # LAPACK would corrupt memory
            raise ValueError(f"{name} needs a writeable Fortran-ordered matrix of doubles; got {A.dtype}, {A.flags}.")
        order, info = ctypes.c_int(len(A)), ctypes.c_int(0)
        if len(A):
            call(*letters, order, A.ctypes.data, order, info)
        return info.value

    return run


_potrf, _potri, _lauum, _trtri = _lower("dpotrf", 1), _lower("dpotri", 1), _lower("dlauum", 1), _lower("dtrtri", 2)


# -- factors -------------------------------------------------------------------------------------------------------


def factor(A: np.ndarray, clean: bool = False) -> bool:
    """Overwrite A with its Cholesky factor L; False if A is not positive definite. n^3/3 flops. With ``clean``, zeros
    above the diagonal."""
    failed = _potrf(A)
    if clean:
        for j in range(1, len(A)):
            A[:j, j] = 0.0
    # NaN may pass through potrf, but not through this.
    return not failed and (len(A) == 0 or bool(A.diagonal().min() > 0))


def solve(L: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(L L^T)^-1 b."""
    return lapack.dpotrs(L, b, lower=1)[0] if len(L) else np.array(b, dtype=float)


def half_solve(L: np.ndarray, b: np.ndarray, transposed: bool = False, in_place: bool = False) -> np.ndarray:
    """L^-1 b, or L^-T b. In place b is a Fortran-ordered matrix."""
    if len(L) == 0:
        return np.array(b, dtype=float)
    if np.ndim(b) == 1:
        return blas.dtrsv(L, b, lower=1, trans=transposed)
    return blas.dtrsm(1.0, L, b, lower=1, trans_a=transposed, overwrite_b=in_place)


def pivoted_factor(A: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Cholesky factor with pivoting, up to a remainder whose diagonal is below ``tolerance``: the factor, in A's lower
    triangle, the order of the rows, and the rank. n r^2 flops. May overwrite a Fortran-ordered A."""
    factored, pivots, rank, _ = lapack.dpstrf(A, tol=tolerance, lower=1, overwrite_a=1)
    return factored, pivots - 1, rank


def factor_indefinite(A: np.ndarray) -> tuple[np.ndarray, bool]:
    """Overwrite a symmetric A with its factors L D L^T; returns the pivots, and whether D has an inverse. n^3/3
    flops."""
    _, pivots, singular = lapack.dsytrf(A, lower=1, lwork=64 * len(A), overwrite_a=1)
    return pivots, singular == 0


def solve_indefinite(A: np.ndarray, pivots: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(L D L^T)^-1 b, from `factor_indefinite`. Overwrites a Fortran-ordered b."""
    return lapack.dsytrs(A, pivots, b, lower=1, overwrite_b=1)[0]


def reflectors(P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Householder reflectors of P = Q R (n, p), packed below the diagonal of R, and their factors (p,)."""
    packed, factors, _, _ = lapack.dgeqrf(np.asfortranarray(P, dtype=float))
    return packed, factors


def upper_solve(R: np.ndarray, b: np.ndarray) -> np.ndarray:
    """R^-1 b for an upper triangular R."""
    return lapack.dtrtrs(R, b)[0]


def invert(L: np.ndarray) -> None:
    """Overwrite L with (L L^T)^-1. 2/3 n^3 flops."""
    _potri(L)


def half_invert(L: np.ndarray) -> None:
    """Overwrite L with L^-1. n^3/3 flops."""
    _trtri(L)


def half_square(R: np.ndarray) -> None:
    """Overwrite a lower triangular R with R^T R. n^3/3 flops."""
    _lauum(R)


# -- products ------------------------------------------------------------------------------------------------------


def product(A: np.ndarray, b: np.ndarray, lower: bool = True) -> np.ndarray:
    """A b for a symmetric A; ``lower=False`` reads its upper triangle."""
    if np.ndim(b) == 1:
        return blas.dsymv(1.0, A, b, lower=lower)
    return blas.dsymm(1.0, A, b, lower=lower)


def half_product(L: np.ndarray, b: np.ndarray, transposed: bool = False, in_place: bool = False) -> np.ndarray:
    """L b, or L^T b, for a lower triangular L."""
    if np.ndim(b) == 1:
        return blas.dtrmv(L, b, lower=1, trans=transposed)
    return blas.dtrmm(1.0, L, b, lower=1, trans_a=transposed, overwrite_b=in_place)


def gram(X: np.ndarray) -> np.ndarray:
    """X^T X, a new matrix, lower triangle only."""
    return blas.dsyrk(1.0, X, trans=1, lower=1)


def add_squares(A: np.ndarray, X: np.ndarray) -> None:
    """Add X X^T to the lower triangle of a Fortran-ordered A, in place, for a Fortran-ordered X."""
    blas.dsyrk(1.0, X, beta=1.0, c=A, lower=1, overwrite_c=1)


def subtract_gram(A: np.ndarray, X: np.ndarray) -> None:
    """Subtract X^T X from A, in place."""
    blas.dsyrk(-1.0, X, trans=1, beta=1.0, c=A, lower=1, overwrite_c=1)


def subtract_products(A: np.ndarray, U: np.ndarray, V: np.ndarray) -> None:
    """Subtract U V^T + V U^T from A, in place, for vectors or columns."""
    if np.ndim(U) == 1:
        blas.dsyr2(-1.0, U, V, a=A, lower=1, overwrite_a=1)
    else:
        blas.dsyr2k(-1.0, U, V, beta=1.0, c=A, lower=1, overwrite_c=1)


def subtract_squares(A: np.ndarray, U: np.ndarray) -> None:
    """Subtract U U^T from A, in place, for a few columns."""
    for column in U.T:
        blas.dsyr(-1.0, column, a=A, lower=1, overwrite_a=1)


# -- spectra -------------------------------------------------------------------------------------------------------


def eigenpairs(A: np.ndarray, last: int | None = None, in_place: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix; only the ``last`` largest if given."""
    n = len(A)
    which = None if last is None else (n - last, n - 1)
    return linalg.eigh(A, subset_by_index=which, overwrite_a=in_place, check_finite=False, driver="evr")


def svd(A: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin singular value decomposition A = U diag(s) V^T: U, s descending, V^T."""
    return linalg.svd(A, full_matrices=False)
