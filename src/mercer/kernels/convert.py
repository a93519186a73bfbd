"""Conversion of scikit-learn's Gaussian process kernels."""

import math
import reprlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.core.errors import InvalidKernelError
from mercer.core.inputs import Inputs
from mercer.kernels.base import Kernel
from mercer.kernels.dot import Linear, Polynomial, Sigmoid
from mercer.kernels.periodic import RadialPeriodic
from mercer.kernels.stationary import RBF, Constant, Matern, RationalQuadratic, White


def as_kernel(kernel: Any, or_none: bool = False) -> Any:
    """Convert a mercer kernel or a scikit-learn Gaussian process kernel to a mercer kernel.

    Anything else is refused, or gives None if ``or_none``.
    """
    if isinstance(kernel, Kernel):
        return kernel
    # If it is one of scikit-learn's kernels, they have been imported: no need to do so here.
    theirs = sys.modules.get("sklearn.gaussian_process.kernels")
    if theirs is not None and isinstance(kernel, theirs.Kernel):
        return from_sklearn(kernel)
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise InvalidKernelError(f"{kernel.__name__} is a class; write {kernel.__name__}() for a kernel.")
    if or_none:
        return None
    raise InvalidKernelError(
        f"a kernel was expected, from mercer.kernels or scikit-learn; got {reprlib.repr(kernel)} "
        f"({type(kernel).__name__}). Use kernels.Custom(f) for a function of two inputs, kernels.Precomputed(K) for a "
        "matrix."
    )


def from_sklearn(kernel: Any) -> Kernel:
    """Mercer kernel with the same Gram matrices. Parameters whose bounds are "fixed" are fixed."""
    from sklearn.gaussian_process import kernels as sk

    # Exact types: a subclass may have changed the formula.
    kind = type(kernel)
    if kind is sk.Sum:
        return from_sklearn(kernel.k1) + from_sklearn(kernel.k2)
    if kind is sk.Product:
        return from_sklearn(kernel.k1) * from_sklearn(kernel.k2)
    if kind is sk.Exponentiation:
        exponent = kernel.exponent
        return from_sklearn(kernel.kernel) ** (int(exponent) if float(exponent).is_integer() else exponent)
    if kind is sk.ConstantKernel and isinstance(kernel.constant_value, Kernel):
        return kernel.constant_value  # made by scikit-learn of `its kernel + ours`
    if kind.__name__ in _COUNTERPARTS and kind.__module__ == sk.__name__:
        return _COUNTERPARTS[kind.__name__](kernel)
    raise InvalidKernelError(
        f"scikit-learn's {kind.__name__} has no counterpart in mercer. Supported: "
        f"{', '.join(_COUNTERPARTS)}, Sum, Product, Exponentiation; "
        "use kernels.Custom(f) for any function of two inputs."
    )


def _fixed(kernel: Kernel, theirs: Any, **names: str) -> Kernel:
    """``kernel`` with parameters fixed whose bounds in scikit-learn's kernel are "fixed"; ``names``: ours to bounds."""
    fixed = [mine for mine, bounds in names.items() if isinstance(getattr(theirs, bounds), str)]
    return kernel.fix(*fixed) if fixed else kernel


def _lengthscale(k: Any) -> np.ndarray:
    return np.asarray(k.length_scale, dtype=float)


def _matern(k: Any) -> Kernel:
    ours = RBF(_lengthscale(k)) if math.isinf(k.nu) else Matern(_lengthscale(k), nu=float(k.nu))
    return _fixed(ours, k, lengthscale="length_scale_bounds")


def _pairwise(k: Any) -> Kernel:
    given = dict(k.pairwise_kernels_kwargs or {})
    degree, coef0 = given.pop("degree", 3), given.pop("coef0", 1.0)
    made: dict[str, Callable[[], Kernel]] = {
        "linear": lambda: Linear(),
        "rbf": lambda: RBF(1 / math.sqrt(2 * k.gamma)),
        "poly": lambda: k.gamma**degree * Polynomial(degree, offset=coef0 / k.gamma),
        "polynomial": lambda: k.gamma**degree * Polynomial(degree, offset=coef0 / k.gamma),
        "sigmoid": lambda: Sigmoid(a=k.gamma, b=coef0),
        "cosine": lambda: Linear().normalize(),
    }
    if k.metric not in made:
        raise InvalidKernelError(
            f"scikit-learn's PairwiseKernel(metric={k.metric!r}) has no counterpart in mercer. Supported metrics: "
            f"{', '.join(made)}; use kernels.Custom(f) for any function of two inputs."
        )
    ours = made[k.metric]()
    return ours.fix() if isinstance(k.gamma_bounds, str) and len(ours.parameters) else ours


_COUNTERPARTS: dict[str, Callable[[Any], Kernel]] = {
    "ConstantKernel": lambda k: _fixed(Constant(k.constant_value), k, variance="constant_value_bounds"),
    "WhiteKernel": lambda k: _fixed(White(k.noise_level), k, variance="noise_level_bounds"),
    "RBF": lambda k: _fixed(RBF(_lengthscale(k)), k, lengthscale="length_scale_bounds"),
    "Matern": _matern,
    "RationalQuadratic": lambda k: _fixed(
        RationalQuadratic(k.length_scale, alpha=k.alpha), k, lengthscale="length_scale_bounds", alpha="alpha_bounds"
    ),
    "ExpSineSquared": lambda k: _fixed(
        RadialPeriodic(k.length_scale, period=k.periodicity),
        k,
        lengthscale="length_scale_bounds",
        period="periodicity_bounds",
    ),
    "DotProduct": lambda k: (
        _fixed(Polynomial(1, offset=k.sigma_0**2), k, offset="sigma_0_bounds") if k.sigma_0 else Linear()
    ),
    "PairwiseKernel": _pairwise,
}


def as_covariance(kernel: Any, what: str, allow_invalid: bool = False, X: Inputs = None) -> Kernel:
    """Convert to a kernel, fitted to ``X`` where these are given. One known not to be positive semidefinite is refused,
    unless ``allow_invalid``; ``what`` is the model that needs it."""
    kernel = as_kernel(kernel) if X is None else as_kernel(kernel).fitted(X)
    validity = kernel.validity
    if validity.valid is False and not allow_invalid:
        hint = (
            "It needs the polynomials of its null space in the model. "
            if validity.conditional is not None
            else "Its Gram matrices may have negative eigenvalues, which no covariance has. "
        )
        raise InvalidKernelError(
            f"{what} needs a positive semidefinite kernel (6.2); {kernel!r} is "
            f"{validity.verdict} ({validity.proof}: {validity.proof.says}). {hint}"
            "Pass allow_invalid=True to use it anyway."
        )
    return kernel
