"""How the parameters of classifiers are learned: by whose evidence, on which rows, and with how large variances.

The evidence of two classes can be climbed as it is. Laplace's, of many classes, cannot: it keeps rising with the
variances of the latent functions where its Gaussian has long ceased to be like the posterior. There a probability is
never far from even, as a mode grows like the logarithm of the variance and a deviation like its root. So variances are
held below a ceiling, the one whose left out labels are predicted best.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.random import generator
from mercer.inference.latent import Covariance
from mercer.inference.softmax_posterior import SoftmaxPosterior
from mercer.learning import heuristics
from mercer.learning.latent import LabelProblem
from mercer.learning.optimise import Learned, learn
from mercer.learning.progress import Progress

DECIDED_ON = 500  # rows of two classes on which kernel and ceiling are chosen
RANKED_ON = 250  # rows on which places to begin are compared
REACH = 8.0  # of logarithms: where classes can be told apart without a doubt, a variance would grow without end
CEILINGS = (100.0, 30.0, 10.0, 3.0, 1.0)  # for the variances of the terms of a kernel
RAISED = 3.0  # times, again and again, as long as a variational bound rises
MANY = 300  # rows from which on many classes are not learned by their variational bound
SLACK = 50.0  # times less exactly many classes are learned, to a tenth of a nat where rows are many


class Taught(NamedTuple):
    """The problem with the kernels chosen for it, what climbing found, the parameters to be used, and the approximation
    nearest to them, if the inference that predicts has one."""

    problem: LabelProblem
    learned: Learned
    theta: np.ndarray
    near: Any


class Teacher:
    """Learns parameters of labels of ``n`` rows, for the ``inference`` that is to predict.

    ``infer(name)`` is what `LabelProblem` asks for. ``undecided``: the kernel is the default one, with one lengthscale;
    it may be given one for each input. ``settings`` go to `optimise.learn`.
    """

    def __init__(
        self, inference: str, classes: int, n: int, infer: Callable, *, undecided: bool, use_priors: bool,
        n_restarts: int, random_state, progress: bool, **settings,
    ):  # fmt: skip
        self.inference, self.classes, self.infer = inference, classes, infer
        self.undecided, self.use_priors, self.n_restarts = undecided, use_priors, n_restarts
        self.random_state, self.progress = random_state, progress
        slow = inference == "mcmc" or (inference == "variational" and n > MANY)
        self.climbs = "laplace" if classes > 2 and slow else inference  # whose evidence
        self.cautious = classes > 2 and self.climbs == "laplace"
        self.settings = settings | {"tolerance": 1.0 if classes == 2 else SLACK, "reach": REACH}

    def __call__(self, kernels, X, codes) -> Taught:
        """Decisions are made on some of the rows, the parameters are learned from all of them."""
        problem = LabelProblem(kernels, X, codes, self.infer(self.climbs))
        if not self.undecided and not self.cautious:
            learned = self._learn(problem)
            return self._taught(problem, learned)
        few = problem
        most = int(DECIDED_ON * (2 / self.classes) ** (1 / 3))  # as many flops for any number of classes
        if problem.n > most:
            few = problem.part(np.sort(generator(self.random_state).permutation(problem.n)[:most]))
        learned, ceiling = self._learn(few), CEILINGS[0]
        theta = None
        try:
            if self.cautious and not learned.interrupted:
                learned, ceiling = self._held_back(few, learned)
            if self.undecided and not learned.interrupted:
                each = few.replaced([heuristics.standard_kernel(problem.X)])
                few, learned = self._one_or_each(few, each, learned, problem.n, ceiling)
            if few.n == problem.n:
                problem = few
            else:
                problem = problem.replaced(few.kernels)
                if not learned.interrupted:
                    learned = self._again(problem, learned, ceiling, restarts=self.n_restarts)
            if self.cautious and self.inference != "laplace" and not learned.interrupted:
                theta = self._raised(few, learned)
        except KeyboardInterrupt:  # before anything new was found
            learned.interrupted = True
        return self._taught(problem, learned, theta)

    def _taught(self, problem, learned, theta=None) -> Taught:
        near = problem.evidence.found if problem.evidence is not None and self.climbs == self.inference else None
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
        p = SoftmaxPosterior.of(found, kernels, problem.X).left_out(Ks, problem.codes)
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

    def _raised(self, problem, learned) -> np.ndarray:
        """theta with all variances as many times larger as the variational bound on these rows (and the prior) asks
        for."""
        theta, mask = learned.optima[0].theta, problem.amplitude()
        if mask is None:
            return theta
        prior = problem.prior() if self.use_priors else lambda theta: (0.0, None)
        with LabelProblem(problem.kernels, problem.X, problem.codes, self.infer("variational"))(None) as evidence:
            evidence.jitter = learned.jitter

            def height(theta) -> float:
                evidence.found = None  # begin anew: the bound has several maxima
                found = evidence(theta, gradient=False)
                return -np.inf if found is None else found.value + prior(theta)[0]

            best = height(theta)
            for _ in range(int(REACH / np.log(RAISED))):
                further = theta + np.log(RAISED) * mask
                new = height(further)
                if new <= best:
                    break
                best, theta = new, further
        return theta

    def _again(self, problem, learned, ceiling, restarts: int = 0) -> Learned:
        """From where learning ended, on other rows or below another ceiling."""
        best = learned.optima[0]
        return self._learn(problem, [(best.start, best.theta)], learned.evaluations, ceiling, restarts)

    def _learn(self, problem, candidates=None, evaluations=0, ceiling=None, restarts=None) -> Learned:
        """From ``candidates``, or from what heuristics say; ``evaluations`` were made before."""
        if candidates is None:
            candidates = problem.candidates()
            if self.climbs != "laplace":  # whose evidence tells the best start in a fraction of the time
                candidates = problem.likeliest(candidates, self.infer("laplace"), RANKED_ON)
        learned = learn(
            problem, problem.n, candidates, prior=problem.prior() if self.use_priors else None,
            logarithmic=problem.logarithmic(), n_restarts=self.n_restarts if restarts is None else restarts,
            rng=generator(self.random_state), progress=Progress(shown=self.progress),
            ceiling=problem.ceiling(ceiling or CEILINGS[0]) if self.cautious else np.inf, **self.settings,
        )  # fmt: skip
        if not learned.optima:
            raise NotPositiveDefiniteError(
                f"the posterior of these {problem.n} rows could not be found at any starting value of the parameters "
                f"of {problem.kernels[0]!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
            )
        learned.evaluations += evaluations
        return learned


def log_scores(p, codes) -> np.ndarray:
    """ln of the probability each label was given, no less than that of the smallest number."""
    return np.log(np.maximum(p[np.arange(len(p)), codes], np.finfo(float).tiny))
