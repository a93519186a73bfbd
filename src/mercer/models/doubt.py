"""Models whose parameters are in doubt: mixtures over them, and what is said of their priors and posteriors."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import NumericalWarning
from mercer.core.parameters import evolve, slots_of
from mercer.core.registry import storable
from mercer.core.text import number, rounded, table
from mercer.gp.model import Model
from mercer.gp.noise import Rescaled
from mercer.inference.base import Inference, latent_covariances
from mercer.inference.label_mixture import LabelMixture
from mercer.learning.chains import warn_of_chains
from mercer.learning.classification import LearnedLabels
from mercer.learning.doubt import ThetaPosterior
from mercer.learning.integrate import integrated
from mercer.learning.label_evidence import LabelObjective
from mercer.learning.objective import ModelObjective
from mercer.learning.optimise import Learned, Settings
from mercer.learning.regression import RegressionObjective
from mercer.models.records import warn_of_interruption
from mercer.priors import LogNormal, Prior, by_entry
from mercer.solvers.mixture import MixturePosterior

QUANTILES = (0.025, 0.5, 0.975)  # of the interval that is reported
MIN_EFFECTIVE_POINTS = 3.0  # of the mixture after an update

register = storable("parts")


@register
class StatedPrior(NamedTuple):
    """The prior of a parameter, and whether it is the default one."""

    prior: Prior
    default: bool

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={number(rounded(value))}" for name, value in vars(self.prior).items())
        return f"{type(self.prior).__name__}({settings}){' (default)' if self.default else ''}"


def stated_priors(objective: ModelObjective, scale: float = 1.0) -> dict[str, StatedPrior]:
    """Prior of each free parameter by its name; that of noise in units of the target times ``scale``, squared."""
    found: list[StatedPrior] = []
    units = objective.units(scale)
    for slot, given in zip(slots_of(objective.prior_model), slots_of(objective.model), strict=True):
        count = int(np.sum(slot.moving))
        own = by_entry(slot.prior, count)
        for i in range(count):
            prior = own[i]
            if isinstance(prior, Rescaled):
                prior = prior.prior
            elif slot.path[0][0] in ("noise", "likelihood") and isinstance(prior, LogNormal) and given.prior is None:
                prior = LogNormal(prior.mu + float(units[len(found)]), prior.sigma)
            found.append(StatedPrior(prior, given.prior is None))
    return dict(zip(objective.names(), found, strict=True))


class Averaged(NamedTuple):
    """The posterior of the parameters, and the mixture over it of posteriors of the function."""

    theta: ThetaPosterior
    posterior: Any


def average_over_parameters(
    model: Any, objective: RegressionObjective, learned: Learned, seed: int, settings: Settings
) -> Averaged | None:
    """Mixture of a regression's posteriors over the parameters' posterior, with the settings of ``model``; None where
    it has no more than the mode."""
    found = theta_posterior(model, objective, learned, seed, settings)
    if found is None:
        return None
    parts, noises = [], []
    for theta in found.theta:
        at: Any = objective.at(theta)
        variances = objective.variances(theta) + model._jitter
        own = at.kernel, objective.rows, objective.target, variances, at.mean, bool(model.allow_invalid)
        parts.append(objective.solver.posterior(*own))
        noises.append(evolve(at.noise, priors=()))
    posterior = MixturePosterior(tuple(parts), found.weights, tuple(noises))
    return Averaged(found.shifted(np.asarray(model._units)), posterior)


def average_classes_over_parameters(
    model: Any, inference: Inference, objective: LabelObjective, found: LearnedLabels, seed: int, settings: Settings
) -> Averaged | None:
    """Mixture of a classifier's posteriors over the parameters' posterior; None where it has no more than the mode.
    Points are moved as the mode was after learning, by held-out labels."""
    posterior = theta_posterior(model, objective, found.learned, seed, settings)
    if posterior is None:
        return None
    posterior = posterior.shifted(found.theta - found.learned.theta)
    parts, weights, start = [], [], None
    for theta, weight in zip(posterior.theta, posterior.weights, strict=True):
        kernels = list(objective.at(theta).kernels)
        covariances = latent_covariances(objective.solver.latent, kernels, objective.X, model._jitter)
        start = inference(covariances, objective.codes, start, gradient=False)
        if start is not None:
            parts.append(inference.posterior(start, kernels, gram.raw(objective.X), objective.codes, model._jitter))
            weights.append(weight)
    if not parts:
        return None
    return Averaged(posterior, LabelMixture(tuple(parts), np.array(weights) / np.sum(weights)))


def theta_posterior(
    model: Any, objective: ModelObjective, learned: Learned, seed: int, settings: Settings
) -> ThetaPosterior | None:
    """The posterior of theta by ``model.learning``, with warnings of poor chains and early ends."""
    found = integrated(objective, learned, model.learning, seed, model.n_samples, settings)
    if found is None:
        return None
    warn_of_chains(found, stacklevel=6)
    if found.diagnostics["interrupted"]:
        sampled = found.method == "nuts"
        many = f"{len(found.draws)} draws made" if sampled else f"{found.diagnostics['points']} points evaluated"
        warn_of_interruption(found.evaluations, 6, settings, f"predictions are averages over the {many} so far")
    return found


def updated(posterior: ThetaPosterior, weights: np.ndarray, stacklevel: int) -> ThetaPosterior:
    """The posterior of theta with the ``weights`` of its points after further data; warns when few points are left
    that count. ``stacklevel`` as in `warnings.warn`, counted from here."""
    before, after = (1 / np.sum(each**2) for each in (posterior.weights, weights))
    if after < MIN_EFFECTIVE_POINTS <= before:
        warnings.warn(
            f"after these rows predictions average over {after:.1f} effective points of the parameters' posterior, of "
            f"{before:.1f} before: it has moved away from the points of the fit. Fit again to all rows.",
            NumericalWarning,
            stacklevel=stacklevel,
        )
    return posterior.reweighted(weights)


# -- in print ----------------------------------------------------------------------------------------------------------


def parameter_table(model: Any, tree: Model, classes: Sequence[object] = ()) -> str:
    """Table of the parameters of the fitted ``tree``; where priors count, also these, and intervals where parameters
    were integrated over."""
    stated, rows = model.priors_, tree.table_rows(classes)
    if not stated:
        return table(["parameter", "value"], rows)
    posterior, head, ends = model.theta_posterior_, ["parameter", "value"], np.zeros((0, len(stated)))
    if posterior is not None:
        head += [f"{q:.1%}".replace(".0%", "%") for q in QUANTILES]
        ends = posterior.natural(posterior.quantile(QUANTILES))
    names, out = list(stated), []
    for slot, (name, value) in zip(tree.table_slots(), rows, strict=True):
        own = [i for i, free in enumerate(names) if free == slot.name or free.startswith(f"{slot.name}[")]
        if not own:
            out.append([name, value, *[""] * len(ends), "fixed" if slot.path[0][0] == "kernels" else ""])
        for i in own:
            entry_name = name + names[i].removeprefix(slot.name)
            natural = np.exp(model.theta_[i]) if slot.constraint.logarithmic else model.theta_[i]
            shown = [number(rounded(each)) for each in (natural, *ends[:, i])]
            out.append([entry_name, *shown, str(stated[names[i]])])
    return table([*head, "prior"], out)


def about_doubt(model: Any) -> list[str]:
    """Lines about how parameters were integrated over."""
    posterior = model.theta_posterior_
    if posterior is None:
        return []
    d, kept = posterior.diagnostics, len(posterior.theta)
    if posterior.method == "nuts":
        size = float(min(np.min(d["effective_size"]), np.min(d["effective_tail_size"])))
        how = (
            f"{len(posterior.draws):,} draws of {d['chains']} chains, at least {size:,.0f} effective, R-hat at most "
            f"{float(np.max(d['rhat'])):.3f}"
        )
    else:
        how = f"{d['points']:,} points of a {d['design']} design" + (f", {d['modes']} modes" if d["modes"] > 1 else "")
    return [f"parameters integrated over: {how}; {posterior.evaluations:,} evaluations, {kept} kept for prediction"]


def about_distance(model: Any) -> str | None:
    """How far an approximate log evidence is from the exact one; None where the solver does not estimate it."""
    found, n = model.numerics_, getattr(model, "n_rows_", None) or len(model.y_train_)
    if "gap" in found:
        left = f"approximated by {found['centers']:,.0f} centres, which leave {found['left']:.2%} of the prior variance"
        if not np.isfinite(found["gap"]):
            return left
        return f"{left}: the exact log evidence is at most {found['gap']:.3g} nats higher, {found['gap'] / n:.2g} a row"
    nats = found.get("divergence")
    if nats is None or not np.isfinite(nats):
        return None
    return (
        f"approximated by {found['neighbors']:,.0f} neighbours: the log evidence is about {nats:.3g} nats below the "
        f"exact one (estimated), {nats / max(n, 1):.2g} a row"
    )
