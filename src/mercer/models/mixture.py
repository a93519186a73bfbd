"""Regression by a mixture of Gaussians over inputs and targets together (PRML 6.3.1; Ghahramani and Jordan, 1994)."""

import math
import warnings

import numpy as np

from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import count_rows
from mercer.core.random import generator
from mercer.core.text import number, rounded, table
from mercer.inference.mixtures import Mixtures
from mercer.learning import heuristics
from mercer.linalg import backend
from mercer.models.conditional import DensityRegressor
from mercer.models.estimator import wholly

COVARIANCES = ("full", "tied", "diag", "spherical")
PATIENCE = 3  # numbers of components without a better BIC before the search ends
SAME = 1e-10  # of the largest variance: inputs have none in such a direction
PIECE = 1 << 21  # of entries, rows times components


class GaussianMixtureRegressor(DensityRegressor):
    """p(t | x) from a mixture of Gaussians over (x, t): a mixture again, of linear regressions (PRML 6.3.1).

    With p(x, t) = sum_c pi_c N(x, t | mu_c, S_c), component c weighs pi_c N(x | mu_cx, S_cxx), its mean is
    mu_ct + S_ctx S_cxx^-1 (x - mu_cx) and its covariance S_ctt - S_ctx S_cxx^-1 S_cxt (PRML 2.81, 2.82). One component
    is linear regression. Fast to evaluate: O(C d^2) for each row, however many there were to learn from.

    Parameters
    ----------
    n_components : a number, or "bic" for the one with the lowest Bayesian information criterion (PRML 4.139).
    max_components : up to which "bic" looks; it ends sooner where the criterion has risen three times.
    covariance : "full", "tied" (one for all components), "diag" or "spherical". With the last two targets do not depend
        on inputs within a component.
    regularization : added to variances, as a share of the variance of each input and target.
    n_init : how often the fit begins anew, for each number of components.
    random_state : seed of where it begins. None is 0: the same data, the same model.
    max_iterations : of expectation maximisation, for each start.

    Inputs and targets are brought to unit spread inside, and directions in which inputs do not vary are left out.

    Fitted: ``n_components_``; ``bic_``, the criterion for each number tried, on data of unit spread; ``weights_`` (C,),
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

    @wholly
    def fit(self, X, y):
        """Fit mixtures by expectation maximisation (PRML 9.2.2) and keep the best one."""
        self._check_settings()
        X = self._check_vectors(self._check_inputs(X, reset=True))
        Y = self._check_target(y, len(X), several=True)
        self.single_, Y = Y.ndim == 1, Y.reshape(len(X), -1)
        shift, scale, basis = self._coordinates(X, Y)
        Z = self._inside(X, Y, shift, scale, basis)
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
        """Centre and spread of inputs and targets (d + q,), and directions in which scaled inputs vary (d, r)."""
        shift, scale = heuristics.centre_and_spread(np.hstack([X, Y]))
        scale = heuristics.middle_spread(np.hstack([X, Y]), scale)
        # A target that does not vary has a formal deviation, after what is added to its variance.
        formal = (1.0 if len(Y) == 1 else 1e-6) / math.sqrt(self.regularization)
        constant = np.concatenate([np.zeros(X.shape[1], bool), np.ptp(Y, axis=0) == 0])
        scale = np.where(constant, formal * np.where(shift == 0, 1.0, np.abs(shift)), scale)
        U = (X - shift[: X.shape[1]]) / scale[: X.shape[1]]
        values, vectors = np.linalg.eigh(U.T @ U / len(U))
        return shift, scale, vectors[:, values > SAME * max(float(values[-1]), SAME)]

    @staticmethod
    def _inside(X, Y, shift, scale, basis):
        d = X.shape[1]
        return np.hstack([(X - shift[:d]) / scale[:d] @ basis, (Y - shift[d:]) / scale[d:]])

    # -- how many components -------------------------------------------------------------------------------------------

    def _search(self, Z):
        distinct = len(np.unique(Z, axis=0))
        if self.n_components == "bic":
            numbers = range(1, min(self.max_components, distinct) + 1)
        elif self.n_components > distinct:
            raise DataError(
                f"n_components={self.n_components} needs as many different rows; there are {distinct}. Take fewer, or "
                "n_components='bic'."
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
                "max_iterations takes it further.",
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
            warnings.simplefilter("ignore")  # of convergence, which is looked at for the one that is kept
            try:
                return model.fit(Z)
            except ValueError:  # a covariance that is not positive definite
                return None

    def _check_settings(self):
        if self.covariance not in COVARIANCES:
            raise ParameterError(
                f"covariance must be one of {', '.join(map(repr, COVARIANCES))}; got {self.covariance!r}."
            )
        for name in ("n_components", "max_components", "n_init", "max_iterations"):
            value = getattr(self, name)
            if name == "n_components" and isinstance(value, str) and value == "bic":
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                also = ", or 'bic'" if name == "n_components" else ""
                raise ParameterError(f"{name} must be an integer of at least 1{also}; got {value!r}.")
        given = self.regularization
        if not isinstance(given, int | float | np.number) or isinstance(given, bool) or not 0 < given < 1:
            raise ParameterError(f"regularization is a share of a variance, between 0 and 1; got {given!r}.")

    # -- prediction --------------------------------------------------------------------------------------------------

    def _targets(self):
        return self.means_.shape[1] - self.n_features_in_, self.single_

    def _mixtures(self, X):
        X, d = self._check_vectors(X), self.n_features_in_
        shift, scale, basis = (self.inside_[name] for name in ("shift", "scale", "basis"))
        r, q, C = basis.shape[1], self._targets()[0], self.n_components_
        # The Cholesky factor of a component, inputs first, holds its regression and what that leaves of the target.
        roots = np.linalg.cholesky(self.inside_["covariances"])
        left = roots[:, r:, r:]
        variances = left @ left.transpose(0, 2, 1) * np.outer(scale[d:], scale[d:])
        s, size = count_rows(X), max(1, PIECE // (C * max(r + q, 1)))
        for i in range(0, s, size):
            U = (X[i : i + size] - shift[:d]) / scale[:d] @ basis
            logs, means = np.empty((len(U), C)), np.empty((len(U), C, q))
            for c, (root, center) in enumerate(zip(roots, self.inside_["means"], strict=True)):
                away = (U - center[:r]).T
                z = backend.half_solve(np.asfortranarray(root[:r, :r]), away)
                logs[:, c] = math.log(max(self.weights_[c], 1e-300)) - 0.5 * np.einsum("ij,ij->j", z, z)
                logs[:, c] -= np.log(np.diag(root)[:r]).sum()
                means[:, c] = (center[r:] + (root[r:, :r] @ z).T) * scale[d:] + shift[d:]
            logs -= logs.max(axis=1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
            yield Mixtures(np.exp(logs), means, variances, logs)

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        lines = [f"{type(self).__name__}, {self.n_components_} components ({self.covariance})", ""]
        if len(self.bic_) > 1:
            rows = [[f"{C}{' *' if self.n_components_ == C else ''}", f"{bic:.1f}"] for C, bic in self.bic_.items()]
            lines += [table(["components", "BIC"], rows), ""]
        d = self.n_features_in_
        shown = [[number(rounded(w)), number(rounded(m[d:]))] for w, m in zip(self.weights_, self.means_, strict=True)]
        return "\n".join([*lines, table(["weight", "mean of the target"], shown)])


def _full(model, size) -> np.ndarray:
    """Covariances of every component as matrices: (C, size, size)."""
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
