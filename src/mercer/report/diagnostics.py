"""Findings from leave-one-out or held-out predictions. Pure functions: arrays in, findings out.

Each check raises a false alarm on at most ``ALPHA`` of the data sets for which the model is right, however many inputs,
lags or levels it examines. Deviations too small to matter are not reported, even if many rows make them significant.
"""

import dataclasses
import math

import numpy as np
from scipy.special import betainc, fdtrc, log_ndtr, ndtr, stdtr, stdtrit

from mercer.scores import coverage

ALPHA = 0.005  # significance level of each check: its rate of false alarms
LEVELS, MARGINS = (0.5, 0.8, 0.95), (0.05, 0.04, 0.015)  # central intervals, and errors of coverage too small to matter
MIN_ROWS = 20  # residuals needed for any check
MIN_CORRELATION = 0.1  # between neighbours; less does not matter
MIN_SHARE = 0.02  # of the residuals' variance; a pattern that explains less does not matter
MIN_RATIO = 1.3  # of the largest spread to the smallest; less does not matter
MIN_CYCLES = 3  # over the range of an input; fewer make a trend, not a season
RED_NOISE_ALPHA = 0.05  # significance level of a season against autocorrelated noise
MAX_FREQUENCIES = 500
MAX_RESIDUAL = 3.0  # robust standard deviations at which residuals are clipped, so that no single row makes a pattern
MAX_NAMED = 5  # rows or inputs named in a finding
STUDENT = "GaussianProcessRegressor(likelihood='student')"
VARYING_NOISE = "HeteroscedasticGaussianProcessRegressor"
COUNTS = "if y is counts, try GaussianProcessRegressor(likelihood='negative_binomial') or 'poisson'; otherwise "


@dataclasses.dataclass(frozen=True)
class Finding:
    """A problem of the fit, and a remedy.

    ``kind`` is the check that raised it; ``severity`` is "warning" if predictions or intervals are misleading, else
    "note"; ``name`` is the input concerned, if there is one.
    """

    kind: str
    severity: str
    text: str
    remedy: str
    name: str | None = None

    def __str__(self):
        return f"{self.text}: {self.remedy}."


def of_residuals(z, mean, y, X=None, names=(), independent=None, widened: float = 1.0) -> list[Finding]:
    """All findings from the standardised leave-one-out residuals z (n,) of a regression.

    ``mean`` (n,) are the predictions, ``y`` the targets, ``X`` (n, d) the inputs, with their ``names``. ``independent``
    (n,) are residuals that are independent draws from N(0, 1) if the model is right; leave-one-out residuals are
    correlated where neighbours nearly determine each other. None takes z. ``widened`` is the factor on predictive
    variances that allows for learned parameters.
    """
    z = np.clip(np.nan_to_num(np.asarray(z, dtype=float)), -1e6, 1e6)
    w = z if independent is None else np.clip(np.nan_to_num(independent), -1e6, 1e6)
    if len(z) < MIN_ROWS or np.ptp(w) == 0:
        return []
    X = np.zeros((len(z), 0)) if X is None else X
    w = np.clip(w / _robust_deviation(w), -MAX_RESIDUAL, MAX_RESIDUAL)
    order = serial(w, X, names, y)
    explained = {found.name for found in order if found.kind == "season"}
    curved = [found for found in curvature(w, X, names) if found.name not in explained]
    explained |= {found.name for found in curved}
    order = [found for found in order if found.kind == "season" or found.name not in explained]
    changing, level = spread(w, mean, y, X, names)
    causes = [*order, *curved, *changing, *outliers(z / level, y)]  # relative to the local noise
    return [*causes, *calibration(z, independent, explained=bool(causes), widened=widened), *skew(w, y)]


# -- intervals -----------------------------------------------------------------------------------------------------


