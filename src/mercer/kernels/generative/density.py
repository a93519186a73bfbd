"""Kernels from densities and mixtures of them: two rows are similar if both are probable, from the same component."""

import numbers
from typing import Any

import equinox as eqx
import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Rows
from mercer.kernels.densities.base import MixtureDensity, ParametricDensity
from mercer.kernels.densities.gaussian import GaussianMixture
from mercer.kernels.densities.outside import WeightedDensities, as_density
from mercer.kernels.generative.base import ComponentKernel, shown
from mercer.kernels.validity import Validity, proved


class Density(ComponentKernel):
    """p(x) p(x') for a density p (PRML 6.28): rows are similar if both are probable. One feature, p(x).

    ``p`` is a function of one input, in JAX or not, that returns the density (or with ``log=True`` its logarithm), a
    distribution of scipy.stats, a fitted model of scikit-learn with ``score_samples``, or one of
    `mercer.kernels.densities`. Where p is zero, so is the similarity. Normalised, the similarity is one wherever
    p is not zero for both rows; it is computed in logarithms, so p may underflow.

    >>> from scipy import stats
    >>> Density(stats.expon())([0.0, 1.0, -1.0]).round(3)
    array([[1.   , 0.368, 0.   ],
           [0.368, 0.135, 0.   ],
           [0.   , 0.   , 0.   ]])
    """

    model: Any
    log: bool = eqx.field(default=False, static=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", as_density(self.model, self.log))
        object.__setattr__(self, "log", False)  # now held by the density

    def table(self, rows: Rows) -> Any:
        return self.model.log_density(rows)[:, None]

    @property
    def validity(self) -> Validity:
        return proved("6.28", "one function of both inputs, p(x) p(x') (6.14 with a constant)", repr(self))

    def __repr__(self) -> str:
        return shown(self, f"Density({self.model!r}")


class Mixture(ComponentKernel):
    """sum_i p(i) p(x | i) p(x' | i) for a mixture model (PRML 6.29): rows are similar if the same component is likely
    to have generated both. Features: p(i)^1/2 p(x | i), one for each component.

    ``Mixture(5)`` learns a mixture of five Gaussians with diagonal covariances from the training rows;
    ``Mixture(k.densities.GaussianMixture(5, "full"))`` and ``Mixture(k.densities.MultinomialMixture(8))`` learn others.
    A fitted mixture of scikit-learn or of `mercer.kernels.densities` is used without further fitting, and so are
    components with weights: ``Mixture([p1, p2], weights=[0.3, 0.7])``, densities as for `Density`.

    Values are products of densities, and depend on the units of the inputs. ``normalize()``, computed in logarithms,
    compares which components are likely, whatever the units: prefer it unless you need the densities themselves. Cost:
    O(n C d) for the features, O(n^2 C) for a Gram matrix; with more rows than components, Gaussian processes compute
    with the features.

    >>> from mercer.kernels import densities
    >>> two = Mixture(densities.GaussianMixture.of([0.5, 0.5], [[0.0], [4.0]], 1.0))
    >>> two.normalize()([0.0, 1.8, 4.5]).round(2)
    array([[1.  , 0.91, 0.  ],
           [0.91, 1.  , 0.41],
           [0.  , 0.41, 1.  ]])
    """

    model: Any = None
    n_components: int | None = eqx.field(default=None, static=True, kw_only=True)
    weights: Any = eqx.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", _mixture(self.model, self.n_components, self.weights))
        object.__setattr__(self, "n_components", None)  # now held by the model
        object.__setattr__(self, "weights", None)

    @property
    def validity(self) -> Validity:
        return proved("6.29", "a weighted sum of products p(x | i) p(x' | i) (6.13, 6.17 and 6.28)", repr(self))

    def __repr__(self) -> str:
        return shown(self, f"Mixture({self.model!r}")


def _mixture(model: Any, n_components: int | None, weights: Any) -> MixtureDensity:
    if model is None or (isinstance(model, numbers.Integral) and not isinstance(model, bool)):
        if (model is None) == (n_components is None) or weights is not None:
            raise ParameterError(
                "Mixture takes a number of components to learn, a mixture model, or densities with weights: "
                "Mixture(5), Mixture(model), Mixture([p1, p2], weights=[0.3, 0.7])."
            )
        return GaussianMixture(n_components if model is None else model)  # type: ignore[arg-type]
    if n_components is not None:
        raise ParameterError("Mixture takes a model or a number of components, not both.")
    if isinstance(model, list | tuple):
        if not model:
            raise ParameterError("a mixture has at least one component; got an empty list.")
        parts = tuple(as_density(part) for part in model)
        return WeightedDensities(np.full(len(parts), 1 / len(parts)) if weights is None else weights, parts)
    if weights is not None:
        raise ParameterError("weights belong to a list of densities; a model has its own.")
    density: ParametricDensity = as_density(model)
    if not isinstance(density, MixtureDensity):
        raise ParameterError(
            f"{model!r} is not a mixture whose components can be read. Give a fitted GaussianMixture of scikit-learn, "
            "one of mercer.kernels.densities, or a list of densities with weights; Density(p) takes any density."
        )
    return density
