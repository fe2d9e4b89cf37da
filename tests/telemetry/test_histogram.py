"""Counts in buckets, and what they tell of quantiles."""

import numpy as np
import pytest
from gem_server.telemetry.histogram import STALENESS_BOUNDS, WAIT_BOUNDS, Histogram
from hypothesis import given
from hypothesis import strategies as st


def test_a_bucket_has_what_its_bound_is_not_exceeded_by() -> None:
    histogram = Histogram((0, 1, 4))
    for value in (0, 1, 1.5, 4, 4.1, 100):
        histogram.record(value)
    assert histogram.counts == [1, 1, 2, 2]
    assert (histogram.total, histogram.most) == (pytest.approx(110.6), 100)


def test_without_values_a_quantile_is_0() -> None:
    assert Histogram(WAIT_BOUNDS).quantile(0.99) == 0


@given(st.lists(st.floats(0, 2000), min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], fraction: float) -> None:
    histogram = Histogram(STALENESS_BOUNDS)
    for value in values:
        histogram.record(value)
    true = float(np.quantile(values, fraction, method="inverted_cdf"))
    bucket = int(np.searchsorted(STALENESS_BOUNDS, true))
    lower = 0 if bucket == 0 else STALENESS_BOUNDS[bucket - 1]
    upper = STALENESS_BOUNDS[bucket] if bucket < len(STALENESS_BOUNDS) else max(values)
    assert lower <= histogram.quantile(fraction) <= upper
    assert histogram.quantile(fraction) <= max(values)


@given(st.lists(st.floats(0, 2000), max_size=300), st.integers(0, 300))
def test_many_values_at_once_count_as_one_after_the_other(values: list[float], first: int) -> None:
    alone, together = Histogram(STALENESS_BOUNDS), Histogram(STALENESS_BOUNDS)
    for value in values:
        alone.record(value)
    together.add_all(values[:first])
    together.add_all(values[first:])
    assert (together.counts, together.most) == (alone.counts, alone.most)
    assert together.total == pytest.approx(alone.total)
