"""Solvers of Gaussian processes: how the evidence and the posterior are computed.

``solver="dense"`` takes a solver with its defaults, ``solver=mercer.solvers.Dense()`` an object with its settings.
"""

from mercer.solvers.base import Cost, Evaluation, Evidence, Posterior, Solver, register
from mercer.solvers.committee import Committee
from mercer.solvers.dense import Dense
from mercer.solvers.grid import Grid
from mercer.solvers.iterative import Iterative
from mercer.solvers.lowrank import LowRank
from mercer.solvers.minibatch import Minibatch
from mercer.solvers.neighbors import Neighbors
from mercer.solvers.statespace import StateSpace
from mercer.solvers.weights import Weights

__all__ = [
    "Committee",
    "Cost",
    "Dense",
    "Evaluation",
    "Evidence",
    "Grid",
    "Iterative",
    "LowRank",
    "Minibatch",
    "Neighbors",
    "Posterior",
    "Solver",
    "StateSpace",
    "Weights",
    "register",
]
