"""Pi by tensor, from a sample."""

import numpy as np
import pytest
from gem_server.telemetry.tensor_pi import MAX_COLUMNS, MAX_TENSORS, SAMPLES_A_COLUMN, Sample, TensorPi
from numpy.typing import NDArray

from gem_core import ElementType, Layout, RuleState, TensorKind, TensorSpec, create_rule


def layout_of(*sizes: int) -> Layout:
    return Layout(
        [
            TensorSpec(f"layer.{index}", (size,), ElementType.FLOAT32, TensorKind.PARAMETER)
            for index, size in enumerate(sizes)
        ]
    )


def states(size: int) -> tuple[NDArray[np.float32], RuleState, NDArray[np.float32]]:
    """Theta, a worker with a moment and a drift, and a delta, some of whose elements are 0."""
    random = np.random.default_rng(size)
    theta, snapshot, moment, delta = (random.normal(size=size).astype(np.float32) for _ in range(4))
    delta[random.random(size) < 0.3] = 0
    return theta, RuleState(snapshot, (moment,)), delta


def taken(tensors: TensorPi, layout: Layout, at: float) -> Sample:
    sample = tensors.due(at, layout)
    assert sample is not None
    return sample


def test_of_small_tensors_every_element_is_seen_and_what_it_says_is_the_rules_own() -> None:
    rule, layout = create_rule("gem"), layout_of(60, 1, 39)
    theta, state, delta = states(100)
    before = [array.copy() for array in (theta, state.snapshot, state.vectors[0], delta)]
    sample = taken(TensorPi(rule), layout, 0.0)
    sample(theta, state, delta)
    for array, was in zip((theta, state.snapshot, state.vectors[0], delta), before, strict=True):
        assert np.array_equal(array, was)
    moving = [int((part != 0).sum()) for part in np.split(delta, [60, 61])]
    known = [mean for mean, count in zip(sample.mean, moving, strict=True) if count]
    whole = rule.commit(theta, state, delta, 1).mean_pi
    assert np.dot(known, [count for count in moving if count]) / sum(moving) == pytest.approx(whole, rel=1e-5)


def test_the_median_is_that_of_what_moves() -> None:
    rule, layout = create_rule("gem", pi_max=100.0), layout_of(4, 3, 2)
    delta = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0], np.float32)
    moment = np.array([10, 50, 0, 99, 20, 40, 99, 9, 9], np.float32)
    theta = np.zeros(9, np.float32)
    sample = taken(TensorPi(rule), layout, 0.0)
    sample(theta, RuleState(theta.copy(), (moment,)), delta)
    assert sample.median[:2] == pytest.approx([10.0, (19 + 37) / 2])
    assert sample.mean[:2] == pytest.approx([(10 + 46 + 1) / 3, 28])
    assert np.isnan(sample.median[2])
    assert np.isnan(sample.mean[2])


def test_a_sample_of_a_large_tensor_is_near_the_whole() -> None:
    rule, layout = create_rule("gem"), layout_of(200_000, 100_000)
    theta, state, delta = states(300_000)
    sample = taken(TensorPi(rule), layout, 0.0)
    sample(theta, state, delta)
    whole = rule.factors(theta, state, delta, slice(None))
    assert whole is not None
    for at, part in enumerate((slice(0, 200_000), slice(200_000, None))):
        moving = whole[part][delta[part] != 0]
        assert sample.mean[at] == pytest.approx(moving.mean(), abs=6 * moving.std() / np.sqrt(180))


def test_columns_are_bounded_and_the_stretches_become_longer() -> None:
    rule, layout = create_rule("gem"), layout_of(8, 8)
    tensors, (theta, state, delta) = TensorPi(rule), states(16)
    at, seen = 0.0, 0
    for _ in range(5 * MAX_COLUMNS * SAMPLES_A_COLUMN):
        at += tensors.seconds / SAMPLES_A_COLUMN
        sample = tensors.due(at, layout)
        if sample is not None:
            sample(theta, state, delta)
            tensors.add_sample(sample, at, seen)
            seen += 1
    assert MAX_COLUMNS // 2 <= len(tensors.columns) < MAX_COLUMNS
    assert tensors.joins > 1
    assert sum(column.samples for column in tensors.columns) + SAMPLES_A_COLUMN > seen
    assert [column.clock for column in tensors.columns] == sorted(column.clock for column in tensors.columns)
    assert np.allclose(tensors.columns[0].mean, tensors.columns[-1].mean)


def test_between_two_samples_nothing_is_looked_at() -> None:
    tensors, layout = TensorPi(create_rule("gem")), layout_of(4)
    taken(tensors, layout, 0.0)
    assert tensors.due(0.1, layout) is None
    taken(tensors, layout, tensors.seconds)


def test_of_a_model_with_many_tensors_evenly_chosen_ones_are_shown() -> None:
    layout = layout_of(*[3] * 1000)
    tensors = TensorPi(create_rule("gem"))
    theta, state, delta = states(3000)
    sample = taken(tensors, layout, 0.0)
    sample(theta, state, delta)
    assert len(tensors.names) == len(sample.mean) == MAX_TENSORS
    assert (tensors.names[0], tensors.names[-1]) == ("layer.0", "layer.999")


def test_a_rule_without_a_factor_by_element_is_not_looked_at() -> None:
    tensors = TensorPi(create_rule("downpour"))
    assert tensors.due(0.0, layout_of(4)) is None
    assert not tensors.names
