"""Fisher kernels: rows are similar if they would change the parameters of a generative model in the same way."""

import warnings
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ModelWarning, ParameterError
from mercer.core.inputs import Inputs, Rows
from mercer.core.parameters import evolve, plain, slots_of
from mercer.core.precision import Array, as_float, is_traced
from mercer.core.random import seed_of
from mercer.kernels.densities.base import ParametricDensity, chosen
from mercer.kernels.densities.outside import FunctionOfParameters, as_density
from mercer.kernels.generative.base import GenerativeKernel
from mercer.kernels.validity import Validity, proved

INFORMATION = ("exact", "empirical", "sampled", "diagonal", "identity")
N_SAMPLES = 10_000  # from the model, for information="sampled"
MIN_EIGENVALUE = 1e-10  # of the information with unit diagonal: directions with less are left out
MAX_SHARE = 0.5  # of the number of rows: more parameters leave training rows nearly orthogonal


class Fisher(GenerativeKernel):
    """g(x)^T F^-1 g(x') with the score g(x) = d ln p(x | theta) / d theta and the Fisher information F, its covariance
    (PRML 6.32-6.34). Features: F^-1/2 g(x).

    ``Fisher(model)`` takes a model of `mercer.kernels.densities`, learned from the training rows if it has no
    parameters yet, or a fitted mixture of scikit-learn; ``params`` names those of its parameters in which scores are
    taken, all by default. ``Fisher(log_density, params)`` takes a function ``log_density(params, x)`` of one input, in
    JAX, with parameters in any nested structure of arrays; ``kernel.free("params")`` lets them be learned.

    ``information`` is F:

    - "exact", of the model, where it is known: a single Gaussian.
    - "sampled", the average of g g^T over ``n_samples`` draws from the model (with lengths of sequences and documents
      drawn from those of the training rows).
    - "empirical", the average over the training rows (PRML 6.36).
    - "diagonal", the empirical one without its off-diagonal elements.
    - "identity", none: the scalar product of the scores.

    Without a choice it is exact if known, else empirical if there are at least twice as many rows as parameters, else
    diagonal. With the full matrix F, the kernel does not depend on how the model is parametrised; with "diagonal" it
    does not depend on the units of the parameters; with "identity" it does. Directions without information, such as the
    common scale of weights that are normalised, are left out.

    Scores are taken in the coordinates of the optimiser: logarithms of positive parameters. Cost with P parameters:
    O(P) a score; F takes n P^2, and its inverse root P^3, which is seconds for P = 2,000 and too much for P = 20,000,
    where "diagonal" takes n P. If P is not much smaller than the number n of training rows, the empirical F makes
    the training rows nearly orthogonal to each other. F stays fixed when freed parameters of the model are learned.

    >>> from mercer.kernels import densities
    >>> gaussian = densities.Gaussian.of([1.0, 0.0], [[2.0, 0.0], [0.0, 1.0]])
    >>> Fisher(gaussian, "means")([[3.0, 1.0], [1.0, 2.0]])  # (x - m)^T S^-1 (x' - m), Ex 6.14
    array([[3., 2.],
           [2., 4.]])
    """

    model: Any
    params: Any = eqx.field(default=None, static=True)
    information: str | None = eqx.field(default=None, static=True)
    n_samples: int = eqx.field(default=N_SAMPLES, static=True, kw_only=True, converter=plain)
    random_state: int = eqx.field(default=0, static=True, kw_only=True, converter=seed_of)
    root: Any = eqx.field(default=None, kw_only=True)  # F^-1/2, (P, r) or its diagonal (P,); set by `fit`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.information not in (None, *INFORMATION):
            raise ParameterError(
                f"information must be one of {', '.join(map(repr, INFORMATION))}; got {self.information!r}."
            )
        if isinstance(self.n_samples, bool) or not isinstance(self.n_samples, int) or self.n_samples < 1:
            raise ParameterError(f"n_samples must be a positive integer; got {self.n_samples!r}.")
        model, params = self.model, self.params
        if isinstance(model, ParametricDensity) or not callable(model):
            model = as_density(model)
            params = _names(params)
            if not model.needs_fit:
                chosen(model, params)  # refuses names that are no parameters
        else:
            model, params = FunctionOfParameters(params, model), ()
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "params", params)
        if self.information == "exact" and not model.needs_fit and model.information is None:
            raise ParameterError(_unknown_information(model))
        if self.root is not None:
            object.__setattr__(self, "root", as_float(self.root))

    @property
    def needs_fit(self) -> bool:
        return self.model.needs_fit or (self.root is None and self.information != "identity")

    def fit(self, X: Inputs) -> Self:
        if is_traced(self.model):
            raise ParameterError(
                "the information is computed from numbers, and parameters of the model are traced by JAX. Fit the "
                "kernel before: kernel.fit(X)."
            )
        model = self.model.fit(X)
        if self.information == "identity":
            return evolve(self, model=model)
        if not slots_of(model):
            raise ParameterError(
                f"{model!r} has no parameters in which scores could be taken. Give one of mercer.kernels.densities, or "
                "a function: Fisher(log_density, params)."
            )
        own = chosen(model, self.params)
        kind = self.information
        if kind in (None, "exact"):
            whole = model.information
            if whole is not None:
                free = _positions(model, own)
                return evolve(self, model=model, root=as_float(_inverse_root(whole[np.ix_(free, free)])))
            if kind == "exact":
                raise ParameterError(_unknown_information(model))
        rows = own.prepare(X)
        if kind == "sampled":
            rows = own.prepare(own.sample(self.n_samples, np.random.default_rng(self.random_state), rows))
        G = _scores(own, rows)
        n, P = G.shape
        if kind is None:
            kind = "empirical" if MAX_SHARE * n >= P else "diagonal"
        if kind == "diagonal":
            root = _inverse_square_root(np.mean(G**2, axis=0))
        else:
            if kind == "empirical" and MAX_SHARE * n < P:
                warnings.warn(
                    f"the empirical information in {P} parameters is estimated from {n} rows, so that all training "
                    "rows become nearly orthogonal to each other. Use information='diagonal', or fewer parameters: "
                    "params=....",
                    ModelWarning,
                    stacklevel=2,
                )
            root = _inverse_root(G.T @ G / n)
        if not root.any():
            raise DataError(f"the scores of {model!r} are zero on these rows, so the kernel would be zero.")
        return evolve(self, model=model, root=as_float(root))

    def prepare(self, X: Inputs, index: Array) -> Rows:
        if any(slot.free for slot in slots_of(self.model)) and any(
            not slot.moving.all() for slot in slots_of(self.model.fix().free())
        ):
            raise ParameterError(
                f"parameters of {self.model!r} cannot be learned further, as some of them are exactly zero. Leave out "
                "the components or words that they belong to."
            )
        return super().prepare(X, index)

    def table(self, rows: Rows) -> Any:
        return _scores(chosen(self.model, self.params), rows)

    def features_of(self, table: Any) -> Any:
        if self.root is None:
            return table
        return table * self.root if np.ndim(self.root) == 1 else table @ jnp.asarray(self.root)

    @property
    def validity(self) -> Validity:
        return proved("6.33", "a scalar product of scores in the metric of the Fisher information (6.20)", repr(self))

    def __repr__(self) -> str:
        inside = [repr(self.model)]
        if self.params:
            inside.append(repr(self.params[0] if len(self.params) == 1 else self.params))
        inside += [f"information={self.information!r}"] * (self.information is not None)
        inside += [f"n_samples={self.n_samples}"] * (self.n_samples != N_SAMPLES)
        inside += [f"random_state={self.random_state}"] * (self.random_state != 0)
        inside += [f"name={self.name!r}"] * (self.name is not None)
        return f"Fisher({', '.join(inside)})"


