"""GEM's preconditioners against slow transcriptions, and what they promise: steps without the gradients' scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import RuleError, RuleState, SizeMismatchError, UpdateRule, create_rule, rule_names
from gem_core.rules import interface, known_settings
from tests.core import slow

KINDS = ("rms", "averaged-rms")
VECTORS = {"rms": 1, "averaged-rms": 2}
# One element, less than one SIMD register, and several blocks with a rest.
LENGTHS = (1, 7, 40_001)
SCALES = {"ordinary": 1.0, "denormal": 1e-38, "huge": 1e25}
ETAS = (0.05, 2e-3, 1.0, 3e-7)

commits = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ETAS)), min_size=1, max_size=12)


@pytest.fixture(params=["serial", "parallel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels, for vectors of any length."""
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1 if request.param == "parallel" else 10**9)


class Workers:
    """Three workers of one rule, and the staleness of each."""

    def __init__(self, rule: UpdateRule, theta: np.ndarray) -> None:
        self.rule, self.theta = rule, theta
        self.states: list[RuleState] = [rule.new_worker(theta) for _ in range(3)]
        self.clock, self.held = 0, [0, 0, 0]

    def staleness(self, worker: int) -> int:
        return self.clock - self.held[worker]

    def commit(self, worker: int, delta: np.ndarray, eta: float) -> None:
        self.rule.commit(self.theta, self.states[worker], delta, self.staleness(worker), eta)
        self.clock += 1
        self.held[worker] = self.clock


def gradient(random: np.random.Generator, length: int, scale: float = 1.0) -> np.ndarray:
    found = random.standard_normal(length) * scale
    found[random.random(length) < 0.2] = 0
    return found.astype(np.float32)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", KINDS)
