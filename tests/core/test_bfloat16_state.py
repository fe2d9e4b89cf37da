"""GEM with bfloat16 state: bit for bit as NumPy does it, without bias, and near GEM with float32 state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gem_core import ElementType, Layout, RuleError, RuleState, TensorKind, TensorSpec, UpdateRule, create_rule
from gem_core.rules import interface
from gem_core.rules.blocks import BLOCK
from gem_core.rules.gem_bfloat16 import GemBfloat16, widened

Float32 = NDArray[np.float32]
Halves = NDArray[np.uint16]
ETA = 0.05

BOTH_KERNELS = pytest.mark.parametrize("kernels", ["serial", "parallel"])


def choose(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1 if kernels == "parallel" else 10**9)


def rule_of(elements: int, state_type: str = "bfloat16", **settings: float) -> UpdateRule:
    rule = create_rule("gem", "none", state_type, **settings)
    columns = max(1, elements // 3)
    shapes = [(2, columns), (elements - 2 * columns,)] if elements > 2 else [(elements,)]
    rule.begin(
        Layout([TensorSpec(str(i), one, ElementType.FLOAT32, TensorKind.PARAMETER) for i, one in enumerate(shapes)])
    )
    return rule


def hashed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Wellons' lowbias32."""
    words = (words ^ words >> np.uint32(16)) * np.uint32(0x7FEB352D)
    words = (words ^ words >> np.uint32(15)) * np.uint32(0x846CA68B)
    return words ^ words >> np.uint32(16)


