"""Vectors that begin where a cache line begins."""

import numpy as np
import pytest

from gem_core import create_rule
from gem_core.aligned import aligned_copy, aligned_empty, aligned_zeros


@pytest.mark.parametrize("elements", [1, 15, 16, 17, 1000, 1_000_000])
def test_vectors_begin_where_a_cache_line_begins(elements: int) -> None:
    values = np.random.default_rng(0).normal(size=elements).astype(np.float32)
    for made in (aligned_empty(elements), aligned_zeros(elements), aligned_copy(values)):
        assert made.ctypes.data % 64 == 0
        assert made.shape == (elements,)
        assert made.dtype == np.float32
    assert not aligned_zeros(elements).any()
    assert aligned_copy(values).tobytes() == values.tobytes()


def test_what_a_rule_keeps_of_a_worker_is_aligned() -> None:
    state = create_rule("gem").new_worker(np.zeros(1_000_001, np.float32))
    assert [vector.ctypes.data % 64 for vector in (state.snapshot, *state.vectors)] == [0, 0]
