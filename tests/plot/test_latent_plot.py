"""The plot of a map to latent points."""

import matplotlib
import numpy as np
import pytest

import mercer as mc

matplotlib.use("Agg")

ANGLE = np.linspace(0, 3, 30)
X = np.column_stack([np.cos(ANGLE), np.sin(ANGLE), ANGLE**2])


@pytest.mark.parametrize("q", [1, 2])
def test_rows_over_the_stretching(q):
    model = mc.GenerativeTopographicMapping(q, n_points=12, max_iterations=5, progress=False).fit(X)
    ax = mc.plot.latent(model, labels=np.repeat(["low", "middle", "high"], 10))
    shown = np.concatenate([each.get_offsets() for each in ax.collections if len(each.get_offsets()) == 10])
    np.testing.assert_allclose(np.sort(shown[:, 0]), np.sort(model.embedding_[:, 0]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["high", "low", "middle"]
    curve = [line for line in ax.lines if len(line.get_xdata()) > 10]
    assert len(curve) == (q == 1)
    if q == 1:
        np.testing.assert_allclose(curve[0].get_ydata(), model.magnification(curve[0].get_xdata()[:, None]))
    else:
        assert ax.get_ylabel() == "latent dimension 2"
        alone = mc.plot.latent(model, labels=ANGLE, dimensions=[1], background=False)
        assert alone.get_xlabel() == "latent dimension 2"
    matplotlib.pyplot.close("all")


def test_what_it_cannot_draw():
    model = mc.GenerativeTopographicMapping(1, n_points=12, max_iterations=2, progress=False).fit(X)
    with pytest.raises(mc.DataError, match="one or two of 0 to 0"):
        mc.plot.latent(model, dimensions=[0, 1])
    with pytest.raises(mc.DataError, match="one entry for each of the 30"):
        mc.plot.latent(model, labels=[1, 2])
    with pytest.raises(mc.DataError, match="fitted model of latent points"):
        mc.plot.latent(mc.GaussianProcessLatentVariables())
    matplotlib.pyplot.close("all")
