"""Regression by a joint Gaussian mixture over inputs and targets (PRML 6.3.1; Ghahramani and Jordan, 1994)."""

import math
import warnings

import numpy as np

from mercer.core import machine
from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import count_rows, middle_spread
from mercer.core.random import generator
from mercer.core.text import number, rounded, table
from mercer.inference.mixtures import Mixtures
from mercer.learning import heuristics
from mercer.linalg import backend
from mercer.models.conditional import DensityRegressor
from mercer.models.estimator import all_or_nothing, is_integer, is_number

COVARIANCES = ("full", "tied", "diag", "spherical")
PATIENCE = 3  # numbers of components tried without a better BIC before the search ends
MIN_VARIANCE_RATIO = 1e-10  # to the largest variance, below which inputs do not vary in a direction


class GaussianMixtureRegressor(DensityRegressor):
    """Regression p(t | x) from a Gaussian mixture over (x, t): a mixture of linear regressions (PRML 6.3.1).

    With p(x, t) = sum_c pi_c N(x, t | mu_c, S_c), component c has weight pi_c N(x | mu_cx, S_cxx), mean
    mu_ct + S_ctx S_cxx^-1 (x - mu_cx) and covariance S_ctt - S_ctx S_cxx^-1 S_cxt (PRML 2.81, 2.82). One component
    is linear regression. Prediction takes O(C d^2) per row, independent of the number of training rows.

    Parameters
    ----------
    n_components : a number, or "bic" to minimise the Bayesian information criterion (PRML 4.139).
    max_components : largest number that "bic" tries; it stops after three in a row without improvement.
    covariance : "full", "tied" (one for all components), "diag" or "spherical". With the last two, targets do not
        depend on inputs within a component.
    regularization : added to variances, as a fraction of the variance of each input and target.
    n_init : number of initialisations for each number of components.
    random_state : seed of the initialisations. None means 0, so that equal data give equal models.
    max_iterations : of expectation maximisation, for each initialisation.

    Inputs and targets are standardised internally, and directions in which inputs do not vary are dropped.

    Fitted: ``n_components_``; ``bic_``, the criterion for each number tried, on standardised data; ``weights_`` (C,),
    ``means_`` (C, d + q) and ``covariances_`` (C, d + q, d + q), in units of the data, inputs first.

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> model = GaussianMixtureRegressor().fit(X, np.abs(X[:, 0]))
    >>> model.n_components_ > 1, bool(abs(model.predict([[-0.5]])[0] - 0.5) < 0.03)
    (True, True)
    """

    def __init__(
        self, n_components="bic", max_components=12, covariance="full", random_state=None, *, regularization=1e-4,
        n_init=1, max_iterations=500,
    ):  # fmt: skip
        self.n_components = n_components
        self.max_components = max_components
        self.covariance = covariance
        self.random_state = random_state
        self.regularization = regularization
        self.n_init = n_init
        self.max_iterations = max_iterations

    @all_or_nothing
    def fit(self, X, y):
        """Fit mixtures by expectation maximisation (PRML 9.2.2) and keep the best."""
        self._check_settings()
        X = self._check_vectors(self._check_inputs(X, reset=True))
        Y = self._check_target(y, len(X), several=True)
        self.single_, Y = Y.ndim == 1, Y.reshape(len(X), -1)
        shift, scale, basis = self._coordinates(X, Y)
        d = X.shape[1]
        Z = np.hstack([(X - shift[:d]) / scale[:d] @ basis, (Y - shift[d:]) / scale[d:]])
        self.bic_: dict[int, float] = {}
        weights, means, covariances = self._search(Z)
        # Back to the units of the data.
        T = _block_diagonal(basis, np.eye(Y.shape[1])) * scale[:, None]
        self.n_components_ = len(weights)
        self.weights_, self.means_ = weights, shift + means @ T.T
        self.covariances_ = T @ covariances @ T.T
        self.inside_ = {"shift": shift, "scale": scale, "basis": basis, "means": means, "covariances": covariances}
        return self

    def _coordinates(self, X, Y):
        """Centre and scale of inputs and targets (d + q,), and directions in which scaled inputs vary (d, r)."""
        shift, scale = heuristics.centre_and_spread(np.hstack([X, Y]))
        scale = middle_spread(np.hstack([X, Y]), scale)
        # A constant target gets a nominal standard deviation, which regularisation alone determines.
        nominal = (1.0 if len(Y) == 1 else 1e-6) / math.sqrt(self.regularization)
        constant = np.concatenate([np.zeros(X.shape[1], bool), np.ptp(Y, axis=0) == 0])
        scale = np.where(constant, nominal * np.where(shift == 0, 1.0, np.abs(shift)), scale)
        U = (X - shift[: X.shape[1]]) / scale[: X.shape[1]]
        values, vectors = np.linalg.eigh(U.T @ U / len(U))
        return shift, scale, vectors[:, values > MIN_VARIANCE_RATIO * max(float(values[-1]), MIN_VARIANCE_RATIO)]

    # -- number of components ------------------------------------------------------------------------------------------

    def _search(self, Z):
        distinct = len(np.unique(Z, axis=0))
        if self.n_components == "bic":
            numbers = range(1, min(self.max_components, distinct) + 1)
        elif self.n_components > distinct:
            raise DataError(
                f"n_components={self.n_components} needs as many distinct rows; there are {distinct}. Use fewer "
                "components, or n_components='bic'."
            )
        else:
            numbers = range(self.n_components, self.n_components + 1)
        if len(Z) == 1:
            self.bic_[1] = math.inf
            return np.ones(1), Z.copy(), self.regularization * np.eye(Z.shape[1])[None]
        seed, best, best_number = int(generator(self.random_state).integers(2**31)), None, 0
        for C in numbers:
            found = self._mixture(Z, C, seed)
            if found is None:
                continue
            self.bic_[C] = float(found.bic(Z))
            if best is None or self.bic_[C] < self.bic_[best_number]:
                best, best_number = found, C
            elif C - best_number >= PATIENCE:
                break
        if best is None:
            raise DataError(
                f"no mixture of {self.n_components} Gaussians could be fitted to these {len(Z)} rows. Try fewer "
                "components, or more regularization."
            )
        if not best.converged_:
            warnings.warn(
                f"the mixture of {best_number} Gaussians still improves after {self.max_iterations} iterations; "
                "increase max_iterations.",
                NumericalWarning,
                stacklevel=4,
            )
        return best.weights_, best.means_, _full(best, Z.shape[1])

    def _mixture(self, Z, C, seed):
        from sklearn.mixture import GaussianMixture

        model = GaussianMixture(
            C, covariance_type=self.covariance, reg_covar=self.regularization, n_init=self.n_init, random_state=seed,
            max_iter=self.max_iterations,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence is checked for the mixture that is kept
            try:
                return model.fit(Z)
            except ValueError:  # a covariance that is not positive definite
                return None

    def _check_settings(self):
        self._check_choice("covariance", COVARIANCES)
        for name in ("max_components", "n_init", "max_iterations"):
            self._check_integer(name, 1)
        count = self.n_components
        if not (isinstance(count, str) and count == "bic") and not (is_integer(count) and count >= 1):
            raise ParameterError(f"n_components must be an integer of at least 1, or 'bic'; got {count!r}.")
        fraction = self.regularization
        if not (is_number(fraction) and 0 < fraction < 1):
            raise ParameterError(f"regularization is a fraction of a variance, between 0 and 1; got {fraction!r}.")

    # -- prediction --------------------------------------------------------------------------------------------------

    def _targets(self):
        return self.means_.shape[1] - self.n_features_in_, self.single_

    def _mixtures(self, X):
        X, d = self._check_vectors(X), self.n_features_in_
        shift, scale, basis = (self.inside_[name] for name in ("shift", "scale", "basis"))
        r, q, C = basis.shape[1], self._targets()[0], self.n_components_
        # The Cholesky factor of a component, inputs first, holds its regression and the target's residual covariance.
        roots = np.linalg.cholesky(self.inside_["covariances"])
        residual = roots[:, r:, r:]
        variances = residual @ residual.transpose(0, 2, 1) * np.outer(scale[d:], scale[d:])
        s, size = count_rows(X), machine.rows_within(machine.ARRAY_BYTES, C * max(r + q, 1))
        for i in range(0, s, size):
            U = (X[i : i + size] - shift[:d]) / scale[:d] @ basis
            logs, means = np.empty((len(U), C)), np.empty((len(U), C, q))
            for c, (root, center) in enumerate(zip(roots, self.inside_["means"], strict=True)):
                z = backend.half_solve(np.asfortranarray(root[:r, :r]), (U - center[:r]).T)
                logs[:, c] = math.log(max(self.weights_[c], 1e-300)) - 0.5 * np.einsum("ij,ij->j", z, z)
                logs[:, c] -= np.log(np.diag(root)[:r]).sum()
                means[:, c] = (center[r:] + (root[r:, :r] @ z).T) * scale[d:] + shift[d:]
            logs -= logs.max(axis=1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
            yield Mixtures(np.exp(logs), means, variances, logs)

    def _summary(self):
        lines = [f"{type(self).__name__}, {self.n_components_} components ({self.covariance})", ""]
        if len(self.bic_) > 1:
            rows = [[f"{C}{' *' if self.n_components_ == C else ''}", f"{bic:.1f}"] for C, bic in self.bic_.items()]
            lines += [table(["components", "BIC"], rows), ""]
        d = self.n_features_in_
        shown = [[number(rounded(w)), number(rounded(m[d:]))] for w, m in zip(self.weights_, self.means_, strict=True)]
        return "\n".join([*lines, table(["weight", "mean of the target"], shown)])


def _full(model, size) -> np.ndarray:
    """Full covariance matrix of every component: (C, size, size)."""
    V, C = model.covariances_, len(model.weights_)
    if model.covariance_type == "full":
        return V
    if model.covariance_type == "tied":
        return np.broadcast_to(V, (C, size, size)).copy()
    return np.reshape(V, (C, -1, 1)) * np.eye(size)


def _block_diagonal(A, B):
    out = np.zeros((A.shape[0] + B.shape[0], A.shape[1] + B.shape[1]))
    out[: A.shape[0], : A.shape[1]], out[A.shape[0] :, A.shape[1] :] = A, B
    return out
