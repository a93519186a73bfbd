"""Saving and loading models without pickle: no code in a file is ever run.

A file is in the safetensors format. The tensor ``tree`` holds JSON: plain values, objects as a class name and fields,
arrays as the name of another tensor. Only the classes in `CLASSES` and registered ones are created from it, by their
own constructors, which check their arguments. A SHA-256 of all other bytes of the file detects changes.

>>> import tempfile
>>> from mercer import kernels as k
>>> with tempfile.TemporaryDirectory() as folder:
...     save(2.0 * k.RBF(lengthscale=0.5), f"{folder}/kernel.mercer")
...     load(f"{folder}/kernel.mercer")
2.0 * RBF(lengthscale=0.5)
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import os
import re
import reprlib
import secrets
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import narwhals.stable.v2 as nw
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy import sparse

from mercer import basis, kernels, means, priors
from mercer.core import dates, graphs
from mercer.core.errors import FileError, MercerError, ParameterError
from mercer.core.inputs import as_frame, is_numeric
from mercer.core.parameters import Parametrized, constraints
from mercer.core.registry import STORABLE
from mercer.gp.mean import MeanFunction
from mercer.gp.process import GP, Observed
from mercer.inference.base import INFERENCES, Labels
from mercer.kernels import algebra, space, substitution
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_kernel
from mercer.kernels.densities import emissions, factor, gaussian, markov, multinomial, outside
from mercer.kernels.functions import PairFunction, RowFunction
from mercer.kernels.generative import latent
from mercer.kernels.structured import text
from mercer.learning import choice, columns, family
from mercer.learning.outputs import Structure
from mercer.learning.plan import Plan
from mercer.linalg.cholesky import Cholesky
from mercer.linalg.spectrum import RidgePath
from mercer.linalg.trend import Trend
from mercer.models import (
    centers,
    classification,
    correlations,
    density,
    discriminant,
    heteroscedastic,
    interpolator,
    kernel_regression,
    latent_variables,
    linear,
    mixture,
    neighbors,
    network,
    output_rows,
    outputs,
    pca,
    perceptron,
    records,
    regression,
    ridge,
    topographic,
)
from mercer.models.estimator import Estimator
from mercer.solvers.base import SOLVERS

FORMAT, VERSION = "mercer-model", 1  # the version is increased when the meaning of a file changes

# Classes that a file may name, independent of their modules. Kernels in mercer.kernels are included automatically; add
# new estimators, priors, basis functions, and classes of fitted attributes.
_FAMILIES: dict[str, list[Any]] = {
    "kernels": [getattr(kernels, name) for name in kernels.__all__ if name != "Kernel"],
    "algebra": [
        algebra.Sum, algebra.Product, algebra.Scale, algebra.Power, algebra.PolynomialOf, algebra.Exp,
        substitution.Modulate, substitution.Warp, substitution.On, substitution.GaussianOf, substitution.Normalize,
        space.OnSphere, space.Rotated,
    ],
    "means": [means.Basis, means.Coefficients],
    "basis": [basis.Polynomial, basis.Gaussian, basis.Sigmoid, basis.Targets],
    "priors": [
        priors.Normal, priors.LogNormal, priors.HalfNormal, priors.HalfCauchy, priors.Gamma, priors.InverseGamma,
        priors.PenalisedVariance, priors.PenalisedLengthscale, priors.Each,
    ],
    "densities": [
        factor.FactorAnalysis, factor.Loadings, gaussian.DiagonalComponents, gaussian.FullComponents, gaussian.Gaussian,
        gaussian.GaussianMixture, markov.Chain, emissions.FullGaussians, emissions.Gaussians, markov.HiddenMarkovModel,
        emissions.Symbols, multinomial.MultinomialComponents, multinomial.MultinomialMixture, outside.FittedDensity,
        outside.FunctionDensity, outside.FunctionOfParameters, outside.ScipyDensity, outside.WeightedDensities,
        latent.LatentFunction,
    ],
    "parts": [
        RowFunction, substitution.Span, MeanFunction, Observed, Cholesky, Trend, Plan, Labels,
        family.Member, choice.Tried, choice.Choice, columns.Column, columns.Columns, records.Iteration, records.Found,
        RidgePath, centers.CenterPath, text.Corpus, output_rows.Measurements, correlations.Correlations, Structure,
    ],
    "models": [
        GP, classification.GaussianProcessClassifier, density.ParzenDensity, discriminant.KernelFisherDiscriminant,
        heteroscedastic.HeteroscedasticGaussianProcessRegressor, interpolator.RBFInterpolator,
        kernel_regression.NadarayaWatson, latent_variables.GaussianProcessLatentVariables,
        linear.BayesianLinearRegression, mixture.GaussianMixtureRegressor, neighbors.KernelNeighborsClassifier,
        network.RBFNetwork, outputs.MultiOutputGaussianProcessRegressor, pca.KernelPCA,
        perceptron.KernelPerceptron, regression.GaussianProcessRegressor, ridge.KernelRidge,
        topographic.GenerativeTopographicMapping,
    ],
}  # fmt: skip
CLASSES = {f"{family}.{cls.__name__}": cls for family, members in _FAMILIES.items() for cls in members}
_RENAMED_FIELDS: dict[str, dict[str, str]] = {"parts.Tried": {"member": "candidate"}}  # in older files: old to new


def classes() -> dict[str, Any]:
    """All classes that a file may name: those above, registered kernels and estimators, and solvers and inference
    methods with their posteriors."""
    registered: dict[str, Any] = {f"solvers.{cls.__name__}": cls for cls in SOLVERS.values()}
    registered |= {f"inferences.{cls.__name__}": cls for cls in INFERENCES.values()}
    parts = [part for cls in SOLVERS.values() for part in cls.parts]
    parts += [part for cls in INFERENCES.values() for part in cls.parts]
    return STORABLE | {f"parts.{part.__name__}": part for part in parts} | registered | CLASSES


_DIGEST = re.compile(rb'"sha256":\s*"([0-9a-f]{64})"')
_LIBRARIES: tuple[Any, ...] = ("pandas", "polars")
_LIST_TYPES: dict[Any, Any] = {  # of entries of a column of lists
    str(kind()): kind
    for kind in (
        nw.String, nw.Boolean, nw.Float32, nw.Float64, nw.Int8, nw.Int16, nw.Int32, nw.Int64, nw.UInt8, nw.UInt16,
        nw.UInt32, nw.UInt64, nw.Date, nw.Binary,
    )
}  # fmt: skip
_TIMES: tuple[Any, ...] = (nw.Date, nw.Datetime, nw.Duration)


class MissingFileError(FileError, FileNotFoundError):
    """A missing file or folder."""


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a model to one file: an estimator, fitted or not, a prior or posterior `GP`, or a kernel.

    `load` restores it completely, with predictions identical to the last bit. Frames are restored as frames of the same
    library, with rows numbered from zero, and networkx graphs with their attributes and the order of their nodes and
    neighbours. A scikit-learn kernel is stored as its mercer counterpart. Your own functions (`Custom`, or in
    `FeatureMap`, `warp` and `modulate`) cannot be stored. The write is atomic: if it fails, an existing file is
    unchanged.
    """
    from mercer import __version__  # the package itself imports this module

    if not isinstance(model, Estimator | GP | Kernel):
        raise ParameterError(
            f"save takes an estimator of mercer, a GP or a kernel; got {type(model).__name__}. For a pipeline, save "
            "the mercer model inside it, and rebuild the rest."
        )
    writer = _Writer()
    try:
        tree = json.dumps(writer.write(model, type(model).__name__))
        # Check now, while the model still exists, that it can be read back.
        _Reader(writer.tensors.__getitem__).read(json.loads(tree))
    except Exception as error:
        raise ParameterError(f"this model cannot be stored: {_message(error)}") from error
    tensors = {"tree": np.frombuffer(tree.encode(), np.uint8), **writer.tensors}
    metadata = {"format": FORMAT, "version": str(VERSION), "mercer": __version__, "sha256": "0" * 64}
    _write(Path(path), tensors, metadata)


