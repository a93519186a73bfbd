"""Classes of one's own that stored models may name; `mercer.load` makes no others than these and mercer's."""

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
