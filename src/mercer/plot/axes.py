"""Axes to draw on."""

from mercer.core.errors import MercerError


def new_axes(ax=None):
    """``ax`` itself, or fresh axes when None."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MercerError('plots need matplotlib: pip install "mercer[plot]"') from None
    return plt.subplots(figsize=(6, 4), layout="constrained")[1]
