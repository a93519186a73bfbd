"""The scikit-learn contract: parameters, tags, and validation of inputs, targets and settings."""

import functools
import inspect
import warnings
from typing import Any

import jax
import numpy as np

import mercer.linalg.backend  # noqa: F401  # before scikit-learn loads SciPy

# isort: split
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.exceptions import DataConversionWarning
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import validate_data

from mercer import gram
from mercer.core import calendar, machine
from mercer.core.errors import DataError, MercerError, ParameterError
from mercer.core.inputs import (
    Kind,
    align_columns,
    as_frame,
    as_matrix,
    as_objects,
    as_rows,
    as_vector,
    class_codes,
    container_types,
    count_rows,
    holds_numbers,
)
from mercer.core.registry import storable
from mercer.datasets.chunks import passes_in_chunks
from mercer.kernels.base import Kernel, common_kind
from mercer.learning.columns import refuse_columns


class NotFittedError(MercerError, SklearnNotFittedError):
    """The estimator has not been fitted yet."""


register = storable("models")  # class decorator: lets `mercer.save` store the estimator


class Estimator(BaseEstimator):
    """A scikit-learn estimator. ``set_params`` also reaches kernel parameters, as in ``kernel__lengthscale=2.0``."""

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name; with ``deep`` also nested ones, such as ``kernel__lengthscale``."""
        params = super().get_params(deep)
        for name, value in list(params.items()):
            if deep and isinstance(value, Kernel):
                params |= {f"{name}__{inner}": setting for inner, setting in value.parameters.items()}
        return params

    def set_params(self, **params):
        """Set constructor arguments, also nested ones: ``set_params(kernel__lengthscale=2.0)``. Returns self."""
        inside: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, separator, inner = key.partition("__")
            if name not in self._parameter_names():
                raise ParameterError(
                    f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: "
                    f"{self._parameter_names()!r}."
                )
            if separator:
                inside.setdefault(name, {})[inner] = value
            else:
                setattr(self, name, value)
        for name, changes in inside.items():
            part = getattr(self, name)
            if isinstance(part, Kernel):
                setattr(self, name, part.replace(**changes))
            elif hasattr(part, "set_params"):
                part.set_params(**changes)
            else:
                raise ParameterError(f"{name} is {part!r}, which has no parameters of its own.")
        return self

    def __repr__(self):
        defaults = inspect.signature(type(self).__init__).parameters
        shown = []
        for name in self._parameter_names():
            value, default = getattr(self, name), defaults[name].default
            if value is default or (np.ndim(value) == 0 and type(value) is type(default) and value == default):
                continue
            shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __str__(self):
        return self._summary() if self.__sklearn_is_fitted__() else repr(self)

    def _summary(self) -> str:
        """Text of a fitted model when it is printed."""
        return repr(self)

    # -- fitted ----------------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return any(name.endswith("_") and not name.startswith("__") for name in vars(self))

    def _training_rows(self) -> gram.Gram:
        """Gram operator of ``kernel_`` on ``X_fit_``, prepared once."""
        return gram.kept(self, self.kernel_, self.X_fit_)

    def _check_fitted(self):
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit first.")

    # -- validation ---------------------------------------------------------------------------------------------------

    def _check_choice(self, name: str, allowed):
        value = getattr(self, name)
        if value not in allowed:
            raise ParameterError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")

    def _check_integer(self, name: str, minimum: int):
        value = getattr(self, name)
        if not is_integer(value) or value < minimum:
            raise ParameterError(f"{name} must be an integer of at least {minimum}; got {value!r}.")

    def _refuse_chunks(self, X):
        """Refuse what is no rows in memory, such as the path of a file."""
        if passes_in_chunks(X):
            streams = ", or each chunk to partial_fit" if hasattr(self, "partial_fit") else ""
            raise ParameterError(
                f"{type(self).__name__} needs rows in memory here; got {type(X).__name__}. Pass the rows themselves, a "
                f"random part of them (mercer.datasets.Chunks(...).sample(10_000)){streams}."
            )

    def _check_inputs(self, X, reset: bool):
        """Validate X. Frames stay frames, vectors become a float64 matrix, objects an array of objects."""
        self._refuse_chunks(X)
        name, kind = type(self).__name__, self._reads(reset)
        frame = as_frame(X)
        if frame is not None or hasattr(self, "feature_names_in_"):
            if frame is not None and not reset:
                X = self._in_order_of_fit(X, frame)
            try:
                validate_data(self, X, reset=reset, skip_check_array=True)
            except (TypeError, ValueError) as error:
                named = frame is not None and hasattr(self, "feature_names_in_")
                remedy = "Select the fitted columns, X[list(model.feature_names_in_)], in any order." if named else ""
                raise DataError(f"{error}{remedy}") from None
        if frame is not None:
            if not len(frame):
                raise DataError(f"X has no rows; {name} needs at least one.")
            return X
        if kind == "objects":
            X = as_rows(X, kind)
        elif not isinstance(X, jax.Array) and not hasattr(X, "toarray") and np.ndim(_as_array(X)) == 0:
            raise DataError(f"Expected 2D array, got scalar array instead: {X!r}. Reshape your data: a row is [[...]].")
        if kind in ("vectors", "counts") or (kind != "objects" and not _holds_objects(X)):
            X = as_rows(X, kind) if kind == "counts" and hasattr(X, "toarray") else self._check_numbers(X, name)
            if reset:
                self.n_features_in_ = X.shape[1]
            elif not hasattr(self, "n_features_in_"):
                raise DataError(f"X holds numbers; {name} was fitted to rows of another kind.")
            elif X.shape[1] != self.n_features_in_:
                raise DataError(
                    f"X has {X.shape[1]} features, but {name} is expecting {self.n_features_in_} features as input."
                )
        else:
            X = as_rows(X, kind)
            if reset and hasattr(self, "n_features_in_"):
                del self.n_features_in_
        if not count_rows(X):
            raise DataError(f"Found array with 0 sample(s) while a minimum of 1 is required by {name}.")
        return X

    def _reads(self, reset: bool) -> Kind:
        """Kind of rows read by the fitted kernels, or if ``reset`` by those given."""
        names = [name for name in (("kernel",) if reset else ("kernel_", "kernels_")) if hasattr(self, name)]
        if not names:
            return "anything"  # not every estimator has a kernel
        given = getattr(self, names[0])
        kernels = given if isinstance(given, list | tuple) else [given]
        return common_kind(kernel for kernel in kernels if isinstance(kernel, Kernel))

    def _in_order_of_fit(self, X, frame):
        """Columns in the order of the fit. A frame with other columns is returned unchanged."""
        names = list(getattr(self, "feature_names_in_", frame.columns))
        if frame.columns == names or set(frame.columns) != set(names):
            return X
        return frame[:, [frame.columns.index(name) for name in names]].to_native()

    @staticmethod
    def _check_numbers(X, name):
        if container_types(X) is not None:
            return as_matrix(X)  # which refuses them by name
        shape = np.shape(_as_array(X))
        if len(shape) == 1 and _holds_dates(X):
            return as_matrix(X)
        if len(shape) == 1 and _holds_text(X):
            raise DataError(
                "X holds text, and numbers were expected. Give a kernel that reads text: BagOfWords() its words, "
                "Spectrum(3) or Subsequence(3) its characters, Categorical() whole values, as in "
                "kernel=BagOfWords().normalize()."
            )
        if len(shape) == 1:
            raise DataError(
                f"Expected 2D array, got 1D array instead, of length {shape[0]}. Reshape your data either using "
                "X.reshape(-1, 1) if it is one input column, or X.reshape(1, -1) if it is one row."
            )
        if len(shape) == 2 and shape[1] == 0:
            raise DataError(
                f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is required by {name}."
            )
        return as_matrix(X)

    def _check_vectors(self, X) -> np.ndarray:
        """X as a matrix of numbers, for default kernels and for estimators defined on vectors only."""
        if not holds_numbers(X):
            if hasattr(self, "kernel"):
                refuse_columns(X)
            as_matrix(X)  # its error names the columns that are not numeric
            raise DataError("the default kernel needs numeric vectors; pass a kernel for this kind of input.")
        return as_matrix(X)

    def _check_target(self, y, n: int, several: bool = False, gaps: bool = False) -> np.ndarray:
        """One number per row: (n,). If ``several`` targets are allowed, a matrix stays one: (n, q). With ``gaps``
        NaN is allowed."""
        if y is None:
            raise DataError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        shape = np.shape(_as_array(y))
        if several and len(shape) == 2:
            Y = as_matrix(y, "y")
            if len(Y) != n:
                raise DataError(f"y must have one row for each of the {n} rows of X; got shape {shape}.")
            return Y.copy()
        if len(shape) == 2 and shape[1] == 1 and as_frame(y) is None:
            _warn_column_vector(stacklevel=4)
        return as_vector(y, n, gaps=gaps).copy()

    def _check_weights(self, sample_weight, n: int) -> np.ndarray:
        """Non-negative weights, not all zero: (n,). Ones if None."""
        if sample_weight is None:
            return np.ones(n)
        if isinstance(sample_weight, int | float | np.number):
            sample_weight = np.full(n, float(sample_weight))
        w = as_vector(sample_weight, n, "sample_weight")
        if (w < 0).any() or not w.any():
            raise DataError("sample_weight must be non-negative and not all zero.")
        return w


def _holds_dates(X) -> bool:
    array = _as_array(X)
    return array.dtype.kind == "M" or (array.dtype.kind == "O" and calendar.are_dates(array.flat))


class Regressor(RegressorMixin, Estimator):
    """A regressor; with ``_multi_output`` its target may have several columns."""

    _multi_output = False

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._multi_output
        return tags

    def predict(self, X) -> np.ndarray:
        raise NotImplementedError

    def score(self, X, y, sample_weight=None) -> float:
        """Coefficient of determination R^2 of the predicted mean, averaged over targets."""
        mean = self.predict(X)
        n = len(mean)
        Y = as_vector(y, n) if mean.ndim == 1 else self._check_target(y, n, several=True)
        w = self._check_weights(sample_weight, n)
        spread = w @ (Y - np.average(Y, axis=0, weights=w)) ** 2
        missed = w @ (Y - mean) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.mean(np.where(spread > 0, 1.0 - missed / spread, missed == 0)))


class Classifier(ClassifierMixin, Estimator):
    """A classifier; labels may be text, numbers or booleans."""

    classes_: np.ndarray

    def _check_labels(self, y, n: int) -> np.ndarray:
        """Class index of each row: (n,). Sets ``classes_``, in sorted order."""
        name = type(self).__name__
        if y is None:
            raise DataError(f"{name} requires y to be passed, but the target y is None.")
        self.classes_, codes = class_codes(_labels(y, n), name)
        return codes

    def predict(self, X) -> np.ndarray:
        raise NotImplementedError

    def score(self, X, y, sample_weight=None) -> float:
        """Accuracy: the fraction of labels predicted correctly."""
        predicted = self.predict(X)
        return float(np.average(predicted == _labels(y, len(predicted)), weights=sample_weight))

    def _codes_of(self, y, n: int) -> np.ndarray:
        """Index in ``classes_`` of each label: (n,)."""
        number = {label: code for code, label in enumerate(self.classes_.tolist())}
        try:
            return np.array([number[label] for label in _labels(y, n).tolist()], dtype=int)
        except KeyError as error:
            raise DataError(f"{error.args[0]!r} is not one of the classes fitted, {self.classes_.tolist()}.") from None


class Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """A projection onto directions in feature space. Columns are named after it: kernelpca0, kernelpca1, ...

    The directions are sum_n a_n phi(x_n), with a in ``dual_coef_`` (n, q), or ``weights_`` (M, q) in explicit features.
    ``centre_`` is subtracted from the coordinates in the former case, from the features in the latter.
    """

    dual_coef_: np.ndarray
    weights_: np.ndarray | None
    centre_: np.ndarray
    kernel_: Kernel
    X_fit_: Any

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def transform(self, X) -> np.ndarray:
        """Coordinates along the directions: (s, q)."""
        self._check_fitted()
        return self._coordinates(self._check_inputs(X, reset=False))

    def _coordinates(self, X) -> np.ndarray:
        if self.weights_ is None:
            return self._training_rows().across(X, self.dual_coef_) - self.centre_
        X = align_columns(self.X_fit_, X, self.kernel_.needs_all_columns)
        phi = lambda some: gram.features(self.kernel_, some, self._training_rows()) - self.centre_
        return np.concatenate(gram.by_pieces(lambda some: phi(some) @ self.weights_, X, len(self.weights_)))


def all_or_nothing(fit):
    """Make ``fit`` restore the estimator's former state when it fails, and keep to ``max_memory`` if it has that."""

    @functools.wraps(fit)
    def restoring(self, *args, **kwargs):
        before, limit = dict(vars(self)), getattr(self, "max_memory", None)
        try:
            with machine.at_most(limit):
                return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return restoring


