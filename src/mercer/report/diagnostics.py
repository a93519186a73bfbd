"""What looks wrong with predictions of rows left out. Pure functions: arrays in, findings out.

Each kind of check raises a false alarm in at most ``ALPHA`` of well-specified data sets, however many inputs, lags or
levels it looks at; and a deviation that matters little is not told, however significant many rows make it.
"""

import dataclasses
import math

import numpy as np
from scipy.special import betainc, fdtrc, log_ndtr, ndtr, ndtri, stdtr, stdtrit

ALPHA = 0.005  # of false alarms, for each kind of check
LEVELS, MARGINS = (0.5, 0.8, 0.95), (0.05, 0.04, 0.015)  # of intervals, and how far off coverage is no matter
MIN_ROWS = 20  # fewer say nothing of residuals
MIN_CORRELATION = 0.1  # of neighbours
MIN_SHARE = 0.02  # of the variance of residuals, for a pattern in them
MIN_RATIO = 1.3  # of a spread to another
MIN_CYCLES = 3  # slower is a trend
NOT_SLOW = 0.05  # chance that something without a period makes such a wave
MAX_FREQUENCIES = 500
WINSOR = 3.0  # residuals are cut off here where a pattern is looked for: single rows make none
MOST_NAMED = 5  # rows or inputs


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that looks wrong, and what to do about it.

    ``kind`` is the check; ``severity`` is "warning" where predictions or intervals mislead, "note" where a look is
    worth the while; ``name`` the input it is about, if it is about one.
    """

    kind: str
    severity: str
    text: str
    remedy: str
    name: str | None = None

    def __str__(self):
        return f"{self.text}: {self.remedy}."


def of_residuals(z, mean, y, X=None, names=(), independent=None) -> list[Finding]:
    """Everything that standardised leave-one-out residuals z (n,) tell of a regression.

    ``mean`` (n,) are the predictions, ``y`` the targets, ``X`` (n, d) inputs by ``names``. ``independent`` (n,) are
    residuals that a right model would have drawn independently from N(0, 1); leave-one-out residuals themselves are
    correlated where neighbours nearly determine each other. None takes z.
    """
    z = np.clip(np.nan_to_num(np.asarray(z, dtype=float)), -1e6, 1e6)
    w = z if independent is None else np.clip(np.nan_to_num(independent), -1e6, 1e6)
    if len(z) < MIN_ROWS or np.ptp(w) == 0:
        return []
    X = np.zeros((len(z), 0)) if X is None else X
    w = np.clip(w / _robust_deviation(w), -WINSOR, WINSOR)
    order = serial(w, X, names, y)
    explained = {found.name for found in order if found.kind == "season"}
    bent = [found for found in curvature(w, X, names) if found.name not in explained]
    explained |= {found.name for found in bent}
    order = [found for found in order if found.kind == "season" or found.name not in explained]
    changing, level = spread(w, mean, y, X, names)
    apart = outliers(z / level)  # where the noise is large, a large residual is no outlier
    causes = [*order, *bent, *changing, *apart]
    return [*causes, *calibration(z, independent, explained=bool(causes)), *skew(w, y)]


# -- intervals -----------------------------------------------------------------------------------------------------


def calibration(z, independent=None, of: str = "left out", explained: bool = False) -> list[Finding]:
    """Coverage of central intervals at three levels; ``explained`` says that a reason was found before."""
    size = np.abs(z)
    off = {}
    for level, margin in zip(LEVELS, MARGINS, strict=True):
        held = float(np.mean(size <= ndtri(0.5 + level / 2)))
        chance = _binomial(held * len(z), len(z), level)
        if independent is not None:  # correlated residuals stray further by chance; these do not
            same = float(np.mean(np.abs(independent) <= ndtri(0.5 + level / 2)))
            chance = max(chance, _binomial(same * len(z), len(z), level))
        if chance < ALPHA / len(LEVELS) and abs(held - level) > margin:
            off[level] = held - level
    if not off:
        return []
    told = ", ".join(f"{level:.0%} intervals hold {level + more:.0%}" for level, more in off.items())
    told += f" of the rows {of}, "
    if min(off.values()) > 0 and 0.95 in off:
        told += "too much"
        remedy = "learn the noise (noise=None) and the amplitude of the kernel, with n_restarts=5"
    elif max(off.values()) < 0:
        told += "too little"
        remedy = (
            "calibrate=True widens them; noise with heavy tails, or a kernel too smooth for the data, makes them narrow"
        )
    else:
        told += f"95% ones {np.mean(size <= ndtri(0.975)):.0%}; residuals have heavier tails than a Gaussian"
        remedy = "another scale of y, or a variance for each row (noise=...), may help"
    return [Finding("calibration", "warning", told, "likely a consequence of the above" if explained else remedy)]


def _binomial(k: float, n: int, p: float) -> float:
    """Two-sided probability of a count at least as far from n p as k."""
    below = 1.0 if k >= n else float(betainc(n - k, k + 1, 1 - p))
    above = 1.0 if k <= 0 else float(betainc(k, n - k + 1, p))
    return min(1.0, 2 * min(below, above))


def chance_range(n: int, level: float, share: float = 0.95) -> tuple[float, float]:
    """Between what shares of n rows honest intervals of this level hold, in ``share`` of all cases."""
    k = np.arange(n)
    below = betainc(n - k, k + 1, 1 - level)  # P(a count of at most k)
    edges = np.searchsorted(below, [(1 - share) / 2, (1 + share) / 2])
    return float(edges[0]) / n, float(edges[1]) / n


def outliers(z) -> list[Finding]:
    """Rows beyond what the largest of n normal residuals reaches, in robust standard deviations."""
    n = len(z)
    scale = _robust_deviation(z)
    # The median absolute deviation of n values is as precise as a standard deviation of 0.37 n.
    limit = float(stdtrit(max(0.37 * (n - 1), 2.0), 1 - ALPHA / (2 * n)))
    far = np.flatnonzero(np.abs(z - np.median(z)) > limit * scale)
    if not len(far):
        return []
    order = far[np.argsort(-np.abs(z[far]), kind="stable")]
    rows = ", ".join(f"{row} ({z[row] / scale:+.0f})" for row in order[:MOST_NAMED])
    rows += f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    if len(far) <= max(3, 0.03 * n):
        remedy = "check for mistakes; drop such rows, or give them a large variance (noise=...)"
    else:
        remedy = (
            "so many are hardly mistakes: the noise has heavy tails; try another scale of y, or a variance for each "
            "row (noise=...)"
        )
    what = "1 row is an outlier" if len(far) == 1 else f"{len(far)} rows are outliers"
    text = f"{what} (row number from 0, distance in robust standard deviations): {rows}"
    return [Finding("outliers", "warning", text, remedy)]


def skew(w, y) -> list[Finding]:
    """Whether residuals reach further on one side than on the other."""
    n = len(w)
    left = w - w.mean()
    found = float(np.mean(left**3) / np.mean(left**2) ** 1.5)
    deviation = math.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))
    if _two_sided(found / deviation) > ALPHA or abs(found) < 0.5:
        return []
    up = found > 0
    remedy = "learn np.log(y), if that makes them even" if up and np.min(y) > 0 else "another scale of y may be even"
    text = f"residuals reach further {'up' if up else 'down'} than {'down' if up else 'up'} (skewness {found:.1f})"
    return [Finding("skew", "note", text, remedy)]


# -- patterns ------------------------------------------------------------------------------------------------------


def serial(w, X, names, y=None) -> list[Finding]:
    """Whether rows next to each other, along an input or in the table, have alike residuals; and seasons."""
    along = [j for j in range(X.shape[1]) if len(np.unique(X[:, j])) > len(w) / 2]
    found = []
    for j in along:
        order = np.argsort(X[:, j], kind="stable")
        season = _season(X[order, j], w[order], ALPHA / len(along))
        if season is not None:
            period, share = season
            text = (
                f"a season is missed: a period of {period:.3g} in {names[j]} has {share:.0%} of the residuals' variance"
            )
            term = f"k.Periodic({period:.3g})" + (f".on({_which(names[j], j)})" if X.shape[1] > 1 else "")
            remedy = f"add a term for it, 1.0 * {term}, times an RBF if it changes over time"
            found.append(Finding("season", "warning", text, remedy, names[j]))
            continue
        r = _neighbours(w[order])
        if r > MIN_CORRELATION and _one_sided(r * math.sqrt(len(w))) < ALPHA / len(along):
            text = f"residuals of neighbours along {names[j]} are alike (correlation {r:.2f})"
            remedy = (
                "something of the function is missed; a rougher kernel (k.Matern(nu=1.5)), one more term of a shorter "
                "lengthscale, or n_restarts=5, may find it"
            )
            found.append(Finding("serial", "warning", text, remedy, names[j]))
    if found or (y is not None and _sorted(y)) or any(_sorted(X[:, j]) for j in along):
        return found
    r = _neighbours(w)
    if r > MIN_CORRELATION and _one_sided(r * math.sqrt(len(w))) < ALPHA:
        text = f"residuals of rows next to each other in the table are alike (correlation {r:.2f})"
        remedy = "if rows are in the order of time, or in groups, give the time, or the group, as an input"
        found.append(Finding("serial", "warning", text, remedy))
    return found


def _neighbours(w) -> float:
    """The correlation of each residual with the next."""
    left = w - w.mean()
    return float(left[1:] @ left[:-1] / (left @ left))


def _season(x, w, alpha) -> tuple[float, float] | None:
    """Period of the strongest wave of residuals w at sorted places x, and its share of their variance; None if chance
    makes such waves.

    Under independence the periodogram is exponential at each frequency. What bends slowly, or keeps to its neighbours,
    has power at many low ones and no season: a cubic in the ranks is taken off, and the spectrum of a process of first
    order with the same correlation of neighbours is divided out (Schulz and Mudelsee 2002).
    """
    n, length = len(w), float(x[-1] - x[0]) * len(x) / (len(x) - 1)
    # Half a step apart, so that none falls between two; up to as many cycles as half the rows.
    frequencies = np.arange(2 * MIN_CYCLES, min(n, 2 * MAX_FREQUENCIES) + 1) / (2 * length)
    slow = np.linalg.qr(np.vander(_ranks(x), 4))[0]
    left = w - slow @ (slow.T @ w)
    kept = float(left.var() / w.var())
    if kept < MIN_SHARE:
        return None
    left /= left.std()
    r = max(_neighbours(left), 0.0)
    red = (1 - r**2) / (1 - 2 * r * np.cos(2 * np.pi * frequencies * length / n) + r**2)
    power = _periodogram(x, left, frequencies)
    best = int(np.argmax(power / red))
    share = 2 * power[best] / n * kept
    chance = len(frequencies) * np.exp(-power[best] * np.array([1.0, 1 / max(red[best], 1.0)]))
    if chance[0] > alpha or chance[1] > NOT_SLOW or share < MIN_SHARE:
        return None
    finer = frequencies[best] + np.linspace(-0.5, 0.5, 41) / length
    period = 1 / float(finer[np.argmax(_periodogram(x, left, finer))])
    digits = (float(f"{period:.{d}g}") for d in range(1, 8))  # no more than the data tell: a tenth of a cycle in all
    return next(p for p in digits if abs(p - period) < 0.1 * period**2 / length), share


def _periodogram(x, w, frequencies) -> np.ndarray:
    angle = 2 * np.pi * np.outer(frequencies, x - x[0])
    return ((np.cos(angle) @ w) ** 2 + (np.sin(angle) @ w) ** 2) / len(w)


def curvature(w, X, names) -> list[Finding]:
    """Whether residuals bend along an input: the t of a quadratic term in its ranks."""
    found = []
    for j in range(X.shape[1]):
        if len(np.unique(X[:, j])) < 3:
            continue
        r = _ranks(X[:, j])
        t, share = _last_coefficient(w, np.column_stack([np.ones(len(w)), r, r**2]))
        if share > MIN_SHARE and _two_sided(t, len(w) - 3) < ALPHA / X.shape[1]:
            shape = "low in the middle and high at both ends" if t > 0 else "high in the middle and low at both ends"
            text = f"y bends along {names[j]} in a way the model does not: residuals are {shape}"
            term = f"k.RBF({np.std(X[:, j]):.2g}).on({_which(names[j], j)})"
            remedy = f"add a term that bends, 1.0 * {term}"
            if X[:, j].min() > 0 and X[:, j].max() > 4 * np.median(X[:, j]):
                remedy += f", or give the logarithm of {names[j]}"
            found.append((share, Finding("curvature", "warning", text, remedy, names[j])))
    return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])[:MOST_NAMED]]


def spread(w, mean, y, X, names) -> tuple[list[Finding], np.ndarray]:
    """Whether the size of residuals changes with the prediction or with an input, by the F of |w| against ranks; and
    that size at each row, relative to its mean: (n,), ones if it does not change.

    Against inputs by a parabola: noise may be largest in between. Against the prediction by a line: where neighbours
    nearly determine each other, large residuals and predictions far from the mean go together by chance.
    """
    columns = [("the prediction", mean, 1), *((names[j], X[:, j], 2) for j in range(X.shape[1]))]
    size, strongest = np.abs(w), None
    for name, values, degree in columns:
        r = _ranks(values)
        degree = min(degree, len(np.unique(r)) - 1)
        if degree < 1:
            continue
        fit = np.polynomial.Polynomial.fit(r, size, degree)(r)
        rest = float(np.sum((size - fit) ** 2)) / (len(w) - 1 - degree)
        F = float(np.sum((fit - size.mean()) ** 2)) / degree / max(rest, 1e-12)
        ratio = _ratio(size, r, degree)
        if ratio < MIN_RATIO or fdtrc(degree, len(w) - 1 - degree, F) > ALPHA / len(columns):
            continue
        if strongest is None or 1.5 * strongest[0] < F:  # the prediction, unless an input tells it better
            strongest = F, name, ratio, fit, r
    if strongest is None:
        return [], np.ones(len(w))
    _, name, ratio, fit, r = strongest
    low, high, middle = (fit[np.argmin(np.abs(r - place))] for place in (-1, 1, 0))
    how = f"grows with {name}" if high > low else f"shrinks with {name}"
    if middle > max(low, high) or middle < min(low, high):
        how = f"is {'largest' if middle > high else 'smallest'} in the middle of {name}"
    text = f"the noise {how}, by a factor of {ratio:.1f} between thirds of the rows"
    remedy = "intervals are too wide for some rows and too narrow for others; give a variance for each row (noise=...)"
    if how == "grows with the prediction" and np.min(y) > 0:
        remedy = "learn np.log(y), or give a variance for each row (noise=...)"
    return [Finding("spread", "warning", text, remedy, name)], np.maximum(fit / size.mean(), 0.1)


def _ratio(size, r, degree: int) -> float:
    """Of mean sizes in the lowest and highest third; for a parabola also in the middle one."""
    parts = (r < -1 / 3, r > 1 / 3) if degree == 1 else (r < -1 / 3, abs(r) <= 1 / 3, r > 1 / 3)
    means = [float(np.mean(size[part])) for part in parts if part.any()]
    return max(means) / max(min(means), 1e-9)


# -- held-out rows -------------------------------------------------------------------------------------------------


def disagreement(left_out, held) -> list[Finding]:
    """Whether held-out rows are predicted as well as rows left out one at a time: log densities (n,), (m,)."""
    left_out, held = (values[np.isfinite(values)] for values in (np.asarray(left_out), np.asarray(held)))
    if len(left_out) < MIN_ROWS or len(held) < MIN_ROWS // 2:
        return []
    error = math.sqrt(left_out.var(ddof=1) / len(left_out) + held.var(ddof=1) / len(held))
    less = float(left_out.mean() - held.mean())
    if error == 0 or _two_sided(less / error, min(len(left_out), len(held)) - 1) > ALPHA or abs(less) < 0.05:
        return []
    if less > 0:
        text = f"held-out rows are predicted worse than leave-one-out says, by {less:.2f} nats a row"
        remedy = (
            "they may be of another kind or a later time; or parameters are many for the rows: a simpler kernel, or "
            "more rows"
        )
    else:
        text = f"held-out rows are predicted better than leave-one-out says, by {-less:.2f} nats a row"
        remedy = "see that they, or copies of them, were not among the rows the model was fitted to"
    return [Finding("held out", "warning", text, remedy)]


# -- tests ---------------------------------------------------------------------------------------------------------


def _two_sided(t: float, freedom: int | None = None) -> float:
    return float(2 * (ndtr(-abs(t)) if freedom is None else stdtr(max(freedom, 1), -abs(t))))


def _one_sided(t: float) -> float:
    return float(np.exp(log_ndtr(-t)))


def _last_coefficient(w, A) -> tuple[float, float]:
    """t of the last column's coefficient in least squares, and the share of the variance of w it takes up."""
    Q, R = np.linalg.qr(A)
    if abs(R[-1, -1]) < 1e-9 * np.abs(R).max():
        return 0.0, 0.0
    along = Q.T @ w
    total = float(np.sum((w - w.mean()) ** 2))
    rest = max(float(w @ w - along @ along), 1e-12 * total)
    if total == 0:
        return 0.0, 0.0
    t = along[-1] / math.sqrt(rest / max(len(w) - A.shape[1], 1)) * np.sign(R[-1, -1])
    return float(t), float(along[-1] ** 2 / total)


def _ranks(x) -> np.ndarray:
    """Places in order from -1 to 1, ties at their mean: a few far values have no more weight than others."""
    values, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return 2 * middle[which.ravel()] / max(len(x) - 1, 1) - 1 if len(values) > 1 else np.zeros(len(x))


def _robust_deviation(z) -> float:
    """1.4826 times the median absolute deviation; the standard deviation where half of the values are equal."""
    found = 1.4826 * float(np.median(np.abs(z - np.median(z))))
    return found or float(np.std(z)) or 1.0


def _sorted(x) -> bool:
    step = np.diff(x)
    return bool((step >= 0).all() or (step <= 0).all())


def _which(name: str, j: int) -> str:
    return str(j) if name == f"x{j}" else repr(name)
