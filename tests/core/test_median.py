"""The median of figures that others claim: of one, of two, and of more with values that are no numbers."""

import math
import statistics
import sys

import numpy as np
import pytest

from gem_core.median import median


def test_no_value_has_no_median() -> None:
    assert median([]) is None


def test_of_one_it_is_that_value_and_of_two_their_mean() -> None:
    assert median([3.0]) == 3.0
    assert median([1.0, 4.0]) == 2.5


def test_it_is_the_median_of_the_standard_library_where_that_is_defined() -> None:
    random = np.random.default_rng(5)
    for count in range(1, 20):
        values = random.normal(size=count).tolist()
        assert median(values) == pytest.approx(statistics.median(values))


@pytest.mark.parametrize("claim", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_one_claim_among_three_or_more_stays_within_the_others_values(claim: float) -> None:
    for count in range(2, 8):
        honest = [float(one) for one in range(count)]
        for at in range(count + 1):
            found = median([*honest[:at], claim, *honest[at:]])
            assert found is not None
            assert honest[0] <= found <= honest[-1]


def test_the_mean_of_the_middle_two_does_not_overflow() -> None:
    assert median([sys.float_info.max, sys.float_info.max / 2, 0.0, math.inf]) == sys.float_info.max * 0.75


def test_values_that_are_all_no_numbers_have_none_as_their_median() -> None:
    found = median([math.nan, math.nan])
    assert found is not None
    assert math.isnan(found)
