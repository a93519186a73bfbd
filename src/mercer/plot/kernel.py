"""Kernels, looked at."""

import numpy as np

from mercer.kernels.convert import as_kernel
from mercer.plot.axes import new_axes


def gram(kernel, X, ax=None):
    """The Gram matrix on X as an image, first row on top."""
    ax = new_axes(ax)
    K = np.asarray(as_kernel(kernel)(X))
    low = -np.abs(K).max() if K.min() < 0 else 0.0
    ax.imshow(K, cmap="RdBu_r" if low else "viridis", vmin=low, vmax=np.abs(K).max(), interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def profile(kernel, X, at=0.0, ax=None, **style):
    """k(x, at) as a function of a scalar x."""
    ax = new_axes(ax)
    x = np.ravel(X)
    ax.plot(x, as_kernel(kernel)(x, np.array([at]))[:, 0], **style)
    ax.plot([at], [0], marker="x", color="tab:red", clip_on=False, zorder=3)
    ax.set_xlabel("$x$")
    ax.set_ylabel(f"$k(x, {at:g})$")
    return ax
