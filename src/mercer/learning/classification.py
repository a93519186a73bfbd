"""Learning the parameters of a classifier: choice of evidence, rows and variance limits.

The evidence of two classes can be maximised as it is. With more classes, Laplace's evidence and variational bounds tell
shapes of kernels apart, but favour variances that are too small: so these are chosen by held-out labels. Laplace's own
posterior holds for small variances only: there a probability is never far from even, as a mode grows like the logarithm
of the variance and a deviation like its root. So for it variances are limited, to the limit that predicts left-out
labels best.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.inputs import Inputs
from mercer.core.machine import one_thread
from mercer.core.random import generator
from mercer.inference.base import Inference, latent_covariances
from mercer.inference.latent import LatentCovariance
from mercer.kernels.base import Kernel
from mercer.learning.label_evidence import MAX_LOG_CHANGE, LabelObjective, LastInference
from mercer.learning.objective import Start
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.state import Journal
from mercer.solvers.base import Solver

MAX_DECISION_ROWS = 500  # of two classes, on which kernel and variance limit are chosen
VARIANCE_LIMITS = (100.0, 30.0, 10.0, 3.0, 1.0)  # on the terms of a kernel
VARIANCE_STEP = 3.0  # factor on variances, again and again, as long as held-out labels are predicted better
FOLDS = 3


def decision_rows(classes: int) -> int:
    """Rows on which kernels are chosen, at most: as many flops for any number of classes."""
    return int(MAX_DECISION_ROWS * (2 / classes) ** (1 / 3))


class LearnedLabels(NamedTuple):
    """The objective with the kernels chosen for it, the result of maximisation, the parameters to use, and the last
    inference made in learning, if it was on all rows."""

    objective: LabelObjective
    learned: Learned
    theta: np.ndarray
    last: LastInference | None


class LabelLearner:
    """Learns the parameters of kernels from labels, for the ``inference`` that is to predict.

    ``default_kernel``: the kernel is the default one, with one lengthscale; ``each`` is that with one for each input.
    """

    def __init__(
        self,
        inference: Inference,
        settings: Settings,
        seed: int,
        *,
        default_kernel: bool,
        use_priors: bool,
        jacobian: bool = False,
        each: Kernel | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.inference, self.settings, self.seed, self.journal = inference, settings, seed, journal or Journal()
        self.default_kernel, self.use_priors, self.jacobian, self.each = default_kernel, use_priors, jacobian, each
        self.classes, self.infer = inference.classes, inference.for_learning()
        self.limits = self.classes > 2 and inference.needs_small_variance
        self.rescales = self.classes > 2 and not self.limits

    def __call__(self, kernels: Sequence[Kernel], X: Inputs, codes: np.ndarray, solver: Solver) -> LearnedLabels:
        """Decide on some of the rows, then learn from all of them."""
        objective = LabelObjective(
            kernels, X, codes, self.infer, self.use_priors, self.default_kernel,
            VARIANCE_LIMITS[0] if self.limits else None, solver=solver, jacobian=self.jacobian,
        )  # fmt: skip
        if not self.default_kernel and self.classes == 2:
            return self._done(objective, self._learn(objective, self.settings.n_restarts))
        few = objective
        most = decision_rows(self.classes)
        if objective.n > most:
            few = objective.part(np.sort(generator(self.seed).permutation(objective.n)[:most]))
        learned = self._learn(few, self.settings.n_restarts)
        one, theta = few, None
        try:
            if self.limits and not learned.interrupted:
                few, learned = self._limited(few, learned)
            first = learned
            if self.each is not None and not learned.interrupted:
                each = dataclasses.replace(few, kernels=[self.each])
                few, learned = self._one_or_each(few, each, learned, objective.n)
            if self.rescales and not learned.interrupted:
                theta, scores = self._rescaled(few, learned)
                if few is not one:
                    other, others = self._rescaled(one, first, scores)
                    if not significantly_better(scores, others, few.size - one.size):
                        first = dataclasses.replace(first, evaluations=learned.evaluations)
                        few, learned, theta = one, first, other
        except KeyboardInterrupt:  # before anything new was found
            learned = dataclasses.replace(learned, interrupted=True)
        if few.n == objective.n:
            return self._done(few, learned, theta)
        objective = dataclasses.replace(few, X=X, codes=codes)
        try:
            if not learned.interrupted and not self.rescales:
                learned = self._learn_on(objective, learned, self.settings.n_restarts)
        except KeyboardInterrupt:
            learned = dataclasses.replace(learned, interrupted=True)
        return self._done(objective, learned, theta)

    def _done(self, objective: LabelObjective, learned: Learned, theta: np.ndarray | None = None) -> LearnedLabels:
        last = learned.outcome if isinstance(learned.outcome, LastInference) else None
        if last is not None and last.rows != objective.n:
            last = None
        elif last is not None and self.classes > 2 and self.infer != self.inference:
            last = last._replace(approximation=None)  # no start for another method
        return LearnedLabels(objective, learned, learned.theta if theta is None else theta, last)

    def _limited(self, objective: LabelObjective, learned: Learned) -> tuple[LabelObjective, Learned]:
        """The objective with the variance limit that predicts left-out labels best, and what is learned below it."""
        score, best = self._left_out_score(objective, learned), (objective, learned)
        for limit in VARIANCE_LIMITS[1:]:
            if (learned.theta <= objective.ceiling_at(limit)).all():
                continue
            limited = dataclasses.replace(objective, max_variance=limit)
            learned = self._learn_on(limited, learned)
            if learned.interrupted:
                return limited, learned
            new = self._left_out_score(limited, learned)
            if new > score:
                score, best = new, (limited, learned)
        return best[0], dataclasses.replace(best[1], evaluations=learned.evaluations)

    def _left_out_score(self, objective: LabelObjective, learned: Learned) -> float:
        """Mean of ln p(label | all other rows) at the optimum."""
        kernels, Ks = list(objective.at(learned.theta).kernels), self._covariances(objective, learned)
        found = objective.infer(Ks, objective.codes, None, gradient=False)
        if found is None:
            return -np.inf
        posterior = objective.infer.posterior(found, kernels, gram.raw(objective.X), objective.codes, learned.jitter)
        return float(log_scores(posterior.leave_one_out(Ks), objective.codes).mean())

    @staticmethod
    def _covariances(objective: LabelObjective, learned: Learned) -> list[LatentCovariance]:
        """Those at the optimum: what learning kept, or computed again."""
        last = learned.outcome
        kept = last.covariances(learned.theta, learned.jitter) if isinstance(last, LastInference) else None
        kernels = list(objective.at(learned.theta).kernels)
        return kept or latent_covariances(objective.solver.latent, kernels, objective.X, learned.jitter)

    def _one_or_each(
        self, one: LabelObjective, each: LabelObjective, learned: Learned, n: int
    ) -> tuple[LabelObjective, Learned]:
        """One lengthscale, which was ``learned``, or one for each input if that pays.

        The evidence is taken to grow with the number of rows, up to all n, and every further lengthscale is charged
        ln(n) / 2 (the price of a parameter in PRML 4.139). No evidence is above zero, so it is not always tried.
        """
        best, further, ratio = learned.optima[0], each.size - one.size, n / one.n
        price = 0.5 * np.log(n) * further
        if further == 0 or -best.value * ratio <= price:
            return one, learned
        # theta0, theta1, theta2, theta3, and what other columns have: the shared theta1 is given to every input.
        start = Start("one lengthscale", np.insert(best.theta, [1] * further, best.theta[1]))
        found = self._learn(dataclasses.replace(each, given=[start]), self.settings.n_restarts, learned.evaluations)
        better = (found.optima[0].value - best.value) * ratio > price or found.interrupted
        return (each, found) if better else (one, dataclasses.replace(learned, evaluations=found.evaluations))

    def _rescaled(
        self, objective: LabelObjective, learned: Learned, rival: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """theta with all variances times a power of `VARIANCE_STEP`, the one that predicts held-out labels best; and
        ln p of each of these (with the prior's share).

        Up, or else down, from where the evidence is highest, as long as the sum of scores rises by more than one for
        each step (Akaike). What must be significant is the change in all: single steps may be too small to show. Not
        where the scores of a ``rival`` are better to begin with.
        """
        theta, mask = learned.theta, objective.amplitude()
        prior = objective.prior() if self.use_priors else None
        folds = HeldOutFolds(self._covariances(objective, learned), objective.codes, self.inference.for_scores())

        def moved(power: int) -> np.ndarray:
            return theta + power * np.log(VARIANCE_STEP) * mask if power else theta

        def scores(power: int) -> np.ndarray:
            log_density = 0.0 if prior is None else prior(moved(power))[0]
            return folds.scores(VARIANCE_STEP**power) + log_density / objective.n

        first, most = scores(0), MAX_LOG_CHANGE / np.log(VARIANCE_STEP)
        best, power = first, 0
        beaten = rival is not None and significantly_better(rival, first)
        for way in () if beaten or mask is None else (1, -1):
            last, steps = first, 1
            while steps <= most and (new := scores(way * steps)).sum() - 1 > last.sum():
                if significantly_better(new, first, steps):
                    best, power = new, way * steps
                last, steps = new, steps + 1
            if power:
                break
        return moved(power), best

    def _learn_on(self, objective: LabelObjective, learned: Learned, n_restarts: int = 0) -> Learned:
        """From where learning ended, on other rows or below another limit."""
        start = Start(learned.optima[0].start, learned.theta)
        return self._learn(dataclasses.replace(objective, given=[start]), n_restarts, learned.evaluations)

    def _learn(self, objective: LabelObjective, n_restarts: int, evaluations: int = 0) -> Learned:
        """Maximise the evidence; ``evaluations`` were made before."""
        settings = dataclasses.replace(self.settings, n_restarts=n_restarts)
        learned = learn(objective, settings, generator(self.seed), self.journal)
        if not learned.optima:
            for kernel in objective.kernels:  # an error that says more, where values are not finite
                gram.diagonal(kernel, objective.X)
            raise NotPositiveDefiniteError(
                f"the posterior of these {objective.n} rows could not be found at any starting value of the parameters "
                f"of {objective.kernels[0]!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
            )
        return dataclasses.replace(learned, evaluations=learned.evaluations + evaluations)


class HeldOutFolds:
    """Labels of each fold predicted from the other rows, at several multiples of the covariances.

    Leaving sites out of one posterior would be cheaper, but where variances are large it is too optimistic.
    """

    def __init__(self, Ks: Sequence[LatentCovariance], codes: np.ndarray, infer: Inference) -> None:
        self.Ks, self.codes, self.infer = Ks, codes, infer
        order = np.argsort(codes, kind="stable")  # every fold has its share of each class
        self.folds = [np.sort(order[i::FOLDS]) for i in range(FOLDS)]
        self._last: list[Any] = [None] * FOLDS  # approximations, from which inference starts

    def scores(self, factor: float) -> np.ndarray:
        """ln p(label) of every row; minus infinity where inference fails."""
        out = np.empty(len(self.codes))
        with one_thread():  # they are a few hundred rows
            for i, held in enumerate(self.folds):
                out[held] = self._scores(i, held, factor)
        return out

    def _scores(self, i: int, held: np.ndarray, factor: float) -> np.ndarray | float:
        kept = np.setdiff1d(np.arange(len(self.codes)), held)
        inside = [K.part(kept, factor) for K in self.Ks]
        found: Any = self.infer(inside, self.codes[kept], self._last[i], gradient=False)  # a JointApproximation
        if found is None:
            return -np.inf
        self._last[i] = found
        across = [K.across(held, kept, factor) for K in self.Ks]
        variances = np.stack([K.own_variance(held, factor) for K in self.Ks], axis=1)
        return log_scores(found.class_probabilities(across, variances), self.codes[held])


def significantly_better(new: np.ndarray, old: np.ndarray, parameters: int = 0) -> bool:
    """Whether scores of the same rows have risen by more than the standard error of the sum of their changes.

    If ``parameters`` more were learned with these rows among others, scores are too good by about one each (Akaike).
    """
    gain = new - old
    return bool(np.isfinite(new).all() and gain.sum() - parameters > math.sqrt(len(gain)) * gain.std())


def log_scores(p: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """ln of the probability given to each label, no less than that of the smallest number."""
    return np.log(np.maximum(p[np.arange(len(p)), codes], np.finfo(float).tiny))
