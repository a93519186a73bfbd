"""Plots of parameters whose posterior is known."""

import numpy as np

from mercer.core.errors import DataError
from mercer.plot.axes import pyplot

MAX_COLUMNS = 3
PRIOR_RANGE = (0.005, 0.995)  # of its quantiles, where it is drawn
GRID = 200


def parameters(model, axes=None, color="tab:red"):
    """Posterior density of each learned parameter, beside its prior; parameters that are positive on a logarithmic
    axis, as densities of their logarithms. The vertical line is the mode. Returns an array of axes.

    ``model`` was fitted with learning="laplace" or "nuts".
    """
    posterior = getattr(model, "theta_posterior_", None)
    if posterior is None:
        raise DataError(
            "this model has no posterior of its parameters; fit it with learning='laplace' or 'nuts', or give X to "
            "draw the posterior of the function: plot.posterior(model, X)."
        )
    names, stated = model.parameter_names_, model.priors_
    if axes is None:
        width = min(MAX_COLUMNS, len(names))
        height = -(-len(names) // width)
        _, axes = pyplot().subplots(
            height, width, figsize=(3.4 * width, 2.6 * height), squeeze=False, layout="constrained"
        )
    axes = np.asarray(axes, dtype=object)
    for i, (ax, name) in enumerate(zip(axes.ravel(), names, strict=False)):
        prior, logarithmic = stated[name].prior, bool(posterior.logarithmic[i])
        draws = posterior.draws[:, i]
        low, high = np.maximum(prior.quantile(PRIOR_RANGE), np.finfo(float).tiny if logarithmic else -np.inf)
        low, high = (np.log(low), np.log(high)) if logarithmic else (low, high)
        grid = np.linspace(min(low, draws.min()), max(high, draws.max()), GRID)
        x = np.exp(grid) if logarithmic else grid
        density = np.exp(prior.log_density(x)) * (x if logarithmic else 1.0)
        label = "prior (default)" if stated[name].default else "prior"
        ax.plot(x, density, color="0.5", ls="--", lw=1.2, label=label)
        found = _density(draws, grid)
        ax.fill_between(x, found, color=color, alpha=0.2, lw=0)
        ax.plot(x, found, color=color, lw=1.5, label="posterior")
        mode = model.theta_[i]
        ax.axvline(np.exp(mode) if logarithmic else mode, color=color, lw=0.8)
        ax.set(xlabel=name, yticks=[], ylim=(0, None), xscale="log" if logarithmic else "linear")
    for ax in axes.ravel()[len(names) :]:
        ax.set_axis_off()
    axes.ravel()[0].legend(fontsize="small", frameon=False)
    return axes


def _density(draws: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Density of draws by a Gaussian kernel of Silverman's width."""
    quarter, three_quarters = np.quantile(draws, [0.25, 0.75])
    spread = min(draws.std(), (three_quarters - quarter) / 1.349) or draws.std() or 1.0
    width = 0.9 * spread * len(draws) ** -0.2
    z = (grid[:, None] - draws) / width
    return np.exp(-0.5 * z**2).sum(axis=1) / (len(draws) * width * np.sqrt(2 * np.pi))
