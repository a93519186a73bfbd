"""Bounds what a test process keeps of compiled programs."""

import gc
from pathlib import Path

import jax
import pytest

MAX_MAPPINGS = 15_000  # of memory; Linux ends a process at 65,530, and a compiled program takes about 17


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs():
    """Forget the compiled programs of earlier modules when they are many: thousands would end the process."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MAX_MAPPINGS:
        jax.clear_caches()
        gc.collect()
