"""Pictures: what is drawn is what was asked for."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k

x = np.linspace(0, 1, 30)
shuffled = np.random.default_rng(0).permutation(x)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_samples_are_drawn_in_order_from_a_process_or_a_kernel():
    for process in (mc.GP(k.RBF()), k.RBF()):
        ax = mc.plot.samples(process, shuffled, size=2, seed=3)
        lines = ax.get_lines()
        assert len(lines) == 2
        np.testing.assert_allclose(lines[0].get_xdata(), x)
        np.testing.assert_allclose(lines[1].get_ydata(), mc.GP(k.RBF()).sample(x, size=2, seed=3)[1])


def test_posterior_shows_mean_band_and_data():
    g = mc.GP(k.RBF(0.3)).condition([0.9, 0.2], [1.0, -1.0], noise=0.1)
    ax = mc.plot.posterior(g, x)
    mean, data = ax.get_lines()
    np.testing.assert_allclose(mean.get_ydata(), g.mean(x))
    np.testing.assert_allclose(data.get_xydata(), [[0.9, 1.0], [0.2, -1.0]])
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(g.predict(x).interval(0.95)[1].max())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["95% interval", "mean", "data"]


def test_frames_with_a_named_column():
    g = mc.GP(k.RBF(0.3).on("age")).condition(pd.DataFrame({"age": [0.2, 0.5]}), [1.0, -1.0], noise=0.1)
    frame = pd.DataFrame({"age": shuffled})
    np.testing.assert_allclose(mc.plot.posterior(g, frame).get_lines()[0].get_xdata(), x)
    assert len(mc.plot.samples(g, frame).get_lines()) == 5
    wide = pd.DataFrame({"other": [100.0, 200.0], "age": [0.2, 0.5]})
    g = mc.GP(k.RBF(0.3).on("age")).condition(wide, [1.0, -1.0], noise=0.1)
    np.testing.assert_allclose(mc.plot.posterior(g, frame).get_lines()[1].get_xdata(), [0.2, 0.5])
    curve = mc.plot.profile(k.RBF().on("age"), frame, at=0.5).get_lines()[0]
    np.testing.assert_allclose(curve.get_ydata(), k.RBF()(x, [0.5])[:, 0])


def test_fields_gram_matrices_and_profiles():
    mc.plot.field(k.RBF(), x[::6], x[::6])
    flat = mc.plot.field(k.RBF(), x[::6], x[::6], ax=plt.figure().add_subplot())
    assert flat.collections
    image = mc.plot.gram(k.Linear(), x - 0.5, cmap="gray").get_images()[0]
    np.testing.assert_allclose(image.get_array(), k.Linear()(x - 0.5))
    assert image.get_cmap().name == "gray"
    curve, cross = mc.plot.profile(k.RBF(), x, at=0.5).get_lines()
    np.testing.assert_allclose(curve.get_ydata(), k.RBF()(x, [0.5])[:, 0])
    assert cross.get_xdata() == [0.5]


def test_several_columns_are_refused_where_one_is_drawn():
    with pytest.raises(mc.DataError, match="one input"):
        mc.plot.samples(k.RBF(), np.ones((3, 2)))


def test_rows_that_repeat_others_are_drawn_once():
    X, y = np.array([[0.0], [1.0], [1.0], [2.0]]), np.array([1.0, 3.0, 3.0, 2.0])
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(X, y)
    ax = mc.plot.posterior(model, np.linspace(0, 2, 9)[:, None])
    x, shown = ax.get_lines()[-1].get_data()
    assert x == pytest.approx([0.0, 1.0, 2.0])
    assert shown == pytest.approx([1.0, 3.0, 2.0])
