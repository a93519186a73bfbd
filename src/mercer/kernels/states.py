"""State-space form of kernels of one input: the facts that make exact inference linear in the number of rows.

A kernel of time has such a form if, for t >= t',

    k(t, t') = left(t)^T A(t - t') right(t'),        A(0) = I,  A(s) A(s') = A(s + s').

For a stationary Markov process with state covariance P, observed through h, left = h and right = P h (Sarkka and Solin,
Applied Stochastic Differential Equations, 2019, ch 12); no more than left, right and A is needed to factorise the
covariance of n rows in O(n) (Foreman-Mackey et al. 2017), and features of time are the case A = I. Sums join states,
products take Kronecker products of them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.precision import Array, is_traced

Parts = tuple[jax.Array, ...]
PERIODIC_ACCURACY = 1e-9  # of a truncated harmonic series, relative to k(t, t)
HARMONICS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)  # numbers of them: few, since each compiles a program of its own
MAX_STATES = 400
GAUSSIAN_ACCURACY = 5e-11  # of `gaussian`
GAUSSIAN_RATES = np.array([
    3.1305673232674036 + 0.38139666533803485j, 3.1203531681534167 + 1.1508058213798007j,
    3.09925003781254 + 1.941548941032605j, 3.06562969990759 + 2.7739268088675373j,
    3.015975936406256 + 3.683482882919569j, 2.9410115122144647 + 4.758878379092746j,
])  # fmt: skip
GAUSSIAN_WEIGHTS = np.array([
    27.54144319933455 + 70.96771981084916j, -37.12399767983721 - 18.822327482050586j,
    11.605074207228887 - 2.7470222828940045j, -1.037018206522972 + 1.238461355168046j,
    0.014440892855728265 - 0.08150168638752378j, 5.75869019425364e-05 + 0.0008979916994086355j,
])  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """States of a kernel of one input, differentiable in its parameters.

    A is block diagonal. ``groups`` holds (count, size) of equal blocks; `transition` maps gaps (c,) to one array
    (c, count, size, size) per group, `left` and `right` map times (c,) to one (c, count, size) per group.
    ``white`` is the variance of independent noise of each row. ``accuracy`` is None for an exact form, else the largest
    error of k(t, t') relative to k(t, t). ``order`` is what was chosen by the values of parameters, hashable: where
    these are traced, `Kernel.state_space` needs it back. ``columns`` are the selections of `Kernel.on` in it.
    ``checks`` raise a `DataError` for times (c,) that the kernel has no values at. ``variance`` is k(t, t) without
    white noise; None where that depends on the time.
    """

    groups: tuple[tuple[int, int], ...]
    transition: Callable[[Array], Parts]
    left: Callable[[Array], Parts]
    right: Callable[[Array], Parts]
    white: Any = 0.0
    accuracy: float | None = None
    order: Any = None
    columns: frozenset[Any] = frozenset([()])
    checks: tuple[Callable[[np.ndarray], None], ...] = ()
    variance: Any = None

    @property
    def size(self) -> int:
        """Number of states."""
        return sum(count * size for count, size in self.groups)

    def scaled(self, factor: Any) -> "States":
        """Of ``factor`` times the kernel."""
        white = self.white if _never_white(self) else factor * self.white
        variance = None if self.variance is None else factor * self.variance
        right = lambda t: tuple(factor * part for part in self.right(t))
        return dataclasses.replace(self, right=right, white=white, variance=variance)


def _shared(parts: Sequence[States], order: Any) -> dict[str, Any]:
    """What a composite takes over from its parts."""
    columns = frozenset().union(*(part.columns for part in parts))
    return {"order": order, "columns": columns, "checks": tuple(check for part in parts for check in part.checks)}


def total(parts: Sequence[States]) -> States:
    """States of a sum of kernels."""
    errors = [part.accuracy for part in parts if part.accuracy is not None]
    return States(
        tuple(group for part in parts for group in part.groups),
        lambda dt: tuple(A for part in parts for A in part.transition(dt)),
        lambda t: tuple(h for part in parts for h in part.left(t)),
        lambda t: tuple(h for part in parts for h in part.right(t)),
        white=sum(part.white for part in parts),
        variance=None if any(part.variance is None for part in parts) else sum(part.variance for part in parts),
        accuracy=max(errors) if errors else None,  # of a weighted mean, as k(t, t) is the sum
        **_shared(parts, tuple(part.order for part in parts)),
    )


def product(a: States, b: States) -> States | None:
    """States of a product of two kernels: Kronecker products. White noise w of the rows in one makes w k(t, t) of the
    other, which is white noise if it is the same at all times; None where it is not."""
    white: Any = 0.0
    for one, other in ((a, b), (b, a)):
        if not _never_white(one):
            if other.variance is None:
                return None
            white = white + one.white * other.variance
    if not (_never_white(a) or _never_white(b)):
        white = white + a.white * b.white
    if a.size * b.size > MAX_STATES:
        return None

    def vectors(one: Callable[[Array], Parts], other: Callable[[Array], Parts]) -> Callable[[Array], Parts]:
        def both(t: Array) -> Parts:
            return tuple(
                (x[:, :, None, :, None] * y[:, None, :, None, :]).reshape(
                    max(len(x), len(y)), x.shape[1] * y.shape[1], x.shape[2] * y.shape[2]
                )
                for x in one(t)
                for y in other(t)
            )

        return both

    def transition(dt: Array) -> Parts:
        return tuple(
            jnp.einsum("cikl,cjmn->cijkmln", A, B).reshape(
                len(A), A.shape[1] * B.shape[1], A.shape[2] * B.shape[2], A.shape[2] * B.shape[2]
            )
            for A in a.transition(dt)
            for B in b.transition(dt)
        )

    errors = [part.accuracy for part in (a, b) if part.accuracy is not None]
    groups = tuple((c * d, s * r) for c, s in a.groups for d, r in b.groups)
    accuracy = math.prod(1 + e for e in errors) - 1 if errors else None
    variance = None if a.variance is None or b.variance is None else a.variance * b.variance
    return States(groups, transition, vectors(a.left, b.left), vectors(a.right, b.right), white, accuracy,
                  variance=variance, **_shared((a, b), (a.order, b.order)))  # fmt: skip


def _never_white(states: States) -> bool:
    return isinstance(states.white, float | int) and states.white == 0


def power(states: States, exponent: int) -> States | None:
    """States of a power of a kernel."""
    found: States | None = states
    for _ in range(exponent - 1):
        found = None if found is None else product(found, states)
    return None if found is None else dataclasses.replace(found, order=states.order)


# -- single kernels ------------------------------------------------------------------------------------------------


def of_features(left: Callable[[Array], Array], right: Callable[[Array], Array], count: int) -> States:
    """States that do not change: k(t, t') = sum_i left_i(t) right_i(t'), each (c, count)."""
    return States(
        ((count, 1),) if count else (),
        lambda dt: (jnp.ones((len(dt), count, 1, 1)),) if count else (),
        lambda t: (jnp.asarray(left(t))[:, :, None],) if count else (),
        lambda t: (jnp.asarray(right(t))[:, :, None],) if count else (),
        columns=frozenset(),
    )


def reads_time(states: States) -> States:
    return dataclasses.replace(states, columns=frozenset([()]))


def constant(variance: Any) -> States:
    """States of a constant."""
    found = of_features(lambda t: jnp.ones((len(t), 1)), lambda t: jnp.broadcast_to(variance, (len(t), 1)), 1)
    return dataclasses.replace(found, variance=variance)


def white(variance: Any) -> States:
    """No states, and noise of each row."""
    empty = of_features(lambda t: jnp.zeros((len(t), 0)), lambda t: jnp.zeros((len(t), 0)), 0)
    return dataclasses.replace(empty, white=variance, variance=0.0)


def damped(rates: Array, frequencies: Array | None, left: Array, right: Array) -> States:
    """Blocks exp(-rate s) for rates (count,), or with frequencies exp(-rate s) times a rotation by frequency s;
    ``left`` and ``right`` (count, size) do not depend on time."""
    rates = jnp.asarray(rates)
    count, size = rates.shape[0], 1 if frequencies is None else 2

    def transition(dt: Array) -> Parts:
        decay = jnp.exp(-rates * dt[:, None])
        if frequencies is None:
            return (decay[:, :, None, None],)
        angle = frequencies * dt[:, None]
        c, s = decay * jnp.cos(angle), decay * jnp.sin(angle)
        return (jnp.stack([c, s, -s, c], axis=-1).reshape(len(dt), count, 2, 2),)

    def steady(v: Array) -> Callable[[Array], Parts]:
        return lambda t: (jnp.broadcast_to(v, (len(t), count, size)),)

    return States(((count, size),), transition, steady(left), steady(right), variance=jnp.sum(left * right))


def matern(order: int, lengthscale: Any) -> States:
    """Matern of order p + 1/2: exp(-s) sum_j c_j s^j with s = sqrt(2 nu) t / l (RW06 4.16).

    With states g_j = (d/ds + 1)^j f the transition is exp(-s) times the upper triangular Toeplitz matrix of s^j / j!,
    so right_j = c_j j!: well scaled, and triangular.
    """
    p, f = order, math.factorial
    c = [f(p) / f(2 * p) * f(2 * p - j) / (f(p - j) * f(j)) * 2**j for j in range(p + 1)]
    rate = math.sqrt(2 * p + 1) / jnp.reshape(jnp.asarray(lengthscale), ())
    lags = np.subtract.outer(np.arange(p + 1), np.arange(p + 1)).T  # column minus row

    def transition(dt: Array) -> Parts:
        s = rate * dt
        terms, term = [], jnp.exp(-s)
        for j in range(p + 1):
            terms.append(term)
            term = term * s / (j + 1)
        columns = [terms[lag] if lag >= 0 else jnp.zeros_like(s) for lag in lags.ravel()]
        return (jnp.stack(columns, axis=-1).reshape(len(dt), 1, p + 1, p + 1),)

    left, right = np.eye(1, p + 1), np.array([[cj * f(j) for j, cj in enumerate(c)]])
    return States(
        ((1, p + 1),),
        transition,
        lambda t: (jnp.broadcast_to(left, (len(t), 1, p + 1)),),
        lambda t: (jnp.broadcast_to(right, (len(t), 1, p + 1)),),
        variance=1.0,
    )


def gaussian(lengthscale: Any) -> States:
    """exp(-(t / l)^2 / 2) as sum_j Re(c_j exp(-r_j t / l)), to `GAUSSIAN_ACCURACY`.

    The spectral density is exp(-x), x = w^2 / 2, and rational approximations of that on the half line converge like
    9.29^-m in the number of poles (Cody, Meinardus and Varga 1969; Trefethen, Weideman and Schmelzer 2006). The r_j are
    the square roots of twice the poles of the one with m = 12, found by the method of Caratheodory and Fejer, and the
    c_j are fitted to the kernel itself.
    """
    length = jnp.reshape(jnp.asarray(lengthscale), ())
    left = np.broadcast_to(np.array([1.0, 0.0]), (len(GAUSSIAN_RATES), 2))
    right = np.stack([GAUSSIAN_WEIGHTS.real, GAUSSIAN_WEIGHTS.imag], axis=1)
    states = damped(GAUSSIAN_RATES.real / length, GAUSSIAN_RATES.imag / length, left, right)
    return dataclasses.replace(states, accuracy=GAUSSIAN_ACCURACY)


def periodic(period: Any, lengthscale: Any, order: int | None) -> States | None:
    """exp((cos w s - 1) / l^2) with w = 2 pi / p, as q_0 + sum_j q_j cos j w s (Solin and Sarkka 2014, eq 27), up to a
    harmonic beyond which all q_j together are below `PERIODIC_ACCURACY`. None if that takes too many."""
    found = _harmonics(lengthscale, order)
    if found is None:
        return None
    q, order = found
    period = jnp.reshape(jnp.asarray(period), ())
    level = damped(jnp.zeros(1), None, np.ones((1, 1)), q[:1, None])
    ones = np.broadcast_to(np.array([1.0, 0.0]), (order, 2))
    waves = damped(jnp.zeros(order), 2 * np.pi * np.arange(1, order + 1) / period, ones, q[1:, None] * ones)
    return dataclasses.replace(total([level, waves]), accuracy=PERIODIC_ACCURACY, order=order)


def seasonal(
    count: Callable[[Array], Array], length: float, start: float, change: States, lengthscale: Any, order: int | None
) -> States | None:
    """A periodic function of the number of periods ``count(t)`` times a kernel of it, ``change``, whose times are in
    units of t at the mean ``length`` of a period. ``start`` is the number at t = 0, but for bounded differences."""
    found = _harmonics(lengthscale, order)
    if found is None:
        return None
    q, order = found
    weights = jnp.concatenate([q, q[1:]])

    def waves(t: Array) -> jax.Array:
        phase = count(t)
        angles = 2 * np.pi * (phase - jnp.floor(phase))[:, None] * np.arange(order + 1)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles[:, 1:])], axis=1)

    season = of_features(waves, lambda t: waves(t) * weights, 2 * order + 1)
    season = dataclasses.replace(season, accuracy=PERIODIC_ACCURACY)
    both = product(season, warped(change, lambda t: length * (count(t) - start) - t))
    return None if both is None else dataclasses.replace(both, order=order, variance=1.0)


def warped(states: States, shift: Callable[[Array], Array]) -> States:
    """States of k(t + shift(t), t' + shift(t')) for constant left and right and bounded shifts that keep the order of
    times: A(t + d - t' - d') = A(d) A(t - t') A(-d')."""

    def left(t: Array) -> Parts:
        parts = zip(states.transition(shift(t)), states.left(t), strict=True)
        return tuple(jnp.einsum("cnij,cni->cnj", A, h) for A, h in parts)

    def right(t: Array) -> Parts:
        parts = zip(states.transition(-shift(t)), states.right(t), strict=True)
        return tuple(jnp.einsum("cnij,cnj->cni", A, h) for A, h in parts)

    return dataclasses.replace(states, left=left, right=right)


def _harmonics(lengthscale: Any, order: int | None) -> tuple[jax.Array, int] | None:
    """q_0, ..., q_J and J. q_j = 2 exp(-l^-2) I_j(l^-2) are Fourier coefficients, here by the trapezoidal rule, which
    converges geometrically."""
    if order is None:
        if is_traced(lengthscale):
            raise TypeError("the number of harmonics depends on the lengthscale: give state_space(order).")
        reach = [J for J in HARMONICS if _missing(float(np.reshape(lengthscale, ())), J) <= PERIODIC_ACCURACY]
        if not reach:
            return None
        order = reach[0]
    lengthscale = jnp.reshape(jnp.asarray(lengthscale), ())
    angles = 2 * np.pi * np.arange(4 * order) / (4 * order)
    values = jnp.exp((np.cos(angles) - 1) / lengthscale**2)
    cosines = np.cos(np.outer(np.arange(order + 1), angles)) * np.where(np.arange(order + 1) > 0, 2.0, 1.0)[:, None]
    q = cosines @ values / len(angles)
    return q / jnp.sum(q), order  # k(t, t) = 1


@functools.cache
def _missing(lengthscale: float, order: int) -> float:
    """Sum of the q_j beyond a harmonic."""
    from scipy.special import ive

    x = lengthscale**-2
    return float(2 * ive(np.arange(order + 1, order + 200), x).sum())


def refusing(kernel: Any) -> Any:
    """The innermost part of an expression that has no state-space form; None if the whole has one."""
    if kernel.state_space() is not None:
        return None
    found = (refusing(child) for child in kernel._kernels())
    return next((part for part in found if part is not None), kernel)


def why_none(kernel: Any) -> str:
    """Why a kernel that is `refusing` has no form, as the end of a sentence."""
    lengthscale = getattr(kernel, "lengthscale", np.zeros(0)) if hasattr(kernel, "period") else np.zeros(0)
    if np.size(lengthscale) == 1 and _harmonics(lengthscale, None) is None:
        return f"would need more than {HARMONICS[-1]} harmonics for its short lengthscale"
    size = math.prod(child.state_space().size for child in kernel._kernels()) ** int(getattr(kernel, "exponent", 1))
    if size > MAX_STATES:
        return f"would need {size} states, more than {MAX_STATES}"
    return "has none"