def load(path: str | os.PathLike[str]) -> Any:
    """Load a model written by `save`. No code is run; a damaged or foreign file raises `FileError`."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            _check(file)
        with safe_open(path, framework="numpy") as tensors:
            model = _Reader(tensors.get_tensor).read(json.loads(tensors.get_tensor("tree").tobytes()))
        if not isinstance(model, Estimator | GP | Kernel):
            raise FileError("it contains no estimator, GP or kernel.")
    except FileNotFoundError:
        raise MissingFileError(f"there is no file {str(path)!r}.") from None
    except Exception as error:  # constructors may raise anything on a wrong tree
        raise FileError(f"{str(path)!r} cannot be read: {_message(error)}") from error
    return model


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, MercerError | OSError) else f"{type(error).__name__}: {error}"


# -- from objects to a tree -----------------------------------------------------------------------------------------


class _Writer:
    """Writes values as JSON and arrays as tensors. ``where`` is the position in the model, for error messages."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._names = {cls: name for name, cls in classes().items()}
        self._seen: dict[int, tuple[Any, Any]] = {}  # keeps the object alive, so that its id is not reused

    def write(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, bytes):
            return {"is": "bytes", "hex": value.hex()}
        if type(value) is float:  # JSON writes enough digits to restore it exactly
            return value if math.isfinite(value) else {"is": "float", "bits": struct.pack(">d", value).hex()}
        if type(value) is list:
            return [self.write(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if type(value) is tuple:
            return {"is": "tuple", "items": self.write(list(value), where)}
        if type(value) in (set, frozenset):  # in an order that is the same in every process
            items = sorted((self.write(item, where) for item in value), key=json.dumps)
            return {"is": type(value).__name__, "items": items}
        if type(value) is dict:
            return {"is": "dict", "pairs": self._pairs(value, where)}
        if isinstance(value, np.bool_ | np.number) and not isinstance(value, np.timedelta64) and _portable(value.dtype):
            return {"is": "number", "dtype": value.dtype.str, "value": self.write(value.item(), where)}
        if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
            return self._once(value, self._array, where)
        if type(value) in self._names:
            return self._object(value, where)
        return self._other(value, where)

    def _once(self, value: Any, write: Callable[..., Any], where: str) -> Any:
        """Write a large value where it is first used, and refer to it where it is used again."""
        if id(value) not in self._seen:
            node = write(value, where)
            if node["is"] == "array":
                self._seen[id(value)] = value, node
                return node
            self._seen[id(value)] = value, {"is": "same", "number": len(self._seen)}
            return {**node, "number": self._seen[id(value)][1]["number"]}
        return self._seen[id(value)][1]

    def _pairs(self, value: dict[Any, Any], where: str) -> Any:
        return [[self.write(key, where), self.write(item, f"{where}[{key!r}]")] for key, item in value.items()]

    def _object(self, value: Any, where: str) -> Any:
        if isinstance(value, RowFunction) and value.function is not None:
            raise _user_function(where, value)
        fields = {name: self.write(part, f"{where}.{name}") for name, part in _fields(value).items()}
        node = {"is": "object", "class": self._names[type(value)], "fields": fields}
        if isinstance(value, Estimator):
            state = {name: part for name, part in vars(value).items() if name not in fields}
            node["state"] = {name: self.write(part, f"{where}.{name}") for name, part in state.items()}
        return node

    def _array(self, value: Any, where: str) -> Any:
        value = value if isinstance(value, np.ndarray) else np.asarray(value)
        if value.dtype.kind in "UO":
            items = self.write(value.ravel().tolist(), where)
            return {"is": "text" if value.dtype.kind == "U" else "objects", "shape": list(value.shape), "items": items}
        if value.dtype.kind == "S":
            items = [item.hex() for item in value.ravel().tolist()]
            return {"is": "octets", "length": value.dtype.itemsize, "shape": list(value.shape), "items": items}
        if isinstance(value, np.ma.MaskedArray) or not _portable(value.dtype):
            kind = "masked" if isinstance(value, np.ma.MaskedArray) else str(value.dtype)
            raise ParameterError(
                f"{where} is an array of {kind} values; only plain numbers, text, bytes and dates can be "
                "stored. Convert it."
            )
        # Keep the memory order, on which the last bit of a sum depends.
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        plain = np.asarray(value.T if order == "F" else value, dtype=value.dtype.newbyteorder("<"), order="C")
        if plain.dtype.kind == "c":
            plain = plain[..., None].view(f"<f{plain.itemsize // 2}")
        elif plain.dtype.kind in "Mm":
            plain = plain.view("<i8")
        name = str(len(self.tensors))
        self.tensors[name] = plain
        return {"is": "array", "tensor": name, "dtype": value.dtype.str, "order": order}

    def _other(self, value: Any, where: str) -> Any:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        time = dates.written(value, where)
        if time is not None:
            return time
        kernel = as_kernel(value, or_none=True)
        if kernel is not None and kernel is not value:  # a scikit-learn kernel, with the same Gram matrices
            return self.write(kernel, where)
        ours = isinstance(value, Parametrized) and not isinstance(value, means.Function)
        if isinstance(value, PairFunction) or (callable(value) and not ours):
            raise _user_function(where, value)
        if graphs.kind_of(value) is not None:
            return self._graph(value, where)
        if sparse.issparse(value):
            return self._once(value, self._sparse, where)
        if as_frame(value) is not None:
            return self._once(value, self._frame, where)
        series = nw.from_native(value, series_only=True, pass_through=True)
        if isinstance(series, nw.Series):  # a single column of numbers or text
            return self.write(series.to_numpy() if is_numeric(series.dtype) else series.to_list(), where)
        raise ParameterError(
            f"{where} is of type {type(value).__module__}.{type(value).__qualname__}. Files can hold numbers, text, "
            "bytes, dates, lists, sets, dicts, NumPy arrays, graphs of networkx, pandas and polars frames, and classes "
            "of mercer; other types would need code to be run."
            + (" Give an integer as random_state." if where.endswith("random_state") else "")
        )

    def _graph(self, graph: Any, where: str) -> Any:
        kind, attributes, nodes, edges = graphs.parts_of(graph)
        return {
            "is": "graph", "kind": kind, "attributes": self._pairs(attributes, where),
            "nodes": [[self.write(node, where), self._pairs(of_node, f"{where}[{node!r}]")] for node, of_node in nodes],
            "edges": [[i, j, self.write(key, where), self._pairs(of_edge, where)] for i, j, key, of_edge in edges],
        }  # fmt: skip

    def _sparse(self, value: Any, where: str) -> Any:
        rows = value.tocsr()
        parts = {name: self.write(getattr(rows, name), where) for name in ("data", "indices", "indptr")}
        return {"is": "sparse", "shape": list(rows.shape), **parts}

    def _frame(self, value: Any, where: str) -> Any:
        frame: Any = as_frame(value)
        library = frame.implementation.value
        if library not in _LIBRARIES:
            raise ParameterError(f"{where} is a frame of {library}; only {' and '.join(_LIBRARIES)} frames are stored.")
        columns = []
        for column in frame.iter_columns():
            values = self._column(column, f"{where}[{column.name!r}]") if isinstance(column.name, str | int) else None
            if values is None:
                raise ParameterError(
                    f"{where} has a column {column.name!r} of type {column.dtype}; only columns of numbers, booleans, "
                    "text, bytes, categories, dates, lists and objects, named by text or integers, can be stored. Drop "
                    "or convert it."
                )
            columns.append([column.name, values])
        return {"is": "frame", "library": library, "columns": columns}

    def _column(self, column: Any, where: str) -> Any:
        """Values of a column: an array of numbers, a list of text, or a column of another kind; else None."""
        kind = column.dtype
        if kind == nw.String:
            return self.write([item if isinstance(item, str) else None for item in column.to_list()], where)
        if is_numeric(kind):
            values = column.to_numpy()  # of objects if some are missing
            return self.write(column.cast(nw.Float64).to_numpy() if values.dtype.kind == "O" else values, where)
        if kind == nw.Object:
            return {"is": "column", "kind": "objects", "items": self.write(column.to_list(), where)}
        if kind == nw.List and str(kind.inner) in _LIST_TYPES:
            items = self.write(column.to_list(), where)
            return {"is": "column", "kind": "lists", "inner": str(kind.inner), "items": items}
        if kind in (nw.Categorical, nw.Enum):
            items = [item if item == item else None for item in column.to_list()]
            categories, ordered = _categories(column)
            return {
                "is": "column", "kind": "categories", "items": self.write(items, where),
                "categories": self.write(categories, where), "ordered": ordered,
            }  # fmt: skip
        if kind == nw.Binary:
            return {"is": "column", "kind": "bytes", "items": self.write(column.to_list(), where)}
        if kind == nw.Time:
            return {"is": "column", "kind": "clock", "items": column.cast(nw.Int64).to_list()}  # nanoseconds
        if kind in _TIMES:
            return self._times(column, where)
        return None

    def _times(self, column: Any, where: str) -> Any:
        """Dates or durations as NumPy's, in UTC and in the unit of the column; None if they are kept in another way."""
        zone = getattr(column.dtype, "time_zone", None)
        values = (column if zone is None else column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)).to_numpy()
        if values.dtype.kind not in "Mm":
            return None
        return {"is": "times", "values": self.write(values, where), "zone": zone}


def _categories(column: Any) -> tuple[list | None, bool]:
    """Categories of a column, and whether they have an order; None where the library does not list them by column."""
    native = column.to_native()
    if column.implementation.is_pandas():
        return native.cat.categories.tolist(), bool(native.cat.ordered)
    return (list(column.dtype.categories), True) if column.dtype == nw.Enum else (None, False)


def _user_function(where: str, function: Any) -> ParameterError:
    return ParameterError(
        f"{where} is a function of your own, {getattr(function, '__name__', None) or repr(function)}, and files hold "
        "no code. Use a basis from mercer.basis instead, or refit the model in a program that has the function."
    )


def _portable(dtype: np.dtype) -> bool:
    """Whether values are the same on every machine, unlike long doubles."""
    return dtype.kind in "biufcmM" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _fields(value: Any) -> dict[str, Any]:
    """Arguments from which `_rebuilt` creates an equal object."""
    if hasattr(value, "stored"):
        return value.stored()
    if isinstance(value, Estimator):
        return value.get_params(deep=False)
    if isinstance(value, tuple):
        return value._asdict()  # type: ignore[attr-defined]
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


# -- from a tree to objects -----------------------------------------------------------------------------------------


class _Reader:
    """Reads values from JSON and arrays from ``tensor(name)``. Any exception means that the tree is wrong."""

    def __init__(self, tensor: Callable[[str], np.ndarray]) -> None:
        self.tensor, self._classes = functools.cache(tensor), classes()
        self._numbered: dict[int, Any] = {}  # parts that are used again

    def read(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.read(item) for item in node]
        if not isinstance(node, dict):
            return node
        made = self._made(node)
        if "number" in node:
            self._numbered[node["number"]] = made
        return made

    def _made(self, node: Any) -> Any:
        match node:
            case {"is": "float", "bits": bits}:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"is": "number", "dtype": dtype, "value": value}:
                return _dtype(dtype).type(self.read(value))
            case {"is": "tuple", "items": list(items)}:
                return tuple(self.read(items))
            case {"is": "set" | "frozenset" as kind, "items": list(items)}:
                return set(self.read(items)) if kind == "set" else frozenset(self.read(items))
            case {"is": "dict", "pairs": list(pairs)}:
                return self._dict(pairs)
            case {"is": "same", "number": number}:
                return self._numbered[number]
            case {"is": "array", "tensor": str(name), "dtype": dtype, "order": order}:
                array, kind = self.tensor(name), _dtype(dtype)
                if kind.kind in "cmM":
                    array = array.view(kind.newbyteorder("<"))
                    array = array[..., 0] if kind.kind == "c" else array
                return (array.T if order == "F" else array).astype(kind, copy=False)
            case {"is": "bytes", "hex": str(text)}:
                return bytes.fromhex(text)
            case {"is": "clock" | "date" | "datetime" | "duration" | "time" | "timestamp"}:
                return dates.read(node)
            case {"is": "octets", "length": int(length), "shape": shape, "items": list(items)}:
                return np.array([bytes.fromhex(item) for item in items], dtype=f"S{length}").reshape(shape)
            case {"is": "text", "shape": shape, "items": list(items)}:
                return np.array([str(item) for item in items], dtype=np.str_).reshape(shape)
            case {"is": "objects", "shape": shape, "items": list(items)}:
                objects = np.empty(len(items), dtype=object)
                for i, item in enumerate(items):
                    objects[i] = self.read(item)
                return objects.reshape(shape)
            case {"is": "graph", "kind": kind, "attributes": list(pairs), "nodes": list(nodes), "edges": list(edges)}:
                of_nodes = [(self.read(name), self._dict(attributes)) for name, attributes in nodes]
                of_edges = [(i, j, self.read(key), self._dict(attributes)) for i, j, key, attributes in edges]
                return graphs.made_of(graphs.GraphParts(kind, self._dict(pairs), of_nodes, of_edges))
            case {"is": "column", "kind": kind, "items": list(items)}:
                return _Column(kind, self.read(items), self.read(node.get("categories")), node.get("ordered"),
                               node.get("inner"))  # fmt: skip
            case {"is": "sparse", "shape": [rows, width], "data": data, "indices": indices, "indptr": indptr}:
                arrays = self.read(data), self.read(indices), self.read(indptr)
                return sparse.csr_matrix(arrays, shape=(rows, width))
            case {"is": "times", "values": values, "zone": zone}:
                return _Times(self.read(values), zone)
            case {"is": "frame", "library": library, "columns": list(columns)}:
                return _frame(library, [(name, self.read(values)) for name, values in columns])
            case {"is": "object", "class": name, "fields": dict(fields)}:
                if name not in self._classes:
                    raise FileError(f"it asks for {name!r}, which is not a class that files may ask for.")
                renamed = _RENAMED_FIELDS.get(str(name), {})
                parts = {renamed.get(str(field), str(field)): self.read(part) for field, part in fields.items()}
                made = _rebuilt(self._classes[name], parts)
                for attribute, part in node.get("state", {}).items():
                    _set_attribute(made, attribute, self.read(part))
                return made
        raise FileError(f"it has a part that is not understood: {reprlib.repr(node)}.")

    def _dict(self, pairs: Any) -> dict[Any, Any]:
        return {self.read(key): self.read(value) for key, value in pairs}


