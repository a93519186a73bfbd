"""Kernels for the battery: at least one example of every class there is, over one column and over five.

A class that is missing here fails the battery, so a new kernel cannot escape it.
"""

import importlib
import pkgutil

import jax.numpy as jnp
import mpmath as mp
import numpy as np

import mercer.kernels
from mercer import basis
from mercer import kernels as k
from mercer.core.parameters import nodes_of
from mercer.kernels import algebra, composite, constant_parts, space, stationary, substitution
from mercer.kernels.base import Kernel
from mercer.kernels.observed import Observed

FAMILIES = {
    Kernel, stationary.Stationary, stationary.Isotropic, stationary._Pointwise, algebra.Nary, composite.Unary,
    space.OfPlaces,
}  # fmt: skip


def every_class() -> list[type]:
    """All kernel classes for users, found by walking the modules of kernels: no families, no placeholders. Kernels on
    objects and from generative models have their own batteries, test_laws.py in tests/kernels/structured and
    tests/kernels/generative; kernels under operators are tested in tests/gp/test_observations.py."""
    for module in pkgutil.walk_packages(mercer.kernels.__path__, "mercer.kernels."):
        importlib.import_module(module.name)

    def below(cls):
        return {cls}.union(*(below(sub) for sub in cls.__subclasses__()))

    found = [cls for cls in below(Kernel) if cls.__module__.startswith("mercer.kernels.")]
    elsewhere = ("mercer.kernels.structured.", "mercer.kernels.generative.")
    others = {cls for cls in found if cls.__module__.startswith(elsewhere)}
    internal = {constant_parts.Held, constant_parts.HeldFeatures, Observed}
    return sorted(set(found) - FAMILIES - others - internal, key=lambda cls: cls.__name__)


# Users' functions for JAX, each with the same function in extended precision beside it for the reference.


def features(x):
    return jnp.concatenate([jnp.sin(x / 3), jnp.cos(x[:1])])


def curve(x):
    return jnp.tanh(x / 2)


def factor(x):
    return 1 + x[0] ** 2


def function(x, z):
    return jnp.exp(-jnp.abs(x[0] - z[0]))


features.exact = lambda x: [*(mp.sin(v / 3) for v in x), mp.cos(x[0])]
curve.exact = lambda x: [mp.tanh(v / 2) for v in x]
factor.exact = lambda x: 1 + x[0] ** 2
function.exact = lambda x, z: mp.exp(-abs(x[0] - z[0]))


class PolynomialBasis(basis.Polynomial):
    """A basis whose exact twin the reference can call."""

    def exact(self, x):
        return [
            mp.fprod(v ** int(e) for v, e in zip(x, es, strict=True)) for es in basis.monomials(len(x), self.degree)
        ]


def examples(d: int) -> list[Kernel]:
    ard = np.linspace(0.7, 1.9, d)
    A = np.diag(ard) + 0.1
    rbf, linear = k.RBF(0.8), k.Linear()
    K = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.5]])
    leaves = [
        k.RBF(1.3), k.RBF(ard), k.Exponential(0.9), k.Exponential(ard), k.Matern(1.1), k.Matern(ard, nu=0.5),
        k.Matern(0.7, nu=1.5), k.Matern(1.2, nu=5.5), k.Matern(1.0, nu=0.3),
        *([k.Matern(ard, nu=1.0), k.Matern(1.0, nu=2.2)] if d > 1 else []),
        k.RationalQuadratic(1.2, alpha=0.8), k.RationalQuadratic(ard, alpha=3.0),
        k.Periodic(1.7, 1.2), k.Periodic(ard, ard[::-1]), k.RadialPeriodic(1.4, period=2.3),
        *([k.Seasonal(1.7, 1.2, 2.5)] if d == 1 else []), k.Constant(1.4), k.White(0.3), linear, k.Linear(A),
        k.Polynomial(2), k.Polynomial(3, offset=1.5), k.Sigmoid(0.3, -0.2),
        k.ArcSine(), k.ArcSine(0.5, ard), k.GaussianNetwork(1.2, 2.0),
        k.ThinPlate(), k.ThinPlate(power=1), k.ThinPlate(power=3), k.ThinPlate(power=4),
        k.Standard(1.3, 0.8, 0.5, 0.2), k.Standard(1.0, ard, 0.0, 0.0), k.Standard(2.0, ard, 1.0, 0.7),
        k.FeatureMap(features, alpha=2.0), k.FeatureMap(PolynomialBasis(2)), k.Custom(function), k.Precomputed(K),
        k.Coregionalization(3, 2, W=[[1.2, 0.1], [-0.4, 0.8], [0.3, 0.5]], kappa=[0.3, 0.0, 0.9]),
        k.Coregionalization(3, 0),
    ]  # fmt: skip
    timed = [
        k.Line(0.4), k.Line(-1.0, start=0.5, unit=2.0), k.Step(0.3, 0.8), k.Step(-0.2, 0.5, True, start=0.1, unit=1.5),
        k.Cosine(1.7), k.AR(0.6), k.AR([1.2, -0.6]), k.AR([0.5, 0.3]),
        k.ARMA([0.5, 0.2], [0.4, -0.3, 0.2], step=0.5, origin=0.25),
    ]  # fmt: skip
    places = [k.Matern(0.05).on_sphere(), k.Matern(1.2, nu=1.5).rotate(30.0, 0.4), k.RBF(90.0).on_sphere(radius=6371.0)]
    leaves += [] if d == 1 else [q.on([0, d - 1]) for q in places]  # of two inputs
    # Of one input; a column of several is one input again, so a few of them will do.
    leaves += timed if d == 1 else [q.on(0) for q in (k.Line(0.4), k.Cosine(1.7), k.AR(0.6))]
    composites = [
        1.7 * rbf, rbf + linear, rbf * linear, (rbf + 0.5 * linear) * k.Exponential(1.1) + k.White(0.1),
        (k.Constant(0.4) + rbf) ** 3, (0.3 * rbf).exp(), rbf.polynomial([0.3, 0.0, 1.2]), rbf.modulate(factor),
        rbf.warp(curve), k.Matern(1.2).on([d - 1, 0]), rbf.on(0) + linear.on(slice(0, 1)).named("slope"),
        linear.gaussian(1.5), (rbf + 2.0 * linear).gaussian(0.9), k.Polynomial(2, offset=1.0).normalize(),
        ((rbf * k.Periodic(2.0)).exp() + linear.warp(curve) ** 2).normalize(), 2.0 * k.ThinPlate() + rbf,
    ]  # fmt: skip
    return [q for q in leaves + composites if not (isinstance(q, substitution.On) and d == 1)] + (
        [k.Matern(1.2).on(0)] if d == 1 else []
    )


def at_steps(kernel) -> bool:
    """Whether its inputs are whole numbers of steps: an autoregression without a form in continuous time."""

    def continuous(q):
        last = float(np.ravel(q.phi)[-1])
        return not isinstance(q, k.ARMA) and (np.size(q.phi), last > 0) in ((1, True), (2, False))

    return any(isinstance(q, k.AR) and not continuous(q) for q in nodes_of(kernel))


def inputs(kernel, n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if any(isinstance(node, k.Precomputed | k.Coregionalization) for node in nodes_of(kernel)):
        return rng.integers(0, 3, size=(n, 1)).astype(float)
    if at_steps(kernel):
        step, origin = next((q.step, q.origin) for q in nodes_of(kernel) if isinstance(q, k.AR))
        return origin + step * rng.integers(-12, 13, size=(n, d)).astype(float)
    return rng.normal(size=(n, d))