class Transcription:
    """The equations of gem_bfloat16.py, with NumPy, over whole vectors."""

    def __init__(self, theta: Float32, workers: int, decay: float) -> None:
        self.theta, self.reference = theta.copy(), theta.copy()
        self.offsets = [np.zeros(theta.size, np.uint16) for _ in range(workers)]
        self.moments = [np.zeros(theta.size, np.uint16) for _ in range(workers)]
        self.commits = 0
        matrix = 2 * max(1, theta.size // 3) if theta.size > 2 else 0
        self.kept = np.ones(theta.size, np.float32)
        self.kept[:matrix] = np.float32(1 - ETA * decay)

    def stochastic(self, values: Float32, at: NDArray[np.int64], stream: int = 0) -> Halves:
        with np.errstate(over="ignore"):
            key = hashed(np.array([self.commits], np.uint32) * np.uint32(0x9E3779B9))
            random = hashed(at.astype(np.uint32) ^ (key + np.uint32(stream) * np.uint32(0x9E3779B9))) >> np.uint32(16)
        return ((values.view(np.uint32) + random) >> np.uint32(16)).astype(np.uint16)

    def commit(self, worker: int, delta: Float32) -> None:
        mu, epsilon = np.float32(0.9), np.float32(1e-12)
        at = np.arange(delta.size)
        self.commits += 1
        snapshot = self.reference + widened(self.offsets[worker])
        moment = mu * widened(self.moments[worker]) + delta
        pi = (np.abs(moment) - np.abs(self.theta - snapshot)) / (np.abs(delta) + epsilon)
        update = np.clip(pi, np.float32(0), np.float32(5)) * delta
        self.theta = self.kept * self.theta + update
        self.moments[worker] = self.stochastic(moment, at)
        bits = (self.theta - self.reference).view(np.uint32)
        nearest = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        self.offsets[worker] = nearest.astype(np.uint16)
        now = at[at // BLOCK % len(self.offsets) == (self.commits - 1) % len(self.offsets)]
        moved = self.reference[now] - self.theta[now]
        for number, offsets in enumerate(self.offsets, 1):
            offsets[now] = self.stochastic(widened(offsets[now]) + moved, now, 2 * number)
        self.reference[now] = self.theta[now]


def deltas(elements: int, seed: int) -> Float32:
    """Of many magnitudes, a fifth of them 0."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(elements) * 10.0 ** random.integers(-9, 0, elements)
    values[random.random(elements) < 0.2] = 0
    return values.astype(np.float32)


@BOTH_KERNELS
@pytest.mark.parametrize("elements", [1, 2_049, 5 * BLOCK + 77])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_commits_equal_numpy_bit_for_bit(
    elements: int, decay: float, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(kernels, monkeypatch)
    theta = np.random.default_rng(1).standard_normal(elements).astype(np.float32)
    expected = Transcription(theta, 3, decay)
    rule = rule_of(elements, weight_decay=decay)
    states = [rule.new_worker(theta) for _ in range(3)]
    for number, worker in enumerate([0, 0, 1, 2, 0, 2, 1, 1, 1, 0, 2, 2]):
        delta = deltas(elements, number)
        expected.commit(worker, delta)
        rule.commit(theta, states[worker], delta, 0, ETA)
        assert theta.tobytes() == expected.theta.tobytes()
        for state, offsets, moment in zip(states, expected.offsets, expected.moments, strict=True):
            assert state.snapshot.tobytes() == offsets.tobytes()
            assert state.vectors[0].tobytes() == moment.tobytes()


@BOTH_KERNELS
def test_parts_of_a_vector_move_as_the_whole_does(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(kernels, monkeypatch)
    elements = 4 * BLOCK + 900
    first = np.random.default_rng(1).standard_normal(elements).astype(np.float32)

    def train(*borders: int) -> bytes:
        parts = []
        for start, end in zip((0, *borders), (*borders, elements), strict=True):
            rule = rule_of(end - start)
            assert isinstance(rule, GemBfloat16)
            rule.first = start
            theta = first[start:end].copy()
            parts.append((slice(start, end), rule, theta, [rule.new_worker(theta) for _ in range(3)]))
        for number in range(20):
            for at, rule, theta, states in parts:
                rule.commit(theta, states[number % 3], deltas(elements, number)[at].copy(), 0, ETA)
        return b"".join(theta.tobytes() for _, _, theta, _ in parts)

    assert train(256, 2 * BLOCK, 3 * BLOCK + 512) == train()


def test_statistics_are_those_of_the_float32_rule_on_the_widened_state() -> None:
    elements = 3 * BLOCK
    theta = np.random.default_rng(1).standard_normal(elements).astype(np.float32)
    rule, exact = rule_of(elements), rule_of(elements, "float32")
    states = [rule.new_worker(theta) for _ in range(2)]
    for number in range(6):
        state, delta = states[number % 2], deltas(elements, number)
        (reference,) = rule.vectors_of_run(theta)
        twin = RuleState(reference + widened(state.snapshot), (widened(state.vectors[0]),))
        at = np.arange(0, elements, 7)
        assert np.array_equal(rule.factors(theta, state, delta, at), exact.factors(theta, twin, delta, at))
        expected = exact.commit(theta.copy(), twin, delta, 1, ETA)
        assert rule.commit(theta, state, delta, 1, ETA) == pytest.approx(expected, rel=1e-6)


def test_a_moment_grows_by_updates_below_half_a_unit_in_the_last_place() -> None:
    """With mu = 0.9999 and small deltas: rounded to nearest, the moment would stay where it is."""
    elements, mu, small, commits = 8_192, 0.9999, np.float32(1e-3), 1_000
    theta, rule = np.zeros(elements, np.float32), rule_of(elements, momentum=mu)
    state = rule.new_worker(theta)
    rule.commit(theta, state, np.ones(elements, np.float32), 0, ETA)
    for _ in range(commits):
        rule.commit(theta, state, np.full(elements, small), 0, ETA)
    expected = mu**commits + small * (1 - mu**commits) / (1 - mu)
    moments = widened(state.vectors[0])
    assert moments.mean() == pytest.approx(expected, rel=2e-3)
    assert moments.std() < 0.15 * expected


def test_stochastic_rounding_has_no_bias_and_no_period() -> None:
    """A moment that is a quarter above a bfloat16 value: three quarters of the elements fall, in each commit others."""
    elements, commits = 1 << 16, 16
    value = np.float32(1 + 2**-9)
    rounded_up = np.zeros((commits, elements))
    theta, rule = np.zeros(elements, np.float32), rule_of(elements, momentum=0)
    state = rule.new_worker(theta)
    for number in range(commits):
        rule.commit(theta, state, np.full(elements, value), 0, ETA)
        rounded_up[number] = widened(state.vectors[0]) > value
    assert set(np.unique(widened(state.vectors[0]))) == {np.float32(1), np.float32(1 + 2**-7)}
    deviation = math.sqrt(3 / 16)
    assert abs(rounded_up.mean() - 0.25) < 5 * deviation / math.sqrt(rounded_up.size)
    assert np.abs(rounded_up.mean(axis=0) - 0.25).std() == pytest.approx(deviation / math.sqrt(commits), rel=0.5)
    for lag in (1, 2, 256, 2_048):
        pairs = (rounded_up[:, lag:] - 0.25) * (rounded_up[:, :-lag] - 0.25)
        assert abs(pairs.mean()) < 5 * deviation**2 / math.sqrt(pairs.size)


def test_the_drift_of_a_worker_that_waits_for_long_is_near_the_exact_one() -> None:
    elements, others = 2 * BLOCK + 5, 3
    theta = np.random.default_rng(1).standard_normal(elements).astype(np.float32)
    rule = rule_of(elements)
    states = [rule.new_worker(theta) for _ in range(others + 1)]
    held = theta.copy()
    random = np.random.default_rng(2)
    for number in range(600):
        delta = (1e-3 * (0.3 + random.standard_normal(elements))).astype(np.float32)
        rule.commit(theta, states[number % others], delta, others - 1, ETA)
    (reference,) = rule.vectors_of_run(theta)
    exact = theta - held
    errors = (theta - (reference + widened(states[-1].snapshot))) - exact
    assert np.abs(exact).mean() > 0.1
    assert np.linalg.norm(errors) < 0.05 * np.linalg.norm(exact)
    assert abs(errors.mean()) < 0.002 * np.abs(exact).mean()


def test_a_pull_sets_the_snapshot_to_theta_and_leaves_the_moment() -> None:
    theta = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    rule = rule_of(500)
    states = [rule.new_worker(theta) for _ in range(2)]
    for number in range(5):
        rule.commit(theta, states[0], deltas(500, number), 0, ETA)
    moment = states[0].vectors[0].copy()
    rule.refresh(theta, states[0])
    (reference,) = rule.vectors_of_run(theta)
    held = reference + widened(states[0].snapshot)
    assert np.abs(held - theta).max() <= 2**-9 * np.abs(theta - reference).max() + 1e-7
    assert np.array_equal(states[0].vectors[0], moment)


def test_another_snapshot_of_a_worker_follows_the_reference() -> None:
    """As with overlap, when a gradient may be of the snapshot before."""
    theta = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    rule = rule_of(500)
    state = rule.new_worker(theta)
    older, held = state.snapshot, theta.copy()
    state.snapshot = rule.new_snapshot(state)
    rule.refresh(theta, state)
    for number in range(7):
        rule.commit(theta, state, deltas(500, number), 0, ETA)
    (reference,) = rule.vectors_of_run(theta)
    assert np.abs(theta - held).max() > 0.1
    assert np.abs(reference + widened(older) - held).max() < 0.02 * np.abs(theta - held).max()


def test_a_forgotten_worker_commits_as_a_new_one() -> None:
    theta = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    rule = rule_of(500)
    first, second = rule.new_worker(theta), rule.new_worker(theta)
    rule.commit(theta, first, deltas(500, 0), 0, ETA)
    rule.forget_worker(first)
    rule.forget_worker(first)
    kept = first.snapshot.copy()
    for number in range(4):
        rule.commit(theta, second, deltas(500, number), 0, ETA)
    assert np.array_equal(first.snapshot, kept)
    assert rule.commit(theta, first, deltas(500, 9), 0, ETA).drift_norm < 1e-6
    assert np.array_equal(widened(first.vectors[0]) == 0, deltas(500, 9) == 0)


def test_when_a_worker_leaves_in_the_last_round_does_not_matter() -> None:
    """So runs in rank order are bit-reproducible."""
    found = set()
    for leaves_at in (13, 14, 99):
        theta = np.random.default_rng(1).standard_normal(3 * BLOCK).astype(np.float32)
        rule = rule_of(theta.size)
        states = [rule.new_worker(theta) for _ in range(3)]
        for number in range(15):
            if number == leaves_at:
                rule.forget_worker(states[0])
            rule.commit(theta, states[number % 3], deltas(theta.size, number), 2, ETA)
        found.add(theta.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(("name", "precondition"), [("downpour", "none"), ("gem", "rms")])
def test_other_rules_keep_float32(name: str, precondition: str) -> None:
    with pytest.raises(RuleError, match="keeps float32 only: choose state type float32, or rule gem without a precond"):
        create_rule(name, precondition, "bfloat16")
