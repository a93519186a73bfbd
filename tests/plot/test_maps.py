"""Maps, variograms, spatial blocks, and averages over areas."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.models.blocks import blocks_of, leave_blocks_out

rng = np.random.default_rng(0)
PLACES = np.column_stack([rng.uniform(5, 15, 40), rng.uniform(46, 54, 40)])
Y = np.sin(PLACES[:, 0]) + 0.3 * PLACES[:, 1] + 0.1 * rng.normal(size=40)
FRAME = pd.DataFrame({"lat": PLACES[:, 1], "lon": PLACES[:, 0]})


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def fitted(kernel, X):
    return mc.GaussianProcessRegressor(kernel, noise=0.01, learning=None, progress=False).fit(X, Y)


@pytest.fixture(scope="module")
def sphere():
    return fitted((1.0 * k.Matern(0.05)).on_sphere().on(["lon", "lat"]), FRAME)


@pytest.fixture(scope="module")
def plane():
    return fitted(1.0 * k.Matern(2.0), PLACES)


def test_a_map_has_longitude_to_the_right_and_the_aspect_of_its_latitude(sphere):
    mean, deviation = mc.plot.map(sphere, resolution=12)
    assert (mean.get_xlabel(), mean.get_ylabel()) == ("lon", "lat")
    assert mean.get_aspect() == pytest.approx(1 / np.cos(np.deg2rad(PLACES[:, 1].mean())))
    image, stations = mean.collections
    np.testing.assert_allclose(stations.get_offsets(), PLACES)
    np.testing.assert_allclose(stations.get_array(), Y)
    corners = image.get_coordinates()
    x, y = (0.5 * (corners[0, 1:, 0] + corners[0, :-1, 0]), 0.5 * (corners[1:, 0, 1] + corners[:-1, 0, 1]))
    first, second = sphere.predict(pd.DataFrame({"lat": y[[0, 3]], "lon": x[[0, 5]]}), True, include_noise=False)
    values, deviations = (ax.collections[0].get_array().reshape(len(y), len(x)) for ax in (mean, deviation))
    np.testing.assert_allclose([values[0, 0], values[3, 5]], first)
    np.testing.assert_allclose([deviations[0, 0], deviations[3, 5]], second)


TURNS = [lambda a: np.where(a > 180, a - 360, a), lambda a: np.where((a > 180) & (np.arange(40) % 2 > 0), a - 360, a)]


@pytest.mark.parametrize("turned", TURNS, ids=["one convention", "two"])
def test_a_map_across_the_date_line_is_that_of_other_longitudes(sphere, turned):
    moved = FRAME.assign(lon=turned(FRAME["lon"] + 170.0))  # 175 to 185 degrees
    axes = mc.plot.map(fitted(sphere.kernel_, moved), resolution=12, blocks=4)
    expected = mc.plot.map(sphere, resolution=12, blocks=4)
    shift = axes[0].get_xlim()[0] - expected[0].get_xlim()[0]
    assert shift in (pytest.approx(170.0), pytest.approx(-190.0))
    for own, other in zip(axes, expected, strict=True):
        np.testing.assert_allclose(own.get_xlim(), np.add(other.get_xlim(), shift))
        for one, same in zip(own.collections, other.collections, strict=True):
            if one.get_array() is not None:
                np.testing.assert_allclose(one.get_array(), same.get_array(), atol=1e-6)
    assert {label.get_text() for label in axes[0].get_xticklabels()} >= {"176", "-176"}


def test_a_map_in_the_plane_has_equal_aspect_and_errors_of_blocks(plane):
    axes = mc.plot.map(plane, resolution=10, blocks=4)
    assert [ax.get_aspect() for ax in axes] == [1.0] * 3
    errors = axes[2].collections[0].get_array()
    labels = blocks_of(PLACES, 4)
    assert np.bincount(labels).tolist() == [10] * 4
    predicted = leave_blocks_out(plane, labels)
    np.testing.assert_allclose(errors, Y - predicted.mean)
    out = labels == 2
    shift, scale = plane.center_, plane.scale_
    alone = mc.GP(plane.kernel_, mean="unknown").condition(
        PLACES[~out], (Y[~out] - shift) / scale, noise=0.01 / scale**2
    )
    np.testing.assert_allclose(predicted.mean[out], alone.mean(PLACES[out]) * scale + shift, rtol=1e-6)


def test_places_to_draw_and_what_is_refused(plane):
    with pytest.raises(ValueError, match="from 2 to the number of rows"):
        mc.plot.map(plane, resolution=10, blocks=1)
    with pytest.raises(ValueError, match="2 panels"):
        mc.plot.map(plane, resolution=10, ax=plt.subplots()[1])
    drawn = mc.plot.map(plane, PLACES[:7])[0].collections[0]
    np.testing.assert_allclose(drawn.get_array(), plane.predict(PLACES[:7]))
    three = fitted(1.0 * k.RBF(3.0), np.column_stack([PLACES, Y]))
    with pytest.raises(ValueError, match="3 inputs; give Z"):
        mc.plot.map(three)
    one = fitted(1.0 * k.RBF(3.0), PLACES[:, :1])
    with pytest.raises(ValueError, match=r"plot\.posterior"):
        mc.plot.map(one)


def test_a_variogram_is_the_mean_over_pairs(plane, sphere):
    ax = mc.plot.variogram(plane, bins=5, max_distance=5.0)
    points = ax.collections[0].get_offsets()
    r = np.sqrt(((PLACES[:, None] - PLACES) ** 2).sum(-1))
    i, j = np.triu_indices(40, 1)
    bin_ = (r[i, j] >= 2.0) & (r[i, j] < 3.0)
    assert points[2, 0] == pytest.approx(r[i, j][bin_].mean())
    assert points[2, 1] == pytest.approx(np.mean((Y[i] - Y[j])[bin_] ** 2) / 2)
    K = plane.kernel_(PLACES) * plane.scale_**2
    line = ax.get_lines()[0].get_ydata()
    assert line[0] == pytest.approx(0.01)
    assert line[3] == pytest.approx(0.01 + np.mean((K[i, i] - K[i, j])[bin_]))
    assert mc.plot.variogram(sphere).get_xlabel() == "distance (degrees of arc)"


def test_an_average_has_the_joint_moments_of_its_points(plane):
    Z, weights = PLACES[:9] + 0.3, np.arange(1.0, 10.0)
    mean, covariance = plane.predict(Z, return_cov=True, include_noise=False)
    w = weights / weights.sum()
    got = plane.predict_average(Z, weights)
    np.testing.assert_allclose(got, [w @ mean, np.sqrt(w @ covariance @ w)])
    means, deviations = plane.predict_average(Z, np.stack([weights, np.eye(9)[4]]))
    np.testing.assert_allclose([means[0], deviations[0]], got)
    np.testing.assert_allclose([means[1], deviations[1]], [mean[4], np.sqrt(covariance[4, 4])])
    draws = plane.sample_y(Z, 4000, random_state=0, include_noise=False).mean(axis=0)
    np.testing.assert_allclose(plane.predict_average(Z), [draws.mean(), draws.std()], rtol=0.05)
    with pytest.raises(ValueError, match="one for each of 9 rows"):
        plane.predict_average(Z, [1.0, 2.0])
