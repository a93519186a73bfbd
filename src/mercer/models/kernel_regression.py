"""Nadaraya-Watson kernel regression: a conditional density of the target (PRML 6.3.1)."""

import math
import reprlib
import warnings

import numpy as np

from mercer import gram
from mercer.core.errors import InvalidKernelError, NumericalWarning, ParameterError
from mercer.core.inputs import as_matrix, copy_rows, count_rows, holds_numbers, middle_spread, take_rows
from mercer.core.parameters import evolve_at
from mercer.core.random import generator
from mercer.core.text import number, rounded, table
from mercer.inference.mixtures import Mixtures
from mercer.kernels import RBF
from mercer.kernels.convert import as_kernel
from mercer.learning import heuristics
from mercer.learning.bandwidths import LearnedWidths, RegressionWidths, learn_regression_widths
from mercer.learning.choice import quoted
from mercer.learning.leave_one_out import MIN_TOTAL_WEIGHT
from mercer.learning.optimise import Settings
from mercer.models.conditional import DensityRegressor
from mercer.models.estimator import all_or_nothing
from mercer.models.records import recorded, warn_of_interruption
from mercer.scores import LeaveOneOut

CRITERIA = ("likelihood", "least_squares")


class NadarayaWatson(DensityRegressor):
    """Kernel regression (PRML 6.3.1): p(t | x) = sum_n w_n(x) N(t | t_n, h^2), w_n(x) = k(x, x_n) / sum_m k(x, x_m).

    Works with any non-negative kernel, on any input. The kernel's parameters and the width h in the target are learned
    by leave-one-out: by default they maximise sum_n ln p(t_n | x_n, all others).

    Parameters
    ----------
    kernel : None is a Gaussian with one lengthscale per input, at the scale of the data. An amplitude cancels, and is
        not learned.
    target_width : h, the standard deviation of a component in the target; one number, or one per target. None
        learns it.
    learning : "loo", or None to keep the kernel as it is (h is still learned if it is not given).
    criterion : leave-one-out criterion: "likelihood", of the density of the target (PRML 6.48), or "least_squares", of
        its mean (PRML 6.45); h is then learned by likelihood.
    n_restarts : number of further optimisations, from random points around the first start.
    random_state : seed of restarts and of the subset on which learning starts. None means 0, so that equal data give
        equal models.
    max_iterations : of each optimisation.
    learning_rows : number of rows used in learning. From more rows a random subset is taken, and widths shrink by the
        theoretical factor for the larger number.
    progress : whether to show progress on stderr when a fit takes longer than a second or two.

    Fitted: ``kernel_``; ``target_width_``; ``X_train_``, ``y_train_`` and ``weights_`` (equal rows are merged and their
    weights added; ``rows_`` maps rows to merged ones); ``history_``, ``optima_``, ``n_evaluations_``.

    Learning takes O(n^2) time and memory per evaluation; prediction O(n) per row. Where no training row is near (the
    sum of kernel values is below 1e-12 of k(x, x)), all training rows get equal weight, with a warning.

    >>> import numpy as np
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = NadarayaWatson().fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[1.5]])[0] - np.sin(1.5)) < 0.01)
    True
    """

    def __init__(
        self, kernel=None, target_width=None, learning="loo", criterion="likelihood", n_restarts=0, random_state=None,
        *, max_iterations=200, learning_rows=8000, progress=True,
    ):  # fmt: skip
        self.kernel = kernel
        self.target_width = target_width
        self.learning = learning
        self.criterion = criterion
        self.n_restarts = n_restarts
        self.random_state = random_state
        self.max_iterations = max_iterations
        self.learning_rows = learning_rows
        self.progress = progress

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X, y, sample_weight=None):
        """Learn the widths and store the data. Ctrl-C keeps the best widths found so far.

        Weights multiply components: a weight of two equals repeating the row, a weight of zero dropping it.
        """
        self._check_settings()
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        Y = self._check_target(y, n, several=True)
        kept, self.rows_, c = merged(X, Y, self._check_weights(sample_weight, n))
        X, self.y_train_, self.weights_ = copy_rows(take_rows(X, kept)), Y[kept], c
        self.X_train_, Y = X, Y[kept].reshape(len(c), -1)
        self.kernel_, rows, starts = self._starts(X, c)
        gram.keep(self, rows)
        self.history_, self.optima_, self.n_evaluations_ = [], [], 0
        given = self._given_width(Y.shape[1])
        center, spread = heuristics.centre_and_spread(Y, c)
        spread = middle_spread(Y, spread)
        varies = np.ptp(Y, axis=0) > 0
        # One row or a constant target cannot determine a width: set a nominal one.
        width = np.where(center == 0, 1.0, np.abs(center)) * (1.0 if n == 1 else 1e-6) if given is None else given
        if varies.any():
            t = ((Y - center) / spread)[:, varies]
            c = c / c.mean()
            known = None if given is None else (given / spread)[varies]
            objective, found = RegressionWidths(starts, rows, t, c, known, self.criterion), None
            if self.learning is not None and objective.layout.size:
                kernel, found, *_ = self._learn(objective, spread[varies])
                self.kernel_ = self.kernel_.replace(**kernel.parameters)
            if given is None:
                if found is None:  # by likelihood, at the current kernel
                    objective = RegressionWidths([self.kernel_.fix()], rows, t, c, None, "likelihood")
                    found = self._learn(objective, spread[varies]).width
                width[varies] = found * spread[varies]
        self.target_width_ = float(width[0]) if self.y_train_.ndim == 1 else width
        return self

    def _learn(self, objective: RegressionWidths, spread) -> LearnedWidths:
        """Learn widths, and record the steps and optima."""
        n_restarts = self.n_restarts if objective.layout.size else 0
        settings = Settings("lbfgs", n_restarts, self.max_iterations, bool(self.progress))
        found = learn_regression_widths(objective, settings, generator(self.random_state), self.learning_rows)
        if found is None:
            _refuse_negative(objective.kernel, gram.within(objective.kernel, objective.X))
            raise InvalidKernelError(f"{objective.kernel!r} is zero or not finite between all of these rows.")
        learned = found.learned
        natural = lambda theta: objective.parameters(theta, spread)
        # The log density of a row, from standardised targets to units of y.
        history, optima = recorded(learned, natural, found.rows, -float(np.log(spread).sum()))
        self.history_ += history
        self.optima_ += optima
        self.n_evaluations_ += found.evaluations
        if learned.interrupted:
            warn_of_interruption(learned.evaluations, stacklevel=5)
        return found

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self):
        self._check_choice("learning", ("loo", None))
        self._check_choice("criterion", CRITERIA)
        for name, minimum in (("n_restarts", 0), ("max_iterations", 1), ("learning_rows", 2)):
            self._check_integer(name, minimum)

    def _starts(self, X, c):
        """The kernel given, the rows prepared for it, and starting kernels, with one amplitude fixed because it
        cancels."""
        if self.kernel is not None:
            kernel = as_kernel(self.kernel).fitted(X)
            rows = gram.Gram(kernel, X)
            return kernel, rows, heuristics.starting_kernels(_without_amplitude(kernel), rows)
        rows, X = X, self._check_vectors(X)
        kernel = heuristics.radial_kernel(X, weights=c)
        middle = middle_spread(X, heuristics.centre_and_spread(X, c)[1]) * math.sqrt(X.shape[1])
        scales = [kernel.lengthscale, *([middle] if (middle < kernel.lengthscale).any() else [])]
        return (
            kernel,
            gram.Gram(kernel, rows),
            [RBF(factor * scale) for scale in scales for factor in heuristics.LENGTH_FACTORS],
        )

    def _given_width(self, q) -> np.ndarray | None:
        if self.target_width is None:
            return None
        try:
            width = np.broadcast_to(np.asarray(self.target_width, dtype=float), (q,)).copy()
        except (TypeError, ValueError):
            width = np.full(q, np.nan)
        if not (np.isfinite(width).all() and (width > 0).all()):
            raise ParameterError(
                f"target_width must be a positive number, one for each of {q} targets, or None to learn it; got "
                f"{reprlib.repr(self.target_width)}."
            )
        return width

    # -- prediction --------------------------------------------------------------------------------------------------

    def _targets(self):
        return int(np.size(self.target_width_)), self.y_train_.ndim == 1

    def _mixtures(self, X, left_out=False):
        """Mixtures for blocks of rows. ``left_out``: X are the training rows, each left out of its own."""
        n = len(self.weights_)
        means, variances = self.y_train_.reshape(n, -1), np.atleast_1d(self.target_width_) ** 2
        rows = gram.kept(self, self.kernel_, self.X_train_)
        floor = MIN_TOTAL_WEIGHT * float(np.mean(rows.diagonal()))
        s, far = count_rows(X), 0
        blocks = ((part, rows.some(part)) for part in gram.pieces(n, n)) if left_out else rows.blocks(X)
        for part, W in blocks:
            _refuse_negative(self.kernel_, W)
            np.maximum(W, 0.0, out=W)
            W += floor / self.weights_.sum()
            W = W * self.weights_  # a copy, since the block's memory is reused
            if left_out:
                W[np.arange(len(W)), np.arange(part.start, part.stop)] = 0.0
            total = W.sum(axis=1, keepdims=True)
            far += int((total <= 2 * floor).sum())
            W[total[:, 0] == 0] = self.weights_ / self.weights_.sum()
            W /= np.where(total == 0, 1.0, total)
            yield Mixtures(W, means, variances)
        if far:
            warnings.warn(
                f"{far} of {s} rows have no training row near them (kernel values add up to less than "
                f"{MIN_TOTAL_WEIGHT:g} of k(x, x), as beyond seven lengthscales of a Gaussian); all training rows get "
                "equal weight there.",
                NumericalWarning,
                stacklevel=4,
            )

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions of training rows with positive weight, in their original order. Equal rows are
        left out together."""
        self._check_fitted()
        n = len(self.weights_)
        t, parts, start = self.y_train_.reshape(n, 1, -1), [], 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            for m in self._mixtures(self.X_train_, left_out=True):
                own = t[start : start + m.n_rows]
                parts.append((m.mean(), m.variance(), m.log_density(own)[:, 0]))
                start += m.n_rows
        mean, variance, score = (np.concatenate(p)[self.rows_] for p in zip(*parts, strict=True))
        return LeaveOneOut(self._shaped(mean), variance=self._shaped(variance), log_score=score)

    def _summary(self):
        found = {**self.kernel_.parameters, "target width": self.target_width_}
        lines = [
            f"{type(self).__name__}, fitted to {len(self.rows_):,} rows",
            f"kernel: {quoted(self.kernel_)!r}",
            f"learned by: leave-one-out {self.criterion}" if self.n_evaluations_ else "nothing learned",
            "",
            table(["parameter", "value"], [[name, number(rounded(value))] for name, value in found.items()]),
        ]
        return "\n".join(lines)


def merged(X, Y, c):
    """Merge equal rows: rows to keep, the merged row of each row with positive weight, and the summed weights."""
    weighted = np.flatnonzero(c > 0)
    if not holds_numbers(X):
        return weighted, np.arange(len(weighted)), c[weighted]
    both = np.column_stack([as_matrix(X)[weighted], Y[weighted]])
    _, first, group = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return weighted[first], group.reshape(-1), np.bincount(group.reshape(-1), c[weighted])


def _without_amplitude(kernel):
    """The kernel with one of its overall amplitudes fixed."""
    places = heuristics.amplitude_places(kernel)
    if not places:
        return kernel
    path, field = min(places, key=repr)
    node = kernel
    for name, index in path:
        node = getattr(node, name) if index is None else getattr(node, name)[index]
    return evolve_at(kernel, path, fixed=node.fixed | {field})


def _refuse_negative(kernel, K):
    if K.size and K.min() < -1e-10 * np.abs(K).max():
        raise InvalidKernelError(
            f"kernel regression uses kernel values as weights (PRML 6.46), which must not be negative; {kernel!r} has "
            f"{K.min():.3g} among these rows. Try RBF, or kernel ** 2, kernel.exp() or kernel.gaussian()."
        )
