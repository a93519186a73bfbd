"""How far predictions by an approximation are from exact ones, where there is no bound: compared near a few places."""

from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import MercerError
from mercer.core.inputs import take_rows
from mercer.inference.base import Inference, latent_covariances
from mercer.inference.methods import most_accurate
from mercer.kernels.base import Kernel
from mercer.models.doubt import about_distance
from mercer.solvers.dense import Dense

PLACES, COMPARED_ROWS = 3, 30  # rows around which, and near each of which, predictions are compared
NEAR_ROWS, NEAR_LABELS = 1000, 400  # that exact predictions there are given: of a regression, and of two classes


def of_regression(model: Any) -> str | None:
    """A line on the solver of a regression that approximates without a bound; None for others."""
    if model.plan_.approximation is None or about_distance(model) is not None or "evidence_error" in model.numerics_:
        return None
    posterior = model.posterior_
    X, y, noise = posterior.data
    residual, away, wider = y - posterior.trend(X)[0], [], []
    try:
        for near in _neighbourhoods(posterior.kernel, X, NEAR_ROWS):
            exact = Dense().posterior(posterior.kernel, take_rows(X, near), residual[near], noise[near], None, True)
            at = near[:COMPARED_ROWS]
            Z = take_rows(X, at)
            (mean, variance), (true, exact_variance) = posterior.moments(Z), exact.moments(Z)
            spread = np.sqrt(exact_variance + noise[at])
            away.append((mean - posterior.trend(Z)[0] - true) / spread)
            wider.append(np.sqrt(variance + noise[at]) / spread)
    except MercerError:
        return None
    difference, ratio = float(np.sqrt(np.mean(np.concatenate(away) ** 2))), float(np.median(np.concatenate(wider)))
    return (
        f"compared with {_given(len(y), NEAR_ROWS)}: means differ by {difference:.2g} predictive deviations (root mean "
        f"square), deviations are {ratio:.3g} times as large (median)"
    )


def of_classification(model: Any) -> str | None:
    """Lines on a classifier whose centres stand for the rows; None for others."""
    found = model.numerics_
    if "left" not in found:
        return None
    says = (
        f"approximated by {found['centers']:,} centres, which leave {found['left']:.2%} of the prior variance; the log "
        "evidence is a lower bound"
    )
    C = len(model.classes_)
    inference: Inference = model._inference(most_accurate(C))
    X, codes, kernel = model.X_fit_, model.codes_, model.kernel_
    most, away = int(NEAR_LABELS * (2 / C) ** (1 / 3)), []
    try:
        for near in _neighbourhoods(kernel, X, most):
            rows = take_rows(X, near)
            exact: Any = inference(latent_covariances(Dense().latent, [kernel], rows, 0.0), codes[near], gradient=False)
            if exact is None:
                return says
            Z = take_rows(X, near[:COMPARED_ROWS])
            true = inference.posterior(exact, [kernel], rows, codes[near]).class_probabilities(Z, inference.likelihood)
            away.append(np.abs(model.posterior_.class_probabilities(Z, inference.likelihood) - true).max(axis=1))
    except MercerError:
        return says
    of_all = np.concatenate(away)
    return (
        f"{says}\ncompared with {_given(len(codes), most)}: probabilities differ by {of_all.mean():.2g} on average, by "
        f"{of_all.max():.2g} at most"
    )


def _neighbourhoods(kernel: Kernel, X: Any, most: int) -> list[np.ndarray]:
    """Rows around a few random ones, those with the largest correlation first."""
    rows = gram.Gram(kernel, X)
    scale, rng = np.sqrt(np.maximum(rows.diagonal(), np.finfo(float).tiny)), np.random.default_rng(0)
    places = rng.choice(rows.n, size=1 if rows.n <= most else PLACES, replace=False)
    closeness = np.abs(gram.between(kernel, take_rows(X, places), rows)) / scale
    return [np.argsort(-each, kind="stable")[:most] for each in closeness]


def _given(n: int, most: int) -> str:
    return (
        "exact predictions" if n <= most else f"exact predictions from the {most:,} rows near each of {PLACES} places"
    )
