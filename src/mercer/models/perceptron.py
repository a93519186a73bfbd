"""The kernel perceptron, in dual coefficients (PRML 4.1.7, Ex 6.2)."""

import warnings

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.inputs import copy_rows, count_rows
from mercer.core.random import generator
from mercer.kernels.convert import as_covariance
from mercer.learning.heuristics import radial_kernel
from mercer.models.estimator import Classifier, all_or_nothing

BLOCK_ROWS = 128  # of a Gram matrix too large to keep, computed together
MAX_MATRIX_SHARE = 1 / 2  # of the available memory, for the whole Gram matrix


class KernelPerceptron(Classifier):
    """Kernel perceptron: a linear boundary in feature space, corrected at every mistake (PRML 4.55; Ex 6.2).

    A mistake adds the image of the row to the weights of its class and subtracts it from those of the predicted class;
    for two classes w += t phi(x), t = 1 or -1. So w = sum_n a_n phi(x_n), and only k(x, x_n) is needed. A tie is a
    mistake. If the classes are separated by a margin gamma, there are at most (R / gamma)^2 mistakes, where R is the
    largest |phi(x)|, intercept included (Novikoff).

    Parameters
    ----------
    kernel : any kernel, on any input it accepts. None is a Gaussian at the scale of the inputs.
    fit_intercept : whether to add a constant feature as large as the largest |phi(x_n)|, which makes predictions
        independent of the kernel's variance.
    averaged : predict with the mean of the weights over all visits (Freund and Schapire 1999; Collins 2002) instead of
        the last weights: better when classes overlap.
    max_epochs : maximum number of passes over all rows. Training ends with the first epoch without a mistake.
    shuffle : whether to visit the rows in a new random order in every epoch.
    random_state : seed of those orders. None means 0.
    allow_invalid : accept a kernel known not to be positive semidefinite.

    Fitted: ``dual_coef_`` (n,), signed, or (n, C) for more than two classes; ``intercept_``, a number or (C,);
    ``mistakes_``, per epoch; ``n_updates_``, in total; ``converged_``, whether the last epoch had no mistake;
    ``kernel_``, ``classes_``. O(n) per update, after the Gram matrix; if that exceeds half the memory, only the rows
    needed are computed.

    >>> X, y = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]], ["same", "same", "different", "different"]
    >>> model = KernelPerceptron().fit(X, y)
    >>> model.predict([[0.1, 0.1], [0.1, 0.9]]), model.converged_
    (array(['same', 'different'], dtype='<U9'), True)
    """

    def __init__(
        self, kernel=None, fit_intercept=True, averaged=False, max_epochs=100, shuffle=True, random_state=None, *,
        allow_invalid=False,
    ):  # fmt: skip
        self.kernel = kernel
        self.fit_intercept = fit_intercept
        self.averaged = averaged
        self.max_epochs = max_epochs
        self.shuffle = shuffle
        self.random_state = random_state
        self.allow_invalid = allow_invalid

    @all_or_nothing
    def fit(self, X, y):
        """Visit the rows until none is misclassified, or ``max_epochs`` times."""
        self._check_integer("max_epochs", 1)
        rng = generator(self.random_state)
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        codes = self._check_labels(y, n)
        kernel = radial_kernel(self._check_vectors(X)) if self.kernel is None else self.kernel
        self.kernel_ = as_covariance(kernel, "a perceptron", self.allow_invalid, X)
        self.X_fit_ = copy_rows(X)
        operator = self._training_rows()
        constant = (float(np.abs(operator.diagonal()).max()) or 1.0) if self.fit_intercept else 0.0
        rows = _GramRows(operator, constant)
        state = _Boundary(codes, len(self.classes_))
        orders = (rng.permutation(n) if self.shuffle else np.arange(n) for _ in range(self.max_epochs))
        self.mistakes_ = np.array(state.visit(rows, orders))
        self.n_updates_, self.converged_ = int(self.mistakes_.sum()), bool(self.mistakes_[-1] == 0)
        coef = state.mean() if self.averaged else state.coef
        coef = coef[:, 0] if len(self.classes_) == 2 else coef
        self.dual_coef_, self.intercept_ = coef, constant * coef.sum(axis=0)
        if not self.converged_:
            self._warn_not_separated(n)
        return self

    def _warn_not_separated(self, n):
        from sklearn.exceptions import ConvergenceWarning

        advice = "" if self.averaged else "averaged=True, "
        warnings.warn(
            f"the classes were not separated: {self.mistakes_[-1]} mistakes on {n} rows in epoch "
            f"{len(self.mistakes_)}, the last. Try {advice}a richer kernel (a shorter lengthscale, a higher degree), "
            "more max_epochs, or a model for overlapping classes, such as KernelFisherDiscriminant.",
            ConvergenceWarning,
            stacklevel=4,
        )

    def decision_function(self, X) -> np.ndarray:
        """sum_n a_n k(x, x_n) + b: (s,), positive for the second class; (s, C) for more than two."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return self._training_rows().across(X, self.dual_coef_) + self.intercept_

    def predict(self, X) -> np.ndarray:
        """The class with the largest score; in a tie, the first."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def _summary(self):
        used = np.count_nonzero(self.dual_coef_.reshape(len(self.dual_coef_), -1).any(axis=1))
        last = "no mistake" if self.converged_ else f"{self.mistakes_[-1]} mistakes"
        return "\n".join([
            f"KernelPerceptron{', averaged' if self.averaged else ''}, {len(self.classes_)} classes",
            f"kernel: {self.kernel_!r}",
            f"{self.n_updates_:,} updates in {len(self.mistakes_)} epochs, {last} in the last; "
            f"{used:,} of {len(self.dual_coef_):,} rows have nonzero coefficients",
        ])  # fmt: skip


