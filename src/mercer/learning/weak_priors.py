"""Weak priors on the scale of the data, for parameters that were given none.

Under "map", "laplace" and "nuts" every free parameter has a prior. Those of the user are kept. Others are log-normal,
or normal for parameters that may be negative:

- amplitudes around the variance of the target, with a standard deviation of the logarithm of 2 (95% within a factor of
  seven of its standard deviation, either way);
- noise around a tenth of that variance, as wide;
- lengthscales around sqrt(d) times the spread of the d inputs, a typical distance of two rows, with a standard
  deviation of the logarithm of 1;
- periods, and all others, around their starting values.
"""

import math

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs
from mercer.core.parameters import Polynomial, Slot, evolve, evolve_at, node_at, slots_of
from mercer.gp.model import Model
from mercer.gp.noise import VaryingNoise
from mercer.kernels import FeatureMap, Kernel, White
from mercer.kernels.algebra import Sum
from mercer.kernels.stationary import Isotropic, Standard
from mercer.learning import heuristics
from mercer.priors import Each, LogNormal, Normal, Prior

# Standard deviations of logarithms.
LENGTH_DEVIATION, AMPLITUDE_DEVIATION, NOISE_DEVIATION, PERIOD_DEVIATION, OTHER_DEVIATION = 1.0, 2.0, 2.0, 0.5, 1.0
REAL_DEVIATIONS = 2.0  # of a parameter that may be negative: times its size, or one
NOISE_SHARE = 0.1  # of the target's variance, at the centre of the noise's prior
LOG_NOISE_VARIANCE = 1.0  # of noise that varies, at the centre of the prior of its amplitude
AMPLITUDES = ("variance", "theta0", "theta2", "theta3")


def with_weak_priors(model: Model, X: Inputs, variance: float, centred: bool = False, at_mode: bool = False) -> Model:
    """The model with a prior on every free parameter: its own, or a weak one.

    ``variance`` is that of the target; ``centred``: whether its mean is unknown. A weak log-normal prior has its median
    at the scale of the data, and as a density of theta, the logarithm, its mode as well. ``at_mode``: its mode on the
    natural scale is there instead, which gives the same penalty to theta where no Jacobian is counted ("map").
    """
    scaled = tuple(_on_scale(kernel, X, variance, centred) for kernel in model.kernels)
    centres = evolve_at(model, (), kernels=scaled)
    if isinstance(model.noise, VaryingNoise):
        own = _on_scale(model.noise.kernel, X, LOG_NOISE_VARIANCE, False)
        centres = evolve_at(centres, (), noise=evolve(model.noise, kernel=own))
    for slot in slots_of(model):
        if not slot.free or slot.prior is not None:
            continue
        node = node_at(model, slot.path)
        centre = np.asarray(getattr(node_at(centres, slot.path), slot.field), dtype=float)
        part = slot.path[0][0]
        if _is_noise(slot, part):
            centre = np.full(np.shape(slot.value), NOISE_SHARE * variance)
        unit = math.sqrt(variance) * float(model.mean.unit) if part == "mean" else 1.0
        prior = _weak(slot, part, centre, unit, at_mode)
        given = {**dict(node.priors), slot.field: prior}
        model = evolve_at(model, slot.path, priors=tuple(sorted(given.items(), key=lambda pair: pair[0])))
    return model


def _on_scale(kernel: Kernel, X: Inputs, variance: float, centred: bool) -> Kernel:
    """The kernel with all lengthscales, and the amplitude of every term, on the scale of the data: a stationary term
    has this variance, another one, if ``centred``, around its mean over the rows."""
    if isinstance(kernel, Sum):
        return evolve(kernel, parts=tuple(_on_scale(part, X, variance, centred) for part in kernel.parts))
    kernel = heuristics.with_lengthscales(kernel, gram.raw(X), 1.0, always=True)
    return heuristics.scaled_to_variance(kernel, X, variance, centred and not kernel.stationary)


def _weak(slot: Slot, part: str, centre: np.ndarray, unit: float, at_mode: bool) -> Prior:
    """A weak prior for each entry that moves, or one for all if they are equal. ``unit``: of parameters that may be
    negative."""
    moving = np.atleast_1d(centre)[np.atleast_1d(slot.moving)]
    if isinstance(slot.constraint, Polynomial):  # its coordinates: partial autocorrelations nearly uniform
        return Normal(0.0, 1.0)
    if not slot.constraint.logarithmic:
        found: list[Prior] = [Normal(float(c), REAL_DEVIATIONS * max(unit, abs(float(c)))) for c in moving]
    else:
        deviation = _deviation(slot, part)
        shift = deviation**2 if at_mode else 0.0
        found = [LogNormal(math.log(c) + shift, deviation) for c in moving]
    return found[0] if len(set(found)) == 1 else Each(tuple(found))


def _deviation(slot: Slot, part: str) -> float:
    """Standard deviation of the logarithm of a parameter."""
    if _is_noise(slot, part):
        return NOISE_DEVIATION
    if isinstance(slot.node, Standard) and slot.field == "theta1":  # one over the square of a lengthscale
        return 2 * LENGTH_DEVIATION
    if isinstance(slot.node, Isotropic) and slot.field == "lengthscale":
        return LENGTH_DEVIATION
    if slot.field in AMPLITUDES or (isinstance(slot.node, FeatureMap) and slot.field == "alpha"):
        return AMPLITUDE_DEVIATION
    return PERIOD_DEVIATION if slot.field == "period" else OTHER_DEVIATION


def _is_noise(slot: Slot, part: str) -> bool:
    return (part == "noise" and slot.field == "noise") or isinstance(slot.node, White | VaryingNoise)
