"""Autocovariances of autoregressive and moving-average processes: kernels on times that are whole numbers of steps."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core import calendar
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix
from mercer.core.parameters import InvertibleCoefficients, StationaryCoefficients, plain
from mercer.core.precision import Array, concretely, is_traced
from mercer.kernels.distance import safe_sqrt, squared_distance
from mercer.kernels.states import States
from mercer.kernels.stationary import Stationary
from mercer.kernels.validity import Validity, proved

STEP_TOLERANCE = 0.01  # of a step, within which a time is that of a whole number of steps
CALENDAR_TOLERANCE = 0.1  # of a calendar step: the 28th is at 0.87 of a month, or at 0.96
BLOCK_LAGS = 64  # a table of powers is the product of two blocks
TABLE_LAGS = BLOCK_LAGS**2  # of either table: up to 2^24 steps
MIN_CORRELATION = 1e-17  # correlation at the longest tabulated lag below which longer ones are zero
NEAR_DOUBLE_ROOT = 1e-3  # of theta^2, below which sines are taken by their series


class AR(Stationary):
    """Autocorrelation of the autoregression y_t = phi_1 y_(t-1) + ... + phi_p y_(t-p) + e_t, with unit variance.

    ``phi`` are the coefficients, a number for p = 1. They are stationary, and learning keeps them so: it moves the
    partial autocorrelations, each between -1 and 1. As with other kernels, a multiple is the variance of y:
    ``2.0 * AR(0.5)``, whose innovations e_t have variance 2.0 * `innovation_variance`.

    ``step`` is the time from one observation to the next, and times are ``origin`` plus whole numbers of steps, within
    a hundredth of a step, in any order and with any gaps. On dates it may be a calendar step, "day", "week", "month",
    "quarter" or "year", and ``origin`` a date of the series; it is the first day of a period by default. Other times
    are refused, unless the process is also one in continuous time, and the step a number:

    - p = 1 with phi > 0 is the Ornstein-Uhlenbeck process, ``Exponential(-step / log(phi))``;
    - p = 2 with two positive or two complex roots r exp(+-i theta) of z^2 - phi_1 z - phi_2, r = exp(-a), has
      k(t) = exp(-a t) (cos(theta t) + tanh(a) cos(theta) sin(theta t) / sin(theta)), the solution of the Yule-Walker
      equations at whole t. It is a valid kernel at all t if -theta cot(theta) <= a / tanh(a): for positive roots and
      for periods of four steps or more always, for shorter ones if they are damped enough.

    The autocovariances g_0, ..., g_p solve the Yule-Walker equations; further ones follow by g_h = sum_i phi_i g_(h-i).

    >>> AR([0.5, 0.3])([0.0, 1.0, 3.0]).round(3)
    array([[1.   , 0.714, 0.543],
           [0.714, 1.   , 0.657],
           [0.543, 0.657, 1.   ]])
    """

    phi: StationaryCoefficients = 0.5
    step: float | str = eqx.field(default=1.0, static=True, kw_only=True, converter=plain)
    origin: float = eqx.field(default=0.0, static=True, kw_only=True, converter=calendar.as_time)

    @property
    def stationary(self) -> bool:  # type: ignore[override]
        return not isinstance(self.step, str)  # months differ in length

    isotropic = stationary

    def __check_init__(self) -> None:
        for name in ("step", "origin"):
            value = getattr(self, name)
            right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if name == "step" and (value in calendar.PERIODS if isinstance(value, str) else right and value > 0):
                continue
            if not right or name == "step":
                periods = ", ".join(map(repr, calendar.PERIODS))
                says = f"the positive time from one observation to the next, or on dates one of {periods}"
                says = says if name == "step" else "a finite time, or a date"
                raise ParameterError(f"{type(self).__name__}.{name} must be {says}; got {value!r}.")

    def __repr__(self) -> str:
        return super().__repr__().replace(", step=1.0", "").replace(", origin=0.0", "")

    # -- times -----------------------------------------------------------------------------------------------------

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = as_matrix(X)
        if rows.shape[1] != 1:
            raise DataError(
                f"{type(self).__name__} reads one column, the time; got {rows.shape[1]}. Choose it: "
                f"{type(self).__name__}(...).on(0)."
            )
        if not self._may_be_continuous and not is_traced(rows):
            self._refuse_between_steps(rows)
        return rows

    @property
    def _may_be_continuous(self) -> bool:
        """Whether some parameters of this order have a form at all times."""
        return np.size(self.phi) <= 2 and self._moving_average is None and not isinstance(self.step, str)

    @property
    def smoothness(self) -> float | None:
        """Of a process in continuous time zero; others are defined at whole steps."""
        return 0 if self._may_be_continuous else -1

    @property
    def _moving_average(self) -> Array | None:
        """theta_1, ..., theta_q; None if there are none."""
        return None

    def steps(self, t: Array) -> Array:
        """Times in steps from the origin."""
        if isinstance(self.step, str):
            start = calendar.count(self.step, np.float64(self.origin)) if self.origin else 0.0
            return calendar.count(self.step, t) - start
        return (t - self.origin) / self.step

    @property
    def _length(self) -> float:
        """Mean length of a step."""
        return calendar.mean_length(self.step) if isinstance(self.step, str) else self.step

    @property
    def _tolerance(self) -> float:
        return CALENDAR_TOLERANCE if isinstance(self.step, str) else STEP_TOLERANCE

    def _refuse_between_steps(self, rows: np.ndarray) -> None:
        t = np.asarray(rows, dtype=float).ravel()
        bad = np.flatnonzero(~(np.abs(self.steps(t) - np.round(self.steps(t))) <= self._tolerance))
        if not bad.size:
            return
        i, name = int(bad[0]), type(self).__name__
        if isinstance(self.step, str):
            dates = calendar.as_dates(np.array([self.origin, t[i]])).astype(str)
            start, found = (date.removesuffix("T00:00:00") for date in dates.tolist())
            start = start if self.origin else f"the first moment of a {self.step}"
            raise DataError(
                f"row {i}: {name} is a process at whole steps, a {self.step} each, from {start} on; got {found}. Give "
                f"a date of the series by {name}(..., origin={found!r}), or the right step."
            )
        raise DataError(
            f"row {i}: {name} is a process at whole steps, at times {self.origin:g} plus multiples of {self.step:g}; "
            f"got {t[i]:.10g}. Give the time between observations by {name}(..., step=...), of dates step='month' or "
            "'day', say, and the time of one of them by origin=...; at irregular times take a kernel in continuous "
            "time: Matern, Exponential, AR(phi) with phi > 0, or AR of order two with positive or complex roots."
        )

    def explain(self, rows: Rows) -> None:
        for leaf in jax.tree.leaves(rows):
            if np.ndim(leaf) == 2 and np.shape(leaf)[1] == 1:
                self._refuse_between_steps(leaf)

    # -- values ------------------------------------------------------------------------------------------------------

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        phi, theta = jnp.atleast_1d(self.phi), self._moving_average
        x, z = self.steps(X), self.steps(Z)
        whole_x, whole_z = jnp.round(x), jnp.round(z)
        lag = jax.lax.stop_gradient(jnp.abs(whole_x - whole_z[:, 0]))
        on = (jnp.abs(x - whole_x) <= self._tolerance) & (jnp.abs(z - whole_z) <= self._tolerance)[:, 0]
        discrete = jnp.where(on, at_steps(phi, theta, lag), jnp.nan)
        if not self._may_be_continuous:
            return discrete
        apart = safe_sqrt(squared_distance(X, Z)) / self._length
        exists, value = at_times(phi, apart)
        return jnp.where(exists, value, discrete)

    def state_space(self, order: Any = None) -> States:
        """Forecasts of y_t, ..., y_(t+m-1), m = max(p, q + 1), from all values up to t: their covariances with y_t are
        right = (g_0, ..., g_(m-1)), and their transition shifts them by one, y_(t+m) = sum_i phi_i y_(t+m-i). Powers of
        it between whole steps are as in `at_times`, where these exist."""
        phi, theta = jnp.atleast_1d(self.phi), self._moving_average
        p, m = len(phi), max(len(phi), 1 + (0 if theta is None else len(theta)))
        g = autocovariances(phi, theta)
        A = jnp.eye(m, k=1).at[m - 1, m - p :].set(phi[::-1])
        left, right = jnp.eye(1, m), (g[:m] / g[0])[None, :]

        def transition(dt: Array) -> tuple[jax.Array]:
            apart = dt / self._length  # by the calendar, steps differ by days, which rounding removes
            whole = jnp.round(apart)
            steps = jnp.clip(whole, 0, TABLE_LAGS * TABLE_LAGS - 1).astype(int)
            near, C = _powers(A)
            far, _ = _powers(C)
            powers = (far[steps // TABLE_LAGS] @ near[steps % TABLE_LAGS])[:, None]
            if not self._may_be_continuous:
                return (powers,)
            on = jnp.abs(apart - whole) <= 2 * STEP_TOLERANCE
            exists, between = powers_at(phi, A, apart)
            return (jnp.where(exists, between[:, None], jnp.where(on[:, None, None, None], powers, jnp.nan)),)

        continuous = self._may_be_continuous and not is_traced(self.phi) and bool(at_times(phi, jnp.ones(()))[0])

        return States(
            ((1, m),),
            transition,
            lambda t: (jnp.broadcast_to(left, (len(t), 1, m)),),
            lambda t: (jnp.broadcast_to(right, (len(t), 1, m)),),
            variance=1.0,
            checks=() if continuous else (self._refuse_between_steps,),
        )

    def autocovariance(self, count: int) -> np.ndarray:
        """k at lags of 0, 1, ..., count - 1 steps: (count,)."""
        with concretely():
            lags = jnp.arange(count, dtype=float)[None]
            return np.asarray(at_steps(jnp.atleast_1d(self.phi), self._moving_average, lags))[0]

    @property
    def innovation_variance(self) -> float:
        """Variance of the innovations e_t for y_t of unit variance."""
        phi = np.atleast_1d(np.asarray(self.phi))
        theta = None if self._moving_average is None else np.asarray(self._moving_average)
        return 1 / float(autocovariances(phi, theta, np)[0])

    @property
    def validity(self) -> Validity:
        says = "autocovariance of a stationary process: its spectral density is positive (Herglotz, Bochner)"
        return proved("6.56", says, repr(self))


class ARMA(AR):
    """Autocorrelation of y_t = sum_i phi_i y_(t-i) + e_t + sum_j theta_j e_(t-j), an autoregressive moving average of
    orders p and q, with unit variance.

    As `AR`, with ``theta`` the coefficients of the moving average, invertible, and kept so: of the models with one
    autocovariance exactly one is. Times are whole numbers of steps. ``ARMA(0.0, theta).fix("phi")`` is a moving average
    alone.

    Yule-Walker equations, k = 0, ..., p, for innovations of variance 1 and psi the impulse response:
    g_k - sum_i phi_i g_|k-i| = sum_(j=k)^q theta_j psi_(j-k), theta_0 = 1. From lag q + 1 on g_h = sum_i phi_i g_(h-i).

    >>> ARMA(0.5, 0.4)([0.0, 1.0, 3.0]).round(3)
    array([[1.   , 0.692, 0.173],
           [0.692, 1.   , 0.346],
           [0.173, 0.346, 1.   ]])
    """

    theta: InvertibleCoefficients = 0.5

    @property
    def _moving_average(self) -> Array:
        return jnp.atleast_1d(self.theta) if is_traced(self.theta) else np.atleast_1d(self.theta)


# -- the autocovariance at whole lags ---------------------------------------------------------------------------------


def autocovariances(phi: Array, theta: Array | None, xp: Any = jnp) -> Array:
    """g_0, ..., g_max(p, q) for innovations of unit variance. O(p^3 + q^2)."""
    p, q = len(phi), 0 if theta is None else len(theta)
    b = xp.ones(1) if theta is None else xp.concatenate([xp.ones(1), theta])
    psi = [b[0]]
    for j in range(1, q + 1):
        psi.append(b[j] + sum((phi[i] * psi[j - 1 - i] for i in range(min(p, j))), start=0.0))
    forced = [sum((b[j] * psi[j - k] for j in range(k, q + 1)), start=0.0 * phi[0]) for k in range(max(p, q) + 1)]
    # Row k of the equations: one for g_k, and -phi_i for g_|k-i|, where two terms may meet. Constant masks pick them.
    lags = np.abs(np.arange(p + 1)[:, None] - np.arange(1, p + 1)[None, :])
    picks = (lags[:, :, None] == np.arange(p + 1)).astype(float)
    A = np.eye(p + 1) - xp.einsum("kil,i->kl", picks, phi)
    g = list(xp.linalg.solve(A, xp.stack(forced[: p + 1])))
    for h in range(p + 1, q + 1):
        g.append(sum((phi[i] * g[h - 1 - i] for i in range(p)), start=forced[h]))
    return xp.stack(g)


def at_steps(phi: jax.Array, theta: Array | None, lag: jax.Array) -> jax.Array:
    """Autocorrelation at whole lags (n, m), NaN where one is beyond the tables and not decayed.

    (g_h, ..., g_(h-p+1)) = C^(h-q) (g_q, ..., g_|q-p+1|) for h >= q, with C the companion matrix of phi. With
    h - q = 2^12 a + b it is a scalar product of two tabulated vectors, row 1 of C^(4096 a) and C^b (g_q, ...).
    """
    p, q, size = len(phi), 0 if theta is None else len(theta), TABLE_LAGS
    g = autocovariances(phi, theta)
    g = g / g[0]
    C = jnp.zeros((p, p)).at[0].set(phi) + jnp.eye(p, k=-1)
    near, C = _powers(C)
    V = (near @ g[np.abs(q - np.arange(p))]).T
    U = _powers(C)[0][:, 0]
    h = jnp.clip(lag - q, 0, size * size - 1)
    h = jnp.where(jnp.isfinite(h), h, 0).astype(int)
    a, b = h // size, h % size
    value = sum((U[a, i] * V[i, b] for i in range(p)), start=jnp.zeros_like(lag))
    if q:
        value = jnp.where(lag < q, g[jnp.clip(lag, 0, q).astype(int)], value)
    return jnp.where((lag < size * size + q) | (jnp.abs(value) < MIN_CORRELATION), value, jnp.nan)


def _powers(A: jax.Array) -> tuple[jax.Array, jax.Array]:
    """I, A, A^2, ..., A^4095, and A^4096: powers of A^64 times powers of A, by loops that compile at once. Doubling,
    P <- (P, P A^k), is unrolled, and fused into a program that takes minutes to compile where A is a scalar."""

    def run(A: jax.Array) -> tuple[jax.Array, jax.Array]:
        last, powers = jax.lax.scan(lambda P, _: (P @ A, P), jnp.eye(len(A), dtype=A.dtype), None, length=BLOCK_LAGS)
        return powers, last

    small, A = run(A)
    large, A = run(A)
    return jnp.einsum("aij,bjk->abik", large, small).reshape(TABLE_LAGS, len(A), len(A)), A


# -- the autocovariance at all lags -----------------------------------------------------------------------------------


def at_times(phi: jax.Array, t: Array) -> tuple[jax.Array, jax.Array]:
    """Whether an autoregression of order one or two has a form in continuous time, and its autocorrelation at t >= 0,
    in steps; finite, with finite gradients, if not."""
    if len(phi) == 1:
        exists = phi[0] > 0
        return exists, jnp.exp(t * jnp.log(jnp.where(exists, phi[0], 0.5)))
    a, cosine, w, exists = roots(phi)
    sine, over_one = _sine_over_root(t, w), _sine_over_root(jnp.ones(()), w)
    return exists, jnp.exp(-a * t) * (_cosine_of_root(t, w) + jnp.tanh(a) * cosine * sine / over_one)


def powers_at(phi: jax.Array, A: jax.Array, t: Array) -> tuple[jax.Array, jax.Array]:
    """Whether an autoregression of order one or two has a form in continuous time, and A^t (c, p, p) for times t (c,)
    in steps, with A the transition of one step: A = exp(-a) (cos theta I + sin theta J), J^2 = -I."""
    if len(phi) == 1:
        exists, power = at_times(phi, t)
        return exists, power[:, None, None]
    a, cosine, w, exists = roots(phi)
    turn = (jnp.exp(a) * A - cosine * jnp.eye(2)) / _sine_over_root(jnp.ones(()), w)
    parts = _cosine_of_root(t, w)[:, None, None] * jnp.eye(2) + _sine_over_root(t, w)[:, None, None] * turn
    return exists, jnp.exp(-a * t)[:, None, None] * parts


def roots(phi: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """a, cos theta and theta^2 of the roots exp(-a +- i theta) of z^2 - phi_1 z - phi_2, theta^2 < 0 for two positive
    ones, and whether they make a valid kernel at all times.

    The spectral density of exp(-a |t|) (cos theta t + B sin theta |t|) has the numerator
    (a + B theta)(a^2 + theta^2) + (a - B theta) w^2, and B = cot(theta) tanh(a). With theta = i D and 0 < D < a both
    factors are positive, since D tanh(a) <= a tanh(D) for D <= a; else they are where |theta cot theta| tanh a <= a.
    """
    below = phi[1] < 0
    r = jnp.sqrt(jnp.where(below, -phi[1], 0.25))
    cosine = jnp.where(below, phi[0] / (2 * r), 0.5)
    apart = cosine > -1
    c = jnp.where(apart, cosine, 0.5)
    a = -jnp.log(r)
    # theta^2 = arccos(c)^2 is analytic at c = 1: 2 s + s^2 / 3 + 4 s^3 / 45 + s^4 / 35 + ... with s = 1 - c.
    s = 1 - c
    series = s * (2 + s * (1 / 3 + s * (4 / 45 + s * (1 / 35 + s * (16 / 1575)))))
    near = jnp.abs(s) < NEAR_DOUBLE_ROOT
    complex_ = jnp.arccos(jnp.where((c < 1) & ~near, c, 0.5)) ** 2
    real = -(jnp.arccosh(jnp.where((c > 1) & ~near, c, 2.0)) ** 2)
    w = jnp.where(near, series, jnp.where(c < 1, complex_, real))
    damped = -c / _sine_over_root(jnp.ones(()), w) * jnp.tanh(a) <= a
    return a, c, w, below & apart & damped


def _cosine_of_root(t: Array, w: jax.Array) -> jax.Array:
    """cos(t sqrt w), for negative w cosh(t sqrt -w)."""
    y = w * t * t
    near = jnp.abs(y) < NEAR_DOUBLE_ROOT
    series = 1 - y / 2 * (1 - y / 12 * (1 - y / 30 * (1 - y / 56)))
    cos = jnp.cos(jnp.sqrt(jnp.where((y > 0) & ~near, y, 1.0)))
    cosh = jnp.cosh(jnp.sqrt(jnp.where((y < 0) & ~near, -y, 1.0)))
    return jnp.where(near, series, jnp.where(y > 0, cos, cosh))


def _sine_over_root(t: Array, w: jax.Array) -> jax.Array:
    """sin(t sqrt w) / sqrt w, for negative w sinh(t sqrt -w) / sqrt -w."""
    y = w * t * t
    near = jnp.abs(y) < NEAR_DOUBLE_ROOT
    series = 1 - y / 6 * (1 - y / 20 * (1 - y / 42 * (1 - y / 72)))
    u, v = (jnp.sqrt(jnp.where((s * y > 0) & ~near, s * y, 1.0)) for s in (1, -1))
    return jnp.asarray(t) * jnp.where(near, series, jnp.where(y > 0, jnp.sin(u) / u, jnp.sinh(v) / v))
