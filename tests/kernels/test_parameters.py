"""Names, values, fixing, priors: on kernels as people write them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from examples import examples
from mercer import kernels as k
from mercer import priors
from mercer.core.coordinates import free_names, from_free, log_prior, parameters_at, to_free
from mercer.core.parameters import PositiveArray, RealArray, slots_of
from mercer.core.precision import double


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (k.RBF(), ["lengthscale"]),
        (2 * k.RBF(), ["variance", "lengthscale"]),
        (k.RBF(name="trend"), ["trend_lengthscale"]),
        (2 * k.RBF(name="trend"), ["trend_variance", "trend_lengthscale"]),
        ((2 * k.RBF()).named("trend"), ["trend_variance", "trend_lengthscale"]),
        (k.RBF() + k.White(), ["rbf_lengthscale", "white_variance"]),
        (k.RBF() + k.RBF(2.0), ["rbf_lengthscale", "rbf_2_lengthscale"]),
        (2 * k.RBF() * k.Linear(), ["variance", "lengthscale"]),
        (
            k.RationalQuadratic() + 3.0,
            ["rational_quadratic_lengthscale", "rational_quadratic_alpha", "constant_variance"],
        ),
        (2 * (k.RBF() + k.Exponential()), ["sum_variance", "rbf_lengthscale", "exponential_lengthscale"]),
        (
            (k.RBF() * k.Periodic()).named("season") + k.RBF(name="trend"),
            ["season_rbf_lengthscale", "season_periodic_period", "season_periodic_lengthscale", "trend_lengthscale"],
        ),
        (k.RBF(name="a") + k.RBF(name="a"), ["a_lengthscale", "a_2_lengthscale"]),
        (k.Linear(), []),
        (k.FeatureMap(mc.basis.Gaussian([0.0, 1.0], width=0.5)), ["alpha", "width"]),
        (k.FeatureMap(lambda x: x) + k.RBF().gaussian(), ["feature_map_alpha", "rbf_sigma", "rbf_lengthscale"]),
        (k.RBF().modulate(lambda x: x[0]), ["lengthscale"]),
        (2 * k.Linear(), ["variance"]),
        (2 * k.Linear(name="slope").on(0) + k.White(), ["slope_variance", "white_variance"]),
        (2 * (k.Linear() * k.Linear().on(0)) + k.White(), ["product_variance", "white_variance"]),
    ],
)
def test_names(kernel, names):
    assert sorted(kernel.parameters) == sorted(names)


def test_replace_by_name():
    kernel = 2 * k.RBF(name="trend") + k.Periodic(1.0, [1.0, 2.0])
    changed = kernel.replace(trend_lengthscale=5.0, periodic_lengthscale=[3.0, 4.0], trend_variance=7)
    assert changed.parameters["trend_lengthscale"] == 5.0
    np.testing.assert_array_equal(changed.parameters["periodic_lengthscale"], [3.0, 4.0])
    assert kernel.parameters["trend_lengthscale"] == 1.0
    X = np.random.default_rng(0).normal(size=(4, 2))
    np.testing.assert_allclose(changed(X), 7 * k.RBF(5.0)(X) + k.Periodic(1.0, [3.0, 4.0])(X), rtol=1e-14)
    with pytest.raises(mc.ParameterError, match=r"no parameter 'lengthscale'.*trend_lengthscale"):
        kernel.replace(lengthscale=1.0)
    with pytest.raises(mc.ParameterError, match="Did you mean 'trend_lengthscale'"):
        kernel.replace(trend_length_scale=1.0)
    with pytest.raises(AttributeError, match="Did you mean RBF"):
        k.rbf  # noqa: B018
    with pytest.raises(mc.ParameterError, match="positive"):
        kernel.replace(trend_lengthscale=-1.0)


def test_kernels_are_immutable():
    kernel = k.RBF([1.0, 2.0])
    with pytest.raises(AttributeError):
        kernel.lengthscale = 3.0
    with pytest.raises(ValueError, match="read-only"):
        kernel.lengthscale[0] = 3.0
    given = np.array([1.0, 2.0])
    kernel = k.RBF(given)
    given[0] = 9.0
    assert kernel.lengthscale[0] == 1.0


def test_fixing_priors_and_the_table():
    kernel = (2 * k.RBF() + k.Polynomial(2)).fix("rbf_variance").with_priors(rbf_lengthscale=priors.Gamma(2.0, 1.0))
    assert repr(kernel.parameters).splitlines() == [
        "parameter          value  range         learned  prior",
        "rbf_variance       2.0    positive      fixed    -",
        "rbf_lengthscale    1.0    positive      yes      Gamma(shape=2.0, rate=1.0)",
        "polynomial_offset  0.0    non-negative  off      -",
    ]
    assert free_names(kernel) == ["rbf_lengthscale"]
    assert free_names(kernel.free()) == ["rbf_variance", "rbf_lengthscale"]
    assert free_names(kernel.fix()) == []
    assert float(log_prior(kernel)) == pytest.approx(-1.0)
    assert float(log_prior(kernel.with_priors(rbf_lengthscale=None))) == 0.0
    with pytest.raises(mc.ParameterError, match="mercer.priors"):
        kernel.with_priors(rbf_lengthscale=1.0)
    with pytest.raises(mc.ParameterError, match="no parameter"):
        kernel.fix("nothing")


def test_fixing_survives_arithmetic():
    kernel = k.RBF().fix("lengthscale") + k.White()
    assert free_names(kernel) == ["white_variance"]
    fixed = (2 * k.RBF()).fix("variance")
    assert (3 * fixed).parameters["variance_2"] == 2.0  # a fixed variance is not changed by another factor


def test_coordinates_are_double_whoever_asks():
    kernel = k.RBF(0.1234567890123456)
    assert to_free(kernel).dtype == np.float64
    assert from_free(kernel, to_free(kernel)).lengthscale == pytest.approx(0.1234567890123456, rel=1e-15)


def test_coordinates_do_not_depend_on_the_order_of_memory():
    p = np.random.default_rng(0).dirichlet(np.ones(2), 2)
    columns = np.asfortranarray(p)
    kernel = k.HiddenMarkov([0.5, 0.5], columns, p).free("transition")
    assert not kernel.parameters["transition"].flags.c_contiguous
    theta = to_free(kernel) + np.arange(4)
    np.testing.assert_allclose(to_free(from_free(kernel, theta)), theta)
    np.testing.assert_allclose(np.log(from_free(kernel, theta).parameters["transition"]).ravel(), theta)


def test_the_optimisers_coordinates():
    kernel = (2 * k.RBF([1.0, 3.0]) + k.Sigmoid(-0.5, 0.25)).fix("rbf_variance")
    with double():
        theta = to_free(kernel)
        assert free_names(kernel) == ["rbf_lengthscale[0]", "rbf_lengthscale[1]", "sigmoid_a", "sigmoid_b"]
        np.testing.assert_allclose(theta, [0.0, np.log(3.0), -0.5, 0.25])
        again = from_free(kernel, theta)
        for name, value in kernel.parameters.items():
            np.testing.assert_allclose(again.parameters[name], value, rtol=1e-15)
        # Wherever the optimiser goes, positive stays positive.
        wild = from_free(kernel, theta + jnp.array([-30.0, 30.0, -5.0, 5.0]))
        assert (np.asarray(wild.parameters["rbf_lengthscale"]) > 0).all()


def test_parameters_by_name_without_building_the_kernel():
    rng = np.random.default_rng(0)
    for kernel in [*examples(2), k.RBF().polynomial([1.0, 0.0, 2.0]), (2 * k.RBF([1.0, 3.0])).fix("variance")]:
        theta = to_free(kernel)
        theta = theta + rng.normal(0, 0.1, theta.shape)
        found, want = parameters_at(slots_of(kernel), theta), from_free(kernel, theta).parameters
        assert list(found) == list(want)
        for name, value in want.items():
            assert type(found[name]) is type(value)
            np.testing.assert_array_equal(found[name], value)


def test_kernels_are_pytrees():
    kernel = 2 * k.RBF([1.0, 3.0]) + k.White(0.1)
    X = np.random.default_rng(0).normal(size=(4, 2))
    with double():
        gradient = jax.grad(lambda q: q(X).sum())(kernel)
        assert type(gradient) is type(kernel)
        h = 1e-6
        up, down = (kernel.replace(rbf_lengthscale=[1.0 + s, 3.0])(X).sum() for s in (h, -h))
        assert gradient.parameters["rbf_lengthscale"][0] == pytest.approx((up - down) / (2 * h), rel=1e-7)
        many = jax.vmap(lambda length: k.RBF(length)(X))(jnp.array([0.5, 1.0, 2.0]))
        np.testing.assert_allclose(many[2], k.RBF(2.0)(X), rtol=1e-14)
        doubled = jax.tree.map(lambda leaf: 2 * leaf, kernel)
        assert doubled.parameters["white_variance"] == pytest.approx(0.2)
        # Inside the caller's jit a kernel of plain numbers is a plain kernel.
        np.testing.assert_allclose(jax.jit(lambda c: c * kernel(X))(2.0), 2 * kernel(X), rtol=1e-14)


def test_equality_and_use_as_a_key():
    assert k.RBF(2.0) == k.RBF(2.0)
    assert k.RBF(2.0) != k.RBF(3.0)
    assert k.RBF(2.0) != k.Exponential(2.0)
    assert k.RBF() != k.RBF().fix()
    assert {k.RBF(2.0): 1}[k.RBF(2.0)] == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: k.Constant([1.0, 2.0]),
        lambda: k.White([1.0, 2.0]),
        lambda: (2 * k.RBF()).replace(variance=[1.0, 2.0]),
        lambda: k.RationalQuadratic(alpha=[1.0, 2.0]),
        lambda: k.Standard(theta0=[1.0, 2.0]),
        lambda: k.Polynomial(2, offset=[1.0, 2.0]),
        lambda: k.FeatureMap(lambda x: x, alpha=[1.0, 2.0]),
        lambda: k.RBF().gaussian([1.0, 2.0]),
        lambda: k.RadialPeriodic([1.0, 2.0]),
        lambda: k.Sigmoid([1.0, 2.0]),
    ],
)
def test_one_number_means_one_number(build):
    with pytest.raises(mc.ParameterError, match="one number"):
        build()


def test_a_zero_coefficient_is_off_and_the_others_are_learned():
    kernel = k.RBF().polynomial([1.0, 0.0, 2.0])
    assert free_names(kernel) == ["coefficients[0]", "coefficients[2]", "lengthscale"]
    with double():
        moved = from_free(kernel, to_free(kernel) + jnp.log(2.0))
    np.testing.assert_allclose(moved.coefficients, [2.0, 0.0, 4.0], rtol=1e-15)
    assert kernel.replace(coefficients=3.0)([0.0, 1.0])[0, 1] == 3.0
    for build in (lambda: kernel.replace(coefficients=[-1.0, 2.0]), lambda: k.Polynomial(2, offset=-1.0)):
        with pytest.raises(mc.InvalidKernelError, match="6.15"):
            build()


def test_names_inside_named_things_are_kept():
    inner = k.RBF(name="inner")
    assert list((inner + k.Linear()).named("outer").parameters) == ["outer_inner_lengthscale"]
    assert list((2 * inner).named("outer").parameters) == ["outer_inner_variance", "outer_inner_lengthscale"]


def test_large_expressions_stay_quick():
    many = sum(k.RBF(float(i + 1)) for i in range(200))
    assert len(many.fix().parameters) == 200
    deep = k.RBF()
    for _ in range(40):
        deep = (deep + 1.0) * k.RBF()
    assert len(deep.parameters) == 81
    assert deep.validity


def test_parameters_stay_read_only_in_a_pickle():
    import pickle

    again = pickle.loads(pickle.dumps(k.RBF([1.0, 2.0])))
    with pytest.raises(ValueError, match="read-only"):
        again.lengthscale[0] = 5.0


class Projected(k.Kernel):
    """A Gaussian of a linear projection x W, W (d, m), and a positive matrix of weights."""

    W: RealArray
    weights: PositiveArray

    def block(self, X, Z):
        A, B = X @ self.W, Z @ self.W
        r2 = jnp.sum((A[:, None] - B[None, :]) ** 2, axis=-1)
        return jnp.sum(jnp.asarray(self.weights)) * jnp.exp(-0.5 * r2)


def test_parameters_of_any_shape_are_named_fixed_given_priors_and_learned():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 3))
    y = np.sin(X @ [1.0, 0.5, 0.0])
    kernel = Projected(rng.normal(size=(3, 2)), np.full((1, 2, 2), 0.3))
    assert free_names(kernel)[:4] == ["W[0,0]", "W[0,1]", "W[1,0]", "W[1,1]"]
    assert free_names(kernel)[-1] == "weights[0,1,1]"
    theta = np.asarray(to_free(kernel))
    assert theta[6:] == pytest.approx(np.log(0.3))
    assert pytest.approx(kernel.W + 0.1) == from_free(kernel, theta + 0.1).W
    assert "W" in repr(kernel.parameters)
    found = mc.GaussianProcessRegressor(kernel.fix("weights"), noise=0.01, progress=False, allow_invalid=True).fit(X, y)
    assert found.kernel_.W.shape == (3, 2)
    assert np.array_equal(found.kernel_.weights, kernel.weights)
    assert found.theta_.shape == (6,)
    _, slope = found.log_marginal_likelihood(theta[:6], eval_gradient=True)
    for i, step in enumerate(1e-6 * np.eye(6)):
        up, down = (found.log_marginal_likelihood(theta[:6] + s * step) for s in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-4)
    wide = mc.GaussianProcessRegressor(kernel.fix("weights").with_priors(W=mc.priors.Normal(0.0, 0.01)), noise=0.01,
                                       learning="map", progress=False, allow_invalid=True).fit(X, y)  # fmt: skip
    assert np.abs(wide.kernel_.W).max() < np.abs(found.kernel_.W).max()
    with pytest.raises(mc.ParameterError, match="an array of numbers"):
        kernel.replace(W=np.zeros((0, 2)))
