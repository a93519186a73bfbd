"""States of learning in files, so that an interrupted fit can go on later.

A file is in the safetensors format and holds arrays alone. It names what it belongs to by SHA-256 digests of the data,
the kernel and the settings, and replaces its predecessor at once: there is a whole file at any time.
"""

import dataclasses
import hashlib
import json
import os
import pickle
import secrets
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from mercer.core.errors import FileError, ParameterError
from mercer.core.inputs import as_frame
from mercer.learning.state import Evaluations, Journal, State
from mercer.solvers.base import SOLVERS, Solver

FORMAT, VERSION = "mercer-checkpoint", "2"


def resumed(
    path: str | os.PathLike[str] | None, belongs_to: Mapping[str, Any], solver: Solver | None = None
) -> Journal:
    """Journal that is kept in a file, and goes on from what the file holds; only in memory if ``path`` is None.

    ``belongs_to`` names what the evaluations depend on: data, kernel, settings. A file that belongs to anything else is
    refused, and left as it is. ``solver``: the one that "auto" chose, which the file keeps (`begun_with`).
    """
    if path is None:
        return Journal()
    file = Path(path)
    digests = {name: digest(value) for name, value in belongs_to.items()}
    if solver is not None:
        settings: Any = solver
        digests["solver"] = json.dumps([solver.name, dataclasses.asdict(settings)])
    if not file.exists():
        _write(file, State({}), digests)  # better to know now that it cannot be written
        return Journal(None, lambda state: _write(file, state, digests))
    try:
        state, found = _read(file)
    except Exception as error:  # whatever is wrong with it
        raise FileError(f"checkpoint {str(path)!r} cannot be read: {error} Delete it, or name another file.") from error
    others = [name for name, value in digests.items() if found.get(name) != value]
    if others:
        raise ParameterError(
            f"checkpoint {str(path)!r} belongs to a fit with other {' and '.join(others)}, so this one cannot "
            "resume from it. Name another file, or delete it to start afresh."
        )
    return Journal(state, lambda state: _write(file, state, digests))


def begun_with(path: str | os.PathLike[str] | None) -> Solver | None:
    """The solver that "auto" chose when the file was begun: free memory and the speed of the machine may have changed.
    None if there is none; what is wrong with a file is for `resumed` to say."""
    try:
        with safe_open(Path(path or ""), framework="numpy") as file:
            name, settings = json.loads(json.loads(file.metadata()["of"])["solver"])
        return SOLVERS[name](**settings)
    except Exception:  # whatever is wrong with it
        return None


def check_path(path: object) -> None:
    """Raise if the checkpoint is not a path."""
    if not (path is None or isinstance(path, str | os.PathLike)):
        raise ParameterError(f"checkpoint is the path of a file, or None; got {path!r}.")


def _write(path: Path, state: State, digests: Mapping[str, str]) -> None:
    names = list(state.evaluations)
    metadata = {"format": FORMAT, "version": VERSION, "of": json.dumps(dict(digests)), "criteria": json.dumps(names)}
    metadata["arrays"] = json.dumps({name: list(arrays) for name, arrays in state.arrays.items()})
    tensors = {
        f"{i}.{field}": _contiguous(array)
        for i, name in enumerate(names)
        for field, array in vars(state.evaluations[name]).items()
    }
    for name, arrays in state.arrays.items():
        tensors |= {f"{name}/{field}": _contiguous(array) for field, array in arrays.items()}
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(save(tensors, metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"checkpoint {str(path)!r} cannot be written: {error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _contiguous(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, order="C")  # np.ascontiguousarray would make a vector of a number


def _read(path: Path) -> tuple[State, dict[str, str]]:
    fields = [field.name for field in dataclasses.fields(Evaluations)]
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            raise FileError("it is no checkpoint of this version of mercer.")
        names = json.loads(metadata["criteria"])
        found = {
            name: Evaluations(*(file.get_tensor(f"{i}.{field}") for field in fields)) for i, name in enumerate(names)
        }
        others = json.loads(metadata.get("arrays", "{}")).items()
        arrays = {name: {field: file.get_tensor(f"{name}/{field}") for field in own} for name, own in others}
        return State(found, arrays), json.loads(metadata["of"])


# -- digests -------------------------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """SHA-256 of what a value consists of: equal for equal values, in any process."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: "hashlib._Hash", value: Any) -> None:
    found.update(f"{type(value).__name__}(".encode())
    frame = as_frame(value)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found.update(repr(value).encode())
    elif frame is not None:
        _feed(found, {name: frame[name].to_numpy() for name in frame.columns})
    elif hasattr(value, "__array__") and np.asarray(value).dtype.kind in "biufc":
        array = np.asarray(value)
        found.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    elif isinstance(value, np.ndarray | list | tuple):
        for item in value:
            _feed(found, item)
    elif isinstance(value, set | frozenset):
        found.update("".join(sorted(map(digest, value))).encode())
    elif isinstance(value, Mapping):
        for item in value.items():
            _feed(found, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _feed(found, (field.name, getattr(value, field.name)))
    elif hasattr(value, "__wrapped__"):  # compiled, say
        _feed(found, value.__wrapped__)
    elif isinstance(value, types.FunctionType):  # what it does, and the values it took along
        _feed(found, (value.__code__, value.__defaults__, [cell.cell_contents for cell in value.__closure__ or ()]))
    elif isinstance(value, types.CodeType):
        _feed(found, (value.co_code, value.co_names, value.co_consts))
    else:
        try:
            found.update(pickle.dumps(value))  # never read back
        except Exception as error:
            raise ParameterError(
                f"a checkpoint must identify data and kernel, and {type(value).__name__} is of a kind that "
                f"cannot be compared ({error}). Leave checkpoint out."
            ) from error
    found.update(b")")
