"""Learning several targets that are rows of one process: where to start, and the default covariance between them.

A target p of a row x is the row (x, p). Its covariance is sum_q k_q(x, x') B_q[p, p'] with coregionalization matrices
B_q = W_q W_q^T + diag(kappa_q): one term is the intrinsic model, several are the linear one.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mercer.core.coordinates import to_free
from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, as_matrix, centre_and_spread
from mercer.core.parameters import children_of, evolve, evolve_at, map_children, nodes_of
from mercer.core.random import generator
from mercer.kernels import Coregionalization, Kernel, Matern
from mercer.kernels.algebra import Product, Sum
from mercer.learning import heuristics
from mercer.learning.choice import Choice, Tried, best_first
from mercer.learning.objective import Start
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective

NOISE_SHARES = (0.1, 0.3)  # of each target's variance, where its noise starts
SPREADS = (3.0, 10.0)  # of the lengthscales of several terms at a start: the longest over the shortest
LENGTHS = (0.6, 0.2)  # of one term at a start, in units of the default lengthscale
OWN_SHARE = 0.2  # of a target's variance that it has for itself, where learning starts
MIN_SHARED_ROWS = 5  # in which both of two targets are measured, to correlate them there
SMOOTHNESS = (0.5, 1.5, 2.5, math.inf)  # nu of the default kernel
MAX_TERMS = 3  # of the default kernel
MAX_CHOICE_ROWS = 1000  # rows from which the default kernel is chosen
MAX_SUM_ROWS = 4000  # up to which a sum of terms is considered: it has no structure that makes many rows fast
NEW_LENGTHS = (0.2, 5.0)  # of a further term, in units of those of the first
NEW_LOADING = 0.4  # of further loadings, in units of those that the correlations suggest
CHOICE_ITERATIONS = 60  # of each climb


@dataclasses.dataclass(frozen=True, eq=False)
class Targets:
    """Measurements of P targets, standardised, in long form: of each the number of its place (n,) and of its target
    (n,).

    ``places`` are the inputs of all places.
    """

    places: Inputs
    place: np.ndarray
    target: np.ndarray
    values: np.ndarray
    count: int

    def correlations(self) -> np.ndarray:
        """Correlations of the targets, (P, P), from places where both are measured; where these are few, from each
        measurement of one and the nearest of the other."""
        P = self.count
        wide = np.full((int(self.place.max()) + 1, P), np.nan)
        wide[self.place, self.target] = self.values
        out = np.eye(P)
        for i, j in itertools.combinations(range(P), 2):
            pairs = self._pairs(wide, i, j)
            if len(pairs) >= 3 and pairs.std(axis=0).min() > 0:
                out[i, j] = out[j, i] = np.corrcoef(pairs.T)[0, 1]
        return out

    def _pairs(self, wide: np.ndarray, i: int, j: int) -> np.ndarray:
        both = wide[:, [i, j]]
        both = both[np.isfinite(both).all(axis=1)]
        X = self._matrix
        if len(both) >= MIN_SHARED_ROWS or X is None:
            return both
        from scipy.spatial import cKDTree  # takes a while to import

        a, b = (np.flatnonzero(np.isfinite(wide[:, p])) for p in (i, j))
        if not len(a) or not len(b):
            return both
        if len(a) > len(b):
            a, b, i, j = b, a, j, i
        nearest = b[cKDTree(X[b]).query(X[a])[1]]
        return np.column_stack([wide[a, i], wide[nearest, j]])

    @functools.cached_property
    def _matrix(self) -> np.ndarray | None:
        try:
            X = np.asarray(as_matrix(self.places))
        except DataError:
            return None
        shift, spread = centre_and_spread(X)
        return (X - shift) / spread


# -- the covariance ------------------------------------------------------------------------------------------------


def coregionalized(kernels: Sequence[Kernel], ranks: Sequence[int], P: int, column: Any) -> Kernel:
    """sum_q k_q B_q, of kernels that read their own columns of rows whose number of the target is in ``column``."""
    terms = [kernel * Coregionalization(P, rank).on(column) for kernel, rank in zip(kernels, ranks, strict=True)]
    return terms[0] if len(terms) == 1 else functools.reduce(lambda a, b: a + b, terms)


def terms_of(kernel: Kernel) -> tuple[Kernel, ...]:
    return kernel.parts if isinstance(kernel, Sum) else (kernel,)


def coregionalizations(kernel: Kernel) -> list[Coregionalization]:
    return [node for node in nodes_of(kernel) if isinstance(node, Coregionalization)]


def with_loadings(kernel: Kernel, correlation: np.ndarray) -> Kernel:
    """A copy whose matrices B_q sum to about this correlation matrix of the targets: W_q are its principal components,
    each term beginning at another one, and the q-th of Q terms has 1/Q of the variance."""
    values, vectors = np.linalg.eigh(correlation)
    values, vectors = np.maximum(values[::-1], 0.1), vectors[:, ::-1]
    Q = len(terms_of(kernel))

    def loaded(node: Any, q: int) -> Any:
        if not isinstance(node, Coregionalization):
            return map_children(lambda child: loaded(child, q), node)
        if node.n_outputs != len(values):
            return node
        own = [(q + j) % len(values) for j in range(node.rank)]
        if own and "W" not in node.fixed:
            node = evolve(node, W=vectors[:, own] * np.sqrt(values[own] / Q))
        if "kappa" not in node.fixed:
            node = evolve(node, kappa=np.where(np.asarray(node.kappa) > 0, OWN_SHARE / Q, 0.0))
        return node

    parts = tuple(loaded(part, q) for q, part in enumerate(terms_of(kernel)))
    return evolve(kernel, parts=parts) if isinstance(kernel, Sum) else parts[0]


def scaled(kernel: Kernel, factor: float) -> Kernel:
    """``factor`` times the kernel, by its coregionalization matrices, one in each term."""

    def multiplied(node: Any) -> Any:
        if isinstance(node, Coregionalization):
            return evolve(node, W=node.W * math.sqrt(factor), kappa=node.kappa * factor)
        if isinstance(node, Product):
            own = next((i for i, part in enumerate(node.parts) if coregionalizations(part)), None)
            if own is None:
                return node
            return evolve(node, parts=(*node.parts[:own], multiplied(node.parts[own]), *node.parts[own + 1 :]))
        return map_children(multiplied, node)

    return multiplied(kernel)


# -- learning ------------------------------------------------------------------------------------------------------


class OutputsObjective(RegressionObjective):
    """Evidence of several targets with this ``correlation``. Loadings start at its principal components, and terms at
    different lengthscales; ``given``: also as they are."""

    correlation: np.ndarray = np.eye(1)
    given = False
    first: tuple[Start, ...] = ()  # where to start instead, on all rows at once

    def stages(self) -> list[int]:
        return [self.n] if self.first else super().stages()

    def starts(self) -> list[Start]:
        if self.first:
            return list(self.first)
        shares = NOISE_SHARES if self.noise.size else NOISE_SHARES[:1]
        own = [self._start_at(f"as given, noise {share:g}", self.kernel, share) for share in shares if self.given]
        return [*own, *self._from_data(shares)]

    def _start_at(self, name: str, kernel: Kernel, share: float) -> Start:
        parts: dict[str, np.ndarray] = {"kernels": np.asarray(to_free(kernel))}
        if self.noise.size:
            parts["noise"] = self.noise.start(share * self.variance())
        return Start(name, self.layout.joined(**parts))

    def _from_data(self, shares: Sequence[float]) -> Iterator[Start]:
        loaded = with_loadings(self.kernel, self.correlation)
        parts, seen = terms_of(loaded), []
        Q = len(parts)
        for length, spread in zip(LENGTHS, SPREADS, strict=True):
            factors = [LENGTHS[0] * spread ** (0.5 - q / (Q - 1)) for q in range(Q)] if Q > 1 else [length]
            own = [heuristics.with_lengthscales(part, self.X, f) for part, f in zip(parts, factors, strict=True)]
            kernel = evolve(loaded, parts=tuple(own)) if isinstance(loaded, Sum) else own[0]
            if kernel in seen:
                continue
            seen.append(kernel)
            about = f"lengthscales {spread:g} times apart" if Q > 1 else f"lengthscales x {length:g}"
            for share in shares:
                yield self._start_at(f"{about}, noise {share:g}", kernel, share)

    def with_kernel(self, kernel: Kernel) -> "OutputsObjective":
        new = OutputsObjective(
            kernel, self._rows, self.target, self.noise, self.solver, self.mean, self.use_priors, self.jacobian
        )
        return new._like(self)

    def _like(self, other: "OutputsObjective") -> "OutputsObjective":
        self.correlation, self.given, self.keeps = other.correlation, other.given, other.keeps
        return self

    def part(self, rows: np.ndarray) -> "OutputsObjective":
        """Of some of the rows."""
        X = self.rows[rows].alone()
        new = OutputsObjective(
            self.kernel, X, self.target[rows], self.noise.take(rows), self.solver, self.mean, self.use_priors,
            self.jacobian,
        )  # fmt: skip
        return new._like(self)


# -- the default kernel --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Structure:
    """A member of the family of default kernels: one smoothness, and the rank of the matrix of each term."""

    nu: float
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        kind = {0.5: "exponential", 1.5: "Matern 3/2", 2.5: "Matern 5/2", math.inf: "Gaussian"}[self.nu]
        if len(self.ranks) == 1:
            return f"{kind}, intrinsic, rank {self.ranks[0]}"
        return f"{kind}, {len(self.ranks)} terms, ranks {', '.join(map(str, self.ranks))}"

    def larger(self, P: int, most_terms: int) -> list["Structure"]:
        """Those with one more term of rank one, or one more rank of the first term."""
        found = [Structure(self.nu, (*self.ranks, 1))] if len(self.ranks) < most_terms else []
        if self.ranks[0] < P - 1:
            found.append(Structure(self.nu, (self.ranks[0] + 1, *self.ranks[1:])))
        return found


def choose(
    objective: OutputsObjective,
    kernel_of: Callable[[Structure], Kernel],
    P: int,
    most_terms: int,
    seed: int,
    settings: Settings,
) -> tuple[Choice, dict[Structure, Learned]]:
    """The best structure by rows left out one by one, as for the default kernel of one target: first the smoothness,
    then terms and ranks are added for as long as that improves the score. On a random part of many rows.

    Returns what was tried, and what was learned for each.
    """
    rng = generator(seed)
    if objective.n > MAX_CHOICE_ROWS:
        objective = objective.part(np.sort(rng.permutation(objective.n)[:MAX_CHOICE_ROWS]))
    line = Progress.of(settings.progress)
    settings = dataclasses.replace(settings, n_restarts=0, max_iterations=CHOICE_ITERATIONS, progress=line)
    tried: list[Tried] = []
    results: dict[Structure, Learned] = {}

    def attempt(structure: Structure, before: Tried | None = None) -> Tried:
        began = time.monotonic()
        own = objective.with_kernel(kernel_of(structure))
        if before is not None:
            own.first = tuple(_grown(own, objective.with_kernel(kernel_of(before.candidate)).at(before.theta)))
        line.prefix = f"choosing the kernel ({structure}): "
        learned = learn(own, settings, generator(seed))
        results[structure] = learned
        if not learned.optima:
            found = Tried(structure, -math.inf, -math.inf, np.zeros(0), own.n, failure="no covariance was positive")
        else:
            k = own.size + 1  # the choice itself counts as one
            score = own.score(learned.theta, learned.jitter) * (1 + k / own.n)
            value = learned.optima[0].value
            found = Tried(structure, value, score, learned.theta, own.n, seconds=time.monotonic() - began)
        tried.append(found)
        if learned.interrupted:
            raise KeyboardInterrupt
        return found

    interrupted, rank = False, min(1, P - 1)
    try:
        best = attempt(Structure(SMOOTHNESS[0], (rank,)))
        start = None if best.failure else best
        best = best_first([best, *(attempt(Structure(nu, (rank,)), start) for nu in SMOOTHNESS[1:])])[0]
        while P > 1:
            further = best_first(attempt(each, best) for each in best.candidate.larger(P, most_terms))
            if not further or further[0].score <= best.score:
                break
            best = further[0]
    except KeyboardInterrupt:
        if not best_first(tried):
            raise
        interrupted = True
    finally:
        line.prefix = ""
    evaluations = sum(learned.evaluations for learned in results.values())
    return Choice(best_first(tried), objective.n, evaluations, interrupted), results


def _grown(objective: OutputsObjective, before: Any) -> Iterator[Start]:
    """Starts from the parameters of a smaller structure, or of the same one with another smoothness: a new term is
    shorter or longer than the first, and new loadings are small, along the next principal component."""
    values, vectors = np.linalg.eigh(objective.correlation)
    values, vectors = np.maximum(values[::-1], 0.1), vectors[:, ::-1]
    old, new = terms_of(before.kernel), terms_of(objective.kernel)
    for factor in NEW_LENGTHS if len(new) > len(old) else NEW_LENGTHS[:1]:
        parts, used = [], 0
        for q, part in enumerate(new):
            like, fresh = (old[q], 0) if q < len(old) else (old[0], len(values))
            parts.append(_adapted(part, like, factor if fresh else 1.0, vectors * np.sqrt(values), used, bool(fresh)))
            used += coregionalizations(part)[0].rank
        kernel = evolve(objective.kernel, parts=tuple(parts)) if len(new) > 1 else parts[0]
        joined = {"kernels": np.asarray(to_free(kernel))}
        if objective.noise.size:
            joined["noise"] = np.log(np.asarray(before.noise.noise))
        about = f"a term {factor:g} times as long" if len(new) > len(old) else "as before"
        yield Start(about, objective.layout.joined(**joined))


def _adapted(part: Any, like: Any, factor: float, loadings: np.ndarray, used: int, fresh: bool) -> Any:
    """A term with the parameters of another, its lengthscales multiplied."""
    if isinstance(part, Matern):
        return evolve(part, lengthscale=like.lengthscale * factor)
    if isinstance(part, Coregionalization):
        own = 0 if fresh else like.W.shape[1]
        next_ones = [(used + j) % len(loadings) for j in range(own, part.rank)]
        W = NEW_LOADING * loadings[:, next_ones]
        kappa = like.kappa * (NEW_LOADING**2 if fresh else 1.0)
        return evolve(part, W=np.column_stack([like.W[:, :own], W]) if part.rank else part.W, kappa=kappa)
    pairs = zip(children_of(part), children_of(like), strict=True)
    for (path, child), (_, other) in list(pairs):
        part = evolve_at(part, path, **vars(_adapted(child, other, factor, loadings, used, fresh)))
    return part


def default_input_kernel(places: Inputs, nu: float) -> Kernel:
    """Matern, or Gaussian, with one lengthscale for each input, left at one for `OutputsObjective.starts`."""
    d = np.asarray(as_matrix(places)).shape[1]
    return Matern(np.ones(d) if d > 1 else 1.0, nu=nu)