def _dtype(text: str) -> np.dtype:
    if text[1:2] in ("m", "M"):
        return dates.time_type(text)
    if not re.fullmatch(r"[<>|=][biufc][0-9]{1,2}", text):
        raise FileError(f"it has numbers of an unknown type, {text!r}.")
    return np.dtype(text)


def _rebuilt(cls: Any, fields: dict[str, Any]) -> Any:
    """Create an object by ``restored`` or else by its constructor, and check what that does not."""
    made = getattr(cls, "restored", cls)(**fields)
    if not _consistent(made):
        raise FileError(f"the parts of {cls.__name__} do not fit together.")
    return made


def _consistent(made: Any) -> bool:
    match made:
        case MeanFunction() | means.Basis():
            return made.consistent()
        case RowFunction() if made.function is not None or not isinstance(made.module, basis.Basis):
            return False
        case algebra.Nary() if not made.parts or not all(isinstance(part, Kernel) for part in made.parts):
            return False
        case Parametrized():
            known = set(constraints(type(made)))
            valid = all(field in known and isinstance(prior, priors.Prior) for field, prior in made.priors)
            return valid and isinstance(made.fixed, frozenset) and made.fixed <= known
    return made.consistent() if hasattr(made, "consistent") else True


def _set_attribute(made: Any, name: str, value: Any) -> None:
    """Set a fitted attribute of an estimator, but never override a method or property."""
    defined = getattr(type(made), name, None)
    refused = callable(defined) or isinstance(defined, property) or name.startswith("__") or not name.isidentifier()
    if refused or not isinstance(made, Estimator):
        raise FileError(f"it sets {name!r} of {type(made).__name__}, which files may not set.")
    setattr(made, name, value)


