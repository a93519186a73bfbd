"""How the parameters of classifiers are learned: by whose evidence, on which rows, and with how large variances.

The evidence of two classes can be climbed as it is. Of several classes, Laplace's evidence and a variational bound tell
shapes of kernels apart, and ask for variances that are too small: so these are chosen by labels held out. Laplace's own
posterior holds for small variances only: there a probability is never far from even, as a mode grows like the logarithm
of the variance and a deviation like its root. So for it variances are held below a ceiling, the one whose left out
labels are predicted best.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.machine import one_thread
from mercer.core.random import generator, seed_of
from mercer.inference.base import Inference
from mercer.inference.methods import Laplace
from mercer.inference.sites import Covariance
from mercer.inference.softmax.expectation import mean_softmax
from mercer.inference.softmax.posterior import SoftmaxPosterior
from mercer.inference.softmax.variational import COARSE, softmax_variational
from mercer.learning import heuristics
from mercer.learning.family import WeakPrior
from mercer.learning.latent import LabelProblem, LatentEvidence
from mercer.learning.optimise import Learned, learn
from mercer.learning.progress import Progress

DECIDED_ON = 500  # rows of two classes on which kernel and ceiling are chosen
RANKED_ON = 250  # rows on which places to begin are compared
REACH = 8.0  # of logarithms: where classes can be told apart without a doubt, a variance would grow without end
CEILINGS = (100.0, 30.0, 10.0, 3.0, 1.0)  # for the variances of the terms of a kernel
RAISED = 3.0  # times, again and again, as long as labels held out are predicted better
FOLDS = 3
VARIANCE = 30.0  # of a latent function, where the weak prior of the default kernel has its centre
SLACK = 50.0  # times less exactly many classes are learned, to a tenth of a nat where rows are many


class Taught(NamedTuple):
    """The problem with the kernels chosen for it, what climbing found, the parameters to be used, and the approximation
    nearest to them, if the inference that predicts has one."""

    problem: LabelProblem
    learned: Learned
    theta: np.ndarray
    near: Any


class Teacher:
    """Learns parameters of labels, for the ``inference`` that is to predict.

    ``undecided``: the kernel is the default one, with one lengthscale; it may be given one for each input. ``settings``
    go to `optimise.learn`.
    """

    def __init__(
        self, inference: Inference, *, undecided: bool, use_priors: bool, n_restarts: int, random_state, progress: bool,
        **settings,
    ):  # fmt: skip
        self.inference, self.classes, classes = inference, inference.classes, inference.classes
        self.undecided, self.use_priors, self.n_restarts = undecided, use_priors, n_restarts
        self.seed, self.progress = seed_of(random_state), progress
        self.climbs = inference.for_learning()
        self.cautious = classes > 2 and inference.needs_small_variance
        self.rescales = classes > 2 and not self.cautious
        self.settings = settings | {"tolerance": 1.0 if classes == 2 else SLACK, "reach": REACH}

    def __call__(self, kernels, X, codes) -> Taught:
        """Decisions are made on some of the rows, the parameters are learned from all of them."""
        problem = LabelProblem(kernels, X, codes, self.climbs)
        if not self.undecided and self.classes == 2:
            learned = self._learn(problem)
            return self._taught(problem, learned)
        few = problem
        most = int(DECIDED_ON * (2 / self.classes) ** (1 / 3))  # as many flops for any number of classes
        if problem.n > most:
            few = problem.part(np.sort(generator(self.seed).permutation(problem.n)[:most]))
        learned, ceiling = self._learn(few), CEILINGS[0]
        one, theta = few, None
        try:
            if self.cautious and not learned.interrupted:
                learned, ceiling = self._held_back(few, learned)
            first = learned
            if self.undecided and not learned.interrupted:
                each = few.replaced([heuristics.standard_kernel(problem.X)])
                few, learned = self._one_or_each(few, each, learned, problem.n, ceiling)
            if self.rescales and not learned.interrupted:
                theta, scores = self._rescaled(few, learned)
                if few is not one:
                    other, others = self._rescaled(one, first, scores)
                    if not surely_better(scores, others, few.size - one.size):
                        few, learned, theta = one, first, other
        except KeyboardInterrupt:  # before anything new was found
            learned.interrupted = True
        if few.n == problem.n:
            return self._taught(few, learned, theta)
        problem = problem.replaced(few.kernels)
        try:
            if not learned.interrupted and not self.rescales:
                learned = self._again(problem, learned, ceiling, restarts=self.n_restarts)
        except KeyboardInterrupt:
            learned.interrupted = True
        return self._taught(problem, learned, theta)

    def _taught(self, problem, learned, theta=None) -> Taught:
        own = self.classes == 2 or self.climbs == self.inference  # what predicts may begin there
        near = problem.evidence.found if problem.evidence is not None and own else None
        return Taught(problem, learned, learned.optima[0].theta if theta is None else theta, near)

    def _held_back(self, problem, learned) -> tuple[Learned, float]:
        """What is learned below the ceiling that predicts left out labels best, and that ceiling."""
        score, best, chosen = self._left_out(problem, learned), learned, CEILINGS[0]
        for ceiling in CEILINGS[1:]:
            if (learned.optima[0].theta <= problem.ceiling(ceiling)).all():
                continue
            learned = self._again(problem, learned, ceiling)
            if learned.interrupted:
                return learned, ceiling
            new = self._left_out(problem, learned)
            if new > score:
                score, best, chosen = new, learned, ceiling
        best.evaluations = learned.evaluations
        return best, chosen

    def _left_out(self, problem, learned) -> float:
        """The mean of ln p(label | all other rows) at the optimum."""
        kernels = problem.at(learned.optima[0].theta)
        Ks = [Covariance.of(kernel, problem.X, learned.jitter) for kernel in kernels]
        found = problem.infer(Ks, problem.codes, None, gradient=False)
        if found is None:
            return -np.inf
        p = SoftmaxPosterior.of(found, kernels, problem.X).left_out(lambda: Ks, problem.codes)
        return float(log_scores(p, problem.codes).mean())

    def _one_or_each(self, one, each, learned, n: int, ceiling: float) -> tuple[LabelProblem, Learned]:
        """One lengthscale, which was ``learned``, or one for each input if they earn their keep.

        The evidence is taken to grow with the number of rows, up to all n, and every further lengthscale is charged
        ln(n) / 2 (the price of a parameter in PRML 4.139). No evidence is above zero, so it is not always tried.
        """
        best, d, ratio = learned.optima[0], one.X.shape[1], n / one.n
        price = 0.5 * np.log(n) * (d - 1)
        if d == 1 or -best.value * ratio <= price:
            return one, learned
        # theta0, theta1, theta2, theta3: the shared theta1 is given to every input.
        start = [("one lengthscale", np.insert(best.theta, [1] * (d - 1), best.theta[1]))]
        found = self._learn(each, start, learned.evaluations, ceiling)
        learned.evaluations = found.evaluations
        better = (found.optima[0].value - best.value) * ratio > price or found.interrupted
        return (each, found) if better else (one, learned)

    def _rescaled(self, problem, learned, rival=None) -> tuple[np.ndarray, np.ndarray]:
        """theta with all variances times a power of `RAISED`, the one that predicts labels held out best; and ln p of
        each of them (with the prior's share).

        Up, or else down, from where the evidence is highest, as long as it surely pays; not where ``rival`` scores are
        better to begin with.
        """
        theta, mask = learned.optima[0].theta, problem.amplitude()
        prior = problem.prior() if self.use_priors else lambda theta: (0.0, None)
        with LatentEvidence(problem.kernels, problem.X, problem.codes, problem.infer) as evidence:
            evidence.jitter = learned.jitter
            folds = HeldOut(evidence.covariances(theta, accurate=True), problem.codes, self.classes)

        def moved(power) -> np.ndarray:
            return theta + power * np.log(RAISED) * mask if power else theta

        def scores(power) -> np.ndarray:
            return folds.scores(RAISED**power) + prior(moved(power))[0] / problem.n

        best, power = scores(0), 0
        beaten = rival is not None and surely_better(rival, best)
        for way in () if beaten or mask is None else (1, -1):
            while abs(power + way) <= REACH / np.log(RAISED) and surely_better(new := scores(power + way), best, 1):
                best, power = new, power + way
            if power:
                break
        return moved(power), best

    def _again(self, problem, learned, ceiling, restarts: int = 0) -> Learned:
        """From where learning ended, on other rows or below another ceiling."""
        best = learned.optima[0]
        return self._learn(problem, [(best.start, best.theta)], learned.evaluations, ceiling, restarts)

    def _learn(self, problem, candidates=None, evaluations=0, ceiling=None, restarts=None) -> Learned:
        """From ``candidates``, or from what heuristics say; ``evaluations`` were made before."""
        if candidates is None:
            candidates = problem.candidates()
            quick = Laplace(self.classes, self.climbs.link)  # tells the best start in a fraction of the time
            if self.climbs != quick:
                candidates = problem.likeliest(candidates, quick, RANKED_ON)
        prior = problem.prior() if self.use_priors else None
        if self.undecided and prior is None:
            # Where few rows tell all classes apart, the evidence is nearly flat in the variances: they would run off.
            prior = WeakPrior(problem.names(), problem.start() + math.log(VARIANCE) * problem.amplitude())
        learned = learn(
            problem, problem.n, candidates, prior=prior,
            logarithmic=problem.logarithmic(), n_restarts=self.n_restarts if restarts is None else restarts,
            rng=generator(self.seed), progress=Progress(shown=self.progress),
            ceiling=problem.ceiling(ceiling or CEILINGS[0]) if self.cautious else np.inf, **self.settings,
        )  # fmt: skip
        if not learned.optima:
            raise NotPositiveDefiniteError(
                f"the posterior of these {problem.n} rows could not be found at any starting value of the parameters "
                f"of {problem.kernels[0]!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
            )
        learned.evaluations += evaluations
        return learned


class HeldOut:
    """Labels of some folds predicted from the other rows, at several multiples of the covariances.

    Sites left out of one posterior would be cheaper, but where variances are large they flatter it.
    """

    def __init__(self, Ks: list[Covariance], codes, classes: int):
        self.codes, self.classes = codes, classes
        self.whole = [K.rows(range(K.n)) for K in Ks]
        order = np.argsort(codes, kind="stable")  # every fold has its share of each class
        self.folds = [np.sort(order[i::FOLDS]) for i in range(FOLDS)]
        self.found: list = [None] * FOLDS  # what inference begins at

    def scores(self, factor: float) -> np.ndarray:
        """ln p(label) of every row; minus infinity where inference fails."""
        out = np.empty(len(self.codes))
        with one_thread():  # they are a few hundred rows
            for i, held in enumerate(self.folds):
                out[held] = self._scores(i, held, factor)
        return out

    def _scores(self, i: int, held, factor: float):
        kept = np.setdiff1d(np.arange(len(self.codes)), held)
        inside = [Covariance(factor * K[np.ix_(kept, kept)]) for K in self.whole]
        found = softmax_variational(inside, self.codes[kept], self.found[i], gradient=False, classes=self.classes,
                                    rule=COARSE)  # fmt: skip
        if found is None:
            return -np.inf
        posterior, self.found[i] = SoftmaxPosterior.of(found, [None] * len(inside), None), found
        across = [factor * K[np.ix_(held, kept)] for K in self.whole]
        moments = posterior.moments_across(across, np.stack([factor * np.diag(K)[held] for K in self.whole], axis=1))
        return log_scores(mean_softmax(*moments), self.codes[held])


def surely_better(new, old, parameters: int = 0) -> bool:
    """Whether scores of the same rows have risen by more than the standard error of the sum of their changes.

    ``parameters`` more were learned with these rows among others, which flatters scores by about one each (Akaike).
    """
    gain = new - old
    return bool(np.isfinite(new).all() and gain.sum() - parameters > math.sqrt(len(gain)) * gain.std())


def log_scores(p, codes) -> np.ndarray:
    """ln of the probability each label was given, no less than that of the smallest number."""
    return np.log(np.maximum(p[np.arange(len(p)), codes], np.finfo(float).tiny))
