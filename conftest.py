"""Shares compiled programs between test processes, and bounds what a process keeps of them."""

import gc
import itertools
import os
import tempfile
from pathlib import Path

import jax

# Tests build the same program again and again, from other functions and in other processes: it is compiled once.
if "MERCER_TEST_PROGRAMS" not in os.environ:
    _programs = tempfile.TemporaryDirectory(prefix="mercer-programs-", ignore_cleanup_errors=True)
    os.environ["MERCER_TEST_PROGRAMS"] = _programs.name
jax.config.update("jax_compilation_cache_dir", os.environ["MERCER_TEST_PROGRAMS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

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