class _Column(NamedTuple):
    """A column of a frame that is neither numbers, text nor dates: "categories", "lists", "bytes", "clock" (times of
    day) or "objects"."""

    kind: str
    items: list[Any]
    categories: list[Any] | None = None  # all of them, also those that no row has
    ordered: bool | None = None
    inner: str | None = None  # type of the entries of lists

    def series(self, name: Any, backend: Any) -> Any:
        """A narwhals series of the same kind, or of objects where the library has no such kind."""
        of_kind: Any = functools.partial(nw.new_series, name, self.items, backend=backend)
        if self.kind == "categories":
            if backend == "pandas":
                native = of_kind(dtype=nw.Categorical).to_native()
                if self.categories is not None:
                    native = native.cat.set_categories(self.categories, ordered=self.ordered)
                return nw.from_native(native, series_only=True)
            if all(isinstance(item, str | None) for item in (*self.items, *(self.categories or ()))):
                return of_kind(dtype=nw.Enum(self.categories or ()) if self.ordered else nw.Categorical)
        elif self.kind == "lists" and backend == "polars":
            if self.inner not in _LIST_TYPES:
                raise FileError(f"it has lists of an unknown type, {self.inner!r}.")
            return of_kind(dtype=nw.List(_LIST_TYPES[self.inner]))
        elif self.kind == "bytes" and backend == "polars":
            return of_kind(dtype=nw.Binary)
        elif self.kind == "clock":
            if backend == "polars":
                return of_kind(dtype=nw.Int64).cast(nw.Time)
            return nw.new_series(name, list(map(dates.time_of_day, self.items)), nw.Object, backend=backend)
        elif self.kind not in ("lists", "bytes", "objects"):
            raise FileError(f"it has a column of an unknown kind, {self.kind!r}.")
        return of_kind(dtype=nw.Object)


