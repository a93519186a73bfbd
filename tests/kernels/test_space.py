"""Kernels on the sphere and with a rotated lengthscale matrix."""

import jax
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import to_free
from mercer.core.parameters import evolve
from mercer.kernels.algebra import split_white
from mercer.kernels.substitution import by_position

RNG = np.random.default_rng(0)
PLACES = np.column_stack([RNG.uniform(-180, 180, 7), RNG.uniform(-90, 90, 7)])


def chord(p, q):
    """From the haversine formula: 2 sqrt(sin^2(db / 2) + cos b cos b' sin^2(da / 2))."""
    (a, b), (c, d) = np.deg2rad(p), np.deg2rad(q)
    return 2 * np.sqrt(np.sin((b - d) / 2) ** 2 + np.cos(b) * np.cos(d) * np.sin((a - c) / 2) ** 2)


def test_distances_on_the_sphere_are_chords_by_the_haversine_formula():
    r = np.array([[chord(p, q) for q in PLACES] for p in PLACES])
    np.testing.assert_allclose(k.Exponential(0.4).on_sphere()(PLACES), np.exp(-r / 0.4), rtol=1e-12)
    in_km = k.Exponential(0.4 * 6371.0).on_sphere(radius=6371.0)
    np.testing.assert_allclose(in_km(PLACES), np.exp(-r / 0.4), rtol=1e-12)


def test_longitudes_wrap_and_poles_are_points():
    kernel = k.Matern(0.7).on_sphere()
    for turns in (-360.0, 360.0, 3600.0):
        np.testing.assert_allclose(kernel(PLACES + [turns, 0.0], PLACES), kernel(PLACES), atol=1e-12)
    np.testing.assert_allclose(kernel([[0.0, 90.0]], [[123.0, 90.0]]), 1.0)
    assert kernel([[179.9, 0.0]], [[-179.9, 0.0]])[0, 0] > 0.9999


def test_is_valid_by_rule_6_19_and_positive_definite_on_the_whole_sphere():
    kernel = (k.RBF(0.5) * k.Matern(0.8)).on_sphere() + k.RBF().on(0)
    assert kernel.validity
    assert "6.19" in str(kernel.validity.proof)
    assert np.linalg.eigvalsh(k.Matern(2.0).on_sphere()(PLACES)).min() > 0
    assert repr(k.RBF().on_sphere()) == "RBF(lengthscale=1.0).on_sphere()"
    assert repr(k.RBF().on_sphere(6371)) == "RBF(lengthscale=1.0).on_sphere(radius=6371)"


def test_a_latitude_beyond_the_poles_is_refused_with_its_row():
    with pytest.raises(ValueError, match="row 1 has 91.*Longitude comes first"):
        k.RBF().on_sphere()([[10.0, 45.0], [20.0, 91.0]])
    with pytest.raises(ValueError, match=r"two columns.*got 3.*\.on_sphere\(\)\.on\(\[0, 1\]\)"):
        k.RBF().on_sphere()(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="radius"):
        k.RBF().on_sphere(radius=0)


def test_columns_of_a_frame_by_name():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"height": np.zeros(7), "lat": PLACES[:, 1], "lon": PLACES[:, 0]})
    kernel = k.RBF(0.5).on_sphere().on("lon", "lat")
    np.testing.assert_allclose(kernel(frame), k.RBF(0.5).on_sphere()(PLACES))
    assert repr(by_position(kernel, list(frame.columns))) == "RBF(lengthscale=0.5).on_sphere().on([2, 1])"


PLACED = np.array([[10.0, 40.0], [11.0, 41.5], [9.0, 38.0]])


