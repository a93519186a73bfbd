"""The report of a fitted classification."""

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_matrix
from mercer.core.parameters import slots_of
from mercer.core.text import listed, number, rounded, table
from mercer.report import diagnostics, probabilities
from mercer.report.page import (
    HELD_OUT,
    Report,
    about_copies,
    about_inputs,
    about_learning,
    entries,
    in_order,
    optima,
)
from mercer.scores import Reliability, reliability

FEW = 5  # rows: too few to learn a class from
RARE = 10  # times fewer rows than the largest class has
SHOWN = 8  # classes at most for which the whole confusion matrix is printed
NATS = 2.0  # of log evidence: a smaller difference does not matter
BASIS = (
    "Checked: calibration, frequencies and errors of classes, and improbable labels, on leave-one-out probabilities at "
    "parameters learned from all rows."
)


def report(model, X=None, y=None) -> Report:
    """The report of a fitted `GaussianProcessClassifier`, also on held-out rows ``X``, ``y`` if they are given."""
    loo = model.loo()
    codes, n = model.codes_, len(model.codes_)
    counts = np.bincount(codes, minlength=len(model.classes_))
    called = loo.probability.argmax(axis=1)
    confusion = np.zeros((len(counts), len(counts)), dtype=int)
    np.add.at(confusion, (codes, called), 1)
    left_out = reliability(codes, loo.probability)
    names = [str(label) for label in model.classes_]
    findings = probabilities.of_labels(codes, loo.probability, names, _remedy(model))
    sections = {
        "Fit": _fit(model, left_out, counts),
        "Classes, by leave-one-out": _classes(model, confusion),
        "Parameters": table(["parameter", "value"], _parameters(model)),
    }
    if X is not None or y is not None:
        held_codes, P, scores = _held_out(model, X, y)
        sections[HELD_OUT] = _beside(reliability(held_codes, P), left_out)
        findings += diagnostics.disagreement(loo.log_score, scores)
        if not any(finding.kind == "calibration" for finding in findings):  # said once is enough
            findings += probabilities.reliability_curve(held_codes, P, _remedy(model), of="held out")
    try:
        relevance = model.relevance()
    except DataError:
        relevance = None
    if relevance is not None:
        sections["Relevance of inputs"] = str(relevance)
    sections["Calibration of leave-one-out probabilities"] = str(left_out)
    sections["Optima found"] = optima(model)
    sections["Numerics"] = _numerics(model)
    title = f"Gaussian process classification, {n:,} rows, {len(counts)} classes"
    findings = in_order(findings)
    suggestions = [*map(str, findings), *_suggestions(model, left_out, confusion, relevance)]
    return Report(title, sections, suggestions, left_out, relevance, tuple(findings), BASIS)


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


def _beside(held: Reliability, left_out: Reliability) -> str:
    """Scores of held-out rows next to those of leave-one-out, and the reliability of the former."""
    both = (held, left_out)
    sizes = [int(found.counts.sum()) for found in both]
    rows = [
        ["rows", *(f"{n:,}" for n in sizes)],
        ["errors", *(f"{round(found.error_rate * n):,}" for found, n in zip(both, sizes, strict=True))],
        ["error rate", *(f"{found.error_rate:.1%}" for found in both)],
        ["log score a row", *(f"{-found.log_loss:.4f}" for found in both)],
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
            ["log evidence", f"{evidence:.2f} ({evidence / n:.3f} a row; class frequencies alone {known / n:.3f})"],
            ["leave-one-out log score", f"{-held.log_loss:.4f} a row"],
            ["leave-one-out error", f"{held.error_rate:.1%} (largest class always: {1 - counts.max() / n:.1%})"],
            ["leave-one-out Brier score", f"{held.brier:.4f}"],
            ["method", f"{model.inference_}, {link}, {model.n_evaluations_} evaluations of the evidence"],
        ]
    )


def _classes(model, confusion) -> str:
    names = [str(label) for label in model.classes_]
    counts = confusion.sum(axis=1)
    wrong = confusion - np.diag(np.diag(confusion))
    head = [
        [name, f"{count:,}", f"{e:.1%}"] for name, count, e in zip(names, counts, wrong.sum(1) / counts, strict=True)
    ]
    if len(names) <= SHOWN:
        rows = [first + [f"{count:,}" for count in line] for first, line in zip(head, confusion, strict=True)]
        return table(["class", "rows", "error", *(f"predicted {name}" for name in names)], rows)
    taken = [f"{names[line.argmax()]} ({line.max():,})" if line.any() else "" for line in wrong]
    rows = [[*first, other] for first, other in zip(head, taken, strict=True)]
    return table(["class", "rows", "error", "most often confused with"], rows)


def _kernels(model) -> dict:
    """Kernels by the prefix of their parameters' names."""
    if hasattr(model, "kernels_"):
        return {f"{label}: ": kernel for label, kernel in zip(model.classes_, model.kernels_, strict=True)}
    return {"": model.kernel_}


def _parameters(model):
    return [
        [before + name, number(rounded(value))]
        for before, kernel in _kernels(model).items()
        for name, value in kernel.parameters.items()
    ]


def _numerics(model) -> str:
    told = []
    for name, value in model.numerics_.items():
        if isinstance(value, bool | np.bool_):
            told.append(name if value else f"not {name}")
        elif np.ndim(value) == 0 and isinstance(value, int | float | np.number):
            told.append(f"{name.replace('_', ' ')} {value:.3g}")
        elif isinstance(value, np.ndarray) and value.size:
            told.append(f"{name.replace('_', ' ')} {value.min():.3g} to {value.max():.3g}")
    return ", ".join(told)


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
    if model.log_marginal_likelihood_ < known + NATS or -held.log_loss * n < known:
        found.append(
            "the inputs add little to the class frequencies: try another kernel, n_restarts=5, or other inputs."
        )
    found += [*about_inputs(relevance), *about_learning(model)]
    carried = any(slot.prior is not None for kernel in _kernels(model).values() for slot in slots_of(kernel))
    if model.learning == "mle" and carried:
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
    few = counts < FEW
    if few.any():
        told = listed([f"{name} ({count})" for name, count in zip(names[few], counts[few], strict=True)])
        found.append(f"classes with very few rows: {told}. Add rows, or merge classes.")
    rare = ~few & (RARE * counts < counts.max())
    if rare.any():
        found.append(
            f"{listed(names[rare])}: more than {RARE} times rarer than {names[counts.argmax()]}. To miss fewer of "
            "them, predict them above a threshold on predict_proba instead of where they are most probable."
        )
    never = ~few & (confusion.sum(axis=0) == 0)
    if never.any():
        found.append(f"no left-out row is predicted to be {listed(names[never], limit=3)}.")
    return found


def _about_rows(model) -> list[str]:
    found = []
    disputed, copies = _repeated(model)
    if disputed:
        found.append(f"{disputed} rows share their inputs with rows of another label: no model can tell them apart.")
    if copies:
        found.append(about_copies(copies, "label"))
    return found


def _repeated(model) -> tuple[int, int]:
    """How many rows share their inputs with another label, and how many are exact copies, label included."""
    try:
        X = as_matrix(model.X_fit_)
    except DataError:
        return 0, 0
    group = np.unique(X, axis=0, return_inverse=True)[1].ravel()
    pairs = np.unique(np.column_stack([group, model.codes_]), axis=0)
    disputed = np.bincount(pairs[:, 0]) > 1
    return int(disputed[group].sum()), len(X) - len(pairs)
