"""Stores past the cache: that they are what the processor runs, and where they may go."""

import platform

import numba
import numpy as np
import pytest

from gem_core import checked_copy
from gem_core.aligned import aligned_copy, aligned_empty, aligned_zeros
from gem_core.nontemporal import elements_past_cache
from gem_core.rules.blocks import Driver


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction has another name there")
@pytest.mark.parametrize(
    "kernel",
    [checked_copy._copy, checked_copy._copy_scaled],
    ids=lambda kernel: kernel.dispatcher.__name__,
)
def test_a_kernel_has_nontemporal_stores(kernel: Driver) -> None:
    compiled = numba.njit(nogil=True, error_model="numpy")(kernel.dispatcher.py_func)  # no text is kept in the cache
    compiled.compile(kernel._signature)
    (assembly,) = compiled.inspect_asm().values()
    assert "movnt" in assembly


def test_a_short_vector_and_one_that_begins_within_a_line_stay_in_the_cache() -> None:
    vector = aligned_empty(1000)
    assert vector.ctypes.data % 64 == 0
    assert vector.shape == (1000,)
    assert elements_past_cache(vector, 1001) == 0
    assert elements_past_cache(vector, 1000) == 992  # whole lines
    assert elements_past_cache(vector[1:], 0) == 0
    assert elements_past_cache(np.empty(0, np.float32), 0) == 0


@pytest.mark.parametrize("elements", [1, 15, 16, 17, 1000, 1_000_000])
def test_vectors_begin_where_a_cache_line_begins(elements: int) -> None:
    values = np.random.default_rng(0).normal(size=elements).astype(np.float32)
    for made in (aligned_empty(elements), aligned_zeros(elements), aligned_copy(values)):
        assert made.ctypes.data % 64 == 0
        assert made.shape == (elements,)
        assert made.dtype == np.float32
    assert not aligned_zeros(elements).any()
    assert aligned_copy(values).tobytes() == values.tobytes()