class _Boundary:
    """Current scores of all rows: (n, 1) for two classes, the second against the first, else (n, C)."""

    def __init__(self, codes, n_classes):
        n = len(codes)
        self.codes = codes
        self.signs = 2.0 * codes - 1 if n_classes == 2 else None
        columns = 1 if n_classes == 2 else n_classes
        self.scores, self.coef = np.zeros((n, columns)), np.zeros((n, columns))
        self.delayed = np.zeros((n, columns))  # each change times the number of visits before it
        self.visits = 0

    def margins(self) -> np.ndarray:
        """Score of the right class minus the best other score: (n,)."""
        if self.signs is not None:
            return self.signs * self.scores[:, 0]
        right, others = self._right_and_others(slice(None))
        return right - others.max(axis=1)

    def _right_and_others(self, which):
        scores, codes = self.scores[which].copy(), self.codes[which]
        at = np.arange(len(scores)), codes
        right = scores[at]
        scores[at] = -np.inf
        return right, scores

    def visit(self, rows, orders) -> list[int]:
        """Run epochs until one has no mistake; return the number of mistakes in each."""
        mistakes = []
        for order in orders:
            mistakes.append(self._epoch(rows, order))
            if not mistakes[-1]:
                break
        return mistakes

    def _epoch(self, rows, order) -> int:
        mistakes, position, n = 0, 0, len(order)
        while position < n:
            # Skip to the next mistake: rows before it change nothing.
            wrong = self.margins()[order[position:]] <= 0
            ahead = int(wrong.argmax())
            if not wrong[ahead]:
                break
            i = order[position + ahead]
            self._correct(i, rows.at(i, order[position:], wrong), self.visits + position + ahead)
            mistakes, position = mistakes + 1, position + ahead + 1
        self.visits += n
        return mistakes

    def _correct(self, i, row, before):
        if self.signs is not None:
            changes = [(0, self.signs[i])]
        else:
            others = self._right_and_others(slice(i, i + 1))[1]
            changes = [(self.codes[i], 1.0), (int(others[0].argmax()), -1.0)]
        for column, sign in changes:
            scores = self.scores[:, column]
            (np.add if sign > 0 else np.subtract)(scores, row, out=scores)
            self.coef[i, column] += sign
            self.delayed[i, column] += sign * before

    def mean(self) -> np.ndarray:
        """Coefficients averaged over all visits: a change made in visit v (from 0) of V counts (V - v) / V."""
        return self.coef - self.delayed / max(self.visits, 1)


class _GramRows:
    """Rows of K + constant, from the whole of K if it fits in half the memory, else computed when needed and cached."""

    def __init__(self, operator: gram.Gram, constant):
        n = operator.n
        self.operator, self.constant = operator, constant
        self.K = operator.matrix() if 8 * n * n <= machine.keepable(MAX_MATRIX_SHARE) else None
        self.cache: dict[int, np.ndarray] = {}
        self.max_cached_rows = machine.rows_within(machine.keepable(), n, BLOCK_ROWS)

    def at(self, i, order, wrong) -> np.ndarray:
        """Row i; of the rows in ``order``, those that are ``wrong``, of which i is the first, may be needed soon."""
        if self.K is not None:
            return self.K[i] + self.constant
        if i not in self.cache:
            needed = [int(j) for j in order[wrong][: 4 * BLOCK_ROWS] if j not in self.cache][:BLOCK_ROWS]
            if len(self.cache) + len(needed) > self.max_cached_rows:
                self.cache.clear()
            self.cache.update(zip(needed, self.operator.some(needed), strict=True))
        return self.cache[i] + self.constant
