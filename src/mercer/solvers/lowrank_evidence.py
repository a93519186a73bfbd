"""Evidence through the weights of centres, with its gradient, from rows that pass tile by tile."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.coordinates import from_free
from mercer.core.inputs import Inputs
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, LearnedNoise
from mercer.kernels.base import Kernel
from mercer.kernels.cross import AnyCross, AnyCrossAt, cross
from mercer.linalg.lowrank import Collapsed, CoreRoot, Sums
from mercer.linalg.trend import log_unit
from mercer.solvers.base import Evaluation, Evidence, GivenNoise, left_out

MAX_CENTER_STEPS = 30  # of the optimisation of centres, at each set of parameters that they are optimised for


class Rows:
    """Features Phi = K_nm L^-T of rows at one theta, tile by tile; they are kept for a second pass if there is memory.

    Tiles are shared out among the cores, always in the same way, so that sums are the same in every digit.
    """

    def __init__(self, at: AnyCrossAt, root: CoreRoot, keep: bool = False) -> None:
        self.at, self.root, self.tiles = at, root, at.cross.tiles
        self.white = float(at.white()[0])
        self._kept: dict[int, np.ndarray] | None = None
        if keep and 8 * at.cross.n * len(root.kept) <= machine.keepable():
            self._kept = {}

    @classmethod
    def of(cls, at: AnyCrossAt, noise: np.ndarray, keep: bool = False) -> "Rows | None":
        """None where the covariance of the centres is not finite."""
        root = CoreRoot.of(at.core(), float(noise.min(initial=np.inf)) + float(at.white()[0]))
        return None if root is None else cls(at, root, keep)

    def features(self, tile: int) -> np.ndarray | None:
        """(h, r); None where they are not finite."""
        if self._kept is not None and tile in self._kept:
            return self._kept[tile]
        part = self.tiles[tile]
        K = np.empty((part.stop - part.start, self.at.cross.m))
        if not self.at.fill(tile, K):
            return None
        Phi = self.root.features(K)
        if self._kept is not None:
            self._kept[tile] = Phi
        return Phi

    def variance(self, tile: int) -> np.ndarray:
        """k_ii without white noise: (h,)."""
        return self.at.diagonal(tile) - self.white

    def each(self, work: Callable[[int], Any], combine: Callable[[Any, Any], Any]) -> Any:
        """What ``combine`` makes of the results for all tiles, in groups of tiles, one for each core."""
        count = min(machine.cores(), len(self.tiles))

        def group(first: int) -> Any:
            found = work(first)
            for tile in range(first + count, len(self.tiles), count):
                found = combine(found, work(tile))
            return found

        with machine.one_thread():
            if count == 1:
                return group(0)
            with ThreadPoolExecutor(count) as pool:
                parts = list(pool.map(group, range(count)))
        found = parts[0]
        for part in parts[1:]:
            found = combine(found, part)
        return found

    def sums(self, noise: np.ndarray, H: np.ndarray, r: np.ndarray, fitc: bool) -> Sums | None:
        """Of all rows: n r^2 flops, and as many for their features."""
        size = len(self.root.kept) + H.shape[1] + 1

        def add(sums: Sums | None, tile: int) -> Sums | None:
            part = self.tiles[tile]
            Phi = self.features(tile)
            if sums is None or Phi is None:
                return None
            variance = self.variance(tile)
            left = np.maximum(variance - np.einsum("ij,ij->i", Phi, Phi), 0.0)
            d = noise[part] + left if fitc else noise[part]
            return sums.with_rows(np.column_stack([Phi, H[part], r[part]]), d, noise[part], left, variance)

        # A group starts from sums of its own, and adds its tiles in place.
        starts = {first: Sums.empty(size) for first in range(min(machine.cores(), len(self.tiles)))}
        found: dict[int, Sums | None] = {}

        def work(tile: int) -> int:
            first = tile % len(starts)
            found[first] = add(found.get(first, starts[first]), tile)
            return first

        self.each(work, lambda a, b: a)
        total = found[0]
        for first in range(1, len(starts)):
            own = found[first]
            total = None if total is None or own is None else total.plus(own)
        return total


class Pulled(NamedTuple):
    """Of the second pass: gradient in the kernel's parameters (p,) and in the centres (m, d); the sum of what the noise
    of each row is worth; and of FITC sum_i 2 h_i phi_i phi_i^T, h_i the derivative in q_ii."""

    slope: np.ndarray
    centers: np.ndarray | float
    of_core: np.ndarray | float

    def plus(self, other: "Pulled") -> "Pulled":
        return Pulled(
            self.slope + other.slope, self.centers + other.centers, self.of_core + other.of_core
        )  # fmt: skip


class LowRankEvidence(Evidence):
    """Evidence of N(0, Q + D), Q = K_nm K_m^-1 K_mn, in two passes over the rows: 5 n m^2 flops with the gradient.

    "variational": D is the noise, and 1/2 sum_i (k_ii - q_ii) / noise_i is subtracted: a lower bound on the evidence
    (Titsias 2009). "fitc": D is the noise plus k_ii - q_ii (Snelson and Ghahramani 2006). "dtc" (Seeger et al. 2003)
    and "nystrom" (Williams and Seeger 2001): D is the noise.

    With B = I + F^T D^-1 F, w = B^-1 F^T D^-1 y, a = D^-1 (y - F w) and h_i the derivative in q_ii beside that through
    C, 1/(2 noise_i) or that in -D_ii, dL/dPhi = a w^T - D^-1 F B^-1 + 2 h Phi, and dL/dK_m = -1/2 L^-T Phi^T dL/dPhi
    L^-1. Centres are chosen at the first theta, and stay.
    """

    def __init__(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise, mean: MeanFunction | None,
        approximation: str, choose: Callable[..., Inputs], optimize: bool = False,
    ) -> None:  # fmt: skip
        self.approximation, self._choose, self._optimize = approximation, choose, optimize
        super().__init__(kernel, X, y, noise, mean)
        self._cross: AnyCross | None = None
        self._first: tuple[np.ndarray, float] | None = None  # theta and jitter that centres are to be chosen at
        self._unit = log_unit(self.H, self.precision) if self.H.shape[1] else 0.0

    def _representation(self, kernel: Kernel, X: Inputs) -> Any:
        self._given = gram.on(kernel, X)
        return self._given

    def __enter__(self) -> "LowRankEvidence":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def centers_at(self, theta: np.ndarray) -> Inputs:
        """Centres chosen for these parameters."""
        own, _, noise = self._split(theta)
        rows = self._given
        chosen = self._choose(from_free(rows.kernel, own), rows, self._residual(theta), noise)
        if self._optimize:
            chosen = self._moved(chosen, theta)
        return chosen

    @property
    def cross(self) -> AnyCross:
        assert self._cross is not None
        return self._cross

    def take(self, centers: Inputs) -> None:
        """Use these centres from now on."""
        self._cross = cross(self._given.kernel, self._given.X, self._given.rows, centers)

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        if self._cross is None:
            self._take_first(theta)
        return self._evaluate(theta, gradient, profiled)

    def _take_first(self, theta: np.ndarray) -> None:
        first, jitter = (theta, self.jitter) if self._first is None else self._first
        now, self.jitter = self.jitter, jitter
        self.take(self.centers_at(first))
        self.jitter = now

    def memory(self) -> Mapping[str, np.ndarray]:
        """Nothing beyond the first theta, which another search begins with, too."""
        return {}

    def replayed(self, theta: np.ndarray, memory: Mapping[str, np.ndarray] | None) -> None:
        """As `Continuing.replayed`."""
        if self._cross is None and self._first is None:
            self._first = theta, self.jitter

    def _evaluate(
        self, theta: np.ndarray, gradient: bool, profiled: bool, each: bool = False, of_centers: bool = False
    ) -> Evaluation | None:
        theta = np.asarray(theta, dtype=float)
        own, _, noise = self._split(theta)
        at, r, fitc = self.cross.at(own), self._residual(theta), self.approximation == "fitc"
        with np.errstate(all="ignore"):
            rows = Rows.of(at, noise, keep=gradient)
            if rows is None:
                return None
            noise = noise + rows.white
            if not (noise > 0).all() or not np.isfinite(noise).all():
                return None
            sums = rows.sums(noise, self.H, r, fitc)
            found = None if sums is None else Collapsed.of(sums, len(rows.root.kept), self.precision, self._unit)
        if found is None or sums is None:
            return None
        self.diagonal = sums.variance / max(self.n, 1) + rows.white
        D = noise
        if found.cancelled:
            found = found.refined(self._squares(rows, found, noise, r, fitc))
        bound = 0.5 * sums.missing if self.approximation == "variational" else 0.0
        answer = self._answer(found.log_det(), np.zeros(0), found.quadratic, profiled)
        if answer is None:
            return None
        value, _, scale = answer
        if not gradient:
            return Evaluation(value - bound, None, scale)
        slope = self._pulled(theta, rows, found, D, r, scale if profiled else 1.0, each, of_centers)
        return Evaluation(value - bound, slope, scale) if np.isfinite(slope).all() else None

    def _squares(self, rows: Rows, found: Collapsed, noise: np.ndarray, r: np.ndarray, fitc: bool) -> float:
        """|y - F w|^2 over D, from the rows themselves."""

        def work(tile: int) -> float:
            part, Phi = rows.tiles[tile], rows.features(tile)
            assert Phi is not None
            e = r[part] - Phi @ found.mean[: found.features] - self.H[part] @ found.mean[found.features :]
            left = rows.variance(tile) - np.einsum("ij,ij->i", Phi, Phi) if fitc else np.zeros(len(e))
            return float(np.sum(e**2 / (noise[part] + np.maximum(left, 0.0))))

        return float(rows.each(work, lambda a, b: a + b))

    def _pulled(
        self, theta: np.ndarray, rows: Rows, found: Collapsed, noise: np.ndarray, r: np.ndarray, scale: float,
        each: bool, of_centers: bool,
    ) -> np.ndarray:  # fmt: skip
        """Gradient in theta, from the second pass; ``each``: with what leave-one-out needs of each row."""
        at, M, m, n = rows.at, found.features, self.cross.m, self.n
        bound, fitc = self.approximation == "variational", self.approximation == "fitc"
        each = each or fitc or not isinstance(self.noise, CommonNoise | LearnedNoise)
        Binv, w = found.covariance, found.mean
        v, size = w / np.sqrt(scale), len(w)
        a, diagonal, left_over = np.empty(n), np.empty(n), np.zeros(n)
        core = np.eye(size)[:, :M] if bound else np.zeros((size, M))
        W = Binv[:, :M] - core  # of -D^-1 F in dL/dPhi

        def work(tile: int) -> Pulled:
            part, Phi = rows.tiles[tile], rows.features(tile)
            assert Phi is not None
            F, s = (np.column_stack([Phi, self.H[part]]) if size > M else Phi), noise[part]
            left = np.maximum(rows.variance(tile) - np.einsum("ij,ij->i", Phi, Phi), 0.0)
            d = s + left if fitc else s
            a[part] = (r[part] - F @ w) / d / np.sqrt(scale)
            left_over[part] = left
            if each:
                U = F @ Binv
                diagonal[part] = 1 / d - np.einsum("ij,ij->i", U, F) / d**2
                G = -U[:, :M] / d[:, None]
                if bound:
                    G += Phi / d[:, None]
            else:
                G = (F / -d[:, None]) @ W
            h = 0.5 / d if bound else np.zeros(len(d))
            if fitc:
                h = -0.5 * (a[part] ** 2 - diagonal[part])
                G += 2 * h[:, None] * Phi
            G += np.multiply.outer(a[part], v[:M])
            G = rows.root.back(G, m)
            slope = at.pull(tile, G)
            if bound or fitc:
                slope = slope - at.pull_diagonal(tile, h)
            of_core = (Phi * (2 * h)[:, None]).T @ Phi if fitc else 0.0
            return Pulled(slope, at.pull_centers(tile, G) if of_centers else 0.0, of_core)

        total = rows.each(work, Pulled.plus)
        # dL/dK_m = -1/2 L^-T (w w^T - (I - B^-1) + sum_i 2 h_i phi_i phi_i^T) L^-1
        inner = np.outer(v[:M], v[:M]) - np.eye(M) + Binv[:M, :M]
        if bound:
            squares = found.sums.symmetric()[:M, :M]
            inner = inner + squares
        elif fitc:
            inner = inner + total.of_core
        of_core = -0.5 * rows.root.back(rows.root.back(inner, m).T, m)
        of_kernel = total.slope + at.pull_core(of_core)
        if of_centers:
            self._slope_in_centers = total.centers + at.pull_centers(None, of_core + of_core.T)
        if not each:  # only its sum is needed
            FF = found.sums.symmetric()[:size, :size]
            diagonal[:] = float(np.sum(1 / noise) - np.sum(Binv * FF) / noise[0]) / n
        self._last = a, diagonal.copy(), left_over
        if bound:
            diagonal -= left_over / noise**2  # of what the noise is worth in the bound
        white = at.white()[1]
        if len(white) and np.any(white):
            of_noise = 0.5 * float(np.sum(a**2 - diagonal))
            own = 0.5 * float(np.sum(1 / noise)) if bound else 0.0
            if fitc:
                own = -0.5 * float(np.sum(a**2 - diagonal))
            of_kernel = of_kernel + (of_noise + own) * np.asarray(white)
        return self._slope(theta, np.asarray(of_kernel), a, diagonal, scale)

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """With the variance that the centres leave of each row, as of new rows."""
        if self._cross is None:
            self.take(self.centers_at(theta))
        if self._evaluate(theta, True, False, each=True) is None:
            return None
        a, diagonal, left = self._last
        residual, variance = left_out(a, diagonal)
        return residual, variance + (left if self.approximation in ("variational", "dtc") else 0.0)

    # -- optimised centres -------------------------------------------------------------------------------------------

    def _moved(self, centers: Inputs, theta: np.ndarray) -> Inputs:
        """Centres moved to where the evidence is largest, at these parameters."""
        from scipy.optimize import minimize  # takes a while to import

        start = np.array(centers, dtype=float)
        scale = np.maximum(start.std(axis=0), 1e-12)

        def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
            self.take(z.reshape(start.shape) * scale)
            found = self._evaluate(theta, True, False, of_centers=True)
            if found is None:
                return np.inf, np.zeros(z.size)
            slope = np.asarray(self._slope_in_centers) * scale
            return -found.value, -np.where(np.isfinite(slope), slope, 0.0).ravel()

        found = minimize(
            loss, (start / scale).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": MAX_CENTER_STEPS}
        )  # fmt: skip
        return found.x.reshape(start.shape) * scale
