"""Kernels to start learning from, on the scale of the data, and what is known about a kernel's amplitude."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout
from mercer.core.errors import DataError
from mercer.core.inputs import (
    Inputs,
    as_matrix,
    centre_and_spread,
    count_rows,
    middle_spread,
    select_columns,
    take_rows,
)
from mercer.core.parameters import children_of, evolve, evolve_at
from mercer.kernels import RBF, Constant, FeatureMap, Kernel, Linear, Polynomial, Standard, White
from mercer.kernels.algebra import Power, Product, Scale, Sum
from mercer.kernels.space import OfPlaces
from mercer.kernels.stationary import Isotropic
from mercer.kernels.substitution import Modulate, On, Warp

NOISE_SHARES = (0.1, 0.003)  # of the variance of y, where the noise starts
CANCELLATION_FACTORS = (1e4, 1e8, 1e12)  # on the variance of terms that cancel each other
MEANINGLESS_SPREAD_RATIO = 0.01  # of the middle half's spread to that of all rows: a sentinel, or another unit
LENGTH_FACTORS = (1.0, 1 / 3, 3.0, 0.1)  # on the lengthscales
MAX_SPREADS_FROM_ZERO = 5.0  # of an input: beyond it a line through zero is hardly a line
MIN_MARGINAL_ROWS, MIN_MARGINAL_SHARE = 30, 3.0  # the share, times sqrt(n): what no input explains by chance
MAX_VARIATION_ROWS = 200  # enough to estimate how much a function varies

Place = tuple[tuple[Any, ...], str]  # of a parameter in a kernel: path and field


# -- kernels on the scale of the data ------------------------------------------------------------------------------


def standard_kernel(X: Inputs, one_each: bool = True, constant: bool = True) -> Standard:
    """The standard kernel (PRML 6.72) on inputs centred and scaled to unit spread, so that its thetas compare; with one
    lengthscale for each input (ARD), or one for all; with its constant, or without."""
    X = as_matrix(X)
    shift, scale = _centre_and_spread(X)
    d = X.shape[1]
    theta1 = np.full(d, 1.0 / d) if one_each else 1.0 / d
    return Standard(1.0, theta1, 0.1 if constant else 0.0, 0.1 / d, shift=shift, scale=scale)


def radial_kernel(X: Inputs, factor: float = 1.0, weights: np.ndarray | None = None) -> RBF:
    """Gaussian kernel with lengthscales ``factor`` sqrt(d) times the spread of each input: typical rows are one
    apart."""
    X = as_matrix(X)
    return RBF(factor * np.sqrt(X.shape[1]) * _centre_and_spread(X, weights)[1])


def _centre_and_spread(X: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """As `centre_and_spread`, with the spread of the middle rows where a few values make that of all meaningless."""
    centre, spread = centre_and_spread(X, weights)
    return centre, middle_spread(X, spread, MEANINGLESS_SPREAD_RATIO)


def starting_kernels(kernel: Kernel, X: Inputs, variance: float = 1.0, centred: bool = False) -> list[Kernel]:
    """The kernel as given, and with default lengthscales, or amplitudes, brought to the scale of the data; ``variance``
    is the target's. ``centred``: whether the mean is unknown, so that of every term only what varies over the rows
    counts. X may be prepared: a `Gram`."""
    stretched = [with_lengthscales(kernel, gram.raw(X), factor) for factor in LENGTH_FACTORS]
    rescaled = [
        scaled_to_variance(candidate, X, variance, centred)
        for candidate in (kernel, *(stretched if centred else stretched[:1]))
    ]
    if not kernel.stationary and getattr(kernel, "shift", None) is None and not centred:
        # Terms that grow with the inputs cancel each other far from zero: y = w0 + w1 x with x in the thousands.
        rescaled += [scaled_to_variance(kernel, X, variance * factor) for factor in CANCELLATION_FACTORS]
    unique: list[Kernel] = []
    for candidate in [kernel, *stretched, *rescaled]:
        if candidate not in unique:
            unique.append(candidate)
    return unique


def with_lengthscales(kernel: Kernel, X: Inputs, factor: float, always: bool = False) -> Kernel:
    """A copy whose lengthscales left at 1, or if ``always`` all that may move, are ``factor`` times the spread of the
    inputs, and sqrt(d) for d of them."""
    if isinstance(kernel, On):
        try:
            X = select_columns(X, kernel.selection)
        except DataError:
            return kernel
    if isinstance(kernel, Warp):
        return kernel  # what its inner kernel sees is not X
    if isinstance(kernel, OfPlaces):
        return evolve(kernel, inner=with_lengthscales(kernel.inner, kernel.coordinates(X), factor, always))
    if isinstance(kernel, Standard) and "theta1" not in kernel.fixed:
        if kernel.shift is not None:  # made by `standard_kernel`: its inputs have unit spread
            theta1 = np.full_like(kernel.theta1, 1 / max(1, np.size(kernel.shift))) if always else kernel.theta1
            return evolve(kernel, theta1=theta1 / factor**2)
        if always or np.all(np.asarray(kernel.theta1) == 1.0):
            lengths = _lengthscales(X, np.shape(kernel.theta1), factor)
            return kernel if lengths is None else evolve(kernel, theta1=1 / lengths**2)
    movable = "lengthscale" not in kernel.fixed
    if isinstance(kernel, Isotropic) and movable and (always or np.all(np.asarray(kernel.lengthscale) == 1.0)):
        lengths = _lengthscales(X, np.shape(kernel.lengthscale), factor)
        return kernel if lengths is None else evolve(kernel, lengthscale=lengths)
    for path, child in children_of(kernel):
        if isinstance(child, Kernel):
            kernel = evolve_at(kernel, path, **vars(with_lengthscales(child, X, factor, always)))
    return kernel


def _lengthscales(X: Inputs, shape: tuple[int, ...], factor: float) -> np.ndarray | np.float64 | None:
    """Of this shape, on the scale of the inputs; None where these are no matrix, or of another number of columns."""
    try:
        X = as_matrix(X)
    except DataError:
        return None
    d = X.shape[1]
    spread = _centre_and_spread(X)[1] * np.sqrt(d) * factor
    if shape == ():
        return np.float64(np.sqrt(np.mean((spread / spread.max()) ** 2)) * spread.max())
    return spread if shape == (d,) else None


def marginal_lengthscales(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Lengthscale of what each input explains by itself beyond a plane, (d,); infinite where it is nothing.

    Rows are sorted by the input, and the residuals averaged over windows around each row, which is left out: a window
    that is much wider than the lengthscale explains less than half of what the best one does. O(n d (d + ln n)).
    """
    n, d = X.shape
    found = np.full(d, np.inf)
    centred = X - X.mean(axis=0)
    left = y - y.mean()
    if n > 2 * d:
        left = left - centred @ np.linalg.lstsq(centred, left, rcond=None)[0]
    if n < MIN_MARGINAL_ROWS or not left.any():
        return found
    left = left / np.std(left)
    widths = 2 ** np.arange(int(math.log2(n / 8)) + 1)
    low, high = (np.clip(np.arange(n) + side * widths[:, None], 0, n - 1) for side in (-1, 1))
    for j in range(d):
        order = np.argsort(X[:, j], kind="stable")
        x, r = X[order, j], left[order]
        sums = np.r_[0.0, np.cumsum(r)]
        around = (sums[high + 1] - sums[low] - r) / (high - low)
        explained = 1 - np.mean((r - around) ** 2, axis=1)
        if explained.max() > MIN_MARGINAL_SHARE / math.sqrt(n):
            widest = np.flatnonzero(explained >= 0.5 * explained.max())[-1]
            found[j] = 0.25 * np.median(x[high[widest]] - x[low[widest]])
    return np.where(found > 0, found, np.inf)