def is_integer(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _labels(y, n: int) -> np.ndarray:
    """One label per row, (n,), from an array, a list, a series or a frame of one column."""
    frame = as_frame(y)
    labels = np.asarray(y if frame is None else as_objects(y))
    if labels.ndim == 2 and labels.shape[1] == 1:
        if frame is None:
            _warn_column_vector(stacklevel=5)
        labels = labels[:, 0]
    if labels.shape != (n,):
        raise DataError(f"y must hold one label per row of X, {n} in all; got shape {labels.shape}.")
    return labels


def _warn_column_vector(stacklevel: int):
    warnings.warn(
        "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
        "(n_samples,), for example using ravel().",
        DataConversionWarning,
        stacklevel=stacklevel,
    )


def _as_array(X):
    """X as an array; [0] for ragged rows, which have no array."""
    try:
        return X if hasattr(X, "shape") else np.asarray(X if container_types(X) is None else as_objects(X))
    except ValueError:
        return [0]


def _holds_text(X) -> bool:
    return all(isinstance(row, str) for row in X)


def _holds_objects(X) -> bool:
    """Whether the rows are strings, graphs or other objects that only some kernels accept."""
    if hasattr(X, "toarray") or holds_numbers(X):
        return False
    array = _as_array(X)
    if isinstance(array, list):
        return True
    # Lists of words are rows too, even if all have the same length; an array of words is a matrix of the wrong type.
    return array.dtype.kind in "OUS" and (array.ndim == 1 or isinstance(X, list | tuple))
