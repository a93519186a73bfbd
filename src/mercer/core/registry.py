"""Registry of user-defined kernels and estimators that saved models may contain. `mercer.load` makes only these,
registered solvers and the parts of solvers and inference methods, and mercer's own classes."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from mercer.core.errors import ParameterError

STORABLE: dict[str, type] = {}

C = TypeVar("C", bound=type)


def storable(family: str) -> Callable[[C], C]:
    """Class decorator: files may hold objects of the class, under the name ``family.Class``."""

    def known(cls: C) -> C:
        STORABLE[f"{family}.{cls.__name__}"] = cls
        return cls

    return known


def check_free(registry: Mapping[str, type], name: str, cls: type) -> None:
    """Refuse a name that one of mercer's own classes has; a class defined again takes its own place."""
    there = registry.get(name)
    if there is not None and there is not cls and there.__module__.startswith("mercer."):
        raise ParameterError(f"{name!r} is the name of {there.__qualname__}; choose another for {cls.__qualname__}.")