def scaled_to_variance(kernel: Kernel, X: Inputs, variance: float, centred: bool = False) -> Kernel:
    """A copy in which every term of a sum has this ``variance``, as far as its amplitude may move; if ``centred``, the
    variance around its mean over the rows."""
    parts: Sequence[Kernel] = kernel.parts if isinstance(kernel, Sum) else (kernel,)
    found = []
    for part in parts:
        places = amplitude_places(part)
        inverse = isinstance(part, FeatureMap) and "alpha" not in part.fixed
        if not places and not inverse:
            found.append(part)
            continue
        try:
            size = (_variation(part, X) if centred else float(np.mean(gram.diagonal(part, X)))) / variance
        except DataError:
            return kernel
        if not np.isfinite(size) or size <= 0:
            return kernel
        if isinstance(part, FeatureMap) and inverse:
            part = evolve(part, alpha=part.alpha * size)
        for path, field in places or ():
            node: Any = part
            for name, index in path:
                node = getattr(node, name) if index is None else getattr(node, name)[index]
            part = evolve_at(part, path, **{field: getattr(node, field) / size})
        found.append(part)
    return evolve(kernel, parts=tuple(found)) if isinstance(kernel, Sum) else found[0]


def _variation(kernel: Kernel, X: Inputs) -> float:
    """Expected variance over the rows of a function drawn from the process: (tr K - 1^T K 1 / n) / n. On some of the
    rows, if there are many; a constant, which does not vary, counts by its size."""
    n = count_rows(X)
    few = n <= MAX_VARIATION_ROWS
    K = gram.within(kernel, X if few else take_rows(X, np.linspace(0, n - 1, MAX_VARIATION_ROWS).astype(int)))
    size = float(np.mean(np.diag(K)))
    varies = size - float(K.mean())
    return varies if varies > 1e-9 * size else size


