"""Report of a fitted classifier."""

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_matrix
from mercer.core.parameters import slots_of
from mercer.core.text import listed, table
from mercer.report import approximation_error, diagnostics, probabilities
from mercer.report.page import (
    HELD_OUT,
    Report,
    about_inputs,
    about_learning,
    columns,
    entries,
    in_order,
    optima,
    parameter_section,
)
from mercer.scores import Reliability, reliability

MIN_CLASS_ROWS = 5  # with fewer, a class cannot be learned
MAX_IMBALANCE = 10  # ratio of the largest class to another, above which that counts as rare
MAX_CONFUSION_CLASSES = 8  # for which the whole confusion matrix is printed
MIN_EVIDENCE_GAIN = 2.0  # nats over class frequencies; a smaller gain does not matter
BASIS = (
    "Checked: calibration, frequencies and errors of classes, and improbable labels, on leave-one-out probabilities at "
    "parameters learned from all rows."
)


def report(model, X=None, y=None) -> Report:
    """Report of a fitted `GaussianProcessClassifier`, also on held-out rows ``X``, ``y`` if they are given; of a
    stream on these alone."""
    if model._streams():
        return _of_stream(model, X, y)
    loo = model.loo()
    codes, n = model.codes_, len(model.codes_)
    counts = np.bincount(codes, minlength=len(model.classes_))
    confusion = np.zeros((len(counts), len(counts)), dtype=int)
    np.add.at(confusion, (codes, loo.probability.argmax(axis=1)), 1)
    left_out = reliability(codes, loo.probability)
    names = [str(label) for label in model.classes_]
    findings = probabilities.of_labels(codes, loo.probability, names, _remedy(model))
    sections = columns(model) | {
        "Fit": _fit(model, left_out, counts),
        "Classes, by leave-one-out": _classes(model, confusion),
        "Parameters": parameter_section(model, list(model.classes_)),
    }
    if X is not None or y is not None:
        held_codes, P, scores = _held_out(model, X, y)
        sections[HELD_OUT] = _comparison(reliability(held_codes, P), left_out)
        findings += diagnostics.disagreement(loo.log_score, scores)
        if not any(finding.kind == "calibration" for finding in findings):  # report it once
            findings += probabilities.reliability_curve(held_codes, P, _remedy(model), of="held out")
    try:
        relevance = model.relevance()
    except DataError:
        relevance = None
    if relevance is not None:
        sections["Relevance of inputs"] = str(relevance)
    sections["Calibration of leave-one-out probabilities"] = str(left_out)
    sections["Optima found"] = optima(model)
    says = approximation_error.of_classification(model)
    sections["Numerics"] = _numerics(model) + ("" if says is None else f"\n{says}")
    title = f"Gaussian process classification, {n:,} rows, {len(counts)} classes"
    findings = in_order(findings)
    suggestions = [*map(str, findings), *_suggestions(model, left_out, confusion, relevance)]
    return Report(title, sections, suggestions, left_out, relevance, tuple(findings), BASIS)


def _of_stream(model, X, y) -> Report:
    """From held-out rows, since those of a stream are not kept."""
    codes, P, _ = _held_out(model, X, y)
    held, counts, C = reliability(codes, P), model._class_counts(), len(model.classes_)
    confusion = np.zeros((C, C), dtype=int)
    np.add.at(confusion, (codes, P.argmax(axis=1)), 1)
    fit = [
        ["log evidence", f"{model.log_marginal_likelihood_:.2f}"],
        ["held-out log score", f"{-held.log_loss:.4f} per row"],
        ["held-out error", f"{held.error_rate:.1%}"],
        ["held-out Brier score", f"{held.brier:.4f}"],
    ]
    names = [str(label) for label in model.classes_]
    findings = in_order(probabilities.of_labels(codes, P, names, _remedy(model), of="held out"))
    sections = columns(model) | {
        "Fit": entries(fit),
        "Classes, of held-out rows": _classes(model, confusion),
        "Parameters": parameter_section(model, list(model.classes_)),
        "Calibration of probabilities of held-out rows": str(held),
        "Optima found": optima(model),
        "Numerics": _numerics(model),
    }
    title = f"Gaussian process classification, a stream of {int(counts.sum()):,} rows, {C} classes"
    suggestions = [*map(str, findings), *about_learning(model)]
    return Report(title, sections, suggestions, held, None, tuple(findings), "Checked: held-out probabilities.")


def _remedy(model) -> str:
    if model.inference_ != "laplace":
        return "another kernel may help"
    better = "ep" if len(model.classes_) == 2 else "variational"
    return f"inference={better!r} is more accurate than 'laplace'"


