"""Committees: each part of the rows has an exact Gaussian process, and predictions of all parts are combined."""

import dataclasses
import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.errors import NotPositiveDefiniteError, NumericalWarning, ParameterError
from mercer.core.inputs import Inputs, align_columns, as_vector, copy_rows, count_rows, stack_rows, take_rows
from mercer.core.random import normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.gp.posterior import Posterior
from mercer.gp.process import GP, check_size
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import root
from mercer.linalg.trend import Trend
from mercer.solvers.base import Cost, GivenNoise, Solver, register
from mercer.solvers.committee_evidence import CommitteeEvidence, partition, together
from mercer.solvers.committee_slopes import slopes

WEIGHTS = ("generalised", "robust", "bayesian", "product")
PART_ROWS = 1000  # of a part, unless their number is given
MIN_VARIANCE_SHARE = 1e-12  # of the prior variance: what is known better than that is known


class Opinions(NamedTuple):
    """Each member's predictive means and variances at s rows (P, s), those of the ``base`` that it is compared with
    (s,), and the part of each mean that a unit of each coefficient adds: (P, s, q), (s, q)."""

    mean: np.ndarray
    variance: np.ndarray
    columns: np.ndarray
    base_mean: np.ndarray
    base_variance: np.ndarray
    base_columns: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class CommitteePosterior(Posterior):
    """Predictions of ``members``, each a posterior given its ``groups`` of rows, combined by ``weights``.

    A precision is 1 / v = 1 / v_0 + sum_i b_i (1 / v_i - 1 / v_0), and means are weighted alike, where v_0 is the prior
    variance. "bayesian" has b_i = 1 (Tresp 2000), "robust" b_i = (ln v_0 - ln v_i) / 2 (Deisenroth and Ng 2015),
    "product" b_i = 1 / P. "generalised" compares with the first member instead of the prior, whose rows all others
    have, too (Liu et al. 2018): the only one that is right in the limit of many rows. A committee of one is its member.
    Coefficients of the mean are those of the evidence, in which parts are independent.
    """

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction
    n_parts: int
    weights: str
    processes: bool
    groups: tuple[np.ndarray, ...]
    members: tuple[GP, ...]  # of y minus the mean with its estimated coefficients
    solved: tuple[np.ndarray, ...]  # C^-1 H of the rows of each member
    trend_: Trend | None
    log_det: float
    quadratic: float

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None, n_parts: int,
        weights: str, processes: bool,
    ) -> "CommitteePosterior":  # fmt: skip
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        n, rows = count_rows(X), X if isinstance(X, gram.Gram) else gram.Gram(kernel, copy_rows(X))
        rows = rows.of(kernel)
        y, noise = as_vector(y, n).copy(), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        mean = (MeanFunction() if mean is None else mean).fit(rows.X)
        parts = partition(n, n_parts)
        target, H = y - mean(rows.X), mean.columns(rows.X)
        both, q = np.column_stack([target, H]), H.shape[1]
        found = together(processes, _member, [(kernel, rows[part].alone(), both[part], noise[part]) for part in parts])
        C_inv, trend, beta = np.empty((n, 1 + q)), None, np.zeros(q)
        for part, (_, solved) in zip(parts, found, strict=True):
            C_inv[part] = solved
        log_det = sum(member.observations().factor.log_det() for member, _ in found)
        a = C_inv[:, 0]
        if q:
            try:
                trend = Trend.of(H, C_inv[:, 1:], mean.precision)
            except np.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    f"the coefficients of the mean {mean!r} could not be estimated from these rows. Give noise=..., or "
                    "a mean with fewer columns."
                ) from None
            beta, a, log_det = trend.coefficients(target), trend.contrasted(a, target), log_det + trend.log_det()
        quadratic = float(target @ a)
        if weights == "generalised" and len(parts) > 1:  # the first part belongs to all members
            groups = [parts[0], *(np.concatenate([parts[0], part]) for part in parts[1:])]
            jobs = [(kernel, rows[group].alone(), both[group], noise[group]) for group in groups[1:]]
            found, parts = [found[0], *together(processes, _member, jobs)], groups
        members = tuple(
            member.with_targets(both[part, 0] - H[part] @ beta, solved @ np.r_[1.0, -beta])
            for part, (member, solved) in zip(parts, found, strict=True)
        )
        new = cls(
            kernel, rows.X, y, noise, mean, n_parts, weights, processes, tuple(parts), members,
            tuple(solved[:, 1:] for _, solved in found), trend, float(log_det), quadratic,
        )  # fmt: skip
        gram.keep(new, rows)
        return new

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n, q = count_rows(self.X), 0 if self.trend_ is None else self.trend_.H.shape[1]
        groups = all(((group >= 0) & (group < n)).all() for group in self.groups)
        lengths = len(self.groups) == len(self.members) == len(self.solved) > 0
        sizes = lengths and all(
            len(member.observations().y) == len(group) and C_inv_H.shape == (len(group), q)
            for group, member, C_inv_H in zip(self.groups, self.members, self.solved, strict=True)
        )
        return groups and sizes and self.y.shape == self.noise.shape == (n,) and self.weights in WEIGHTS

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "CommitteePosterior":
        """Given more data, from all rows anew: more rows are shared out differently."""
        X, m = self._aligned(X), count_rows(X)
        if not m:
            return self
        y, noise = as_vector(y, m), np.broadcast_to(np.asarray(noise, dtype=float), (m,))
        X = stack_rows(self.X, copy_rows(X), self.kernel.reads, self._needs_all_columns)
        return CommitteePosterior.given(
            self.kernel, X, np.concatenate([self.y, y]), np.concatenate([self.noise, noise]), self.prior_mean,
            self.n_parts, self.weights, self.processes,
        )  # fmt: skip

    @property
    def _rows(self) -> gram.Gram:
        """The training rows, prepared once."""
        return gram.kept(self, self.kernel, self.X)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, gram.raw(Z), self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    # -- moments -------------------------------------------------------------------------------------------------

    def _opinions(self, Z: Inputs, kernel: Kernel | None = None) -> Opinions:
        """Of the function, or of one term of the kernel, without the mean. ``Z`` is aligned."""
        part, s = self.kernel if kernel is None else kernel, count_rows(Z)
        prior = gram.diagonal(part, Z)
        pairs = zip(self.members, self.solved, strict=True)
        found = together(False, _opinion, [(member, C_inv_H, part, Z, prior) for member, C_inv_H in pairs])
        mean, variance, columns = (np.stack(each) for each in zip(*found, strict=True))
        floor = MIN_VARIANCE_SHARE * prior
        floor[floor == 0] = np.finfo(float).tiny
        variance, prior = np.maximum(variance, floor), np.maximum(prior, floor)
        if self._has_base:
            # What a member knows beyond the rows that it shares is no less than nothing, to rounding too.
            return Opinions(
                mean[1:], np.minimum(variance[1:], variance[0]), columns[1:], mean[0], variance[0], columns[0]
            )
        zero = np.zeros((s, columns.shape[2]))
        return Opinions(mean, np.minimum(variance, prior), columns, np.zeros(s), prior, zero)

    @property
    def _has_base(self) -> bool:
        return self.weights == "generalised" and len(self.members) > 1

    def _combined(self, said: Opinions) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean and variance (s,), the columns of its mean (s, q), and the weight of each member's mean (P, s)."""
        b = self._powers(said)
        variance = 1 / (1 / said.base_variance + (b * (1 / said.variance - 1 / said.base_variance)).sum(axis=0))
        w = b * variance / said.variance
        of_base = (1 - b.sum(axis=0)) * variance / said.base_variance
        mean = (w * said.mean).sum(axis=0) + of_base * said.base_mean
        columns = np.einsum("ps,psq->sq", w, said.columns) + of_base[:, None] * said.base_columns
        return mean, variance, columns, w

    def _powers(self, said: Opinions) -> np.ndarray:
        """b_i: (P, s)."""
        P = len(said.mean)
        if P == 1 or self.weights == "bayesian":
            return np.ones_like(said.variance)
        if self.weights == "product":
            return np.full_like(said.variance, 1 / P)
        b = 0.5 * np.log(said.base_variance / said.variance)
        if self._has_base:
            b[0] = 1.0
        return b

    def _of_trend(self, H: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """root^-1 (h - columns)^T: what uncertain coefficients add is its square. (q, s)."""
        return np.zeros((0, len(H))) if self.trend_ is None else np.linalg.solve(self.trend_.root, (H - columns).T)

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the function: (s,), (s,)."""
        Z = self._aligned(Z)

        def compute(some: Inputs) -> tuple[np.ndarray, np.ndarray]:
            mean, variance, columns, _ = self._combined(self._opinions(some))
            S = self._of_trend(self.prior_mean.columns(some), columns)
            return mean + self.trend(some)[0], variance + np.einsum("qs,qs->s", S, S)

        found = gram.by_pieces(compute, Z, self._width)
        means, variances = zip((np.empty(0), np.empty(0)), *found, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    @property
    def _width(self) -> int:
        """Numbers that a row of predictions takes at a time."""
        return 2 * machine.cores() * max(map(len, self.groups)) + 4 * len(self.groups) * (
            3 + len(self.coefficients()[0])
        )

    def mean(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        """cov(f(z), f(z')): (s, s). Variances are those of `moments`; correlations are those of the members, each by
        its weight at both rows."""
        Z = self._aligned(Z)
        if not count_rows(Z):
            return np.zeros((0, 0))
        _, variance, columns, w = self._combined(self._opinions(Z))
        members = self.members[1:] if self._has_base else self.members
        w = np.sqrt(w / np.maximum(w.sum(axis=0), np.finfo(float).tiny)) + np.finfo(float).tiny
        K = np.zeros((len(variance), len(variance)))
        for member, own in zip(members, w, strict=True):
            K += own[:, None] * member.covariance(Z) * own
        scale = np.sqrt(variance / np.maximum(np.diag(K), np.finfo(float).tiny))
        K *= scale[:, None] * scale
        S = self._of_trend(self.prior_mean.columns(Z), columns)
        return K + S.T @ S

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s), from their whole `covariance`."""
        check_size(size)
        Z, s = self._aligned(Z), count_rows(Z)
        if not s:
            return np.empty((size, 0))
        scale = float(np.max(gram.diagonal(self.kernel, Z)))
        R = root(self.covariance(Z), scale=scale)
        return self.mean(Z) + normal(seed, (size, s))[:, : R.shape[1]] @ R.T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""
        return slopes(self, self._aligned(Z))

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`: means are weighted as those of the whole function, precisions by the same powers."""
        Z = self._aligned(Z)
        whole = self._opinions(Z)
        b, (_, variance, _, w) = self._powers(whole), self._combined(whole)
        of_base = (1 - b.sum(axis=0)) * variance / whole.base_variance
        out = []
        for part in terms_of(self.kernel):
            said = self._opinions(Z, part)
            S = self._of_trend(
                np.zeros_like(said.base_columns),
                np.einsum("ps,psq->sq", w, said.columns) + of_base[:, None] * said.base_columns,
            )
            own = 1 / (1 / said.base_variance + (b * (1 / said.variance - 1 / said.base_variance)).sum(axis=0))
            mean = (w * said.mean).sum(axis=0) + of_base * said.base_mean
            out.append((part, mean, own + np.einsum("qs,qs->s", S, S)))
        return out

    # -- diagnostics -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def latent(self) -> "CommitteePosterior":
        """As `GP.latent`."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        members = tuple(member.latent() for member in self.members)
        return dataclasses.replace(self, kernel=latent, noise=self.noise + white, members=members)

    def rescaled(self, kernel: Kernel, factor: float) -> "CommitteePosterior":
        """As `GP.rescaled`, which every member is."""
        trend, root_ = self.trend_, math.sqrt(factor)
        if trend is not None and trend.precision is not None:
            raise ParameterError("the prior variance of a trend does not scale with the covariance.")
        if trend is not None:
            trend = Trend(trend.H, trend.half / root_, trend.root / root_)
        return dataclasses.replace(
            self, kernel=kernel, noise=self.noise * factor, trend_=trend, quadratic=self.quadratic / factor,
            members=tuple(member.rescaled(kernel, factor) for member in self.members),
            solved=tuple(C_inv_H / factor for C_inv_H in self.solved),
            log_det=self.log_det + self._contrasts * math.log(factor),
        )  # fmt: skip

    @property
    def _contrasts(self) -> int:
        return len(self.y) - (0 if self.trend_ is None else self.trend_.flat)

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.coefficients`."""
        if self.trend_ is None:
            return np.zeros(0), np.zeros((0, 0))
        return self.trend_.coefficients(self.y - self.prior_mean(self.X)), self.trend_.covariance()

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.trend`."""
        Z = self._aligned(Z)
        (estimate, covariance), H = self.coefficients(), self.prior_mean.columns(Z)
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def log_evidence(self) -> float:
        """As `GP.log_evidence`, of parts that are independent."""
        return -0.5 * (self.log_det + self.quadratic + self._contrasts * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each measurement given all the others: members that have it leave it out, the others
        predict it as they are. With several members the coefficients of the mean keep their estimates."""
        if len(self.members) == 1:
            own = self.members[0].observations()
            diagonal, a = own.factor.inverse_diagonal(), own.a
            if self.trend_ is not None:
                left = diagonal - np.einsum("ij,ij->i", self.trend_.half, self.trend_.half)
                diagonal = np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
            order = self.groups[0]
            out = np.empty(len(self.y)), np.empty(len(self.y))
            out[0][order], out[1][order] = self.y[order] - a / diagonal, 1 / diagonal
            return out
        left_out = [self._left_out_by(member) for member in self.members]

        def compute(part: slice) -> tuple[np.ndarray, np.ndarray]:
            rows = np.arange(len(self.y))[part]
            some = take_rows(self.X, part)
            said = self._opinions(some)
            mean, variance = (np.concatenate([[base], each]) if self._has_base else each for base, each in
                              ((said.base_mean, said.mean), (said.base_variance, said.variance)))  # fmt: skip
            for i, (group, (left_mean, left_variance)) in enumerate(zip(self.groups, left_out, strict=True)):
                place = np.full(len(self.y), -1)
                place[group] = np.arange(len(group))
                inside = place[rows] >= 0
                mean[i, inside], variance[i, inside] = (
                    each[place[rows[inside]]] for each in (left_mean, left_variance)
                )
            variance = np.maximum(variance, np.finfo(float).tiny)
            if self._has_base:
                said = said._replace(
                    mean=mean[1:], base_mean=mean[0], base_variance=variance[0],
                    variance=np.minimum(variance[1:], variance[0]),
                )  # fmt: skip
            else:
                said = said._replace(mean=mean, variance=np.minimum(variance, said.base_variance))
            center, spread, columns, _ = self._combined(said)
            S = self._of_trend(self.prior_mean.columns(some), columns)
            return center + self.trend(some)[0], spread + np.einsum("qs,qs->s", S, S) + self.noise[part]

        found = [compute(part) for part in gram.pieces(len(self.y), self._width)]
        means, variances = zip(*found, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    @staticmethod
    def _left_out_by(member: GP) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the function at a member's own rows, each without its measurement."""
        mean, variance = member.leave_one_out()
        return mean, np.maximum(variance - member.observations().noise, 0.0)

    def residual(self) -> float:
        """The largest of the members' relative residuals."""
        return max(member.residual() for member in self.members)

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`, the worst of all members; and their number."""
        found = [member.numerics() for member in self.members]
        return {name: max(each[name] for each in found) for name in found[0]} | {"parts": len(found)}


def _member(kernel: Kernel, rows: gram.Gram, targets: np.ndarray, noise: np.ndarray) -> tuple[GP, np.ndarray]:
    """Process given some rows, and C^-1 of y and the columns of the mean."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # `numerics` has it
        member = GP(kernel, allow_invalid=True).condition(rows, targets[:, 0], noise)
    return member, member.observations().factor.solve(targets)


def _opinion(
    member: GP, C_inv_H: np.ndarray, part: Kernel, Z: Inputs, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and variance of a member at s rows (s,), and k C^-1 H (s, q)."""
    observed, rows = member.observations(), member.rows().of(part)
    both, variance = np.column_stack([observed.a, C_inv_H]), prior.copy()
    told = np.empty((count_rows(Z), both.shape[1]))
    for piece, K in rows.blocks(Z):
        told[piece] = K @ both
        V = observed.factor.half_solve_in_place(K.T)
        variance[piece] -= np.einsum("ij,ij->j", V, V)
    return told[:, 0], variance, told[:, 1:]


@register
@dataclasses.dataclass(frozen=True)
class Committee(Solver):
    """Parts of the rows, each with an exact Gaussian process, and the same parameters: the evidence is the sum of those
    of the parts, predictions are combined (Tresp 2000; Deisenroth and Ng 2015; Liu et al. 2018).

    Parameters
    ----------
    n_parts : number of parts, at random; None: of about 1,000 rows each. With one, the answers are exact. The cost of
        an evaluation is n^3 / n_parts^2 flops.
    weights : how predictions are combined (`CommitteePosterior`): "generalised" lets all members share a part, "robust"
        weights each by what it knows, "bayesian" counts all in full, "product" each as one of many.
    processes : whether members work in processes, not in threads; or in any backend of ``joblib.parallel_config``.
    """

    n_parts: int | None = None
    weights: str = "generalised"
    processes: bool = False

    name = "committee"
    summary = "approximate, exact processes of parts of the rows, combined"
    parts = (CommitteePosterior,)
    exact = False

    def __post_init__(self) -> None:
        value = self.n_parts
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise ParameterError(f"n_parts must be a positive integer, or None; got {value!r}.")
        if self.weights not in WEIGHTS:
            raise ParameterError(f"weights must be one of {', '.join(map(repr, WEIGHTS))}; got {self.weights!r}.")

    def parts_of(self, n: int) -> int:
        """Number of parts of n rows."""
        return max(1, min(n, -(-n // PART_ROWS) if self.n_parts is None else self.n_parts))

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> None:
        return None

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n = count_rows(X)
        P = self.parts_of(n)
        each = -(-n // P)
        largest = 2 * each if self.weights == "generalised" and P > 1 else each
        memory = 8.0 * P * largest**2 + (1 << 26)
        why = f"an exact fit of {n:,} rows is out of reach, and parts of them are not"
        return Cost(memory, 1.8 * P * float(each) ** 3, (n, each), why)

    def approximation(self, kernel: Kernel) -> str | None:
        return (
            "takes parts of the rows for independent in the evidence, and combines their predictions; compare with an "
            "exact fit of a subset, and look at the calibration of held-out rows in report(X, y)"
        )

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> CommitteeEvidence:
        return CommitteeEvidence(kernel, X, y, noise, mean, self.parts_of(len(y)), self.processes)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> CommitteePosterior:
        n_parts = self.parts_of(count_rows(X))
        return CommitteePosterior.given(kernel, X, y, noise, mean, n_parts, self.weights, self.processes)
