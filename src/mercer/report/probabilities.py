"""Findings from predicted class probabilities. Pure functions: arrays in, findings out."""

import itertools
import math

import numpy as np
from scipy.special import chdtrc, gammainc, ndtr

from mercer.report.diagnostics import ALPHA, MAX_NAMED, MIN_ROWS, Finding

BINS = 10
MIN_VARIANCE = 3.0  # of the number of correct predictions in a bin, for it to be nearly normal
MIN_ERROR = 0.02  # mean error of a probability; less does not matter
MAX_SURPRISING = 0.01  # probability of a label that is worth a check
MIN_ERROR_RATE = 0.5  # of a class that is mostly missed


def of_labels(codes, P, names, remedy: str, of: str = "left out") -> list[Finding]:
    """All findings from probabilities P (n, C) and the true classes ``codes`` (n,); ``remedy`` is for probabilities
    that are not calibrated."""
    found = frequencies(codes, P, names, of)
    return [*reliability_curve(codes, P, remedy, of), *found, *surprises(codes, P), *errors(codes, P, names, of)]


def reliability_curve(codes, P, remedy: str, of: str = "left out") -> list[Finding]:
    """Test whether predictions are correct as often as their probability says, overall and over the range of
    probabilities (Hosmer and Lemeshow 1980, for rows that were not fitted)."""
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
    if min(chdtrc(len(sums), squared.sum()), overall) > ALPHA / 2 or off - by_chance < MIN_ERROR:
        return []
    bias = "overconfident" if total < 0 else "underconfident"
    if abs(total) < 0.3 * off:
        bias = "overconfident for some rows and underconfident for others"
    text = f"probabilities of rows {of} are {bias} (off by {off:.1%} on average; {by_chance:.1%} expected by chance)"
    return [Finding("calibration", "warning", text, remedy)]


def _parts(varies) -> list[slice]:
    """Bins of equal counts, neighbours merged until the number of correct predictions in each varies enough."""
    n = len(varies)
    edges = [0]
    for edge in (np.arange(1, BINS + 1) * n // BINS).tolist():
        if varies[edges[-1] : edge].sum() >= MIN_VARIANCE:
            edges.append(edge)
    edges = [*edges[:-1], n] if len(edges) > 1 else [0, n]  # remaining rows join the last bin
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def frequencies(codes, P, names, of: str = "left out") -> list[Finding]:
    """Test whether class frequencies match the sums of their probabilities."""
    n, C = P.shape
    if n < MIN_ROWS:
        return []
    excess = P.sum(axis=0) - np.bincount(codes, minlength=C)
    deviation = np.sqrt(np.maximum(np.sum(P * (1 - P), axis=0), MIN_VARIANCE))
    chance = 2 * ndtr(-np.abs(excess) / deviation)
    off = np.flatnonzero((chance < ALPHA / C) & (np.abs(excess) > MIN_ERROR * n))
    if not len(off):
        return []
    c = off[np.argmin(chance[off])]
    predicted, observed = P[:, c].mean(), np.mean(codes == c)
    text = f"{names[c]} has a mean probability of {predicted:.0%}, but makes up {observed:.0%} of the rows {of}"
    return [Finding("frequency", "warning", text, "add a constant to the kernel (+ 1.0), for class frequencies")]


def surprises(codes, P) -> list[Finding]:
    """Test whether there are more improbable labels than the probabilities predict."""
    own = P[np.arange(len(codes)), codes]
    rows = np.flatnonzero(own < MAX_SURPRISING)
    expected = float(np.sum(P[P < MAX_SURPRISING]))
    if not len(rows) or gammainc(len(rows), expected) > ALPHA:  # P(Poisson count >= observed)
        return []
    first = rows[np.argsort(own[rows], kind="stable")][:MAX_NAMED].tolist()
    more = f" and {len(rows) - len(first)} more" if len(rows) > len(first) else ""
    labels = "1 label is" if len(rows) == 1 else f"{len(rows)} labels are"
    text = (
        f"{labels} given a probability below {MAX_SURPRISING:.0%} by the other rows ({expected:.1f} expected by chance)"
    )
    listed = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, first))}{more}, counted from 0"
    return [Finding("outliers", "warning", text, f"they may be mislabelled; check {listed}")]


def errors(codes, P, names, of: str = "left out") -> list[Finding]:
    """Find classes that are mostly missed although predictions are mostly correct."""
    C = P.shape[1]
    predicted = P.argmax(axis=1)
    overall = np.mean(predicted != codes)
    found = []
    for c in range(C):
        members = codes == c
        wrong = np.mean(predicted[members] != c) if members.any() else 0.0
        if members.sum() < MIN_ROWS // 2 or wrong <= max(MIN_ERROR_RATE, 2 * overall) or not (predicted == c).any():
            continue
        instead = np.bincount(predicted[members & (predicted != c)], minlength=C).argmax()
        text = f"{wrong:.0%} of {names[c]} rows {of} are misclassified, most often as {names[instead]}"
        remedy = "to miss fewer, predict it above a lower threshold on predict_proba, or add inputs that distinguish it"
        found.append(Finding("class", "note", f"{text} ({overall:.0%} of all rows)", remedy))
    return found[:MAX_NAMED]