def terms_scaled_to_variance(kernel: Kernel, X: Inputs, variance: float) -> Kernel:
    """As `scaled_to_variance`, with the terms of a `Standard` kernel one by one."""
    if isinstance(kernel, Sum):
        return evolve(kernel, parts=tuple(terms_scaled_to_variance(part, X, variance) for part in kernel.parts))
    if not isinstance(kernel, Standard):
        return scaled_to_variance(kernel, X, variance)
    alone = {"theta0": (1.0, 0.0, 0.0), "theta2": (0.0, 1.0, 0.0), "theta3": (0.0, 0.0, 1.0)}
    terms = {name: evolve(kernel, theta0=a, theta2=b, theta3=c) for name, (a, b, c) in alone.items()}
    sizes = {name: float(np.mean(gram.diagonal(term, X))) for name, term in terms.items() if name not in kernel.fixed}
    return evolve(kernel, **{name: variance / size for name, size in sizes.items() if size > 0})


# -- lines through zero --------------------------------------------------------------------------------------------


def through_zero(kernel: Kernel, X: Inputs, unknown: bool) -> list[Kernel]:
    """Dot products without a constant beside them, on inputs many spreads from zero: lines through a far-away x = 0.

    ``unknown``: whether the mean of the target is unknown, which is a constant beside every term.
    """
    if isinstance(kernel, Sum):
        unknown = unknown or any(isinstance(_unscaled(part), Constant) for part in kernel.parts)
        return [found for part in kernel.parts for found in through_zero(part, X, unknown)]
    if isinstance(kernel, Product):  # its factors take no constant along
        return [found for part in kernel.parts for found in through_zero(part, X, False)]
    if isinstance(kernel, Scale):
        return through_zero(kernel.inner, X, unknown)
    if isinstance(kernel, Power):
        return through_zero(kernel.inner, X, False)
    try:
        if isinstance(kernel, On):
            return through_zero(kernel.inner, select_columns(X, kernel.selection), unknown)
        straight = isinstance(kernel, Linear) or (
            isinstance(kernel, Standard) and kernel.shift is None and kernel.theta2 == 0 and kernel.theta3 != 0
        )
        if (straight and not unknown) or (isinstance(kernel, Polynomial) and np.asarray(kernel.offset) == 0):
            X = as_matrix(X)
            shift, spread = centre_and_spread(X)
            varies = np.ptp(X, axis=0) > 0
            return [kernel] if np.any(varies & (np.abs(shift) > MAX_SPREADS_FROM_ZERO * spread)) else []
    except DataError:
        pass
    return []


def _unscaled(kernel: Kernel) -> Kernel:
    return _unscaled(kernel.inner) if isinstance(kernel, Scale) else kernel


# -- amplitudes ----------------------------------------------------------------------------------------------------


def amplitude_mask(kernel: Kernel) -> np.ndarray | None:
    """Mask of the coordinates that, shifted together, multiply the kernel; None if they do not reach all of it, or may
    not move."""
    places, layout = amplitude_places(kernel), Layout.of(kernel)
    moving = {(p.path, p.field) for p in layout.places}
    if places is None or not places <= moving:
        return None
    mask = [np.full(len(p.entries), (p.path, p.field) in places) for p in layout.places]
    return np.concatenate([np.zeros(0, bool), *mask])


def amplitude_places(kernel: Kernel) -> set[Place] | None:
    """Parameters that, all multiplied by c, multiply the kernel by c; None if there are none, or one of them is fixed.

    Along this common direction the evidence has its maximum in closed form.
    """
    if isinstance(kernel, Scale | Constant | White) and "variance" not in kernel.fixed:
        return {((), "variance")}
    if isinstance(kernel, Standard):
        active = {f for f in ("theta0", "theta2", "theta3") if np.asarray(getattr(kernel, f)) != 0}
        return None if active & kernel.fixed else {((), field) for field in active}
    if isinstance(kernel, Sum):
        found = [amplitude_places(part) for part in kernel.parts]
        if any(part is None for part in found):
            return None
        return {((("parts", i), *path), field) for i, part in enumerate(found) for path, field in part or ()}
    if isinstance(kernel, Product):
        for i, part in enumerate(kernel.parts):
            if (found_in := amplitude_places(part)) is not None:
                return {((("parts", i), *path), field) for path, field in found_in}
    if isinstance(kernel, On | Scale | Modulate | Warp | OfPlaces):
        found_in = amplitude_places(kernel.inner)
        return found_in and {((("inner", None), *path), field) for path, field in found_in}
    return None


def with_amplitudes(kernel: Kernel) -> Kernel:
    """A copy in which every term of a sum has a variance, so that kernels in different units compare; ones where there
    was none. Variances that are fixed count as given."""
    if isinstance(kernel, Sum):
        return evolve(kernel, parts=tuple(with_amplitudes(part) for part in kernel.parts))
    return kernel if _has_amplitude(kernel) else 1.0 * kernel


def _has_amplitude(kernel: Kernel) -> bool:
    """Whether a parameter multiplies all of the kernel, be it free or fixed."""
    if isinstance(kernel, Sum):
        return all(map(_has_amplitude, kernel.parts))
    if isinstance(kernel, Product):
        return any(map(_has_amplitude, kernel.parts))
    if isinstance(kernel, On | Modulate | Warp | OfPlaces):
        return _has_amplitude(kernel.inner)
    return isinstance(kernel, Scale | Constant | White | Standard | FeatureMap)
