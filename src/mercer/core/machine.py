"""Cores and memory available to this process."""

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

from mercer.core.errors import NotEnoughMemoryError


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


def available_memory() -> int:
    """Bytes that can be allocated now without swapping, within the limits of the container if there is one."""
    limits = [_free_of_machine(), *_free_of_containers()]
    return max(min(limits), 0)


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