def calibration(
    z, independent=None, of: str = "left out", explained: bool = False, widened: float = 1.0
) -> list[Finding]:
    """Test the coverage of central intervals at three levels; ``explained`` if a cause was found before.

    Variances multiplied by ``widened``, to allow for parameters learned from the same rows, make leave-one-out
    intervals at those parameters cover more than their level even if the model is right. So intervals count as too wide
    only if they would be without that factor, and as too narrow only if they are with it.
    """
    off = {}
    for level, margin in zip(LEVELS, MARGINS, strict=True):
        held = coverage(z, level)
        for factor, sign in ((1.0, -1), (math.sqrt(widened), 1)):
            excess = coverage(factor * z, level) - level
            chance = _binomial((level + excess) * len(z), len(z), level)
            if independent is not None:  # the coverage of correlated residuals varies more by chance
                chance = max(chance, _binomial(coverage(factor * independent, level) * len(z), len(z), level))
            if chance < ALPHA / len(LEVELS) and sign * excess > margin:
                off[level] = held - level
    if not off:
        return []
    if min(off.values()) > 0 and 0.95 in off:
        text = "intervals are too wide"
        remedy = "learn the noise (noise=None) and the amplitude of the kernel, with n_restarts=5"
    elif max(off.values()) < 0 and coverage(z, 0.95) < 0.95:
        text = "intervals are too narrow"
        remedy = "the noise may have heavy tails, or the kernel may be too smooth; calibrate=True widens the intervals"
    elif off[min(off)] > 0:  # many in the centre, and yet not few far out
        text = "residuals have heavier tails than a Gaussian"
        remedy = f"try {STUDENT}, transform y, or give a variance for each row (noise=...)"
    else:
        text = "residuals have lighter tails than a Gaussian, or fall into two groups"
        remedy = (
            "draw a histogram of them; for two groups, add the input that tells them apart, or try "
            "GaussianMixtureRegressor; for a wave that the model misses, add a term to the kernel (k.Periodic)"
        )
    if "tails" in text:
        off.setdefault(0.95, coverage(z, 0.95) - 0.95)
    covered = ", ".join(f"{level:.0%} intervals cover {level + more:.0%}" for level, more in sorted(off.items()))
    remedy = "probably a consequence of the above" if explained else remedy
    return [Finding("calibration", "warning", f"{text} ({covered} of the rows {of})", remedy)]


def _binomial(k: float, n: int, p: float) -> float:
    """Two-sided p-value of a count k of n under probability p."""
    below = 1.0 if k >= n else float(betainc(n - k, k + 1, 1 - p))
    above = 1.0 if k <= 0 else float(betainc(k, n - k + 1, p))
    return min(1.0, 2 * min(below, above))


def outliers(z, y=None) -> list[Finding]:
    """Find rows further out than the largest of n normal residuals would be, in robust standard deviations. ``y``: the
    targets, if they may be counts."""
    n = len(z)
    scale = _robust_deviation(z)
    # The median absolute deviation of n values is as precise as a standard deviation of 0.37 n.
    limit = float(stdtrit(max(0.37 * (n - 1), 2.0), 1 - ALPHA / (2 * n)))
    far = np.flatnonzero(np.abs(z - np.median(z)) > limit * scale)
    if not len(far):
        return []
    order = far[np.argsort(-np.abs(z[far]), kind="stable")]
    rows = ", ".join(f"{row} ({z[row] / scale:+.0f})" for row in order[:MAX_NAMED])
    rows += f" and {len(far) - MAX_NAMED} more" if len(far) > MAX_NAMED else ""
    if len(far) <= max(3, 0.03 * n):
        remedy = f"check them for errors; drop them, give them a large variance (noise=...), or try {STUDENT}"
    else:
        remedy = (
            f"so many point to noise with heavy tails rather than to errors; {COUNTS if _may_be_counts(y) else ''}try "
            f"{STUDENT}, transform y, or give a variance for each row (noise=...)"
        )
    what = "1 row is an outlier" if len(far) == 1 else f"{len(far)} rows are outliers"
    text = f"{what} (row number from 0, distance in robust standard deviations): {rows}"
    return [Finding("outliers", "warning", text, remedy)]


def skew(w, y) -> list[Finding]:
    """Test the skewness of residuals."""
    n = len(w)
    centred = w - w.mean()
    found = float(np.mean(centred**3) / np.mean(centred**2) ** 1.5)
    deviation = math.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))
    if _two_sided(found / deviation) > ALPHA or abs(found) < 0.5:
        return []
    up = found > 0
    remedy = "model np.log(y) instead" if up and np.min(y) > 0 else "a transformation of y may make them symmetric"
    remedy = f"{COUNTS}{remedy}" if up and _may_be_counts(y) else remedy
    text = f"residuals are skewed {'upwards' if up else 'downwards'} (skewness {found:.1f})"
    return [Finding("skew", "note", text, remedy)]


# -- patterns ------------------------------------------------------------------------------------------------------