class _Times(NamedTuple):
    """A column of dates or durations, as in `_Writer._times`."""

    values: np.ndarray
    zone: str | None

    def series(self, name: Any, backend: Any) -> Any:
        series: Any = nw.from_dict({"column": self.values}, backend=backend)["column"]
        if self.zone is not None:
            series = series.dt.replace_time_zone("UTC").dt.convert_time_zone(self.zone)
        return series.alias(name)


def _frame(library: str, columns: Any) -> Any:
    """A frame of its original library, or of the other one if only that is installed."""
    for backend in sorted(_LIBRARIES, key=lambda name: name != library):  # only these are imported
        try:
            importlib.import_module(backend)
        except ImportError:
            continue
        # One by one: narwhals would turn objects into bytes if it made a frame of polars from a dict of series.
        frames = [_one_column(name, values, backend) for name, values in columns]
        whole: Any = nw.concat(frames, how="horizontal") if frames else nw.from_dict({}, backend=backend)
        return whole.to_native()
    raise FileError(f"its inputs are a frame of {library}; install {' or '.join(_LIBRARIES)} to read it.")


def _one_column(name: Any, values: Any, backend: Any) -> Any:
    if isinstance(values, np.ndarray):
        return nw.from_dict({name: values}, backend=backend)
    if isinstance(values, _Column | _Times):
        return values.series(name, backend).to_frame()
    return nw.new_series(name, values, dtype=nw.String, backend=backend).to_frame()