def _held_out(model, X, y) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True classes of held-out rows (m,), the probabilities of all classes (m, C), and ln p(true class) (m,)."""
    if X is None or y is None:
        raise DataError("held-out rows need inputs X and labels y: give both, or neither.")
    P = model.predict_proba(X)
    codes = model._codes_of(y, len(P))
    with np.errstate(divide="ignore"):
        return codes, P, np.log(P[np.arange(len(P)), codes])


def _comparison(held: Reliability, left_out: Reliability) -> str:
    """Scores of held-out rows next to those of leave-one-out, and the reliability of the former."""
    both = (held, left_out)
    sizes = [int(found.counts.sum()) for found in both]
    rows = [
        ["rows", *(f"{n:,}" for n in sizes)],
        ["errors", *(f"{round(found.error_rate * n):,}" for found, n in zip(both, sizes, strict=True))],
        ["error rate", *(f"{found.error_rate:.1%}" for found in both)],
        ["log score per row", *(f"{-found.log_loss:.4f}" for found in both)],
        ["Brier score", *(f"{found.brier:.4f}" for found in both)],
        ["calibration error", *(f"{found.calibration_error:.1%}" for found in both)],
        ["expected by chance", *(f"{found.by_chance:.1%}" for found in both)],
    ]
    return table(["", "held out", "leave-one-out"], rows) + "\n\nHeld out:\n" + held.table()


def _from_frequencies(counts) -> float:
    """ln p(y) of a model that ignores the inputs and predicts the class frequencies."""
    return float(counts @ np.log(counts / counts.sum()))


def _fit(model, held, counts) -> str:
    n = counts.sum()
    evidence, known = model.log_marginal_likelihood_, _from_frequencies(counts)
    link = f"{model.link} sigmoid" if len(counts) == 2 else "softmax"
    return entries(
        [
            ["log evidence", f"{evidence:.2f} ({evidence / n:.3f} per row; class frequencies alone {known / n:.3f})"],
            ["leave-one-out log score", f"{-held.log_loss:.4f} per row"],
            ["leave-one-out error", f"{held.error_rate:.1%} (largest class always: {1 - counts.max() / n:.1%})"],
            ["leave-one-out Brier score", f"{held.brier:.4f}"],
            ["method", f"{model.inference_}, {link}, {model.n_evaluations_} evaluations of the evidence"],
        ]
    )


def _classes(model, confusion) -> str:
    names = [str(label) for label in model.classes_]
    counts = confusion.sum(axis=1)
    wrong = confusion - np.diag(np.diag(confusion))
    shares = wrong.sum(1) / np.maximum(counts, 1)
    head = [[name, f"{count:,}", f"{e:.1%}"] for name, count, e in zip(names, counts, shares, strict=True)]
    if len(names) <= MAX_CONFUSION_CLASSES:
        rows = [first + [f"{count:,}" for count in line] for first, line in zip(head, confusion, strict=True)]
        return table(["class", "rows", "error", *(f"predicted {name}" for name in names)], rows)
    confused = [f"{names[line.argmax()]} ({line.max():,})" if line.any() else "" for line in wrong]
    rows = [[*first, other] for first, other in zip(head, confused, strict=True)]
    return table(["class", "rows", "error", "most often confused with"], rows)


def _numerics(model) -> str:
    parts = []
    for name, value in model.numerics_.items():
        if isinstance(value, bool | np.bool_):
            parts.append(name if value else f"not {name}")
        elif np.ndim(value) == 0 and isinstance(value, int | float | np.number):
            parts.append(f"{name.replace('_', ' ')} {value:.3g}")
        elif isinstance(value, np.ndarray) and value.size:
            parts.append(f"{name.replace('_', ' ')} {value.min():.3g} to {value.max():.3g}")
    return ", ".join(parts)


def _suggestions(model, held, confusion, relevance) -> list[str]:
    counts, n = confusion.sum(axis=1), int(confusion.sum())
    found = [*_about_classes(model.classes_, counts, confusion), *_about_rows(model)]
    free = len(model.theta_)
    if model.optima_ and 5 * free > n:
        found.append(
            f"{free} parameters were learned from {n} rows: probabilities may be overconfident; fix or tie some, or "
            "give a kernel with priors (learning='map')."
        )
    known = _from_frequencies(counts)
    if model.log_marginal_likelihood_ < known + MIN_EVIDENCE_GAIN or -held.log_loss * n < known:
        found.append(
            "the inputs add little to the class frequencies: try another kernel, n_restarts=5, or other inputs."
        )
    found += [*about_inputs(relevance), *about_learning(model)]
    priors = any(slot.prior is not None for slot in slots_of(model._model()))
    if model.learning == "mle" and priors:
        found.append("the kernel has priors, which learning='mle' ignores; learning='map' uses them.")
    if not model.numerics_.get("converged", True):
        found.append("inference did not converge: probabilities may be wrong. Try a kernel of smaller variance.")
    if model.numerics_.get("jitter", 0.0) > 0:
        found.append(
            "the covariance was numerically singular, so jitter was added: drop duplicates, or add a White kernel."
        )
    return found


def _about_classes(classes, counts, confusion) -> list[str]:
    found = []
    names = np.array([str(label) for label in classes])
    few = counts < MIN_CLASS_ROWS
    if few.any():
        sizes = listed([f"{name} ({count})" for name, count in zip(names[few], counts[few], strict=True)])
        found.append(f"classes with very few rows: {sizes}. Add rows, or merge classes.")
    rare = ~few & (MAX_IMBALANCE * counts < counts.max())
    if rare.any():
        found.append(
            f"{listed(names[rare])}: more than {MAX_IMBALANCE} times rarer than {names[counts.argmax()]}. To miss "
            "fewer of them, predict them above a threshold on predict_proba instead of where they are most probable."
        )
    never = ~few & (confusion.sum(axis=0) == 0)
    if never.any():
        found.append(f"no left-out row is predicted to be {listed(names[never], limit=3)}.")
    return found


def _about_rows(model) -> list[str]:
    found = []
    disputed, copies = _repeated(model)
    if disputed:
        found.append(f"{disputed} rows share their inputs with rows of another label: no model can separate them.")
    if copies:
        rows, them = ("1 row repeats another", "it") if copies == 1 else (f"{copies} rows repeat others", "them")
        found.append(f"{rows} exactly, label included: leave-one-out is too optimistic about {them}.")
    return found


def _repeated(model) -> tuple[int, int]:
    """Number of rows that share their inputs with another label, and of exact copies, label included."""
    try:
        X = as_matrix(model.X_fit_)
    except DataError:
        return 0, 0
    group = np.unique(X, axis=0, return_inverse=True)[1].ravel()
    pairs = np.unique(np.column_stack([group, model.codes_]), axis=0)
    disputed = np.bincount(pairs[:, 0]) > 1
    return int(disputed[group].sum()), len(X) - len(pairs)
