"""The plot of the components that a search found."""

import matplotlib
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.learning.components import Axis, components
from mercer.learning.search import Selection

matplotlib.use("Agg")


def test_a_panel_for_every_component():
    x, rng = np.arange(30.0), np.random.default_rng(0)
    kernel = 1.0 * k.RBF(20.0) + 1.0 * k.Seasonal(6.0)
    parts = components(
        kernel, x[:, None], rng.normal(size=30), 0.1, 1.0, [Axis(None, "x", 0.0, 29.0, 1.0)]
    )  # fmt: skip
    order = rng.permutation(30)
    found = Selection([], 30, 0, components=parts, inputs=x[order][:, None])
    axes = mc.plot.components(found)
    assert len(axes) == 3
    assert [ax.get_title(loc="left").split(": ")[1][:7] for ax in axes] == [each.text[:7] for each in parts]
    np.testing.assert_array_equal(axes[0].lines[0].get_xdata(), x)
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata()[order], parts[0].mean)
    with pytest.raises(mc.DataError, match="one of 0 to 0"):
        mc.plot.components(found, column=1)
    with pytest.raises(mc.DataError, match="without candidates"):
        mc.plot.components(Selection([], 30, 0))
    matplotlib.pyplot.close("all")
