"""Posterior draws of several chains, and how they are collected."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from mercer.core.errors import ParameterError
from mercer.inference.sampling.diagnostics import FEWEST, effective_size, split_rhat


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all chains, one chain after the other, and how far they can be trusted.

    ``latents`` (S, n) or (S, n, C); ``theta`` (S, p), in the optimiser's coordinates, or None. ``ess`` and ``rhat`` are
    of each latent, ``theta_ess`` and ``theta_rhat`` of each parameter. ``n_evaluations`` of the likelihood;
    ``n_factorisations`` of a covariance matrix. ``interrupted`` says that not all that was asked for was drawn.
    """

    latents: np.ndarray
    theta: np.ndarray | None
    chains: int
    ess: np.ndarray
    rhat: np.ndarray
    theta_ess: np.ndarray | None = None
    theta_rhat: np.ndarray | None = None
    seconds: float = 0.0
    n_evaluations: int = 0
    n_factorisations: int = 0
    interrupted: bool = False

    def __str__(self):
        lines = [
            f"{len(self.latents)} draws of {self.chains} chains in {self.seconds:.3g} s"
            + (", interrupted" if self.interrupted else "")
        ]
        for name, ess, rhat in [("latents", self.ess, self.rhat), ("parameters", self.theta_ess, self.theta_rhat)]:
            if ess is not None and rhat is not None:
                lines.append(
                    f"{name}: effective draws at least {ess.min():.0f}, median {np.median(ess):.0f}; "
                    f"R-hat at most {rhat.max():.3f}"
                )
        return "\n".join(lines)


class Record:
    """Collects draws of all chains together, until there are enough or someone interrupts."""

    def __init__(self, n_samples, warmup, thin, chains, progress):
        for name, value, least in [("n_samples", n_samples, 1), ("warmup", warmup, 0), ("thin", thin, 1)]:
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ParameterError(f"{name} must be a whole number, at least {least}; got {value!r}.")
        if not isinstance(chains, int | np.integer) or chains < 1:
            raise ParameterError(f"chains must be a whole number, at least 1; got {chains!r}.")
        self.each = max(FEWEST, -(-n_samples // chains))  # a few more than asked, where chains do not divide it
        self.warmup, self.thin, self.chains, self.progress = warmup, thin, int(chains), progress
        self.latents: list[np.ndarray] = []
        self.theta: list[np.ndarray] = []
        self.evaluations = self.factorisations = 0
        self.interrupted = False
        self.started = time.monotonic()

    def run(self, step: Callable[[int], tuple]):
        """``step(i)`` gives f (chains, ...) and theta (chains, p) or None after iteration i."""
        total = self.warmup + self.each * self.thin
        try:  # interrupted in the middle of a step, the draws before it are whole
            for i in range(total):
                f, theta = step(i)
                if i >= self.warmup and (i - self.warmup + 1) % self.thin == 0:
                    if theta is not None:
                        self.theta.append(theta)
                    self.latents.append(f)
                if self.progress is not None:
                    self.progress(f"sampling, {'warmup, ' if i < self.warmup else ''}{i + 1} of {total}")
        except KeyboardInterrupt:
            if len(self.latents) < FEWEST:
                raise
            self.interrupted = True

    def draws(self) -> Draws:
        seconds = time.monotonic() - self.started
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
            seconds,
            self.evaluations,
            self.factorisations,
            self.interrupted,
        )
