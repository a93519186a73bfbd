"""Every kernel written from its formula, one pair at a time, in 40 digits (mpmath). Slow and obvious."""

import mpmath as mp
import numpy as np

from mercer import kernels as k
from mercer.kernels import algebra, space, substitution

mp.mp.dps = 40


def exact(value):
    return mp.mpf(float(value))


def vector(value, d):
    return [exact(v) for v in np.broadcast_to(np.asarray(value, dtype=float), (d,))]


def dot(x, z):
    return mp.fsum(a * b for a, b in zip(x, z, strict=True))


def squared(x, z, lengthscale=1.0):
    scale = vector(lengthscale, len(x))
    return mp.fsum(((a - b) / s) ** 2 for a, b, s in zip(x, z, scale, strict=True))


def matern(q, x, z):
    r = mp.sqrt(squared(x, z, q.lengthscale))
    nu = exact(q.nu)
    if r == 0:
        return mp.mpf(1)
    s = mp.sqrt(2 * nu) * r
    return 2 ** (1 - nu) / mp.gamma(nu) * s**nu * mp.besselk(nu, s)


def periodic(q, x, z):
    p, scale = vector(q.period, len(x)), vector(q.lengthscale, len(x))
    terms = [mp.sin(mp.pi * (a - b) / pi) ** 2 / s**2 for a, b, pi, s in zip(x, z, p, scale, strict=True)]
    return mp.exp(-2 * mp.fsum(terms))


def seasonal(q, x, z):
    apart = abs(x[0] - z[0]) / exact(q.period)
    s = mp.sqrt(3) * apart / exact(q.decay)
    return mp.exp(-2 * (mp.sin(mp.pi * apart) / exact(q.lengthscale)) ** 2) * (1 + s) * mp.exp(-s)


def step(q, x):
    away = ((x - exact(q.start)) / exact(q.unit) - exact(q.location)) / exact(q.width)
    return 1 / (1 + mp.exp(away if q.falling else -away))


def arcsine(q, x, z):
    weight, bias = vector(q.weight, len(x)), exact(q.bias)

    def form(u, v):
        return bias + mp.fsum(w * a * b for w, a, b in zip(weight, u, v, strict=True))

    return 2 / mp.pi * mp.asin(2 * form(x, z) / mp.sqrt((1 + 2 * form(x, x)) * (1 + 2 * form(z, z))))


def gaussian_network(q, x, z):
    g2, s2 = exact(q.width) ** 2, exact(q.spread) ** 2
    e2 = 1 / (2 / g2 + 1 / s2)
    m2, q2 = 2 * s2 + g2, 2 * g2 + g2**2 / s2
    height = mp.sqrt(e2 / s2) ** len(x)
    return height * mp.exp(-dot(x, x) / (2 * m2) - squared(x, z) / (2 * q2) - dot(z, z) / (2 * m2))


