"""The perceptron in feature space, by its dual coefficients (PRML 4.1.7, Ex 6.2)."""

import copy
import warnings

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import count_rows
from mercer.core.machine import available_memory
from mercer.core.random import generator
from mercer.kernels.convert import as_covariance
from mercer.learning.heuristics import radial_kernel
from mercer.models.estimator import Classifier, wholly

AHEAD = 128  # rows of a Gram matrix too large to keep that are made together


class KernelPerceptron(Classifier):
    """A linear boundary in feature space, found by correcting one mistake after the other (PRML 4.55; Ex 6.2).

    Every mistake adds the image of that row to the weights of its class and subtracts it from those of the class
    predicted; for two classes w += t phi(x), t = 1 or -1. So w = sum_n a_n phi(x_n), and all that is needed is
    k(x, x_n). A tie is a mistake. If the classes can be separated by a margin gamma, there are at most (R / gamma)^2
    mistakes, where R is the largest |phi(x)| (Novikoff), intercept included.

    Parameters
    ----------
    kernel : any kernel, on any input it understands. None is a Gaussian at the scale of the inputs.
    fit_intercept : whether phi(x) has one more feature that is constant, as large as the largest |phi(x_n)|: then the
        unit in which a kernel is measured does not matter.
    averaged : predict with the mean of the weights over all visits to a row (Freund and Schapire 1999; Collins 2002)
        instead of the last ones: better when the classes overlap.
    max_epochs : how often all rows are visited, at most. It ends with the first epoch without a mistake.
    shuffle : whether every epoch visits the rows in a random order of its own, instead of their own order.
    random_state : seed of those orders. None is 0.
    allow_invalid : accept a kernel known not to be positive semidefinite.

    Fitted: ``dual_coef_`` (n,), signed, or (n, C) for more than two classes; ``intercept_``, a number or (C,);
    ``mistakes_``, how many there were in each epoch; ``n_updates_``, in all; ``converged_``, whether the last epoch had
    none; ``kernel_``, ``classes_``. Time is O(n) an update, after the Gram matrix (or without it, from the rows of it
    that are needed, where it is larger than half the memory).

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

    @wholly
    def fit(self, X, y):
        """Visit the rows until none is classified wrongly, or ``max_epochs`` times."""
        epochs = self.max_epochs
        if not isinstance(epochs, int | np.integer) or isinstance(epochs, bool) or epochs < 1:
            raise ParameterError(f"max_epochs must be a whole number of at least 1; got {epochs!r}.")
        rng = generator(self.random_state)
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        codes = self._check_labels(y, n)
        kernel = radial_kernel(self._check_vectors(X)) if self.kernel is None else self.kernel
        self.kernel_ = as_covariance(kernel, "a perceptron", self.allow_invalid)
        self.X_fit_ = copy.deepcopy(X)
        operator = self._training_rows()
        constant = (float(np.abs(operator.diagonal()).max()) or 1.0) if self.fit_intercept else 0.0
        rows = _Rows(operator, constant)
        state = _Boundary(codes, len(self.classes_))
        orders = (rng.permutation(n) if self.shuffle else np.arange(n) for _ in range(epochs))
        self.mistakes_ = np.array(state.visit(rows, orders))
        self.n_updates_, self.converged_ = int(self.mistakes_.sum()), bool(self.mistakes_[-1] == 0)
        coef = state.mean() if self.averaged else state.coef
        coef = coef[:, 0] if len(self.classes_) == 2 else coef
        self.dual_coef_, self.intercept_ = coef, constant * coef.sum(axis=0)
        if not self.converged_:
            self._warn(n)
        return self

    def _warn(self, n):
        from sklearn.exceptions import ConvergenceWarning

        advice = "" if self.averaged else "averaged=True, "
        warnings.warn(
            f"the classes were not separated: {self.mistakes_[-1]} mistakes on {n} rows in epoch "
            f"{len(self.mistakes_)}, the last. Try {advice}a richer kernel (a shorter lengthscale, a higher degree), "
            "more max_epochs, or a machine that expects classes to overlap: KernelFisherDiscriminant.",
            ConvergenceWarning,
            stacklevel=4,
        )

    def decision_function(self, X) -> np.ndarray:
        """sum_n a_n k(x, x_n) + b: (s,), positive for the second class; (s, C) for more than two."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return self._training_rows().across(X, self.dual_coef_) + self.intercept_

    def predict(self, X) -> np.ndarray:
        """The class of the largest score; of equal ones, the first."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        used = np.count_nonzero(self.dual_coef_.reshape(len(self.dual_coef_), -1).any(axis=1))
        ending = "no mistake" if self.converged_ else f"{self.mistakes_[-1]} mistakes"
        return "\n".join([
            f"KernelPerceptron{', averaged' if self.averaged else ''}, {len(self.classes_)} classes",
            f"kernel: {self.kernel_!r}",
            f"{self.n_updates_:,} updates in {len(self.mistakes_)} epochs, {ending} in the last; "
            f"{used:,} of {len(self.dual_coef_):,} rows have a coefficient",
        ])  # fmt: skip


class _Boundary:
    """Scores of all rows, kept up to date: (n, 1) for two classes, the second against the first, else (n, C)."""

    def __init__(self, codes, n_classes):
        n = len(codes)
        self.codes = codes
        self.signs = 2.0 * codes - 1 if n_classes == 2 else None
        columns = 1 if n_classes == 2 else n_classes
        self.scores, self.coef = np.zeros((n, columns)), np.zeros((n, columns))
        self.when = np.zeros((n, columns))  # each change times the visits that came before it
        self.visits = 0

    def margins(self) -> np.ndarray:
        """How much the right class is ahead of the best other one: (n,)."""
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
        """Epoch after epoch, until one has no mistake; how many each had."""
        mistakes = []
        for order in orders:
            mistakes.append(self._epoch(rows, order))
            if not mistakes[-1]:
                break
        return mistakes

    def _epoch(self, rows, order) -> int:
        mistakes, position, n = 0, 0, len(order)
        while position < n:
            # Rows until the next mistake are right, and change nothing.
            wrong = self.margins()[order[position:]] <= 0
            ahead = int(wrong.argmax())
            if not wrong[ahead]:
                break
            i = order[position + ahead]
            self._correct(i, rows.at(i, order[position:][wrong]), self.visits + position + ahead)
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
            self.scores[:, column] += sign * row
            self.coef[i, column] += sign
            self.when[i, column] += sign * before

    def mean(self) -> np.ndarray:
        """Coefficients averaged over all visits: a change made in visit v (from 0) of V counts (V - v) / V."""
        return self.coef - self.when / max(self.visits, 1)


class _Rows:
    """Rows of K + constant: of all of K if it fits in half the memory, else made when they are wanted, and kept while
    there is room."""

    def __init__(self, operator: gram.Gram, constant):
        n = operator.n
        self.operator, self.constant = operator, constant
        self.K = operator.matrix() if 8 * n * n <= available_memory() // 2 else None
        self.kept: dict[int, np.ndarray] = {}
        self.room = max(AHEAD, available_memory() // 4 // (8 * n))

    def at(self, i, next_ones) -> np.ndarray:
        """Row i; ``next_ones`` begins with i and goes on with rows that may be wanted soon."""
        if self.K is not None:
            return self.K[i] + self.constant
        if i not in self.kept:
            wanted = [int(j) for j in next_ones[: 4 * AHEAD] if j not in self.kept][:AHEAD]
            if len(self.kept) + len(wanted) > self.room:
                self.kept.clear()
            self.kept.update(zip(wanted, self.operator.some(wanted), strict=True))
        return self.kept[i] + self.constant
