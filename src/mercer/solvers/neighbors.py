"""Approximate solutions for two, three or a few inputs and many rows: each row conditioned on near ones (Vecchia)."""

import dataclasses

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_matrix, count_rows
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.inference.latent import LatentSpace
from mercer.kernels import evaluate
from mercer.kernels.base import Kernel
from mercer.linalg.vecchia import SparseFactor
from mercer.solvers.base import Cost, GivenNoise, Solver, register
from mercer.solvers.neighbor_evidence import NeighborEvidence
from mercer.solvers.neighbor_posterior import NeighborPosterior
from mercer.solvers.neighbor_sites import LatentNeighbors, NeighborSites

MAX_FEW_INPUTS = 3  # up to which near rows carry almost all information
FEW_INPUTS_LOSS, LOSS = 0.005, 0.1  # `Solver.loss`
MAX_AUTO_INPUTS = 8  # of many inputs, the nearest rows are hardly nearer than others
PREDICTION_SHARE = 8  # times as many neighbours predict a new row, once, as condition a row in every evaluation


@register
@dataclasses.dataclass(frozen=True)
class Neighbors(Solver):
    """Vecchia's approximation: p(y) = prod_i p(y_i | near rows before i), rows in maximin order (Guinness 2018).

    Parameters
    ----------
    n_neighbors : rows that each is conditioned on. With as many as there are, the answers are exact. The cost of an
        evaluation is O(n m^3).
    n_predict : training rows that a new row is predicted from, half of them the nearest, the others from coarser covers
        of the region; None: eight times as many, as predictions are made once.
    grouped : whether rows that share most of their neighbours are conditioned together, which is faster and more
        accurate.
    """

    n_neighbors: int = 20
    n_predict: int | None = None
    grouped: bool = True

    name = "neighbors"
    summary = "approximate, each row conditioned on near ones (Vecchia)"
    parts = (NeighborPosterior, SparseFactor, NeighborSites)
    exact = False
    several_latents = False
    chooses_by_blocks = True

    def __post_init__(self) -> None:
        for name in ("n_neighbors", "n_predict"):
            value = getattr(self, name)
            if value is None and name == "n_predict":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ParameterError(f"{name} must be a positive integer; got {value!r}.")

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        try:
            as_matrix(gram.raw(X))
        except DataError:
            return "needs rows of numbers, which have near rows"
        if evaluate.on_host(gram.on(kernel, X).rows):
            return f"needs a kernel of numbers that can be compiled; got {kernel!r}"
        return None

    def suits(self, kernel: Kernel, X: Inputs) -> bool:
        return as_matrix(gram.raw(X)).shape[1] <= MAX_AUTO_INPUTS

    def loss(self, kernel: Kernel, X: Inputs) -> float:
        return FEW_INPUTS_LOSS if as_matrix(gram.raw(X)).shape[1] <= MAX_FEW_INPUTS else LOSS

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n = count_rows(X)
        m = min(self.n_neighbors, n)
        memory = n * (40 * m + 200) + min(8.0 * n * (m + 1) ** 2, machine.FACTORS_BYTES) + (1 << 28)
        flops = n * (20.0 * m**3 + 400.0 * m**2 + 1e4)  # as many as the dense solver makes in the time, measured
        why = "rows of so few inputs have near ones"
        return Cost(memory, flops, (n, m), why)

    def approximation(self, kernel: Kernel) -> str | None:
        return (
            f"conditions each row on {self.n_neighbors} near ones before it, in place of all; numerics_['divergence'] "
            "estimates how many nats that costs"
        )

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> NeighborEvidence:
        return NeighborEvidence(kernel, X, y, noise, mean, self.n_neighbors, self.grouped)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> NeighborPosterior:
        return NeighborPosterior.given(kernel, X, y, noise, mean, self.n_neighbors, self._predicting, self.grouped)

    def latent(self, kernel: Kernel, X: Inputs) -> LatentSpace:
        return LatentNeighbors(kernel, X, self.n_neighbors, self._predicting)

    @property
    def _predicting(self) -> int:
        return PREDICTION_SHARE * self.n_neighbors if self.n_predict is None else self.n_predict
