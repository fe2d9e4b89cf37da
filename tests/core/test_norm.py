"""The norm of a delta, against NumPy's in float64."""

import numpy as np
import pytest

from gem_core.aligned import aligned_copy
from gem_core.norm import MOST_STRIPS, sampled_norm
from gem_core.thresholds import STRIP


@pytest.mark.parametrize("size", [0, 1, 7, STRIP - 1, STRIP, STRIP + 1, 10 * STRIP + 3])
@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e15, 1e30])
def test_norms_neither_overflow_nor_vanish(size: int, scale: float) -> None:
    values = aligned_copy((scale * np.random.default_rng(size).uniform(-1, 1, size)).astype(np.float32))
    assert sampled_norm(values) == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=1e-5)


def test_a_part_that_is_much_smaller_counts() -> None:
    values = aligned_copy(np.zeros(2 * STRIP, np.float32))
    values[0], values[STRIP:] = 1e-3, 1e-25
    assert sampled_norm(values) == pytest.approx(1e-3)


@pytest.mark.parametrize("strips", [MOST_STRIPS - 1, 2 * MOST_STRIPS - 1, 2 * MOST_STRIPS, 7 * MOST_STRIPS + 5])
def test_the_norm_of_a_long_vector_is_estimated(strips: int) -> None:
    values = aligned_copy(np.random.default_rng(strips).standard_normal(strips * STRIP + 3).astype(np.float32))
    found = sampled_norm(values)
    assert found == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=0.02)
    assert sampled_norm(aligned_copy(128 * values)) == pytest.approx(128 * found, rel=1e-6)


@pytest.mark.parametrize("values", [np.zeros(4), np.zeros(8, np.float32)[::2], np.zeros((2, 2), np.float32)])
def test_other_arrays_are_refused(values: np.ndarray) -> None:
    with pytest.raises(TypeError):
        sampled_norm(values)
