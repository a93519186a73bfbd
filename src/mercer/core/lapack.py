"""SciPy's LAPACK, loaded so that its idle threads make room.

After every call OpenBLAS lets its threads spin for tens of milliseconds in case another follows. Between two
factorisations mercer computes kernels on the same cores, and measured one and a half times slower beside the spinning.
OpenBLAS reads how long to spin when it is loaded: if SciPy is not loaded yet, we ask for half a millisecond (2^20
cycles), which costs the factorisations nothing. What the user has set stays.
"""

import functools
import os

_SPIN = "OPENBLAS_THREAD_TIMEOUT"
_ours = _SPIN not in os.environ
if _ours:
    os.environ[_SPIN] = "20"
try:
    from scipy import linalg
    from scipy.linalg import blas, lapack
finally:
    if _ours:
        del os.environ[_SPIN]


@functools.cache
def _controller():
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # comes with scikit-learn

    return ThreadpoolController()


def one_thread():
    """Context in which BLAS uses one thread. For hundreds of small products in a row: threads gain little by them,
    and where other programs keep the cores busy they wait for each other, many times longer than the work takes."""
    return _controller().limit(limits=1, user_api="blas")


__all__ = ["blas", "lapack", "linalg", "one_thread"]