@given(steps=commits, scale=st.sampled_from(list(SCALES)), length=st.sampled_from(LENGTHS), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=15)
def test_a_run_of_several_workers_equals_numpy_bit_for_bit(
    kind: str, steps: list[tuple[int, float]], scale: str, length: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    theta = random.standard_normal(length).astype(np.float32)
    workers = Workers(create_rule("gem", kind), theta.copy())
    twin = slow.PreconditionedGem(theta, slow.GemSettings(), kind == "averaged-rms", np.float32)
    for worker in range(3):
        twin.pull(worker)
    for worker, eta in steps:
        delta = np.float32(-eta) * gradient(random, length, SCALES[scale])
        staleness = workers.staleness(worker)
        workers.commit(worker, delta, eta)
        with np.errstate(over="ignore", under="ignore"):
            twin.commit(worker, delta * np.float32(1 / eta), eta, staleness)
        assert workers.theta.tobytes() == twin.theta.tobytes()
        assert workers.states[worker].vectors[0].tobytes() == twin.moments[worker].tobytes()
        assert workers.states[worker].snapshot.tobytes() == twin.held[worker].tobytes()
        assert workers.rule.vectors_of_run(theta)[-1].tobytes() == twin.square.tobytes()
    assert np.isfinite(workers.theta).all()


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_schedule_the_mean_square_is_that_of_the_gradients(kind: str) -> None:
    # The twin gets gradients in float64, without eta; the rule gets deltas with another eta each.
    random = np.random.default_rng(5)
    theta = random.standard_normal(5_000).astype(np.float32)
    workers = Workers(create_rule("gem", kind), theta.copy())
    twin = slow.PreconditionedGem(theta, slow.GemSettings(), kind == "averaged-rms", np.float64)
    for worker in range(3):
        twin.pull(worker)
    for number in range(30):
        eta, worker = 0.1 * 0.7**number, number % 3
        of_batch = gradient(random, 5_000)
        staleness = workers.staleness(worker)
        workers.commit(worker, np.float32(-eta) * of_batch, eta)
        twin.commit(worker, -of_batch.astype(np.float64), eta, staleness)
    np.testing.assert_allclose(workers.rule.vectors_of_run(theta)[-1], twin.square, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(workers.theta, twin.theta, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_scale_of_the_gradients_does_not_matter(kind: str) -> None:
    ends = []
    for scale in (1.0, 2.0**30):
        random = np.random.default_rng(6)
        rule = create_rule("gem", kind, precondition_epsilon=1e-30)
        workers = Workers(rule, np.zeros(1_000, np.float32))
        for number in range(12):
            workers.commit(number % 3, np.float32(-0.5) * gradient(random, 1_000, scale), 0.5)
        ends.append(workers.theta.tobytes())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", KINDS)
def test_first_step_is_eta_in_the_direction_of_minus_the_gradient(kind: str) -> None:
    rule, theta = create_rule("gem", kind), np.zeros(3, np.float32)
    statistics = rule.commit(theta, rule.new_worker(theta), np.array([-0.02, 0, 3], np.float32), 0, 0.01)
    np.testing.assert_allclose(theta, [-0.01, 0, 0.01], rtol=1e-5)
    assert statistics.mean_pi == pytest.approx(1)
    assert statistics.delta_norm == pytest.approx(math.hypot(0.02, 3))
    assert statistics.update_norm == pytest.approx(0.01 * math.sqrt(2), rel=1e-5)


def test_without_staleness_both_preconditioners_are_the_same() -> None:
    ends = []
    for kind in KINDS:
        random, theta = np.random.default_rng(7), np.zeros(1_000, np.float32)
        rule = create_rule("gem", kind)
        state = rule.new_worker(theta)
        for _ in range(9):
            rule.commit(theta, state, np.float32(-0.1) * gradient(random, 1_000), 0, 0.1)
        ends.append(theta.tobytes())
    assert ends[0] == ends[1]


def test_constant_gradient_of_n_workers_steps_by_eta_over_the_root_of_n() -> None:
    rule, theta = create_rule("gem", "averaged-rms", momentum=0), np.zeros(1, np.float32)
    states = [rule.new_worker(theta) for _ in range(16)]
    for _ in range(40):
        for state in states:
            before = float(theta[0])
            rule.refresh(theta, state)
            rule.commit(theta, state, np.array([-0.3], np.float32), 15, 0.1)
    assert theta[0] - before == pytest.approx(-0.1 / math.sqrt(16), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rare_gradient_steps_by_the_cap_at_most(kind: str) -> None:
    rule, theta = create_rule("gem", kind, momentum=0, precondition_cap=5), np.zeros(2, np.float32)
    state = rule.new_worker(theta)
    for _ in range(2_000):
        rule.commit(theta, state, np.array([0, -0.1], np.float32), 0, 0.1)
    before = theta[0]
    rule.commit(theta, state, np.array([-0.1, -0.1], np.float32), 0, 0.1)
    assert theta[0] - before == pytest.approx(-5 * 0.1, rel=1e-5)  # without the cap: 10 eta


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eta", [0.0, 1e-40])
def test_a_delta_without_a_learning_rate_changes_neither_theta_nor_the_mean_square(kind: str, eta: float) -> None:
    random, theta = np.random.default_rng(8), np.zeros(100, np.float32)
    rule = create_rule("gem", kind)
    state = rule.new_worker(theta)
    for with_eta in (eta, 0.1, eta):  # also the run's first
        before = (theta.tobytes(), [one.tobytes() for one in rule.vectors_of_run(theta)], dict(rule.scalars_of_run))
        rule.commit(theta, state, np.float32(-with_eta) * gradient(random, 100), 2, with_eta)
        after = (theta.tobytes(), [one.tobytes() for one in rule.vectors_of_run(theta)], rule.scalars_of_run)
        assert (before == after) == (with_eta == eta)
    assert np.isfinite(theta).all()


@pytest.mark.parametrize("kind", KINDS)
def test_one_huge_gradient_leaves_the_run_finite(kind: str) -> None:
    random, theta = np.random.default_rng(9), np.zeros(100, np.float32)
    rule = create_rule("gem", kind)
    state = rule.new_worker(theta)
    for number in range(6):
        delta = np.full(100, 3e38, np.float32) if number == 2 else np.float32(-1e-3) * gradient(random, 100)
        rule.commit(theta, state, delta, 4, 1e-3)
    assert np.isfinite(theta).all()
    assert all(np.isfinite(one).all() for one in rule.vectors_of_run(theta))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eta", [0.1, 0.0])
def test_factors_are_those_of_the_next_commit(kind: str, eta: float) -> None:
    random, rule = np.random.default_rng(13), create_rule("gem", kind)
    workers = Workers(rule, np.zeros(1_000, np.float32))
    for number in range(8):
        workers.commit(number % 3, np.float32(-0.1) * gradient(random, 1_000), 0.1)
    delta = np.float32(-eta) * gradient(random, 1_000)
    scalars = dict(rule.scalars_of_run)
    state, at = workers.states[0], np.arange(0, 1_000, 3)
    assert rule.factors(workers.theta, state, delta, at) is None  # without eta
    factors = rule.factors(workers.theta, state, delta, slice(None), workers.staleness(0), eta)
    some = rule.factors(workers.theta, state, delta, at, workers.staleness(0), eta)
    assert factors is not None
    assert some is not None
    np.testing.assert_array_equal(factors[at], some)
    assert rule.scalars_of_run == scalars
    statistics = rule.commit(workers.theta, state, delta, workers.staleness(0), eta)
    moving = delta != 0
    assert statistics.mean_pi == pytest.approx(factors[moving].mean() if moving.any() else 0, rel=1e-5)
    assert statistics.blocked_fraction == pytest.approx((factors[moving] == 0).mean() if moving.any() else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_the_model_may_be_kept_apart(kind: str) -> None:
    random = np.random.default_rng(10)
    whole = Workers(create_rule("gem", kind), np.zeros(1_000, np.float32))
    parts = [Workers(create_rule("gem", kind), np.zeros(500, np.float32)) for _ in range(2)]
    for number in range(9):
        delta = np.float32(-0.1) * gradient(random, 1_000)
        whole.commit(number % 3, delta, 0.1)
        for part, piece in zip(parts, np.split(delta, 2), strict=True):
            part.commit(number % 3, piece, 0.1)
    assert whole.theta.tobytes() == b"".join(part.theta.tobytes() for part in parts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eta", [math.nan, -0.1, math.inf])
def test_a_commit_without_its_learning_rate_is_refused(kind: str, eta: float) -> None:
    rule, theta = create_rule("gem", kind), np.zeros(3, np.float32)
    with pytest.raises(RuleError, match="needs the learning rate in the delta"):
        rule.commit(theta, rule.new_worker(theta), theta.copy(), 0, eta)


@pytest.mark.parametrize("name", [name for name in rule_names() if name != "gem"])
def test_a_rule_without_preconditioners_refuses_one_with_the_fix(name: str) -> None:
    with pytest.raises(RuleError, match=f"'{name}' has no preconditioner: choose rule gem, or precondition none"):
        create_rule(name, "rms")


def test_an_unknown_preconditioner_is_refused_with_those_that_exist() -> None:
    with pytest.raises(RuleError, match="no preconditioner 'adam'; choose one of: none, rms, averaged-rms"):
        create_rule("gem", "adam")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("beta2", 1.0, "beta2 = 1 is out of range; choose 0 to 0.999999"),
        ("precondition_epsilon", 0, "precondition_epsilon = 0 is out of range; choose 1e-30 to 1"),
        ("precondition_cap", 0, "precondition_cap = 0 is out of range"),
        ("kappa", -1, "kappa = -1 is out of range"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_values_out_of_range_are_refused_with_the_range(kind: str, setting: str, value: float, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        create_rule("gem", kind, **{setting: value})


def test_settings_of_a_preconditioner_are_unknown_without_it() -> None:
    with pytest.raises(RuleError, match="'gem' has no setting 'beta2'"):
        create_rule("gem", beta2=0.9)
    added = {one.name for one in known_settings("gem", "rms")} - {one.name for one in known_settings("gem")}
    assert added == {"beta2", "precondition_epsilon", "precondition_cap"}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_the_run_is_as_many_vectors_as_announced(kind: str) -> None:
    rule, theta = create_rule("gem", kind), np.zeros(10, np.float32)
    state = rule.new_worker(theta)
    assert [one.nbytes for one in rule.vectors_of_run(theta)] == [40] * VECTORS[kind] == [40] * rule.vectors_per_run
    assert 1 + len(state.vectors) == rule.vectors_per_worker == create_rule("gem").vectors_per_worker


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gem", "rms"),
        ("gem", "averaged-rms"),
        *((name, "none") for name in ("gap-aware", "delayed-nesterov", "fedbuff", "fadas", "ormo", "ringmaster-lmo")),
    ],
)
def test_a_rule_continues_bit_for_bit_from_what_it_keeps_of_the_run(name: str, kind: str) -> None:
    random = np.random.default_rng(11)
    before = Workers(create_rule(name, kind), np.zeros(1_000, np.float32))
    for number in range(10):
        before.commit(number % 3, np.float32(-0.1) * gradient(random, 1_000), 0.1)
    rule = create_rule(name, kind)
    kept = [one.copy() for one in before.rule.vectors_of_run(before.theta)]
    assert len(kept) == before.rule.kept_vectors > 0
    rule.restore_run(kept, before.rule.kept_scalars)
    # New workers on both sides: a restart keeps no moments.
    ends = []
    for continued in (before.rule, rule):
        workers, more = Workers(continued, before.theta.copy()), np.random.default_rng(12)
        for number in range(10):
            workers.commit(number % 3, np.float32(-0.1) * gradient(more, 1_000), 0.1)
        ends.append(workers.theta.tobytes())
    assert ends[0] == ends[1]


def test_what_another_rule_kept_is_refused() -> None:
    rule, vector = create_rule("gem", "rms"), np.zeros(3, np.float32)
    with pytest.raises(RuleError, match="keeps 1 vectors and the scalars"):
        rule.restore_run([vector, vector], {"square_weight": 0.5})
    with pytest.raises(RuleError, match="keeps 1 vectors and the scalars"):
        rule.restore_run([vector], {"commits": 3})
    rule.restore_run([vector], {"square_weight": 0.5})
    with pytest.raises(SizeMismatchError, match="make a new rule for each run"):
        rule.new_worker(np.zeros(4, np.float32))


@pytest.mark.parametrize("name", ["dana", "ace"])
def test_a_sum_over_workers_ends_with_the_workers_that_a_restart_forgets(name: str) -> None:
    rule = create_rule(name)
    assert (rule.vectors_per_run, rule.kept_vectors, rule.kept_scalars) == (1, 0, {})
