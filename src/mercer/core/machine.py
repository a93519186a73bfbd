"""Cores and memory available to this process, and the memory budget: how much of it the package takes at a time."""

import contextlib
import contextvars
import functools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mercer.core.errors import NotEnoughMemoryError, ParameterError

# The budget, in bytes. Temporary arrays are made in parts of these sizes, however many rows there are.
GRAM_BYTES = 1 << 27  # a block of rows of a Gram matrix
ARRAY_BYTES = 1 << 24  # an array of an elementwise formula, of which NumPy makes several
BATCH_BYTES = 1 << 22  # function values of a quadrature
CACHE_BYTES = 1 << 20  # rows that stay in a core's cache
ROOT_BYTES = 1 << 30  # a low-rank root of a covariance
MIXTURE_BYTES = 1 << 30  # covariances of all parts of a mixture over parameters
STATES_BYTES = 1 << 28  # what is kept of a recursion over states, which is computed again beyond
SETS_BYTES = 1 << 21  # covariances of neighbours that are factorised in one call
FACTORS_BYTES = 1 << 30  # factors of all neighbours, kept for the gradient; beyond, they are computed again
MAX_KEPT_SHARE = 1 / 4  # of the available memory, for what is kept to save time and could be computed again


def cores() -> int:
    """Number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # comes with scikit-learn

    return ThreadpoolController()


def one_thread() -> contextlib.AbstractContextManager[Any]:
    """Context in which BLAS uses one thread, for hundreds of small products in a row. Threads hardly speed these up,
    and when other programs use the cores they wait for each other many times longer than the work takes."""
    return _controller().limit(limits=1, user_api="blas")


_LIMIT: contextvars.ContextVar[float] = contextvars.ContextVar("limit", default=math.inf)


@contextlib.contextmanager
def at_most(max_memory: Any) -> Iterator[None]:
    """Context in which no more than this count as available: bytes, or words (`as_bytes`); None is no limit."""
    limit = math.inf if max_memory is None else as_bytes(max_memory, "max_memory")
    before = _LIMIT.set(min(_LIMIT.get(), limit))
    try:
        yield
    finally:
        _LIMIT.reset(before)


def available_memory() -> int:
    """Bytes that can be allocated now without swapping, within the limits of the container if there is one, and that of
    `at_most`."""
    limits = [_LIMIT.get(), _free_of_machine(), *_free_of_containers()]
    return max(int(min(limits)), 0)


def _free_of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 1 << 62


@functools.cache
def _container_files() -> tuple[tuple[Path, Path], ...]:
    """Files (limit, usage) of the control groups of this process, cgroup v1 and v2."""
    pairs = []
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                base, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                base, names = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            for folder in {base / path.lstrip("/"), base}:
                pairs.append((folder / names[0], folder / names[1]))
    except (OSError, ValueError):
        pass
    return tuple(pair for pair in pairs if pair[0].exists())


def _free_of_containers() -> list[int]:
    free = []
    for limit, usage in _container_files():
        try:
            free.append(int(limit.read_text()) - int(usage.read_text()))
        except (OSError, ValueError):  # "max": no limit
            continue
    return free


def rows_within(budget: int, entries: int, at_least: int = 1) -> int:
    """Number of rows of ``entries`` doubles each in this many bytes, but ``at_least`` as many.

    >>> rows_within(ARRAY_BYTES, 1 << 20), rows_within(ARRAY_BYTES, 1 << 22)
    (2, 1)
    """
    return max(at_least, budget // (8 * max(entries, 1)))


def keepable(share: float = MAX_KEPT_SHARE) -> int:
    """Bytes that may be kept to save time: this share of the available memory."""
    return int(available_memory() * share)


def as_bytes(given: Any, name: str) -> int:
    """Number of bytes, from a number or words.

    >>> as_bytes(1000, "max_memory"), as_bytes("1.5 GiB", "max_memory"), as_bytes("2 MB", "max_memory")
    (1000, 1610612736, 2000000)
    """
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)b?\s*", given.lower())
        try:
            base, power = (1024 if found and found[3] else 1000), "kmgt".find(found[2]) + 1 if found and found[2] else 0
            size = float(found[1]) * base**power if found else math.nan
        except ValueError:
            size = math.nan
    else:
        size = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else math.nan
    if not (size > 0 and math.isfinite(size)):
        raise ParameterError(f'{name} must be None, a number of bytes, or words such as "4 GiB"; got {given!r}.')
    return int(size)


def in_words(size: float) -> str:
    """Format a number of bytes.

    >>> in_words(3e6), in_words(2 * 2**30)
    ('2.9 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def require_memory(needed: float, what: str, instead: str) -> None:
    """Refuse work (``what``) that will not fit, before it begins, and say what to do ``instead``."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemoryError(f"{what} needs {in_words(needed)}; {in_words(available)} are available. {instead}")
