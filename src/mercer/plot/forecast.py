"""Plot of a forecast: data, band, and the components of the chosen kernel."""

import numpy as np

from mercer.core.errors import DataError
from mercer.models.forecast import Forecast

COLOR = "tab:blue"


def forecast(result, ax=None, level: float = 0.95):
    """Data, forecast with its interval, and below it each component with two standard deviations; returns the axes.

    With ``ax`` only data and forecast are drawn, on it. Components of a model of log y are factors.
    """
    import matplotlib.pyplot as plt

    if not isinstance(result, Forecast):
        raise DataError(f"this plot is of the result of mercer.forecast; got {type(result).__name__}.")
    parts = {} if ax is not None else result.components
    if ax is None:
        heights = [2.2, *[1.0] * len(parts)]
        size = (8, 3.2 + 1.5 * len(parts))
        _, panels = plt.subplots(
            len(heights), 1, sharex=True, figsize=size, height_ratios=heights, layout="constrained", squeeze=False
        )
        axes = list(panels[:, 0])
    else:
        axes = [ax]
    (t, y), (low, high) = result.history, result.interval(level)
    axes[0].plot(t, y, ".-", color="0.25", ms=3, lw=0.7, label="data")
    axes[0].fill_between(result.times, low, high, color=COLOR, alpha=0.25, lw=0, label=f"{level:.0%} interval")
    axes[0].plot(result.times, result.mean, color=COLOR, lw=1.6, label="forecast")
    axes[0].legend(loc="upper left", fontsize="small")
    whole = np.concatenate([t, result.times])
    for own, (name, (mean, deviation)) in zip(axes[1:], parts.items(), strict=True):
        middle, below, above = mean, mean - 2 * deviation, mean + 2 * deviation
        if result.log:
            middle, below, above = np.exp(middle), np.exp(below), np.exp(above)
        own.fill_between(whole, below, above, color=COLOR, alpha=0.25, lw=0)
        own.plot(whole, middle, color=COLOR, lw=1.2)
        own.axvline(t[-1], color="0.6", lw=0.8, ls=":")
        own.set_ylabel(f"{name}\n(factor)" if result.log else name, fontsize="small")
    return axes[0] if ax is not None else axes
