"""Laplace's approximation for more than two classes."""

from mercer.inference.softmax.factor import Joint, Processes
from mercer.inference.softmax.newton import Climb
from mercer.inference.softmax.posterior import SoftmaxApproximation, room_for


def softmax_laplace(
    Ks, labels, start: SoftmaxApproximation | None = None, gradient: bool = True, classes: int | None = None
):
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
