"""Registry of classes that saved models may contain in addition to mercer's own; `mercer.load` refuses others."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from mercer.core.errors import ParameterError

STORABLE: dict[str, type] = {}

C = TypeVar("C", bound=type)


def storable(family: str) -> Callable[[C], C]:
    """Class decorator: saved files may contain objects of the class, under the name ``family.Class``."""

    def add(cls: C) -> C:
        STORABLE[f"{family}.{cls.__name__}"] = cls
        return cls

    return add


def check_free(registry: Mapping[str, type], name: str, cls: type) -> None:
    """Refuse the name of one of mercer's own classes. A user's class may be redefined."""
    holder = registry.get(name)
    if holder is not None and holder is not cls and holder.__module__.startswith("mercer."):
        raise ParameterError(f"{name!r} is the name of {holder.__qualname__}; choose another for {cls.__qualname__}.")