def _names(params: Any) -> tuple[str, ...]:
    names = () if params is None else (params,) if isinstance(params, str) else params
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ParameterError(
            f"params of a Fisher kernel are the names of those parameters of its model in which scores are taken, as "
            f"in Fisher(model, 'means'); got {params!r}."
        )
    return tuple(names)


def _unknown_information(model: ParametricDensity) -> str:
    remedy = "Use information='sampled', 'empirical', 'diagonal' or 'identity'."
    return f"the exact information of {model!r} is not known. {remedy}"


def _scores(model: Any, rows: Rows) -> Any:
    G = model.scores(rows)
    if is_traced(G):
        return G
    bad = ~np.isfinite(G).all(axis=1)
    if bad.any():
        raise DataError(
            f"the score of row {int(bad.argmax())} is not finite ({bad.sum()} of {len(bad)} rows have this problem): "
            f"{model!r} gives it probability zero, or its log density cannot be differentiated there."
        )
    return G


def _inverse_square_root(variances: np.ndarray) -> np.ndarray:
    positive = variances > 0
    return np.where(positive, 1 / np.sqrt(np.where(positive, variances, 1.0)), 0.0)


def _inverse_root(F: np.ndarray) -> np.ndarray:
    """R (P, r) with R R^T = F^+, the inverse of F on the directions that have information.

    Directions are judged after scaling to unit diagonal, so that units of parameters do not matter.
    """
    scale = _inverse_square_root(np.diag(F))
    values, vectors = np.linalg.eigh(F * np.outer(scale, scale))
    kept = values > MIN_EIGENVALUE * max(len(F), 1)
    return scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])


def _positions(model: ParametricDensity, own: ParametricDensity) -> np.ndarray:
    """Which of all coordinates of a model are those of ``own``, the model with some of its parameters fixed."""
    moving = [
        (np.ravel(whole.moving), np.ravel(part.moving))
        for whole, part in zip(slots_of(model.fix().free()), slots_of(own), strict=True)
    ]
    return np.flatnonzero(np.concatenate([part[whole] for whole, part in moving]))