def thin_plate(q, x, z):
    r = mp.sqrt(squared(x, z))
    if r == 0:
        return mp.mpf(0)
    if q.power % 2:
        return (-1) ** ((q.power + 1) // 2) * r**q.power
    return (-1) ** (q.power // 2 + 1) * r**q.power * mp.log(r)


def standard(q, x, z):
    eta = vector(q.theta1, len(x))
    r2 = mp.fsum(e * (a - b) ** 2 for e, a, b in zip(eta, x, z, strict=True))
    return exact(q.theta0) * mp.exp(-r2 / 2) + exact(q.theta2) + exact(q.theta3) * dot(x, z)


def linear(q, x, z):
    if q.A is None:
        return dot(x, z)
    d = len(x)
    return mp.fsum(x[i] * exact(q.A[i, j]) * z[j] for i in range(d) for j in range(d))


def user_function(function, x):
    return [exact(v) for v in np.ravel(function(np.array([[float(v) for v in x]])))]


def autoregression(q, x, z):
    """sum_j psi_j psi_(j+h) at whole lags, psi the impulse response, until it has decayed; else, of order one and two,
    by the roots of the characteristic polynomial: sum_i c_i r_i^t, the c_i from the values at lags 0 and 1."""
    phi = [exact(v) for v in np.ravel(q.phi)]
    theta = [mp.mpf(1), *(exact(v) for v in np.ravel(getattr(q, "theta", [])))]
    t = abs(x[0] - z[0]) / exact(q.step)
    h = int(mp.nint(t))
    psi = []
    for j in range(600):
        past = mp.fsum(phi[i] * psi[j - 1 - i] for i in range(min(j, len(phi))))
        psi.append(past + (theta[j] if j < len(theta) else 0))

    def g(lag):
        return mp.fsum(a * b for a, b in zip(psi, psi[lag:], strict=False)) / mp.fsum(a * a for a in psi)

    if t == h or len(phi) + len(theta) > 3:
        return g(h)
    if len(phi) == 1:
        return phi[0] ** t
    root = mp.sqrt(phi[0] ** 2 + 4 * phi[1])  # of z^2 - phi_1 z - phi_2, complex where it oscillates
    r, s = (phi[0] + root) / 2, (phi[0] - root) / 2
    if abs(r - s) < mp.mpf(10) ** -15:  # a double root
        return r**t * (1 + (g(1) / r - 1) * t)
    c = (g(1) - s) / (r - s)
    return mp.re(c * r**t + (1 - c) * s**t)


LEAVES = {
    k.Line: lambda q, x, z: mp.fprod((v[0] - exact(q.start)) / exact(q.unit) - exact(q.origin) for v in (x, z)),
    k.Step: lambda q, x, z: mp.fprod(step(q, v[0]) for v in (x, z)),
    k.RBF: lambda q, x, z: mp.exp(-squared(x, z, q.lengthscale) / 2),
    k.Exponential: lambda q, x, z: mp.exp(-mp.sqrt(squared(x, z, q.lengthscale))),
    k.Matern: matern,
    k.RationalQuadratic: lambda q, x, z: (1 + squared(x, z, q.lengthscale) / (2 * exact(q.alpha))) ** -exact(q.alpha),
    k.Periodic: periodic,
    k.RadialPeriodic: lambda q, x, z: mp.exp(
        -2 * (mp.sin(mp.pi * mp.sqrt(squared(x, z)) / exact(q.period)) / exact(q.lengthscale)) ** 2
    ),
    k.Seasonal: seasonal,
    k.Constant: lambda q, x, z: exact(q.variance),
    k.Cosine: lambda q, x, z: mp.cos(2 * mp.pi * (x[0] - z[0]) / exact(q.period)),
    k.AR: autoregression,
    k.ARMA: autoregression,
    k.Linear: linear,
    k.Polynomial: lambda q, x, z: (dot(x, z) + exact(q.offset)) ** q.degree,
    k.Sigmoid: lambda q, x, z: mp.tanh(exact(q.a) * dot(x, z) + exact(q.b)),
    k.ArcSine: arcsine,
    k.GaussianNetwork: gaussian_network,
    k.ThinPlate: thin_plate,
    k.Standard: standard,
}


def pair(kernel, x, z, same_row):
    """k(x, z) for one pair of inputs (lists of mpmath numbers)."""
    inner = getattr(kernel, "inner", None)
    kind = type(kernel)
    if kind in LEAVES:
        return LEAVES[kind](kernel, x, z)
    if kind is k.White:
        return exact(kernel.variance) if same_row else mp.mpf(0)
    if kind is k.FeatureMap:
        return dot(kernel.phi.call.exact(x), kernel.phi.call.exact(z)) / exact(kernel.alpha)
    if kind is k.Custom:
        return kernel.f.function.exact(x, z)
    if kind is k.Precomputed:
        return exact(kernel.K[int(x[0]), int(z[0])])
    if kind is k.Coregionalization:
        i, j = int(x[0]), int(z[0])
        shared = dot([exact(w) for w in kernel.W[i]], [exact(w) for w in kernel.W[j]])
        return shared + (exact(kernel.kappa[i]) if i == j else 0)
    if kind is algebra.Sum:
        return mp.fsum(pair(part, x, z, same_row) for part in kernel.parts)
    if kind is algebra.Product:
        return mp.fprod(pair(part, x, z, same_row) for part in kernel.parts)
    if kind is substitution.On:
        picked = np.arange(len(x))[kernel.selection if isinstance(kernel.selection, slice) else list(kernel.columns)]
        return pair(inner, [x[i] for i in picked], [z[i] for i in picked], same_row)
    if kind is space.OnSphere:
        return pair(inner, *(_on_sphere(kernel.radius, *p) for p in (x, z)), same_row)
    if kind is space.Rotated:
        return pair(inner, *(_rotated(exact(kernel.angle), exact(kernel.ratio), *p) for p in (x, z)), same_row)
    if kind is substitution.Warp:
        return pair(inner, kernel.phi.call.exact(x), kernel.phi.call.exact(z), same_row)
    value = pair(inner, x, z, same_row)
    if kind is algebra.Scale:
        return exact(kernel.variance) * value
    if kind is algebra.Power:
        return value**kernel.exponent
    if kind is algebra.PolynomialOf:
        return mp.fsum(exact(c) * value**i for i, c in enumerate(kernel.coefficients))
    if kind is algebra.Exp:
        return mp.exp(value)
    if kind is substitution.Modulate:
        return kernel.f.call.exact(x) * value * kernel.f.call.exact(z)
    xx, zz = pair(inner, x, x, True), pair(inner, z, z, True)
    if kind is substitution.GaussianOf:
        return mp.exp(-(xx + zz - 2 * value) / (2 * exact(kernel.sigma) ** 2))
    if kind is substitution.Normalize:
        return value / mp.sqrt(xx * zz)
    raise NotImplementedError(f"no reference formula for {kind.__name__}: write one in tests/reference/kernels.py")


def gram(kernel, X, Z=None):
    """The Gram matrix from `pair`, rounded to double at the end."""
    rows = [[exact(v) for v in row] for row in np.asarray(X, dtype=float)]
    columns = rows if Z is None else [[exact(v) for v in row] for row in np.asarray(Z, dtype=float)]
    return np.array(
        [[float(pair(kernel, x, z, Z is None and i == j)) for j, z in enumerate(columns)] for i, x in enumerate(rows)]
    )


def _on_sphere(radius, longitude, latitude):
    a, b = mp.radians(longitude), mp.radians(latitude)
    return [radius * v for v in (mp.cos(b) * mp.cos(a), mp.cos(b) * mp.sin(a), mp.sin(b))]


def _rotated(angle, ratio, first, second):
    c, s = mp.cos(mp.radians(angle)), mp.sin(mp.radians(angle))
    return [c * first + s * second, (c * second - s * first) / ratio]
