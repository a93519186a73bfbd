"""What looks wrong with predicted probabilities of classes. Pure functions: arrays in, findings out."""

import itertools
import math

import numpy as np
from scipy.special import chdtrc, gammainc, ndtr

from mercer.report.diagnostics import ALPHA, MIN_ROWS, MOST_NAMED, Finding

BINS = 10
MIN_VARIANCE = 3.0  # of the number of right calls in a bin, for it to be nearly normal
MIN_OFF = 0.02  # of a probability, on average
SURPRISE = 0.01  # a label less probable than this is worth a look
MOSTLY = 0.5  # errors of a class


def of_labels(codes, P, names, remedy: str, of: str = "left out") -> list[Finding]:
    """Everything that probabilities P (n, C) tell beside the classes that the rows then had, numbered in ``codes``;
    ``remedy`` is what to try where they are not what they say."""
    found = frequencies(codes, P, names, of)
    return [*reliability_curve(codes, P, remedy, of), *found, *surprises(codes, P), *errors(codes, P, names, of)]


def reliability_curve(codes, P, remedy: str, of: str = "left out") -> list[Finding]:
    """Whether calls are right as often as they are said to be: on the whole, and over the range of probabilities (the
    test of Hosmer and Lemeshow 1980, for probabilities of rows that were not fitted)."""
    n = len(codes)
    if n < MIN_ROWS:
        return []
    confidence, right = P.max(axis=1), P.argmax(axis=1) == codes
    order = np.argsort(confidence, kind="stable")
    excess, varies = (right - confidence)[order], (confidence * (1 - confidence))[order]
    sums = np.array([[excess[part].sum(), varies[part].sum()] for part in _parts(varies)])
    squared = sums[:, 0] ** 2 / np.maximum(sums[:, 1], MIN_VARIANCE)
    off = float(np.abs(sums[:, 0]).sum() / n)
    by_chance = math.sqrt(2 / math.pi) * float(np.sqrt(sums[:, 1]).sum() / n)
    total = float(excess.sum() / n)
    overall = 2 * ndtr(-abs(total) * n / math.sqrt(max(varies.sum(), MIN_VARIANCE)))
    if min(chdtrc(len(sums), squared.sum()), overall) > ALPHA / 2 or off - by_chance < MIN_OFF:
        return []
    how = "are too sure" if total < 0 else "are not sure enough"
    if abs(total) < 0.3 * off:
        how = "are too sure for some rows and not sure enough for others"
    text = f"the probabilities of rows {of} {how}, off by {off:.1%} on average where chance gives {by_chance:.1%}"
    return [Finding("calibration", "warning", text, remedy)]


def _parts(varies) -> list[slice]:
    """Bins of equal counts, neighbours put together until the number of right calls in them varies enough."""
    n = len(varies)
    edges = [0]
    for edge in (np.arange(1, BINS + 1) * n // BINS).tolist():
        if varies[edges[-1] : edge].sum() >= MIN_VARIANCE:
            edges.append(edge)
    edges = [*edges[:-1], n] if len(edges) > 1 else [0, n]  # what is left over joins the last
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def frequencies(codes, P, names, of: str = "left out") -> list[Finding]:
    """Whether classes are as frequent as their probabilities add up to."""
    n, C = P.shape
    if n < MIN_ROWS:
        return []
    more = P.sum(axis=0) - np.bincount(codes, minlength=C)
    deviation = np.sqrt(np.maximum(np.sum(P * (1 - P), axis=0), MIN_VARIANCE))
    chance = 2 * ndtr(-np.abs(more) / deviation)
    off = np.flatnonzero((chance < ALPHA / C) & (np.abs(more) > MIN_OFF * n))
    if not len(off):
        return []
    c = off[np.argmin(chance[off])]
    said, had = P[:, c].mean(), np.mean(codes == c)
    text = f"{names[c]} has a probability of {said:.0%} on average, and {had:.0%} of the rows {of} are it"
    return [Finding("frequency", "warning", text, "a constant term in the kernel (+ 1.0) gives classes a level")]


def surprises(codes, P) -> list[Finding]:
    """Whether more labels are improbable than their probabilities allow for."""
    mine = P[np.arange(len(codes)), codes]
    rows = np.flatnonzero(mine < SURPRISE)
    expected = float(np.sum(P[P < SURPRISE]))
    if not len(rows) or gammainc(len(rows), expected) > ALPHA:  # P(a Poisson count of at least so many)
        return []
    first = rows[np.argsort(mine[rows], kind="stable")][:MOST_NAMED].tolist()
    more = f" and {len(rows) - len(first)} more" if len(rows) > len(first) else ""
    few = "1 label is" if len(rows) == 1 else f"{len(rows)} labels are"
    text = f"{few} given less than {SURPRISE:.0%} by the other rows, where {expected:.1f} would be by chance"
    listed = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, first))}{more}, counted from 0"
    return [Finding("outliers", "warning", text, f"mistakes, perhaps; look at {listed}")]


def errors(codes, P, names, of: str = "left out") -> list[Finding]:
    """Classes that are mostly missed, while calls are mostly right."""
    C = P.shape[1]
    called = P.argmax(axis=1)
    overall = np.mean(called != codes)
    found = []
    for c in range(C):
        mine = codes == c
        wrong = np.mean(called[mine] != c) if mine.any() else 0.0
        if mine.sum() < MIN_ROWS // 2 or wrong <= max(MOSTLY, 2 * overall) or not (called == c).any():
            continue
        instead = np.bincount(called[mine & (called != c)], minlength=C).argmax()
        text = f"{wrong:.0%} of {names[c]} are called another class when {of}, most often {names[instead]}"
        remedy = "to miss fewer, call it at a lower predict_proba than the highest; or look for inputs that tell it"
        found.append(Finding("class", "note", f"{text}; of all rows {overall:.0%} are called wrong", remedy))
    return found[:MOST_NAMED]