@pytest.mark.parametrize(
    ("of", "at"),
    [
        (lambda x: k.Matern(0.8).on_sphere()(x, PLACED).sum(), PLACED[:1] + 0.3),
        (lambda x: k.Matern(0.8).rotate(30.0, 0.4)(x, PLACED).sum(), PLACED[:1] + 0.3),
        (lambda q: (2.0 * k.Matern(q[0]).rotate(q[1], q[2]))(PLACED).sum(), np.array([0.9, 20.0, 0.7])),
    ],
    ids=["on the sphere", "rotated", "parameters"],
)
def test_gradients_in_the_inputs_and_parameters_are_finite_differences(of, at):
    with jax.enable_x64(True):
        value, slope, h = jax.jit(of), np.asarray(jax.jit(jax.grad(of))(at)), 1e-5
        steps = [h * e.reshape(at.shape) for e in np.eye(at.size)]
        differences = [float(value(at + step) - value(at - step)) / (2 * h) for step in steps]
        np.testing.assert_allclose(slope.ravel(), differences, rtol=1e-6, atol=1e-9)


def test_a_rotated_kernel_has_the_quadratic_form_of_its_matrix():
    angle, ratio, length = 30.0, 0.25, 2.0
    turn = np.deg2rad(angle)
    R = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    M = R.T @ np.diag([1 / length**2, 1 / (length * ratio) ** 2]) @ R
    X = RNG.normal(size=(5, 2))
    difference = X[:, None] - X[None]
    r2 = np.einsum("ijk,kl,ijl->ij", difference, M, difference)
    np.testing.assert_allclose(k.RBF(length).rotate(angle, ratio)(X), np.exp(-0.5 * r2), rtol=1e-12)
    other = k.RBF(length * ratio).rotate(angle + 90, 1 / ratio)
    np.testing.assert_allclose(k.RBF(length).rotate(angle, ratio)(X), other(X), rtol=1e-12)
    assert k.RBF().rotate(10.0).stationary
    assert not k.RBF().rotate(10.0).isotropic


def test_angle_and_ratio_are_learned_from_the_data():
    X = np.random.default_rng(1).uniform(0, 10, (150, 2))
    truth = mc.GP(k.Matern(4.0, nu=1.5).rotate(35.0, 0.25))
    y = truth.sample(X, seed=3)[0] + 0.05 * np.random.default_rng(2).normal(size=150)
    model = mc.GaussianProcessRegressor(1.0 * k.Matern(nu=1.5).rotate()).fit(X, y)
    found = dict(model.kernel_.parameters)
    angle = next(v for name, v in found.items() if name.endswith("angle"))
    ratio = next(v for name, v in found.items() if name.endswith("ratio"))
    across = abs((angle - 35.0 + 90) % 180 - 90)  # the long direction, or the short one with 1 / ratio
    assert (ratio < 1 and across < 10) or (ratio > 1 and across > 80)
    assert 0.12 < min(ratio, 1 / ratio) < 0.45


def test_models_on_the_sphere_are_learned_saved_and_loaded(tmp_path):
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.uniform(150, 210, 80), rng.uniform(-60, 60, 80)])
    y = np.sin(np.deg2rad(2 * X[:, 0])) + np.cos(np.deg2rad(3 * X[:, 1]))
    model = mc.GaussianProcessRegressor((1.0 * k.Matern()).on_sphere()).fit(X, y)
    turned = X + [-360.0, 0.0]
    np.testing.assert_allclose(model.predict(turned), model.predict(X), atol=1e-8)
    assert model.score(X + 0.3, np.sin(np.deg2rad(2 * X[:, 0] + 0.6)) + np.cos(np.deg2rad(3 * X[:, 1] + 0.9))) > 0.99
    mc.save(model, tmp_path / "model")
    np.testing.assert_array_equal(mc.load(tmp_path / "model").predict(X), model.predict(X))


def test_white_noise_inside_is_still_noise():
    kernel = (k.RBF(0.5) + k.White(0.2)).on_sphere()
    latent, white = split_white(kernel)
    assert white == 0.2
    assert latent == k.RBF(0.5).on_sphere()
    assert len(to_free(evolve(kernel))) == 2
