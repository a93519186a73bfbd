"""Bounds what a test process keeps of compiled programs."""

import gc
import itertools
from pathlib import Path

import jax

# Mappings of memory, of which a compiled program takes about 17. Linux ends a process that has 65,530.
MAX_MAPPINGS, MAX_BETWEEN_MODULES = 40_000, 15_000
TESTS_BETWEEN_COUNTS = 25

_tests = itertools.count(1)


def pytest_runtest_teardown(item, nextitem):
    """Forget compiled programs when they are many: after a module of tests, or within a large one."""
    ended = nextitem is None or nextitem.path != item.path
    if not ended and next(_tests) % TESTS_BETWEEN_COUNTS:
        return
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > (MAX_BETWEEN_MODULES if ended else MAX_MAPPINGS):
        jax.clear_caches()
        gc.collect()
