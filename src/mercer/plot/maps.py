"""Maps of fitted regressions on two coordinates, and variograms."""

import narwhals.stable.v2 as nw
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_frame, as_matrix, column_names, take_rows
from mercer.core.parameters import nodes_of
from mercer.core.places import beside, longitude_and_latitude, unwrapped
from mercer.kernels.algebra import split_white
from mercer.kernels.space import OnSphere
from mercer.models.blocks import blocks_of, leave_blocks_out
from mercer.models.output_predictions import check_one_target
from mercer.plot.axes import new_axes, pyplot

MARGIN = 0.05  # of the range of the stations, on each side
MAX_ROWS = 1000  # of a variogram: half a million pairs


def map(model, Z=None, ax=None, *, resolution: int = 80, include_noise: bool = False, blocks: int | None = None):
    """Mean and standard deviation of a fitted regression over two coordinates, with its stations; returns the axes.

    The map is a grid of ``resolution`` squares along the longer side. Of a model with more inputs than two, or for a
    map of any shape, ``Z`` has the places to be drawn, with all inputs. The deviation is of the function, or with
    ``include_noise`` of new measurements. ``blocks`` adds a panel of errors: each of so many blocks of stations is
    predicted from the others. ``ax``: one for each panel. Longitude and latitude have the aspect of the mean
    latitude. On the sphere, stations on both sides of the 180th meridian are side by side.
    """
    panels = 2 if blocks is None else 3
    X, target, _ = _checked(model, "a map")
    pair, names, degrees = _coordinates(model, X)
    places = as_matrix(X)[:, pair]
    given = places[:, 0]
    longitudes = unwrapped(given) if degrees and _is_on_sphere(model) else given
    turned, middle = not np.array_equal(longitudes, given), 0.5 * (longitudes.min() + longitudes.max())
    places = np.column_stack([longitudes, places[:, 1]])
    y = target * model.scale_ + model.center_
    grid = None
    if Z is None:
        if as_matrix(X).shape[1] != 2:
            raise DataError(
                f"the model has {as_matrix(X).shape[1]} inputs; give Z, the places to draw with all inputs."
            )
        sides = [_side(places[:, i], degrees and i == 1) for i in (0, 1)]
        step = max(high - low for low, high in sides) / resolution
        grid = [np.linspace(low, high, max(2, round((high - low) / step) + 1)) for low, high in sides]
        mesh = np.column_stack([g.ravel() for g in np.meshgrid(*grid)])
        if turned:  # as they were given
            mesh[:, 0] = beside(mesh[:, 0], 180.0 if given.min() >= 0 else 0.0)
        Z = _as_inputs(X, mesh if pair == [0, 1] else mesh[:, ::-1])
    mean, deviation = model.predict(Z, return_std=True, include_noise=include_noise)
    if ax is None:
        ax = pyplot().subplots(1, panels, figsize=(5.2 * panels, 4.2), layout="constrained")[1]
    axes = np.atleast_1d(ax).ravel()
    if len(axes) != panels:
        raise ParameterError(f"this map has {panels} panels; got {len(axes)} axes.")
    limits = {"vmin": min(y.min(), mean.min()), "vmax": max(y.max(), mean.max())}
    size = float(np.clip(250 / np.sqrt(len(y)), 4, 40))
    for own, values, title, style in (
        (axes[0], mean, "mean", {"cmap": "viridis", **limits}),
        (
            axes[1],
            deviation,
            "standard deviation",
            {"cmap": "magma", "vmin": 0.0, "vmax": float(deviation.max()) or 1.0},
        ),
    ):
        if grid is None:
            x, z = as_matrix(Z)[:, pair].T
            x = beside(x, middle) if turned else x
            image = own.scatter(x, z, c=values, marker="s", s=12, lw=0, **style)
        else:
            image = own.pcolormesh(*grid, values.reshape(len(grid[1]), len(grid[0])), shading="nearest", **style)
        own.figure.colorbar(image, ax=own, shrink=0.85)
        own.set_title(title, fontsize="medium")
    axes[0].scatter(*places.T, c=y, s=size, edgecolors="white", linewidths=0.6, **{"cmap": "viridis", **limits})
    axes[1].scatter(*places.T, s=size / 3, color="white", edgecolors="0.3", linewidths=0.4)
    if blocks is not None:
        labels = blocks_of(places, blocks)
        predicted = leave_blocks_out(model, labels)
        errors, (low, high) = y - predicted.mean, predicted.interval(0.95)
        largest = float(np.abs(errors).max()) or 1.0
        image = axes[2].scatter(
            *places.T, c=errors, s=size, cmap="RdBu_r", vmin=-largest, vmax=largest, ec="0.4", lw=0.4
        )
        axes[2].figure.colorbar(image, ax=axes[2], shrink=0.85)
        inside = np.mean((y >= low) & (y <= high))
        axes[2].set_title(
            f"errors, {blocks} blocks left out: root mean square {np.sqrt(np.mean(errors**2)):.3g}\n"
            f"{inside:.0%} inside 95% intervals", fontsize="medium",
        )  # fmt: skip
    aspect = 1 / max(np.cos(np.deg2rad(places[:, 1].mean())), 0.05) if degrees else 1.0
    for own in axes:
        own.set(xlabel=names[0], ylabel=names[1], aspect=aspect)
        if turned:
            own.xaxis.set_major_formatter(lambda x, _: f"{beside(x, 0.0):.4g}")
        if grid is not None:
            own.set(xlim=(grid[0][0], grid[0][-1]), ylim=(grid[1][0], grid[1][-1]))
    return axes


