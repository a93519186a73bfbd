"""What this machine has: cores, and memory that may still be used."""

import functools
import os
from pathlib import Path

from mercer.core.errors import NotEnoughMemoryError


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@functools.cache
def _controller():
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # comes with scikit-learn

    return ThreadpoolController()


def one_thread():
    """Context in which BLAS uses one thread. For hundreds of small products in a row: threads gain little by them,
    and where other programs keep the cores busy they wait for each other, many times longer than the work takes."""
    return _controller().limit(limits=1, user_api="blas")


def available_memory() -> int:
    """Bytes that can be taken now without swapping: of the machine, or of the container where that allows less."""
    limits = [_free_of_machine(), *_left_in_containers()]
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
    """(limit, usage) files of the control groups this process is in, of both generations."""
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


def _left_in_containers() -> list[int]:
    left = []
    for limit, usage in _container_files():
        try:
            left.append(int(limit.read_text()) - int(usage.read_text()))
        except (OSError, ValueError):  # "max": no limit
            continue
    return left


def in_words(size: float) -> str:
    """Bytes as a person says them.

    >>> in_words(3e6), in_words(2 * 2**30)
    ('2.9 MiB', '2.0 GiB')
    """
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def require_memory(needed: float, what: str, instead: str):
    """Refuse work that will not fit, before it begins: ``what`` it is, and what to do ``instead``."""
    there = available_memory()
    if needed > there:
        raise NotEnoughMemoryError(f"{what} needs {in_words(needed)}; {in_words(there)} are available. {instead}")