def serial(w, X, names, y=None) -> list[Finding]:
    """Find seasons and correlated residuals of neighbours, along each input and in the order of the table."""
    along = [j for j in range(X.shape[1]) if len(np.unique(X[:, j])) > len(w) / 2]
    found = []
    for j in along:
        order = np.argsort(X[:, j], kind="stable")
        season = _season(X[order, j], w[order], ALPHA / len(along))
        if season is not None:
            period, share = season
            text = (
                f"the model misses a season (period {period:.3g} in {names[j]}, {share:.0%} of the residuals' variance)"
            )
            term = f"k.Periodic({period:.3g})" + (f".on({_which(names[j], j)})" if X.shape[1] > 1 else "")
            remedy = f"add 1.0 * {term} to the kernel, multiplied by an RBF if the season changes over time"
            found.append(Finding("season", "warning", text, remedy, names[j]))
            continue
        r = _neighbours(w[order])
        if r > MIN_CORRELATION and _one_sided(r * math.sqrt(len(w))) < ALPHA / len(along):
            text = f"residuals of neighbours along {names[j]} are correlated ({r:.2f})"
            remedy = (
                "the model misses part of the function; try a rougher kernel (k.Matern(nu=1.5)), another term with a "
                "shorter lengthscale, or n_restarts=5"
            )
            found.append(Finding("serial", "warning", text, remedy, names[j]))
    if found or (y is not None and _sorted(y)) or any(_sorted(X[:, j]) for j in along):
        return found
    r = _neighbours(w)
    if r > MIN_CORRELATION and _one_sided(r * math.sqrt(len(w))) < ALPHA:
        text = f"residuals of consecutive rows of the table are correlated ({r:.2f})"
        remedy = "if the rows are ordered in time, or grouped, add the time or the group as an input"
        found.append(Finding("serial", "warning", text, remedy))
    return found


def _neighbours(w) -> float:
    """Correlation of each residual with the next (lag 1)."""
    centred = w - w.mean()
    return float(centred[1:] @ centred[:-1] / (centred @ centred))


def _season(x, w, alpha) -> tuple[float, float] | None:
    """Period of the highest peak of the periodogram of residuals w at sorted inputs x, and its share of their variance;
    None if the peak is not significant.

    For independent residuals the periodogram is exponential at each frequency. A trend, or autocorrelation, has power
    at many low frequencies without being a season: a cubic in the ranks is subtracted, and the peak is also tested
    against the spectrum of a first-order autoregression with the same lag-1 correlation (Schulz and Mudelsee 2002).
    """
    n, length = len(w), float(x[-1] - x[0]) * len(x) / (len(x) - 1)
    # Half the Fourier spacing, so that no peak falls between two; up to n / 2 cycles over the range.
    frequencies = np.arange(2 * MIN_CYCLES, min(n, 2 * MAX_FREQUENCIES) + 1) / (2 * length)
    slow = np.linalg.qr(np.vander(_ranks(x), 4))[0]
    rest = w - slow @ (slow.T @ w)
    kept = float(rest.var() / w.var())
    if kept < MIN_SHARE:
        return None
    rest /= rest.std()
    r = max(_neighbours(rest), 0.0)
    red = (1 - r**2) / (1 - 2 * r * np.cos(2 * np.pi * frequencies * length / n) + r**2)
    power = _periodogram(x, rest, frequencies)
    best = int(np.argmax(power / red))
    share = 2 * power[best] / n * kept
    chance = len(frequencies) * np.exp(-power[best] * np.array([1.0, 1 / max(red[best], 1.0)]))
    if chance[0] > alpha or chance[1] > RED_NOISE_ALPHA or share < MIN_SHARE:
        return None
    finer = frequencies[best] + np.linspace(-0.5, 0.5, 41) / length
    period = 1 / float(finer[np.argmax(_periodogram(x, rest, finer))])
    candidates = (float(f"{period:.{digits}g}") for digits in range(1, 8))
    # The fewest digits that shift the last cycle by less than a tenth.
    return next(p for p in candidates if abs(p - period) < 0.1 * period**2 / length), share


def _periodogram(x, w, frequencies) -> np.ndarray:
    angle = 2 * np.pi * np.outer(frequencies, x - x[0])
    return ((np.cos(angle) @ w) ** 2 + (np.sin(angle) @ w) ** 2) / len(w)


def curvature(w, X, names) -> list[Finding]:
    """Test for a nonlinear dependence of residuals on an input: t-test of a quadratic term in its ranks."""
    found = []
    for j in range(X.shape[1]):
        if len(np.unique(X[:, j])) < 3:
            continue
        r = _ranks(X[:, j])
        t, share = _last_coefficient(w, np.column_stack([np.ones(len(w)), r, r**2]))
        if share > MIN_SHARE and _two_sided(t, len(w) - 3) < ALPHA / X.shape[1]:
            shape = "low in the middle and high at both ends" if t > 0 else "high in the middle and low at both ends"
            text = f"the model misses curvature along {names[j]} (residuals are {shape})"
            term = f"k.RBF({np.std(X[:, j]):.2g}).on({_which(names[j], j)})"
            remedy = f"add a nonlinear term, 1.0 * {term}"
            if X[:, j].min() > 0 and X[:, j].max() > 4 * np.median(X[:, j]):
                remedy += f", or take the logarithm of {names[j]}"
            found.append((share, Finding("curvature", "warning", text, remedy, names[j])))
    return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])[:MAX_NAMED]]