def variogram(model, ax=None, bins: int = 15, max_distance: float | None = None, color="tab:red"):
    """Empirical variogram of the measurements beside that of the fitted model, the mean over the same pairs of
    stations, both with the noise (the nugget); up to half the largest distance, in degrees of arc on the sphere.

    Half the mean squared difference of pairs, by distance (Matheron's estimator; Cressie 1993, 2.4). A trend is
    subtracted first.
    """
    X, target, noise = _checked(model, "a variogram")
    if len(target) > MAX_ROWS:
        rows = np.sort(np.random.default_rng(0).permutation(len(target))[:MAX_ROWS])
        X, target, noise = take_rows(X, rows), target[rows], noise[rows]
    if len(target) < 2:
        raise DataError("a variogram needs two rows or more.")
    if not model.posterior_.prior_mean.is_constant:
        target = target - model.posterior_.trend(X)[0]
    pair, _, degrees = _coordinates(model, X)
    places = as_matrix(X)[:, pair]
    i, j = np.triu_indices(len(target), 1)
    if degrees:
        points = OnSphere(_any_kernel()).coordinates(places)
        chords = np.sqrt(((points[i] - points[j]) ** 2).sum(axis=1))
        distance = np.rad2deg(2 * np.arcsin(np.clip(chords / 2, 0.0, 1.0)))
    else:
        distance = np.sqrt(((places[i] - places[j]) ** 2).sum(axis=1))
    latent, white = split_white(model.kernel_)
    nugget = (0.5 * (noise[i] + noise[j]) + white) * model.scale_**2
    fitted = nugget.copy()
    if latent is not None:
        K = latent(X)
        fitted += (0.5 * (np.diag(K)[i] + np.diag(K)[j]) - K[i, j]) * model.scale_**2
    squares = 0.5 * (target[i] - target[j]) ** 2 * model.scale_**2
    largest = 0.5 * distance.max() if max_distance is None else max_distance
    if not largest > 0:
        raise DataError("all rows are at one place; a variogram needs two places or more.")
    which = np.minimum((distance / largest * bins).astype(int), bins)
    counts = np.bincount(which, minlength=bins + 1)[:bins]
    there = counts > 0
    at, empirical, model_at = (
        np.bincount(which, values, bins + 1)[:bins][there] / counts[there] for values in (distance, squares, fitted)
    )
    ax = new_axes(ax)
    sizes = 15 + 60 * counts[there] / counts.max()
    ax.scatter(at, empirical, s=sizes, color="tab:blue", label="measurements", zorder=3)
    ax.plot([0.0, *at], [nugget.mean(), *model_at], color=color, lw=2, label="fitted model")
    ax.axhline(nugget.mean(), color="0.5", lw=1, ls="--", label="noise (nugget)")
    ax.set(xlim=(0, largest), ylim=(0, None), ylabel="half mean squared difference")
    ax.set_xlabel("distance (degrees of arc)" if degrees else "distance")
    ax.legend(fontsize="small", loc="lower right")
    return ax


def _checked(model, what: str):
    """Data of a fitted regression whose targets are its latent function with Gaussian noise."""
    check_one_target(model, what)
    if not hasattr(model, "posterior_") or not hasattr(model, "scale_"):
        raise ParameterError(
            f"{what} is of a fitted GaussianProcessRegressor; got {type(model).__name__}. Fit it first."
        )
    if not getattr(model, "_is_gaussian", lambda: True)():
        raise ParameterError(f"{what} is for the Gaussian likelihood; this model has {model.likelihood!r}.")
    return model.posterior_.data


def _coordinates(model, X) -> tuple[list[int], list[str], bool]:
    """Positions of the two coordinates, the first to the right; their names; and whether they are degrees on a
    sphere."""
    names, d = column_names(X), as_matrix(X).shape[1]
    found = longitude_and_latitude(X)
    if names is not None and found is not None:
        return [names.index(name) for name in found], list(found), True
    if d < 2:
        raise DataError("a map has two coordinates; the model has one input. For one use plot.posterior.")
    if _is_on_sphere(model):
        return [0, 1], ["longitude", "latitude"] if names is None else [str(n) for n in names[:2]], True
    return [0, 1], ["$x_1$", "$x_2$"] if names is None else [str(n) for n in names[:2]], False


def _is_on_sphere(model) -> bool:
    return any(isinstance(node, OnSphere) for node in nodes_of(model.kernel_))


def _side(values: np.ndarray, latitude: bool) -> tuple[float, float]:
    margin = MARGIN * np.ptp(values) or 1.0
    low, high = values.min() - margin, values.max() + margin
    return (max(low, -90.0), min(high, 90.0)) if latitude else (low, high)


def _as_inputs(X, values: np.ndarray):
    """Values in the container of X, with its column names."""
    frame, names = as_frame(X), column_names(X)
    if frame is None or names is None:
        return values
    columns = {name: values[:, i] for i, name in enumerate(names)}
    return nw.from_dict(columns, backend=frame.implementation).to_native()


def _any_kernel():
    from mercer.kernels import RBF

    return RBF()
