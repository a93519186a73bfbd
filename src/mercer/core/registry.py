"""Registry of user-defined kernels and estimators that saved models may contain. `mercer.load` makes only these,
registered solvers and the parts of solvers and inference methods, and mercer's own classes."""

from collections.abc import Callable
from typing import TypeVar

STORABLE: dict[str, type] = {}

C = TypeVar("C", bound=type)


def storable(family: str) -> Callable[[C], C]:
    """Class decorator: files may hold objects of the class, under the name ``family.Class``."""

    def known(cls: C) -> C:
        STORABLE[f"{family}.{cls.__name__}"] = cls
        return cls

    return known
