"""Several classes at once, in the softmax model of `joint`: Laplace's approximation, and a lower bound."""

import math

import numpy as np
from scipy.special import softmax

from mercer.inference.joint import Climb, Joint, Processes, SoftmaxApproximation, room_for
from mercer.inference.latent import Mixing

MOST_ROUNDS = 60
HALVINGS = 12
ENOUGH = 1e-10  # of the bound, gained in a round: what is left is of that order, and gradients are right to its root
ON_THE_WAY = 1e-7  # the same while parameters are learned
SMALLEST = 1e-10  # pi in the sites of a variational q: below it a variance is lost in the rounding of B^-1


def laplace(Ks, labels, start: SoftmaxApproximation | None = None, gradient: bool = True, classes: int | None = None):
    """A Gaussian at the mode of Psi(f) = ln p(labels | f) - f^T K^-1 f / 2 (PRML 6.80-6.90; RW06 3.44).

    The evidence is ln Z = Psi(f^) - 1/2 ln |I + K W(f^)|. ``Ks``: one covariance, or one a class; ``labels`` (n,) in
    0..C-1; C is ``classes``, where not every one has a row here. It begins at the mode of ``start``, whose matrices it
    takes over. None where a K is not positive semidefinite.

    Gradient. With s = d ln Z / df at the mode, which enters through W alone, d ln Z = 1/2 tr((a a^T - R) dK) + s^T df
    and df = (I + K W)^-1 dK a, so s^T df = u^T dK a with u = (I + W K)^-1 s = s - R K s. And
    -2 s_c = sum_de Sigma_de dW_de/df_c = pi_c (Sigma_cc - sum_d pi_d Sigma_dd - 2 (Sigma pi)_c + 2 pi^T Sigma pi), the
    C x C blocks of Sigma = (K^-1 + W)^-1 on each row; put in E_c and M, all but the diagonals of R_cc cancels:
    s_c = (pi_c sum_d q_d - q_c) / 2, q_c = 1 - diag(R_cc) / pi_c. 2 C n^3 flops.
    """
    processes = Processes(Ks, labels, classes)
    climb = Climb(processes, room_for(processes, start))
    found = climb.from_the_better(start)
    if not found:
        return None
    factor = Joint(processes, climb.pi, climb.room)
    if not factor.positive:
        return None
    value = climb.height - 0.5 * factor.log_det
    result = SoftmaxApproximation(
        value, climb.a, climb.f, climb.pi, processes, factor, climb.room, climb.steps, climb.converged
    )
    if gradient:
        q = factor.shares(blocks=True)
        s = 0.5 * (climb.pi * q.sum(axis=0) - q)
        result.u = s - factor.times(processes.times(s))
    return result


def variational(
    Ks, labels, start: SoftmaxApproximation | None = None, gradient: bool = True, classes: int | None = None
):
    """A lower bound on the evidence from a Gaussian q(f) = N(m, (K^-1 + W(pi))^-1), pi any point of the simplex a row.

    ln sum_c exp f_c = pi^T f + ln sum_c exp(f_c - pi^T f), and Jensen's inequality for the second term, give the tilted
    bound of Knowles and Minka (2011), here for classes that are correlated under q:
    E ln sum_c exp f_c <= ln sum_c exp(m_c + beta_c), beta_c = 1/2 var(f_c - pi^T f). With it
    ln Z >= sum_i (m_y - ln sum_c exp(m_c + beta_c)) - 1/2 (a^T m + ln |I + K W| - tr(W Sigma)).

    Where pi = p = softmax(m + beta) this is stationary in the tilt pi and in the covariance of q, among all of them
    and not only those of this form, so d ln Z = 1/2 tr((a a^T - R) dK). At any pi it is maximised over m, which is
    the problem of Laplace with an offset beta; then pi goes towards p, where the bound rises with slope
    1/2 tr((dW Sigma)^2) + sum_i (p - pi)^T Sigma (p - pi). The way is damped and, from round to round, accelerated; a
    step that does not raise the bound is halved. 2 C n^3 flops a round, five to ten rounds for variances up to tens.
    """
    processes = Processes(Ks, labels, classes)
    room = room_for(processes, start)
    here, flat = None, -processes.n * math.log(processes.classes)
    if start is not None and start.a.shape == processes.targets.shape:
        here = _highest(processes, _inside(start.pi), start.a, room)
    if here is None or here[0] < flat:  # no start, or one worse than to know nothing: the bound has several maxima
        # Where pi is even W is largest and variances small: from there beta does not blow up.
        even = np.full_like(processes.targets, 1 / processes.classes)
        here = _highest(processes, even, np.zeros_like(even), room)
    if here is None:
        return None
    share, converged, rounds = 1.0, False, 0
    enough = ON_THE_WAY if gradient else ENOUGH
    mixing, unit = Mixing(), np.ones_like(processes.targets)
    while not converged and rounds < MOST_ROUNDS:
        rounds += 1
        value, pi, climb = here
        way = _damped(_inside(climb.pi), pi, climb.offset)
        logs = np.log(pi)
        logs = mixing.next(logs, np.log(_inside(pi + way)) - logs, 1.0, unit)
        here = _highest(processes, _inside(softmax(logs, axis=0)), climb.a, room)
        least = value - 1e-12 * abs(value)  # no lower, but for rounding
        if here is None or here[0] < least:
            mixing = Mixing()
            for _ in range(HALVINGS):
                here = _highest(processes, _inside(pi + share * way), climb.a, room)
                if here is not None and here[0] >= least:
                    break
                share /= 2
            else:  # nothing more to gain
                here = _highest(processes, pi, climb.a, room)
                if here is None:
                    return None
        share = min(1.0, 4 * share)
        converged = here[2].converged and here[0] - value < enough * max(1.0, abs(value))
    value, pi, climb = here
    return SoftmaxApproximation(value, climb.a, climb.f, pi, processes, climb.factor, room, rounds, converged)


def _highest(processes, pi, a, room):
    """The bound at pi, maximised over m from K a; None where a factorisation fails."""
    factor = Joint(processes, pi, room)
    if not factor.positive:
        return None
    q = factor.shares()
    climb = Climb(processes, room, factor, 0.5 * (q / pi - 1)).stand(a)
    if not climb.up():
        return None
    value = climb.height - 0.5 * (factor.log_det - float(q.sum()) + processes.n)
    return (value, pi, climb) if value <= 0 else None  # no probability of labels is above one: lost in rounding


def _damped(p, pi, beta):
    """p - pi, shortened where p answers pi steeply: (I + W V)^-1 (p - pi), W at the middle, V = beta (2 + beta)."""
    middle = 0.5 * (p + pi)
    steep = middle * beta * (2 + beta)
    x, y = (p - pi) / (1 + steep), middle / (1 + steep)
    return x + y * (steep * x).sum(axis=0) / (1 - (steep * y).sum(axis=0))


def _inside(pi):
    pi = np.maximum(pi, SMALLEST)
    return pi / pi.sum(axis=0)
