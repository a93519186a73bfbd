"""Laplace's approximation for more than two classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer.inference.latent import LatentCovariance
from mercer.inference.softmax.factor import SoftmaxModel
from mercer.inference.softmax.newton import NewtonAscent
from mercer.inference.softmax.posterior import SoftmaxApproximation


def softmax_laplace(
    Ks: Sequence[LatentCovariance], labels: np.ndarray, start: Any = None, gradient: bool = True,
    classes: int | None = None,
) -> SoftmaxApproximation | None:  # fmt: skip
    """A Gaussian at the mode of Psi(f) = ln p(labels | f) - f^T K^-1 f / 2 (PRML 6.80-6.90; RW06 3.44).

    The evidence is ln Z = Psi(f^) - 1/2 ln |I + K W(f^)|. ``Ks``: one covariance, or one per class; ``labels`` (n,) in
    0..C-1; ``classes`` is C, if not every class has a row here. The iteration starts at the mode of ``start``, whose
    matrices are reused. None if a K is not positive semidefinite.

    Gradient. With s = d ln Z / df at the mode, which enters through W alone, d ln Z = 1/2 tr((a a^T - R) dK) + s^T df
    and df = (I + K W)^-1 dK a, so s^T df = u^T dK a with u = (I + W K)^-1 s = s - R K s. And
    -2 s_c = sum_de Sigma_de dW_de/df_c = pi_c (Sigma_cc - sum_d pi_d Sigma_dd - 2 (Sigma pi)_c + 2 pi^T Sigma pi), with
    the C x C blocks of Sigma = (K^-1 + W)^-1 on each row. In terms of E_c and M, all but the diagonals of R_cc cancels:
    s_c = (pi_c sum_d q_d - q_c) / 2, q_c = 1 - diag(R_cc) / pi_c. 2 C n^3 flops.
    """
    model = SoftmaxModel(Ks, labels, classes)
    workspace = model.workspace(start)
    mode = NewtonAscent(model, workspace)
    if not mode.maximise_from(None if start is None else start.a):
        return None
    factor = model.factor(mode.pi, workspace)
    if not factor.positive:
        return None
    result = SoftmaxApproximation(
        mode.psi - 0.5 * factor.log_det, mode.a, mode.f, mode.pi, model, factor, workspace, mode.steps, mode.converged
    )
    if gradient:
        q = factor.scaled_variances(keep_blocks=True)
        s = 0.5 * (mode.pi * q.sum(axis=0) - q)
        result.u = s - factor.times(model.times(s))
    return result