# -- bytes ----------------------------------------------------------------------------------------------------------


def _write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write to a temporary file in the same folder, then rename it."""
    if not path.parent.is_dir():
        raise MissingFileError(f"there is no folder {str(path.parent)!r} to write {path.name!r} in; create it first.")
    temporary = path.parent / f".mercer-{secrets.token_hex(8)}"
    try:
        temporary.touch(exist_ok=False)
        mode = (path if path.exists() else temporary).stat().st_mode
        save_file(tensors, temporary, metadata)
        temporary.chmod(mode)  # safetensors creates files that only the owner can read
        with open(temporary, "r+b") as file:
            position, _, found = _digest(file)
            file.seek(position)
            file.write(found.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{str(path)!r} cannot be written: {error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _header(file: BinaryIO) -> bytes:
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    return file.read(size) if size <= 100_000_000 else b""  # the limit of safetensors


def _check(file: BinaryIO) -> None:
    """Refuse foreign, newer and damaged files before reading anything else."""
    try:
        metadata = json.loads(_header(file))["__metadata__"]
        if metadata["format"] != FORMAT:
            raise ValueError
        version = int(metadata["version"])
    except (ValueError, TypeError, LookupError, RecursionError):
        raise FileError("it is not a model stored by mercer.save, or its header is damaged.") from None
    if not 1 <= version <= VERSION:
        raise FileError(
            f"it has version {version} of the format, from mercer {metadata.get('mercer')}; this mercer reads versions "
            f"up to {VERSION}. Install a newer mercer."
        )
    _, stored, found = _digest(file)
    if stored != found:
        raise FileError("it was truncated or changed after it was written: its SHA-256 does not match.")


def _digest(file: BinaryIO) -> tuple[int, str, str]:
    """Position of the stored SHA-256, its value, and the actual one: of all bytes, with zeros at that position."""
    stored = list(_DIGEST.finditer(_header(file)))
    if len(stored) != 1:
        raise FileError("its header is damaged: there is no SHA-256.")
    position = 8 + stored[0].start(1)
    file.seek(0)
    digest = hashlib.sha256(file.read(position) + b"0" * 64)
    file.seek(position + 64)
    while block := file.read(1 << 20):
        digest.update(block)
    return position, stored[0].group(1).decode(), digest.hexdigest()
