"""GEM's equations (docs/design.md, section 2) on numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gem_core import RuleState, Statistics, UpdateRule, create_rule
from gem_core.recipe import Recipe, RecipeKind


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def commit(rule: UpdateRule, theta: np.ndarray, state: RuleState, *delta: float) -> tuple[np.ndarray, Statistics]:
    """The update that was applied, and the statistics."""
    before = theta.copy()
    statistics = rule.commit(theta, state, vector(*delta), 1)
    return theta - before, statistics


def new_worker(rule: UpdateRule, theta: np.ndarray) -> RuleState:
    return rule.new_worker(theta)


def test_two_workers_share_the_energy_as_in_the_worked_example() -> None:
    rule, theta = create_rule("gem"), vector(0)
    a, b = new_worker(rule, theta), new_worker(rule, theta)
    applied = [
        float(commit(rule, theta, worker, delta)[0][0]) for worker, delta in ((a, 0.1), (b, 0.1), (a, 0.1), (b, 0.2))
    ]
    np.testing.assert_allclose(applied, [0.1, 0, 0.19, 0.10], atol=1e-7)
    np.testing.assert_allclose(theta, [0.39], atol=1e-7)


def test_one_worker_is_limited_by_the_clamp_as_in_the_worked_example() -> None:
    rule, theta = create_rule("gem"), vector(0)
    state = new_worker(rule, theta)
    applied = [float(commit(rule, theta, state, delta)[0][0]) for delta in (0.1, 0.1, -0.05, 0.001)]
    np.testing.assert_allclose(applied, [0.1, 0.19, -0.121, 0.005], atol=1e-7)


def test_moment_is_an_exponential_sum_of_the_deltas() -> None:
    rule, theta = create_rule("gem", momentum=0.5), vector(0, 0)
    state = new_worker(rule, theta)
    for delta in (vector(1, -1), vector(1, 0), vector(1, 8)):
        rule.commit(theta, state, delta, 0)
    np.testing.assert_array_equal(state.vectors[0], [1.75, 7.75])


def test_proxy_is_kappa_times_the_moment() -> None:
    # Equation 27, not the square root of equation 26.
    for kappa in (1, 2, 4):
        rule, theta = create_rule("gem", kappa=kappa), vector(0)
        update, statistics = commit(rule, theta, new_worker(rule, theta), 0.5)
        assert update[0] == kappa * 0.5
        assert statistics.proxy_norm == kappa * 0.5
        assert statistics.mean_pi == kappa


def test_energy_of_an_update_and_its_drift_is_that_of_the_proxy() -> None:
    # Equations 11 and 16, elementwise: |theta - s + pi * delta| = kappa * |m| where the clamp does not interfere and
    # delta goes on in the direction of the drift.
    rule, theta = create_rule("gem"), vector(0, 0)
    state = new_worker(rule, theta)
    state.vectors[0][:] = [1, -1]
    theta += vector(0.25, -0.5)
    drift = theta - state.snapshot
    update, _ = commit(rule, theta, state, 0.5, -0.5)
    np.testing.assert_allclose(np.abs(drift + update), np.abs(state.vectors[0]), rtol=1e-6)


def test_snapshot_is_the_new_theta_bit_for_bit() -> None:
    rule, theta = create_rule("gem"), vector(0.1, 0.2, 0.3)
    state = new_worker(rule, theta)
    theta += vector(1, 2, 3)
    rule.commit(theta, state, vector(0.3, 0, -0.7), 1)
    assert state.snapshot.tobytes() == theta.tobytes()
    assert not np.shares_memory(state.snapshot, theta)


def test_drift_beyond_the_proxy_blocks_the_delta() -> None:
    rule, theta = create_rule("gem"), vector(0)
    state = new_worker(rule, theta)
    theta += 1
    update, statistics = commit(rule, theta, state, 0.1)
    assert update[0] == 0
    assert (statistics.mean_pi, statistics.blocked_fraction, statistics.clamped_fraction) == (0, 1, 0)


def test_upper_clamp_limits_the_factor() -> None:
    rule, theta = create_rule("gem", pi_max=3), vector(0)
    state = new_worker(rule, theta)
    state.vectors[0][:] = 100
    update, statistics = commit(rule, theta, state, 0.5)
    assert update[0] == 1.5
    assert (statistics.mean_pi, statistics.blocked_fraction, statistics.clamped_fraction) == (3, 0, 1)


def test_without_momentum_one_worker_is_sgd() -> None:
    rule, theta = create_rule("gem", momentum=0), vector(1, 2, 3)
    state = new_worker(rule, theta)
    for _ in range(3):
        update, _ = commit(rule, theta, state, 0.5, -0.25, 0.125)
        np.testing.assert_allclose(update, [0.5, -0.25, 0.125], rtol=1e-6)


MOVEMENT = Recipe(RecipeKind.MOVEMENT, "Adadelta", ({},), ()).rule_settings()


def test_with_the_signed_gap_one_worker_gets_exactly_its_own_steps() -> None:
    rule, random = create_rule("gem", **MOVEMENT), np.random.default_rng(0)
    theta = random.standard_normal(1000).astype(np.float32)
    expected, state = theta.copy(), new_worker(rule, theta)
    for scale in (1, 1e-3, 1e-20, 1e9):
        delta = (scale * random.standard_normal(1000)).astype(np.float32)
        statistics = rule.commit(theta, state, delta, 0)
        expected += delta
        assert theta.tobytes() == expected.tobytes()
        assert statistics.mean_pi == statistics.clamped_fraction == 1


def test_with_the_signed_gap_others_movement_in_the_same_direction_shortens_a_step() -> None:
    # Others have moved by 1.25 of the present worker's steps: of its budget of 2 steps 0.75 are left.
    rule, theta = create_rule("gem", **MOVEMENT), vector(0, 0, 0, 0)
    state = new_worker(rule, theta)
    theta += vector(1.25, -1.25, 2.5, -0.5)
    update, _ = commit(rule, theta, state, 1, -1, 1, -1)
    np.testing.assert_allclose(update, [0.75, -0.75, 0, -1], rtol=1e-6)


def test_with_the_signed_gap_others_movement_in_the_opposite_direction_does_not_shorten_a_step() -> None:
    for signed, expected in ((1, [1, -1, 1]), (0, [0, 0, 0.75])):
        rule, theta = create_rule("gem", **{**MOVEMENT, "signed_gap": signed}), vector(0, 0, 0)
        state = new_worker(rule, theta)
        theta += vector(-3, 3, -1.25)
        update, _ = commit(rule, theta, state, 1, -1, 1)
        np.testing.assert_allclose(update, expected, rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, MOVEMENT])
def test_a_rule_that_changes_its_settings_takes_its_gap_from_the_new_ones(settings: dict[str, float]) -> None:
    changed, theta = create_rule("gem", **({} if settings else MOVEMENT)), vector(0)
    commit(changed, theta, new_worker(changed, theta), 1)
    changed.change_settings(settings)
    found = []
    for rule in (changed, create_rule("gem", **settings)):
        theta = vector(0)
        state = new_worker(rule, theta)
        theta -= 3
        found.append((float(commit(rule, theta, state, 1)[0][0]), rule.factors(theta, state, vector(1), slice(None))))
    assert found[0] == found[1]
    assert found[0][0] == (1 if settings else 0)


@pytest.mark.parametrize("signed", [0, 1])
def test_factors_are_those_of_a_commit(signed: int) -> None:
    rule, random = create_rule("gem", signed_gap=signed), np.random.default_rng(1)
    theta, snapshot, moment, delta = random.standard_normal((4, 500)).astype(np.float32)
    state = RuleState(snapshot, (moment,))
    factors = rule.factors(theta, state, delta, slice(None))
    assert factors is not None
    before = theta.copy()
    rule.commit(theta, state, delta, 1)
    assert (before + factors * delta).tobytes() == theta.tobytes()


def test_where_delta_is_zero_nothing_is_applied_and_nothing_is_counted() -> None:
    rule, theta = create_rule("gem"), vector(0, 0, 0)
    state = new_worker(rule, theta)
    state.vectors[0][:] = 1
    theta += vector(0.5, 0, 0)
    update, statistics = commit(rule, theta, state, 0, -0.0, 2)
    np.testing.assert_allclose(update, [0, 0, 2.9], rtol=1e-6)
    np.testing.assert_allclose(state.vectors[0], [0.9, 0.9, 2.9], rtol=1e-6)
    np.testing.assert_array_equal(state.snapshot, theta)
    assert statistics.mean_pi == pytest.approx(1.45)
    assert statistics.blocked_fraction == 0


@pytest.mark.parametrize("name", ["gem", "downpour", "adaptive-staleness"])
@pytest.mark.parametrize("elements", [0, 5])
def test_a_delta_of_zeros_has_statistics_of_zero(name: str, elements: int) -> None:
    rule, theta = create_rule(name), np.full(elements, 2, np.float32)
    statistics = rule.commit(theta, rule.new_worker(theta), np.zeros(elements, np.float32), 3)
    assert statistics == Statistics(0, 0, 0, 0, 0, 0, 0)
    assert theta.tolist() == [2] * elements


def test_downpour_adds_the_delta_whatever_the_staleness() -> None:
    rule, theta = create_rule("downpour"), vector(1, 1)
    state = rule.new_worker(theta)
    theta += vector(3, 4)
    statistics = rule.commit(theta, state, vector(0.5, 0), 9)
    np.testing.assert_array_equal(theta, [4.5, 5])
    np.testing.assert_array_equal(state.snapshot, theta)
    assert statistics == Statistics(1, 0, 0, 0, 5, 0.5, 0.5)


def test_adaptive_staleness_divides_the_delta_by_staleness_plus_one() -> None:
    rule, theta = create_rule("adaptive-staleness"), vector(0, 0)
    state = rule.new_worker(theta)
    assert rule.commit(theta, state, vector(4, 0), 0).mean_pi == 1
    statistics = rule.commit(theta, state, vector(4, 0), 3)
    np.testing.assert_array_equal(theta, [5, 0])
    np.testing.assert_array_equal(state.snapshot, theta)
    assert statistics == Statistics(0.25, 0, 0, 0, 0, 4, 1)
