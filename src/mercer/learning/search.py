"""Choice between kernels given by the user: each is learned by its evidence, and the one that predicts best is taken.

What no gradient reaches is chosen here: the length of a subsequence, the iterations of a graph kernel, the base kernel
of a column, the smoothness. All candidates are compared on the same rows.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from mercer.core import calendar
from mercer.core.errors import DataError, InterruptedFitWarning, NotPositiveDefiniteError, ParameterError
from mercer.core.inputs import Inputs, as_frame, as_matrix, as_objects, as_vector, count_rows, holds_numbers
from mercer.core.random import seed_of
from mercer.core.text import listed, number, rounded, table
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_kernel
from mercer.learning import family, greedy
from mercer.learning.candidates import LabelProblem, Problem, QuantityProblem, Terms
from mercer.learning.checkpoint import check_path
from mercer.learning.choice import Choice, History, Tried, best_first, quoted
from mercer.learning.columns import STRUCTURED, Columns
from mercer.learning.components import Axis, Component, components
from mercer.learning.progress import Progress

TASKS = ("regression", "classification")
CRITERIA = ("loo", "errors", "evidence")
MAX_INTEGER_CLASSES = 10  # distinct integers that are taken for classes
MIN_ROWS_PER_INTEGER = 10  # for each of them; two are classes in any case


# -- the result ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Selection(Choice):
    """Result of `select_kernel`.

    ``kernel`` is the best candidate with the parameters learned, ``noise`` the variance learned with it (None for
    classes). ``history`` lists what was tried, in order, failures included; ``tried`` those that could be evaluated,
    best first; ``skipped`` the candidates not begun, after ``max_seconds`` or an interruption. ``total``: rows of X, of
    which ``rows`` decided. ``columns`` lists how the default kernel read the columns of a frame, of which some may need
    ``columns.encode(X)`` before ``kernel`` reads them: dates become decimal years. It is None for given candidates.

    Of a search, ``components`` are the terms of the kernel in plain language, each with its share of the variance and
    its posterior at ``inputs`` (rows, d), and the noise; `mercer.plot.components` draws them.
    """

    history: History = dataclasses.field(default_factory=History)
    skipped: list[Any] = dataclasses.field(default_factory=list)
    task: str = "regression"
    total: int = 0
    max_seconds: float | None = None
    out_of_time: bool = False
    remark: str = ""
    columns: Columns | None = None
    components: list[Component] = dataclasses.field(default_factory=list)
    inputs: np.ndarray | None = None

    @property
    def kernel(self) -> Kernel:
        assert self.best.kernel is not None
        return self.best.kernel

    @property
    def noise(self) -> float | None:
        return self.best.noise

    def describe(self) -> str:
        """What was chosen, by how much, and the table of all that was tried, in plain text."""
        of = f"{self.rows:,} rows" if self.rows == self.total else f"{self.rows:,} of {self.total:,} rows"
        by = "the evidence" if self.measure == "evidence" else "rows left out one by one"
        lines = [
            f"chosen: {self.best.label}, for {self.task}{self.remark}, by {by}, on {of}",
            f"because {self.margin()}" if len(self.tried) > 1 else f"because it is {self.margin()}",
            f"learned: {quoted(self.kernel)!r}",
            *([f"noise: {number(rounded(self.noise))}"] if self.noise else []),
            *(["", "share of variance, component:", *map(str, self.components)] if self.components else []),
            "",
            self.table(),
        ]
        failed = [each for each in self.history if each.failure is not None]
        if failed:
            lines += ["", "failed:", *(f"  {each.label}: {each.failure}" for each in failed)]
        if self.interrupted:
            lines += ["", "interrupted: not all candidates were learned to the end"]
        if self.out_of_time:
            lines += ["", f"stopped: max_seconds={self.max_seconds:g} had passed before all was compared"]
        return "\n".join(lines)

    def table(self) -> str:
        """All candidates: those compared, best first, those that failed, and those not begun."""
        lines = [[*self.cells(each), f"{each.seconds:.2f}"] for each in self.tried]
        for each in self.history:
            if each.failure is not None:
                lines.append([each.label, "failed", "", "", f"{each.rows:,}", f"{each.seconds:.2f}"])
        unseen = [Tried(candidate, math.nan, -math.inf, np.zeros(0)) for candidate in self.skipped]
        lines += [[each.label, "not begun", "", "", "", ""] for each in unseen]
        return table([*self.header(), "seconds"], lines)

    def __str__(self) -> str:
        return self.describe()


# -- the call ------------------------------------------------------------------------------------------------------


def select_kernel(
    X: Inputs,
    y: Any,
    candidates: Iterable[Any] | None = None,
    max_seconds: float | None = None,
    *,
    task: str | None = None,
    criterion: str | None = None,
    inference: str = "auto",
    max_rows: int | None = None,
    random_state: Any = None,
    progress: bool = True,
    allow_invalid: bool = False,
    checkpoint: Any = None,
) -> Selection:
    """Choose between kernels: learn the parameters of each from the data, and take the one that predicts best.

    Without candidates, numbers in columns of numbers or dates are explained by a search: a sum of products of kernels
    grows term by term (smooth, rough, straight, seasonal; growing, beginning or ending; changing along another column)
    as long as the score rises, and its components are described in plain language.

    Every candidate is fitted, if it learns from a corpus, and its parameters are learned by the evidence, as
    `GaussianProcessRegressor` and `GaussianProcessClassifier` learn them, all on the same rows; priors that it carries
    count. A term of a sum without a variance gets one, since values of different kernels are in different units:
    ``k.Subsets()`` is compared as ``1.0 * k.Subsets()``. A variance that is fixed stays so.

    Parameters
    ----------
    X, y : inputs that the candidates read, and numbers or labels, as for the estimators.
    candidates : kernels, in any number. "family" is that of the default kernel: the standard kernel (PRML 6.72) of
        several smoothnesses, with one lengthscale or one for each input, and for numbers with or without its linear
        term. It reads the columns of a frame as the estimators do, categories, text and dates included (``columns``).
        None searches (see above); for classes, and for columns of categories or text, it is the family.
    max_seconds : no further candidate is begun after this time, counted from the call, if there is one to choose; one
        that was begun is learned to the end.
    task : "regression" or "classification". None decides by y: text and booleans are classes, and so are integers of at
        most ten distinct values, each ten times there on average, or of two.
    criterion : "evidence" compares the maximised log evidence, minus k ln(n) / 2 for k parameters and n rows (PRML
        4.139). "loo" compares predictions of rows left out one by one, at the maximum of the evidence; numbers by their
        mean CRPS, times 1 + k / n, labels by the mean of -ln p, plus k / n. "errors" counts the labels left out that
        are predicted wrongly; of equal numbers the log loss decides. Take it where the label alone matters: the kernel
        with the best probabilities need not have the fewest errors. None takes the evidence, which
        distinguishes kernels with fewer rows ("loo" is the better judge of many rows whose noise is not Gaussian); but
        "loo" for more than two classes, where the evidence is a biased approximation, and for the family of the default
        kernel, as `GaussianProcessRegressor` does.
    inference : of labels: "auto", "laplace", "ep" (two classes) or "variational", as for `GaussianProcessClassifier`.
    max_rows : number of rows to compare on, drawn at random if there are more. None means 1000, or 500 of two classes
        and fewer of more. The family of the default kernel is compared on the rows where learning starts: some 600.
    random_state : seed of this draw and of the subsets on which learning starts. None means 0.
    progress : whether to show progress on stderr.
    allow_invalid : accept kernels known not to be positive semidefinite.
    checkpoint : file in which a search keeps what it has evaluated, and from which it goes on after an interruption or
        ``max_seconds``.

    Returns a `Selection`: ``kernel``, ``noise``, ``history``, ``describe()``. Pass ``kernel`` to an estimator to learn
    it on all rows. A candidate that cannot be evaluated is listed with the reason; if none can, an error is raised.
    Ctrl-C keeps what was found until then.

    >>> import mercer as mc
    >>> from mercer import kernels as k
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> found = mc.select_kernel(X, np.sin(3 * X[:, 0]).round(1), [k.Linear(), k.RBF(), k.Sigmoid()])
    >>> found.member, list(found.kernel.parameters)
    (RBF(lengthscale=1.0), ['variance', 'lengthscale'])
    >>> [tried.failure is None for tried in found.history]
    [True, True, False]
    """
    until = _until(max_seconds)
    for name, value, allowed in (("task", task, (None, *TASKS)), ("criterion", criterion, (None, *CRITERIA))):
        if value not in allowed:
            raise ParameterError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
    if max_rows is not None and not (isinstance(max_rows, int | np.integer) and max_rows >= 2):
        raise ParameterError(f"max_rows must be None or an integer of at least 2; got {max_rows!r}.")
    n = count_rows(X)
    if not n:
        raise DataError("X has no rows.")
    searches = candidates is None
    given = None if candidates is None or _is_family(candidates) else _kernels(candidates)
    check_path(checkpoint)
    labels, remark = _labels_or_numbers(y, n, task)
    columns, raw = Columns.of(X) if given is None else None, X
    X = X if columns is None else columns.encode(X)
    if given is None and as_frame(X) is None and not hasattr(X, "toarray") and calendar.holds_dates(X):
        X = as_matrix(X)  # decimal years
    line = Progress(shown=bool(progress))
    terms = Terms(criterion, seed_of(random_state), max_rows, line, bool(allow_invalid), columns)
    problem = (
        QuantityProblem(X, as_vector(y, n), terms) if labels is None else LabelProblem(X, labels, terms, inference)
    )
    found = None
    if searches and isinstance(problem, QuantityProblem) and (columns is None or not columns.names(*STRUCTURED)):
        axes = greedy.axes_of(X, problem.y, raw, columns) if holds_numbers(X) else []
        if axes:
            found = _searched(problem, axes, until, max_seconds, checkpoint)
    if found is None and checkpoint is not None:
        raise ParameterError(
            "checkpoint is for the search, candidates=None with numbers in columns of numbers or dates."
        )
    if found is None and given is None and isinstance(problem, QuantityProblem) and criterion != "evidence":
        found = _default_family(problem, until, max_seconds)
    if found is None:
        found = _compared(problem, problem.family() if given is None else given, until, max_seconds, remark)
    if found.interrupted:
        warnings.warn(
            f"the choice was interrupted: it is between the {len(found.tried)} kernels compared so far.",
            InterruptedFitWarning,
            stacklevel=2,
        )
    return dataclasses.replace(found, columns=columns)


def _is_family(candidates: Any) -> bool:
    return isinstance(candidates, str) and candidates == "family"


def _searched(
    problem: QuantityProblem, axes: list[Axis], until: float, max_seconds: float | None, checkpoint: Any
) -> Selection:
    """Greedy search, and the components of what it found."""
    terms = problem.terms
    belongs = {"data": [as_matrix(problem.X), problem.y], "settings": [problem.criterion, terms.seed, terms.max_rows]}
    result = greedy.Search(problem, axes, until, greedy.Store(checkpoint, belongs)).run()
    best, X = result.best, as_matrix(problem.X)[problem.rows]
    assert best.kernel is not None
    assert best.noise is not None
    own = problem.inputs(best.kernel)
    parts = components(best.kernel, own, problem.target, best.noise / problem.scale**2, problem.scale, axes)
    return Selection(
        best_first(result.history), len(problem.rows), result.evaluations, result.interrupted, problem.measure,
        result.history, [], problem.task, problem.total, max_seconds, result.out_of_time, "", None, parts, X,
    )  # fmt: skip


def _until(max_seconds: Any) -> float:
    """Time from which no candidate is begun."""
    if max_seconds is None:
        return math.inf
    if isinstance(max_seconds, bool) or not isinstance(max_seconds, int | float | np.number) or not max_seconds >= 0:
        raise ParameterError(f"max_seconds must be None or a number of seconds, zero or more; got {max_seconds!r}.")
    return time.monotonic() + float(max_seconds)


def _kernels(candidates: Any) -> list[tuple[Any, Any]]:
    """Candidates keyed by themselves; anything that is not a kernel fails when evaluated."""
    alone = isinstance(candidates, str) or as_kernel(candidates, or_none=True) is not None
    try:
        found = [candidates] if alone else list(candidates)
    except TypeError:
        raise ParameterError(f"candidates must be kernels, in a list; got {candidates!r}.") from None
    if not found:
        raise ParameterError("candidates is empty; give kernels to choose from, or None for the default family.")
    return [(each, each) for each in found]


def _labels_or_numbers(y: Any, n: int, task: str | None) -> tuple[np.ndarray | None, str]:
    """Labels (n,) of a classification, None for a regression; and what to remark about integers."""
    if y is None:
        raise DataError("y is None; give a number or a label for every row of X.")
    try:
        labels = np.asarray(y if as_frame(y) is None else as_objects(y))
    except ValueError:
        raise DataError(
            f"y must hold one number or label per row of X, {n} in all; its rows differ in length."
        ) from None
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    distinct = _distinct_classes(labels, n) if task is None else 0
    if task == "regression" or (task is None and distinct is None):
        return None, ""
    if labels.shape != (n,):
        raise DataError(f"y must hold one label per row of X, {n} in all; got shape {labels.shape}.")
    return labels, f" (integers of {distinct} values; task='regression' for quantities)" if distinct else ""


def _distinct_classes(labels: np.ndarray, n: int) -> int | None:
    """None for quantities; for classes zero, or the number of distinct integers that are taken for them."""
    kind = labels.dtype.kind
    if kind == "O":
        numbers = all(isinstance(each, int | float | np.number) and not isinstance(each, bool) for each in labels.flat)
        kind = "f" if numbers else "U"
    if kind in "iu":
        distinct = len(np.unique(labels))
        return distinct if distinct <= max(2, min(MAX_INTEGER_CLASSES, n // MIN_ROWS_PER_INTEGER)) else None
    return 0 if kind in "USb" else None


# -- comparing -----------------------------------------------------------------------------------------------------


def _compared(
    problem: Problem, candidates: list[tuple[Any, Any]], until: float, max_seconds: float | None, remark: str
) -> Selection:
    """Evaluate one candidate after the other."""
    history = History()
    first_error: Exception | None = None
    interrupted, evaluations, m, place = False, 0, len(problem.rows), 0
    try:
        for place, (candidate, kernel) in enumerate(candidates):
            began = time.monotonic()
            if began >= until and any(tried.failure is None for tried in history):
                break
            problem.terms.line.prefix = f"choosing the kernel, {place + 1} of {len(candidates)}: "
            try:
                found = problem.evaluate(kernel)
                score, failure = problem.score(found), None
                if not math.isfinite(score):
                    failure = "its predictions of rows left out have no finite score."
            except Exception as error:  # a candidate's own fault: the others are compared nevertheless
                found, score, failure = None, -math.inf, f"{type(error).__name__}: {error}"
                first_error = first_error or error
            seconds = time.monotonic() - began
            if found is None:
                history.append(Tried(candidate, math.nan, score, np.zeros(0), m, seconds=seconds, failure=failure))
                continue
            history.append(
                Tried(candidate, found.log_evidence, score, found.theta, m, found.kernel, found.noise, seconds, failure)
            )
            evaluations, interrupted = evaluations + found.evaluations, found.interrupted
            if interrupted:
                place += 1
                break
        else:
            place = len(candidates)
    except KeyboardInterrupt:  # while none was learned: what was tried before
        interrupted = True
        if not any(tried.failure is None for tried in history):
            raise
    finally:
        problem.terms.line.close()
    tried = best_first(history)
    if not tried:
        reasons = [f"{each.label}: {each.failure}" for each in history]
        raise ParameterError(
            f"none of the {len(history)} candidates could be evaluated. {listed(reasons, limit=3)}"
        ) from first_error
    skipped = [candidate for candidate, _ in candidates[place:]]
    return Selection(
        tried, m, evaluations, interrupted, problem.measure, history, skipped, problem.task, problem.total, max_seconds,
        bool(skipped) and not interrupted, remark,
    )  # fmt: skip


def _default_family(problem: QuantityProblem, until: float, max_seconds: float | None) -> Selection | None:
    """The choice that `GaussianProcessRegressor` makes where no kernel is given; None without numbers, where there is
    none."""
    if problem.terms.max_rows is None:  # the first stages of learning are on few rows anyway
        problem.compare_on(np.arange(problem.total))
    kernel = problem.default_kernel()
    if family.standard_path(kernel) is None:
        return None
    objective = problem.objective(family.with_standard(kernel, nu=np.float64(family.FIRST_SMOOTHNESS)))
    course = family.Course(until=until)
    choice = family.choose_on_first_rows(objective, problem.terms.seed, problem.terms.line, course=course)
    if not choice.tried:
        raise NotPositiveDefiniteError(
            f"the covariance of these {objective.n} rows could not be factorised for any kernel of the default family."
        )

    def learned(tried: Tried) -> Tried:
        noise = float(objective.variances(tried.theta)[0]) * problem.scale**2
        return tried._replace(kernel=family.kernel_of(objective, tried), noise=noise)

    seconds = {id(each.theta): each.seconds for each in course.history}
    return Selection(
        [learned(each)._replace(seconds=seconds[id(each.theta)]) for each in choice.tried], choice.rows,
        choice.evaluations, choice.interrupted, choice.measure, History(map(learned, course.history)), [],
        problem.task, problem.total, max_seconds, course.over,
    )  # fmt: skip