def spread(w, mean, y, X, names) -> tuple[list[Finding], np.ndarray]:
    """Test for a noise level that depends on the prediction or an input: F-test of a regression of |w| on ranks. Also
    returns the level at each row relative to its mean (n,): ones if it is constant.

    The regression on an input is quadratic, since the noise may be largest in the middle. On the prediction it is
    linear: where neighbours nearly determine each other, large residuals go with predictions far from the mean by
    chance.
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
        if strongest is None or 1.5 * strongest[0] < F:  # the prediction, unless an input explains it better
            strongest = F, name, ratio, fit, r
    if strongest is None:
        return [], np.ones(len(w))
    _, name, ratio, fit, r = strongest
    low, high, middle = (fit[np.argmin(np.abs(r - rank))] for rank in (-1, 1, 0))
    trend = f"grows with {name}" if high > low else f"shrinks with {name}"
    if middle > max(low, high) or middle < min(low, high):
        trend = f"is {'largest' if middle > high else 'smallest'} in the middle of {name}"
    text = f"the noise {trend}, by a factor of {ratio:.1f} between thirds of the rows"
    remedy = f"try {VARYING_NOISE}, or give a variance for each row (noise=...)"
    if trend == "grows with the prediction" and np.min(y) > 0:
        remedy = f"model np.log(y), {remedy}"
    remedy = f"{COUNTS}{remedy}" if _may_be_counts(y) else remedy
    remedy = f"intervals are too wide for some rows and too narrow for others; {remedy}"
    return [Finding("spread", "warning", text, remedy, name)], np.maximum(fit / size.mean(), 0.1)


def _ratio(size, r, degree: int) -> float:
    """Largest over smallest mean size, of the lowest and the highest third; for a parabola also of the middle third."""
    parts = (r < -1 / 3, r > 1 / 3) if degree == 1 else (r < -1 / 3, abs(r) <= 1 / 3, r > 1 / 3)
    means = [float(np.mean(size[part])) for part in parts if part.any()]
    return max(means) / max(min(means), 1e-9)


# -- held-out rows -------------------------------------------------------------------------------------------------


def disagreement(left_out, held) -> list[Finding]:
    """Compare log densities of held-out rows (m,) with leave-one-out ones (n,): t-test."""
    left_out, held = (values[np.isfinite(values)] for values in (np.asarray(left_out), np.asarray(held)))
    if len(left_out) < MIN_ROWS or len(held) < MIN_ROWS // 2:
        return []
    error = math.sqrt(left_out.var(ddof=1) / len(left_out) + held.var(ddof=1) / len(held))
    less = float(left_out.mean() - held.mean())
    if error == 0 or _two_sided(less / error, min(len(left_out), len(held)) - 1) > ALPHA or abs(less) < 0.05:
        return []
    if less > 0:
        text = f"held-out rows are predicted worse than leave-one-out suggests, by {less:.2f} nats per row"
        remedy = (
            "they may come from another source or a later time, or the model may overfit; try a simpler kernel, or "
            "more rows"
        )
    else:
        text = f"held-out rows are predicted better than leave-one-out suggests, by {-less:.2f} nats per row"
        remedy = "make sure that neither they nor copies of them are among the training rows"
    return [Finding("held out", "warning", text, remedy)]


# -- tests ---------------------------------------------------------------------------------------------------------


def _two_sided(t: float, freedom: int | None = None) -> float:
    return float(2 * (ndtr(-abs(t)) if freedom is None else stdtr(max(freedom, 1), -abs(t))))


def _one_sided(t: float) -> float:
    return float(np.exp(log_ndtr(-t)))


def _last_coefficient(w, A) -> tuple[float, float]:
    """t statistic of the last coefficient in least squares, and the share of w's variance it explains."""
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
    """Ranks scaled to [-1, 1], ties at their mean, so that extreme values get no more weight than others."""
    values, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return 2 * middle[which.ravel()] / max(len(x) - 1, 1) - 1 if len(values) > 1 else np.zeros(len(x))


def _may_be_counts(y) -> bool:
    """Whether targets are three or more different integers of at least 0."""
    return y is not None and bool(np.min(y) >= 0 and (y == np.round(y)).all()) and len(np.unique(y)) > 2


def _robust_deviation(z) -> float:
    """1.4826 times the median absolute deviation; the standard deviation if that is zero."""
    found = 1.4826 * float(np.median(np.abs(z - np.median(z))))
    return found or float(np.std(z)) or 1.0


def _sorted(x) -> bool:
    step = np.diff(x)
    return bool((step >= 0).all() or (step <= 0).all())


def _which(name: str, j: int) -> str:
    return str(j) if name == f"x{j}" else repr(name)
