"""Plots of kernels."""

import narwhals.stable.v2 as nw
import numpy as np

from mercer.core.inputs import as_frame
from mercer.kernels.convert import as_kernel
from mercer.plot.axes import along, new_axes


def gram(kernel, X, ax=None, colorbar: bool = True, **style):
    """Gram matrix on X as an image, first row on top; red and blue if there are negative values."""
    ax = new_axes(ax)
    K = np.asarray(as_kernel(kernel)(X))
    high = np.abs(K).max()
    signed = K.min() < 0
    look = {"cmap": "RdBu_r" if signed else "viridis", "vmin": -high if signed else 0.0, "vmax": high}
    image = ax.imshow(K, **{"interpolation": "nearest", **look, **style})
    ax.set(xticks=[], yticks=[])
    if colorbar:
        ax.figure.colorbar(image, ax=ax, shrink=0.8)
    return ax


def profile(kernel, X, at=0.0, ax=None, **style):
    """k(x, at) as a function of one scalar input x; the cross marks ``at``."""
    ax = new_axes(ax)
    x, inputs = along(X)
    frame, at = as_frame(X), float(np.ravel(at)[0])
    place = np.array([at]) if frame is None else frame[:1].with_columns(nw.lit(at).alias(frame.columns[0])).to_native()
    ax.plot(x, as_kernel(kernel)(inputs, place)[:, 0], **style)
    ax.plot([at], [0], marker="x", color="tab:red", clip_on=False, zorder=3)
    ax.set(xlabel="$x$", ylabel=f"$k(x, {at:g})$")
    return ax
