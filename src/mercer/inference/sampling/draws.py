"""Posterior draws of several chains, and their collection."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.core.errors import ParameterError
from mercer.inference.sampling.diagnostics import MIN_DRAWS, effective_size, split_rhat

MAX_RHAT = 1.1  # of the slowest latent or parameter, above which chains have not converged

Progress = Callable[[str], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all chains, one chain after the other, and their diagnostics.

    ``latents`` (S, n) or (S, n, C); ``theta`` (S, p), in the optimiser's coordinates, or None. ``ess`` and ``rhat`` are
    those of each latent, ``theta_ess`` and ``theta_rhat`` of each parameter. ``interrupted``: fewer were drawn
    than requested.
    """

    latents: np.ndarray
    theta: np.ndarray | None
    chains: int
    ess: np.ndarray
    rhat: np.ndarray
    theta_ess: np.ndarray | None = None
    theta_rhat: np.ndarray | None = None
    interrupted: bool = False

    def numerics(self) -> dict[str, Any]:
        """Diagnostics of the latents and parameters that mix worst."""
        found: dict[str, Any] = {"draws": len(self.latents), "chains": self.chains}
        found |= {"effective_draws": float(self.ess.min()), "rhat": float(self.rhat.max())}
        found["converged"] = found["rhat"] < MAX_RHAT
        if self.theta_ess is not None and self.theta_rhat is not None:
            found["effective_parameters"] = float(self.theta_ess.min())
            found["rhat_parameters"] = float(self.theta_rhat.max())
            found["converged"] &= found["rhat_parameters"] < MAX_RHAT
        return found


class Recorder:
    """Runs the chains and collects their draws, until there are enough or the user interrupts."""

    def __init__(self, n_samples: int, warmup: int, chains: int, progress: Progress | None) -> None:
        for name, value, least in [
            ("n_samples", n_samples, 1), ("warmup", warmup, 0), ("chains", chains, 1)
        ]:  # fmt: skip
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ParameterError(f"{name} must be an integer of at least {least}; got {value!r}.")
        self.n_each = max(MIN_DRAWS, -(-n_samples // chains))  # rounded up, if chains do not divide n_samples
        self.warmup, self.chains, self.progress = warmup, int(chains), progress
        self.latents: list[np.ndarray] = []
        self.theta: list[np.ndarray] = []
        self.interrupted = False

    def run(self, step: Callable[[int], tuple[np.ndarray, np.ndarray | None]]) -> Draws:
        """``step(i)`` returns f (chains, ...) and theta (chains, p), or None, after iteration i."""
        total = self.warmup + self.n_each
        try:  # an interrupted step leaves the draws before it intact
            for i in range(total):
                f, theta = step(i)
                if i >= self.warmup:
                    if theta is not None:
                        self.theta.append(theta)
                    self.latents.append(f)
                if self.progress is not None:
                    self.progress(f"sampling, {'warmup, ' if i < self.warmup else ''}{i + 1} of {total}")
        except KeyboardInterrupt:
            if len(self.latents) < MIN_DRAWS:
                raise
            self.interrupted = True
        latents = np.stack(self.latents, axis=1)  # (chains, draws, ...)
        theta = np.stack(self.theta[: len(self.latents)], axis=1) if self.theta else None
        return Draws(
            latents.reshape(-1, *latents.shape[2:]),
            None if theta is None else theta.reshape(-1, theta.shape[2]),
            self.chains,
            effective_size(latents),
            split_rhat(latents),
            None if theta is None else effective_size(theta),
            None if theta is None else split_rhat(theta),
            self.interrupted,
        )
