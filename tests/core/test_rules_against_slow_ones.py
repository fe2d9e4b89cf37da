"""The kernels against slow transcriptions of the same equations: equal to float32 bit for bit, close to float64."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import RuleState, Statistics, create_rule
from gem_core.rules import interface
from tests.core import slow
from tests.core.samples import KINDS, LENGTHS, Sample, make_sample

samples = st.builds(make_sample, st.sampled_from(KINDS), st.sampled_from(LENGTHS), st.integers(0, 2**32))
gem_settings = st.builds(
    slow.GemSettings,
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    kappa=st.sampled_from([0.0, 1.0, 2.0, 4.0]),
    pi_min=st.sampled_from([0.0, -1.0, 0.5]),
    pi_max=st.sampled_from([5.0, 1.0, 0.5]),
    epsilon=st.sampled_from([1e-12, 1e-8, 1e-30]),
    signed_gap=st.sampled_from([0, 1]),
)
# Half of float32's last place, relative.
EPSILON = 2.0**-24
SMALLEST = 2.0**-149


@pytest.fixture(params=["serial", "parallel"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kernels, for vectors of any length."""
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1 if request.param == "parallel" else 10**9)
    return str(request.param)


def check_statistics(
    found: Statistics,
    slowly: slow.Outcome,
    sample: Sample,
    proxy: np.ndarray,
    limits: tuple[float, float] = (math.nan, math.nan),
) -> None:
    moving = sample.delta != 0
    count = int(moving.sum())
    pi = slowly.pi[moving].astype(np.float64)
    # pi may have both signs (pi_min below 0), and its sum cancel: the error is one of the sum of |pi|.
    bound = 2e-6 * abs(pi).sum() / count + 1e-30 if count else 0
    assert found.mean_pi == pytest.approx(pi.sum() / count if count else 0, rel=0, abs=bound)
    for fraction, limit in zip((found.blocked_fraction, found.clamped_fraction), limits, strict=True):
        assert fraction == ((pi == np.float32(limit)).sum() / count if count else 0)
    for norm, values in (
        (found.proxy_norm, proxy),
        (found.drift_norm, slowly.drift),
        (found.delta_norm, sample.delta),
        (found.update_norm, slowly.update),
    ):
        assert norm == pytest.approx(slow.norm(values), rel=1e-6, abs=1e-100)


@pytest.mark.usefixtures("kernels")
@given(sample=samples, chosen=gem_settings)
@settings(deadline=None, max_examples=60)
def test_gem_equals_numpy_bit_for_bit_and_float64_within_its_error(sample: Sample, chosen: slow.GemSettings) -> None:
    rule = create_rule("gem", **vars(chosen))
    theta = sample.theta.copy()
    state = RuleState(sample.snapshot.copy(), (sample.moment.copy(),))
    statistics = rule.commit(theta, state, sample.delta, 1)

    single = slow.gem(*sample, chosen, np.float32)
    assert theta.tobytes() == single.theta.tobytes()
    assert state.vectors[0].tobytes() == single.moment.tobytes()
    assert state.snapshot.tobytes() == theta.tobytes()
    check_statistics(
        statistics, single, sample, chosen.kappa * single.moment.astype(np.float64), (chosen.pi_min, chosen.pi_max)
    )

    double = slow.gem(*sample, chosen, np.float64)
    moment_terms = chosen.momentum * np.abs(sample.moment.astype(np.float64)) + np.abs(sample.delta)
    assert np.all(np.abs(state.vectors[0] - double.moment) <= 2 * EPSILON * moment_terms + SMALLEST)
    # Every operation rounds by at most EPSILON of its result; what is subtracted keeps the error of its terms; the
    # division by |delta| + epsilon is undone by the product with delta; the clamp does not enlarge an error. What
    # underflows is wrong by SMALLEST: in pi that is multiplied by delta.
    terms = chosen.kappa * moment_terms + np.abs(double.drift) + np.abs(double.update) + np.abs(double.theta)
    tolerance = 8 * EPSILON * terms + SMALLEST * (8 + 2 * chosen.kappa + np.abs(sample.delta.astype(np.float64)))
    assert np.all(np.abs(theta - double.theta) <= tolerance)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["downpour", "adaptive-staleness"])
@given(sample=samples, staleness=st.sampled_from([0, 1, 2, 6, 31, 2**24]))
@settings(deadline=None, max_examples=40)
def test_rules_that_divide_equal_numpy_bit_for_bit_and_float64_within_their_error(
    name: str, sample: Sample, staleness: int
) -> None:
    rule = create_rule(name)
    theta = sample.theta.copy()
    state = rule.new_worker(sample.snapshot)
    statistics = rule.commit(theta, state, sample.delta, staleness)

    divisor = staleness + 1 if name == "adaptive-staleness" else 1
    single = slow.divided(sample.theta, sample.snapshot, sample.delta, divisor, np.float32)
    assert theta.tobytes() == single.theta.tobytes()
    assert state.snapshot.tobytes() == theta.tobytes()
    check_statistics(statistics, single, sample, np.zeros(1))

    double = slow.divided(sample.theta, sample.snapshot, sample.delta, divisor, np.float64)
    tolerance = 4 * EPSILON * (np.abs(double.update) + np.abs(double.theta)) + SMALLEST
    assert np.all(np.abs(theta - double.theta) <= tolerance)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("length", LENGTHS)
def test_a_delta_that_may_not_be_written_to_is_taken(length: int) -> None:
    sample = make_sample("ordinary", length, 3)
    read_only = np.frombuffer(sample.delta.tobytes(), np.float32)
    rule = create_rule("gem")
    found = []
    for delta in (sample.delta, read_only):
        theta = sample.theta.copy()
        rule.commit(theta, RuleState(sample.snapshot.copy(), (sample.moment.copy(),)), delta, 0)
        found.append(theta.tobytes())
    assert found[0] == found[1]
    assert read_only.tobytes() == sample.delta.tobytes()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["gem", "downpour", "adaptive-staleness"])
def test_statistics_of_the_largest_deltas_are_finite(name: str) -> None:
    rule, theta = create_rule(name), np.zeros(300_001, np.float32)
    statistics = rule.commit(theta, rule.new_worker(theta), np.full(300_001, 1e30, np.float32), 0)
    assert statistics.delta_norm == pytest.approx(1e30 * math.sqrt(300_001), rel=1e-6)
    assert statistics.update_norm == pytest.approx(1e30 * math.sqrt(300_001), rel=1e-6)
    assert np.isfinite(theta).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["gem", "downpour", "adaptive-staleness"])
def test_a_commit_allocates_little_beside_the_models_size(name: str) -> None:
    rule, theta = create_rule(name), np.zeros(1_000_000, np.float32)
    state, delta = rule.new_worker(theta), np.ones(1_000_000, np.float32)
    rule.warm_up()
    tracemalloc.start()  # NumPy reports its arrays to it
    try:
        rule.commit(theta, state, delta, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < theta.nbytes / 100
