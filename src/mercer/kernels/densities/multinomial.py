"""Mixtures of multinomial distributions over counts, such as those of words in documents."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_counts, check_width
from mercer.core.parameters import NonNegativeArray, Parametrized, evolve, plain
from mercer.core.precision import as_float, is_traced
from mercer.core.random import seed_of
from mercer.kernels.densities.base import (
    MixtureDensity,
    check_distributions,
    count,
    log_normalized,
    normalized_exp,
)

N_STARTS = 3  # of expectation-maximisation
MAX_ITERATIONS = 200
TOLERANCE = 1e-5  # change of the mean log likelihood of a row that ends expectation-maximisation


class MultinomialComponents(Parametrized):
    """Weights (C,), and probabilities (C, V) of V words in each component."""

    _transparent: ClassVar[bool] = True

    weights: NonNegativeArray
    probabilities: NonNegativeArray
    fixed: frozenset[str] = eqx.field(
        default=frozenset(
            (
                "weights",
                "probabilities",
            )
        ),
        static=True,
        kw_only=True,
        repr=False,
    )

    def __check_init__(self) -> None:
        check_distributions(self.weights, "weights")
        check_distributions(self.probabilities, "probabilities")


class MultinomialMixture(MixtureDensity):
    """sum_i w_i prod_v p_iv^x_v: documents of a topic i, with counts x of V words.

    Rows are counts, dense or in a sparse matrix of SciPy. The density is that of the words in their order: the number
    of orders, which no parameter changes, is left out. ``MultinomialMixture(8).fit(X)`` learns eight components by
    expectation-maximisation, where each word has ``smoothing`` extra occurrences per component, so that no
    component is ruled out by a word that it has not seen.

    >>> X = [[3, 0, 1], [4, 1, 0], [0, 5, 2], [1, 6, 3]]
    >>> MultinomialMixture(2).fit(X)
    MultinomialMixture(n_components=2)
    """

    _transparent: ClassVar[bool] = True

    n_components: int = eqx.field(static=True, converter=count("the number of components"))
    smoothing: float = eqx.field(default=1.0, static=True, kw_only=True, converter=plain)
    random_state: int = eqx.field(default=0, static=True, kw_only=True, converter=seed_of)
    components: Any = eqx.field(default=None, kw_only=True)  # set by `fit` and `of`
    given: bool = eqx.field(default=False, static=True, kw_only=True)  # whether by `of`

    reads = "counts"

    def __check_init__(self) -> None:
        if (
            isinstance(self.smoothing, bool)
            or not isinstance(self.smoothing, int | float)
            or not 0 < self.smoothing < np.inf
        ):
            raise ParameterError(f"smoothing must be a number of occurrences, above zero; got {self.smoothing!r}.")
        if not isinstance(self.components, MultinomialComponents | None):
            raise ParameterError(f"components are set by fit and of; got {self.components!r}.")
        if self.components is not None:
            w, p = np.shape(self.components.weights), np.shape(self.components.probabilities)
            if len(p) != 2 or w != (self.n_components,) or p[0] != self.n_components:
                raise ParameterError(f"weights and probabilities of a mixture have shapes that do not match: {w}, {p}.")

    @classmethod
    def of(cls, weights: Any, probabilities: Any) -> "MultinomialMixture":
        """From weights (C,) and probabilities (C, V). Both are divided by their sums."""
        w, p = as_float(weights), np.asarray(as_float(probabilities))
        if p.ndim != 2 or np.shape(w) != (len(p),) or (p < 0).any() or not (p.sum(axis=1) > 0).all() or not w.sum() > 0:
            raise ParameterError(
                "a mixture of multinomials has weights (C,) and probabilities (C, V), none negative, and no row of "
                f"zeros; got shapes {np.shape(w)} and {p.shape}."
            )
        parts = MultinomialComponents(w / w.sum(), p / p.sum(axis=1, keepdims=True))
        return cls(len(p), components=parts, given=True)

    @property
    def needs_fit(self) -> bool:
        return self.components is None

    def fit(self, X: Inputs) -> Self:
        if self.given:
            return self
        X = as_counts(X)
        n = X.shape[0]
        if n < self.n_components:
            raise DataError(f"a mixture of {self.n_components} components needs at least as many rows; got {n}.")
        rng = np.random.default_rng(self.random_state)
        best: tuple[float, MultinomialComponents | None] = -np.inf, None
        for _ in range(N_STARTS if self.n_components > 1 else 1):
            best = max(best, self._climb(X, rng), key=lambda found: found[0])
        return evolve(self, components=best[1])

    def _climb(self, X: Any, rng: np.random.Generator) -> tuple[float, MultinomialComponents]:
        """Expectation-maximisation from random rows, with the log likelihood of its end."""
        n = X.shape[0]
        C, total = self.n_components, np.asarray(X.sum(axis=0)).ravel() + self.smoothing
        chosen = rng.choice(n, size=C, replace=False)
        rows = X[chosen].toarray() if sp.issparse(X) else X[chosen]
        # Halfway between the row and the mean of all rows: a row alone would exclude words that it lacks.
        p = total / total.sum() + (rows + self.smoothing) / (rows + self.smoothing).sum(axis=1, keepdims=True)
        w, before = np.full(C, 1.0 / C), -np.inf
        for _ in range(MAX_ITERATIONS):
            p = p / p.sum(axis=1, keepdims=True)
            joint = X @ np.log(p).T + np.log(w)
            highest = joint.max(axis=1, keepdims=True)
            likelihood = float((highest[:, 0] + np.log(np.exp(joint - highest).sum(axis=1))).mean())
            if likelihood - before < TOLERANCE * max(1.0, abs(likelihood)) * 0.1:
                break
            before, R = likelihood, normalized_exp(joint)
            w = (R.sum(axis=0) + 1 / C) / (n + 1)
            p = (X.T @ R).T + self.smoothing
        return likelihood, MultinomialComponents(w, p)

    def prepare(self, X: Inputs) -> Rows:
        X = as_counts(X)
        check_width(X, np.shape(self.components.probabilities)[1], "the table of probabilities")
        return X

    @property
    def log_weights(self) -> Any:
        return log_normalized(self.components.weights)

    def log_components(self, rows: Rows) -> Any:
        logs = log_normalized(self.components.probabilities)
        xp: Any = jnp if is_traced((logs, rows)) else np
        # A word of probability zero excludes the component only where it occurs.
        impossible = ~xp.isfinite(logs)
        found = rows @ xp.where(impossible, 0.0, logs).T
        return xp.where(rows @ impossible.T.astype(found.dtype) > 0, -np.inf, found)

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None) -> np.ndarray:
        if like is None:
            raise DataError("a mixture of multinomials has no distribution of the number of words; pass rows as like=.")
        totals = rng.choice(np.asarray(like.sum(axis=1)).ravel(), size=n).astype(int)
        p, w = np.asarray(self.components.probabilities), np.asarray(self.components.weights)
        which = rng.choice(self.n_components, size=n, p=w / w.sum())
        return rng.multinomial(totals, (p / p.sum(axis=1, keepdims=True))[which]).astype(float)

    def __repr__(self) -> str:
        smoothing = f", smoothing={self.smoothing}" if self.smoothing != 1.0 else ""
        state = f", random_state={self.random_state}" if self.random_state else ""
        return f"MultinomialMixture(n_components={self.n_components}{smoothing}{state})"
