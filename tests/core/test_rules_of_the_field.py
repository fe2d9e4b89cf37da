"""The rules that are not GEM: runs of several workers against slow twins, and the cases in which the papers meet."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import RuleError, RuleState, SizeMismatchError, Statistics, UpdateRule, create_rule, rule_names
from gem_core.rules import WorkerStep, interface
from tests.core.slow import norm
from tests.core.slow_rules import ETA, TWINS, Effect

WORKERS = 3
# One element, less than one SIMD register, and several blocks with a rest.
LENGTHS = (1, 7, 40_001)
SETTINGS: dict[str, tuple[dict[str, float], ...]] = {
    "dc-asgd": ({}, {"strength": 0.04, "decay": 0.5}, {"decay": 0.0}),
    "gap-aware": ({}, {"decay": 0.5}, {"decay": 0.0}),
    "ringmaster": ({"threshold": 1}, {"threshold": 2}, {"threshold": 3}),
    "easgd": ({}, {"alpha": 0.45}, {"alpha": 0.3, "momentum": 0.9}),
    "dana": ({}, {"momentum": 0.5}),
    "delayed-nesterov": ({}, {"delay": 3, "activation": 0.25}, {"delay": 1, "activation": 1.0}, {"delay": 2}),
    "fedbuff": ({"buffer": 1}, {"buffer": 3, "outer_eta": 0.7}, {"buffer": 4}),
    "fadas": ({"buffer": 1, "epsilon": 1e-4}, {"buffer": 2, "beta1": 0.5, "delay": 0}, {"buffer": 3, "beta2": 0.0}),
    "ace": ({},),
    "ormo": ({}, {"buffer": 1}, {"buffer": 3, "momentum": 0.5}),
    "ringmaster-lmo": ({}, {"threshold": 2, "momentum": 0.5}, {"momentum": 0.0}),
}
CASES = [(name, chosen) for name, all_chosen in SETTINGS.items() for chosen in all_chosen]
SCALES = {"ordinary": 0.01, "denormal": 1e-41, "huge": 3e29}

events = st.lists(
    st.tuples(st.sampled_from(["commit"] * 8 + ["pull", "leave"]), st.integers(0, WORKERS - 1)), min_size=1, max_size=16
)


@dataclass
class Run:
    """A rule at work: theta, the states of the workers by number, and the clock of what each holds."""

    rule: UpdateRule
    theta: np.ndarray

    def __post_init__(self) -> None:
        self.states: dict[int, RuleState] = {}
        self.clock_of: dict[int, int] = {}
        self.clock = 0

    def join(self, worker: int) -> None:
        self.states[worker] = self.rule.new_worker(self.theta)
        self.clock_of[worker] = self.clock

    def pull(self, worker: int) -> None:
        self.rule.refresh(self.theta, self.states[worker])
        self.clock_of[worker] = self.clock

    def leave(self, worker: int) -> None:
        self.rule.forget_worker(self.states.pop(worker))

    def commit(self, worker: int, delta: np.ndarray) -> Statistics:
        staleness = self.clock - self.clock_of[worker]
        statistics = self.rule.commit(self.theta, self.states[worker], delta, staleness, ETA)
        self.clock += 1
        self.clock_of[worker] = self.clock
        return statistics


def make_delta(kind: str, length: int, random: np.random.Generator) -> np.ndarray:
    delta = random.standard_normal(length) * SCALES[kind]
    delta[random.random(length) < 0.2] = 0
    return np.clip(delta, -1e30, 1e30).astype(np.float32)


@pytest.fixture(params=["serial", "parallel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels, for vectors of any length."""
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1 if request.param == "parallel" else 10**9)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bit for bit; a NaN is one whatever its bits."""
    either = np.isnan(expected)
    return bool(
        np.array_equal(np.isnan(found), either) and np.array_equal(_bits(found, either), _bits(expected, either))
    )


def _bits(values: np.ndarray, without: np.ndarray) -> np.ndarray:
    assert values.dtype == np.float32
    return np.where(without, np.uint32(0), values.view(np.uint32))


def histories(run: Run, twin: object, steps: list[tuple[str, int]]) -> Iterator[int]:
    """Let both go through `steps`; gives each worker that is to commit."""
    for worker in range(WORKERS):
        run.join(worker)
        twin.join(worker)  # type: ignore[attr-defined]
    for what, worker in steps:
        if what == "leave":
            run.leave(worker)
            twin.leave(worker)  # type: ignore[attr-defined]
            run.join(worker)
            twin.join(worker)  # type: ignore[attr-defined]
        elif what == "pull":
            run.pull(worker)
            twin.pull(worker)  # type: ignore[attr-defined]
        else:
            yield worker


def check_statistics(found: Statistics, effect: Effect, drift: np.ndarray, delta: np.ndarray) -> None:
    moving = delta != 0
    factor = effect.factor[moving].astype(np.float64)
    assert found.mean_pi == pytest.approx(factor.mean() if moving.any() else 0, rel=1e-5, abs=1e-9)
    assert found.clamped_fraction == 0
    moment = np.zeros(1) if effect.moment is None else effect.moment
    for size, values in (
        (found.proxy_norm, moment),
        (found.drift_norm, drift),
        (found.delta_norm, delta),
        (found.update_norm, effect.update),
    ):
        # Norms are sums over float32 values in another order than NumPy's: 40 001 elements differed by 1.2e-6.
        assert size == pytest.approx(norm(values), rel=1e-5, abs=1e-100)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("name", "chosen"), CASES)
@given(steps=events, kind=st.sampled_from(list(SCALES)), length=st.sampled_from(LENGTHS), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=8)
def test_a_run_of_several_workers_equals_numpy_bit_for_bit(
    name: str, chosen: dict[str, float], steps: list[tuple[str, int]], kind: str, length: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rule = create_rule(name, **chosen)
    theta = (random.standard_normal(length) * 10 * SCALES[kind]).astype(np.float32)
    run, twin = Run(rule, theta.copy()), TWINS[name][0](theta, **rule.settings)
    with np.errstate(all="ignore"):
        for worker in histories(run, twin, steps):
            delta = make_delta(kind, length, random)
            drift = twin.theta - twin.held[worker]
            found, effect = run.commit(worker, delta), twin.commit(worker, delta)
            if np.isfinite(effect.update).all() and np.isfinite(drift).all():
                check_statistics(found, effect, drift, delta)
            assert same_bits(run.theta, twin.theta)
            for other, state in run.states.items():
                assert same_bits(state.snapshot, twin.held[other])


@pytest.mark.parametrize(("name", "chosen"), CASES)
@given(steps=events, seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=8)
def test_a_run_of_several_workers_is_what_the_paper_says_in_gradients(
    name: str, chosen: dict[str, float], steps: list[tuple[str, int]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    rule = create_rule(name, **chosen)
    theta = random.standard_normal(50).astype(np.float32)
    run, paper = Run(rule, theta.copy()), TWINS[name][1](theta, **rule.settings)
    for worker in histories(run, paper, steps):
        delta = make_delta("ordinary", 50, random)
        run.commit(worker, delta)
        paper.commit(worker, delta)
        # Parameters of about 1, in float32, after at most 16 commits.
        assert run.theta == pytest.approx(paper.theta, rel=0, abs=1e-5)
        assert run.states[worker].snapshot == pytest.approx(paper.held[worker], rel=0, abs=1e-5)


# --- where the papers meet


def deltas_of_workers(name: str, chosen: dict[str, float], *, apart: bool) -> tuple[np.ndarray, np.ndarray]:
    """Theta after 20 commits of two workers by this rule, and by downpour; not `apart`: each pulls, then commits."""
    found = []
    for rule in (create_rule(name, **chosen), create_rule("downpour")):
        random = np.random.default_rng(5)
        run = Run(rule, random.standard_normal(1000).astype(np.float32))
        run.join(0)
        run.join(1)
        for number in range(20):
            if not apart:
                run.pull(number % 2)
            run.commit(number % 2, make_delta("ordinary", 1000, random))
        found.append(run.theta)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("name", "chosen", "apart"),
    [
        ("dc-asgd", {"strength": 0}, True),
        ("dc-asgd", {}, False),
        ("gap-aware", {}, False),
        ("ringmaster", {"threshold": 100}, True),
        ("dana", {"momentum": 0}, True),
        ("delayed-nesterov", {"delay": 1, "momentum": 0}, True),
        ("agn", {}, True),
        ("fedbuff", {"buffer": 1}, False),
        ("ormo", {"momentum": 0}, True),
    ],
)
def test_rules_that_have_nothing_to_correct_are_downpour(name: str, chosen: dict[str, float], apart: bool) -> None:
    found, downpour = deltas_of_workers(name, chosen, apart=apart)
    assert found.tobytes() == downpour.tobytes()


@pytest.mark.parametrize(
    "name",
    ["dc-asgd", "gap-aware", "easgd", "dana", "delayed-nesterov", "fedbuff", "fadas", "ace", "ormo", "ringmaster-lmo"],
)
def test_rules_that_have_something_to_correct_are_not_downpour(name: str) -> None:
    found, downpour = deltas_of_workers(name, {}, apart=True)
    assert not np.array_equal(found, downpour)


def test_dc_asgd_moves_a_stale_delta_against_its_square_times_the_drift() -> None:
    rule = create_rule("dc-asgd", strength=1, decay=0, epsilon=1e-30)
    theta = np.array([1.0, 1.0, -1.0], np.float32)
    state = rule.new_worker(np.array([0.5, 0.5, 0.5], np.float32))
    rule.commit(theta, state, np.array([0.25, -0.25, 0.25], np.float32), 1)
    # With decay 0 the root of the mean square is |delta|: delta - |delta| * drift.
    assert theta.tolist() == [1 + 0.25 - 0.125, 1 - 0.25 - 0.125, -1 + 0.25 + 0.375]


def test_gap_aware_halves_a_delta_that_is_one_average_step_late() -> None:
    rule = create_rule("gap-aware", decay=0, epsilon=1e-30)
    theta = np.array([1.0, 1.0], np.float32)
    state = rule.new_worker(np.array([0.75, 1.75], np.float32))
    statistics = rule.commit(theta, state, np.array([0.25, -0.25], np.float32), 1)
    assert theta.tolist() == [1.125, 1 - 0.0625]
    assert statistics.mean_pi == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_one_worker_of_dana_is_nesterovs_accelerated_gradient() -> None:
    """Each gradient at theta + mu * v, the look-ahead that the worker was sent; of a quadratic."""
    curvature, eta, mu = np.array([0.3, 1.0, 4.0]), 0.1, 0.9
    rule, theta = create_rule("dana", momentum=mu), np.ones(3, np.float32)
    state = rule.new_worker(theta)
    position, velocity = np.ones(3), np.zeros(3)
    for _ in range(50):
        rule.commit(theta, state, (-eta * curvature * state.snapshot).astype(np.float32), 0)
        velocity = mu * velocity - eta * curvature * (position + mu * velocity)
        position = position + velocity
        assert theta == pytest.approx(position, abs=1e-5)


def test_dana_forgets_the_momentum_of_a_worker_that_has_gone() -> None:
    rule, theta = create_rule("dana", momentum=0.5), np.zeros(2, np.float32)
    gone, stays = rule.new_worker(theta), rule.new_worker(theta)
    rule.commit(theta, gone, np.full(2, 4, np.float32), 0)
    rule.commit(theta, stays, np.full(2, 1, np.float32), 1)
    assert stays.snapshot.tolist() == [5 + 0.5 * 5] * 2
    rule.forget_worker(gone)
    rule.refresh(theta, stays)
    assert stays.snapshot.tolist() == [5 + 0.5 * 1] * 2
    assert rule.new_worker(theta).snapshot.tolist() == [5.5] * 2
    rule.commit(theta, gone, np.full(2, 2, np.float32), 2)  # it was on its way: as of a new worker
    assert theta.tolist() == [7] * 2


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_elastic_exchange_keeps_the_sum_of_worker_and_center(momentum: float) -> None:
    rule, theta = create_rule("easgd", alpha=0.25, momentum=momentum), np.array([8.0, -8.0], np.float32)
    state = rule.new_worker(np.zeros(2, np.float32))
    delta = np.array([4.0, 0.0], np.float32)
    total = theta.copy()
    for _ in range(3):
        rule.commit(theta, state, delta, 0)
        position, velocity = state.vectors if momentum else (state.snapshot, delta)
        total += velocity
        assert theta + position == pytest.approx(total)
    assert theta.tolist() != [8, -8]


def test_without_a_spring_easgd_leaves_theta_and_its_workers_go_their_own_ways() -> None:
    rule, theta = create_rule("easgd", alpha=0), np.zeros(2, np.float32)
    one, other = rule.new_worker(theta), rule.new_worker(theta)
    for _ in range(4):
        rule.commit(theta, one, np.ones(2, np.float32), 0)
        rule.commit(theta, other, -np.ones(2, np.float32), 1)
    assert (theta.tolist(), one.snapshot.tolist(), other.snapshot.tolist()) == ([0, 0], [4, 4], [-4, -4])


def test_with_a_spring_of_one_half_easgd_meets_in_the_middle() -> None:
    rule, theta = create_rule("easgd", alpha=0.5), np.zeros(1, np.float32)
    state = rule.new_worker(theta)
    rule.commit(theta, state, np.ones(1, np.float32), 0)
    assert (theta.tolist(), state.snapshot.tolist()) == ([0.5], [0.5])


def test_ringmaster_drops_exactly_from_its_threshold_on() -> None:
    for staleness in range(6):
        rule, theta = create_rule("ringmaster", threshold=3), np.zeros(1, np.float32)
        old, busy = rule.new_worker(theta), rule.new_worker(theta)
        for _ in range(staleness):
            rule.commit(theta, busy, np.ones(1, np.float32), 0)
        statistics = rule.commit(theta, old, np.full(1, 100, np.float32), staleness)
        is_fresh = staleness < 3
        assert theta.tolist() == [staleness + 100 * is_fresh]
        assert old.snapshot.tolist() == theta.tolist()
        assert (statistics.mean_pi, statistics.blocked_fraction) == ((1, 0) if is_fresh else (0, 1))
        assert statistics.update_norm == 100 * is_fresh


def test_ringmaster_does_not_count_dropped_commits_as_delay() -> None:
    rule, theta, one = create_rule("ringmaster", threshold=1), np.zeros(1, np.float32), np.ones(1, np.float32)
    first, second, third = (rule.new_worker(theta) for _ in range(3))
    rule.commit(theta, first, one, 0)
    rule.refresh(theta, third)  # it holds what one update has made
    rule.commit(theta, second, one, 1)  # dropped: the paper's k stays 1
    rule.commit(theta, third, one, 1)  # one commit has come since it pulled, but no update
    assert theta.tolist() == [2]


def test_a_dropped_delta_leaves_theta_as_it_is_down_to_the_sign_of_zero() -> None:
    rule, theta = create_rule("ringmaster", threshold=1), np.array([-0.0, 1.5], np.float32)
    rule.commit(theta, rule.new_worker(theta), np.array([-0.0, 0.0], np.float32), 0)
    before = theta.tobytes()
    rule.commit(theta, rule.new_worker(theta), np.full(2, 7, np.float32), 1)
    assert theta.tobytes() == before


@pytest.mark.parametrize("activation", [0.0, 0.5, 1.0])
def test_delayed_nesterov_of_every_commit_is_nesterov_momentum(activation: float) -> None:
    rule = create_rule("delayed-nesterov", delay=1, activation=activation, momentum=0.9)
    theta, random = np.zeros(10, np.float32), np.random.default_rng(1)
    state, moment, expected = rule.new_worker(theta), np.zeros(10), np.zeros(10)
    for _ in range(30):
        delta = make_delta("ordinary", 10, random)
        rule.commit(theta, state, delta, 0)
        moment = 0.9 * moment + delta
        expected = expected + 0.9 * moment + delta
    assert theta == pytest.approx(expected, abs=1e-6)


def test_delayed_nesterov_moves_as_far_in_n_commits_as_nesterov_in_one_of_their_mean() -> None:
    rule, theta = create_rule("delayed-nesterov", delay=4, momentum=0.5), np.zeros(1, np.float32)
    state = rule.new_worker(theta)
    for value in (1, 2, 3, 2):
        rule.commit(theta, state, np.full(1, value, np.float32), 0)
    assert theta.tolist() == [2 + 0.5 * 2]


def test_fedbuff_moves_theta_only_by_the_mean_of_a_full_buffer() -> None:
    rule, theta = create_rule("fedbuff", buffer=3, outer_eta=0.5), np.array([-0.0], np.float32)
    first, second = rule.new_worker(theta), rule.new_worker(theta)
    for value, staleness in ((3, 0), (6, 0)):
        statistics = rule.commit(theta, first, np.full(1, value, np.float32), staleness)
        assert (theta.tobytes(), statistics.update_norm) == (np.array([-0.0], np.float32).tobytes(), 0)
    rule.commit(theta, first, np.full(1, 9, np.float32), 0)
    assert theta.tolist() == [3]
    for value, state in ((16, second), (0, first), (0, first)):
        rule.commit(theta, state, np.full(1, value, np.float32), 3 if state is second else 0)
    assert theta.tolist() == pytest.approx([3 + 0.5 * (16 / math.sqrt(2)) / 3])  # one version late


def test_fadas_moves_each_element_by_its_rate_whatever_its_size_and_remembers_the_largest() -> None:
    rule, theta = create_rule("fadas", buffer=2, outer_eta=0.25, beta1=0, beta2=0), np.zeros(3, np.float32)
    state, sizes = rule.new_worker(theta), np.array([1, 100, 1e-3], np.float32)
    for scale, expected in ((2, 0.25), (-2, 0), (1, 0.125)):
        for _ in range(2):
            rule.commit(theta, state, scale * sizes, 0)
        assert theta == pytest.approx(np.full(3, expected), abs=1e-5)


@pytest.mark.parametrize(("late", "expected"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_fadas_divides_its_rate_by_the_largest_delay_in_buffers_beyond_tau_c(late: int, expected: float) -> None:
    rule, theta = create_rule("fadas", buffer=2, outer_eta=1, beta1=0, beta2=0, delay=1), np.zeros(1, np.float32)
    old, busy = rule.new_worker(theta), rule.new_worker(theta)
    for _ in range(2 * late):
        rule.commit(theta, busy, np.ones(1, np.float32), 0)
    before = theta.copy()
    rule.commit(theta, old, np.ones(1, np.float32), 2 * late)
    rule.commit(theta, busy, np.ones(1, np.float32), 1)
    assert theta - before == pytest.approx([expected])
    rule.commit(theta, busy, np.ones(1, np.float32), 0)
    rule.commit(theta, busy, np.ones(1, np.float32), 0)
    assert theta - before == pytest.approx([expected + 1])  # the next buffer has no late delta


def test_a_frequent_worker_of_ace_has_no_larger_share_than_a_rare_one() -> None:
    rule, theta = create_rule("ace"), np.zeros(1, np.float32)
    often, rarely = rule.new_worker(theta), rule.new_worker(theta)
    rule.commit(theta, often, np.full(1, 8, np.float32), 0)
    assert theta.tolist() == [8]  # the only worker yet
    rule.commit(theta, rarely, np.full(1, -8, np.float32), 0)
    for _ in range(5):
        rule.commit(theta, often, np.full(1, 8, np.float32), 0)
    assert theta.tolist() == [8]


def test_ace_forgets_the_delta_of_a_worker_that_has_gone_and_divides_by_those_that_stay() -> None:
    rule, theta = create_rule("ace"), np.zeros(2, np.float32)
    gone, stays, idle = (rule.new_worker(theta) for _ in range(3))
    rule.commit(theta, gone, np.full(2, 1e10, np.float32), 0)
    rule.commit(theta, stays, np.full(2, 1, np.float32), 1)
    for state in (gone, idle, gone):  # one that never committed, and one that went before, change nothing
        rule.forget_worker(state)
    rule.forget_worker(stays)
    theta[:] = 0
    rule.commit(theta, stays, np.full(2, 3, np.float32), 0)  # it was on its way: as of a new worker
    assert theta.tolist() == [3, 3]  # nothing is left of the rounding at 1e10


def test_ormo_of_one_worker_is_momentum_of_sums_of_k_deltas() -> None:
    rule, theta, random = create_rule("ormo", buffer=3), np.zeros(10, np.float32), np.random.default_rng(1)
    state, moment, expected = rule.new_worker(theta), np.zeros(10), np.zeros(10)
    for number in range(31):
        if number % 3 == 1:  # the first version is a step alone: before it nothing was under way
            moment = 0.9 * moment
            expected = expected + moment
        delta = make_delta("ordinary", 10, random)
        rule.commit(theta, state, delta, 0)
        moment, expected = moment + delta, expected + delta
    assert theta == pytest.approx(expected, abs=1e-5)


def test_ormo_ends_at_the_same_theta_in_whatever_order_the_same_deltas_arrive() -> None:
    random, ends = np.random.default_rng(4), []
    deltas = [make_delta("ordinary", 20, random) for _ in range(6)]
    for order in (range(6), reversed(range(6)), (3, 0, 5, 1, 4, 2)):
        rule, theta = create_rule("ormo", buffer=6), np.zeros(20, np.float32)
        states = [rule.new_worker(theta) for _ in range(6)]
        for staleness, number in enumerate(order):
            rule.commit(theta, states[number], deltas[number], staleness)
        ends.append(theta)
    assert ends[1] == pytest.approx(ends[0], abs=1e-6)
    assert ends[2] == pytest.approx(ends[0], abs=1e-6)


def test_ringmaster_lmo_moves_each_element_by_eta_along_the_sign_of_its_momentum() -> None:
    rule, theta = create_rule("ringmaster-lmo", momentum=0.5, threshold=1), np.zeros(3, np.float32)
    state, late = rule.new_worker(theta), rule.new_worker(theta)
    rule.commit(theta, state, np.array([4, -1e-30, 0], np.float32), 0, 0.5)
    assert theta.tolist() == [0.5, -0.5, 0]
    rule.commit(theta, state, np.array([-1, 1, 0], np.float32), 0, 0.25)  # m: 2, then 0.5
    assert theta.tolist() == [0.75, -0.25, 0]
    statistics = rule.commit(theta, late, np.full(3, -9, np.float32), 2, 0.5)
    assert (theta.tolist(), statistics.blocked_fraction, statistics.update_norm) == ([0.75, -0.25, 0], 1, 0)
    with pytest.raises(RuleError, match="'ringmaster-lmo' needs the learning rate in the delta"):
        rule.commit(theta, state, np.ones(3, np.float32), 0)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", TWINS)
def test_a_commit_allocates_little_compared_with_the_model(name: str) -> None:
    rule, theta = create_rule(name), np.zeros(1_000_000, np.float32)
    state, delta = rule.new_worker(theta), np.ones(1_000_000, np.float32)
    rule.warm_up()
    tracemalloc.start()  # NumPy reports its arrays to it
    try:
        for _ in range(12):
            rule.commit(theta, state, delta, 0, ETA)
        rule.forget_worker(state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < theta.nbytes / 100


# --- what rules have besides


@pytest.mark.parametrize(
    ("name", "chosen", "expected"),
    [
        ("gem", {}, WorkerStep(1, normalise=False)),
        ("gem", {"local_steps": 4}, WorkerStep(4, normalise=True, rate=0.3)),
        ("agn", {"local_steps": 7}, WorkerStep(7, normalise=True)),
        ("easgd", {"period": 5}, WorkerStep(5, normalise=False)),
        ("delayed-nesterov", {"local_steps": 3}, WorkerStep(3, normalise=False)),
        ("fedbuff", {"local_steps": 4}, WorkerStep(4, normalise=False)),
        ("fadas", {"local_steps": 4}, WorkerStep(4, normalise=False)),
    ],
)
def test_what_workers_do_between_two_commits(name: str, chosen: dict[str, float], expected: WorkerStep) -> None:
    assert create_rule(name, **chosen).worker_step == expected


def test_local_steps_are_scaled_where_eta_is_the_size_of_a_step() -> None:
    step = create_rule("gem", local_steps=4, local_rate=2).worker_step
    assert step.with_direction("gradient") == step == WorkerStep(4, normalise=True, rate=2.0)
    assert step.with_direction("auto") == WorkerStep(4, normalise=True, rate=2.0, scaled=True)
    assert create_rule("gem").worker_step.with_direction("rms") == WorkerStep()


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("agn", {"local_steps": 1.5}, r"local_steps = 1\.5 must be a whole number"),
        ("ringmaster", {"threshold": 0}, "threshold = 0 is out of range; choose 1 to"),
        ("easgd", {"momentum": 0.9, "period": 2}, r"momentum = 0\.9 needs period = 1"),
        ("easgd", {"alpha": 1.1}, r"alpha = 1\.1 is out of range; choose 0 to 1"),
        ("fedbuff", {"buffer": 2.5}, r"buffer = 2\.5 must be a whole number"),
        ("delayed-nesterov", {"delay": 4, "activation": 0.5}, r"activation = 0\.5 is above 1 / delay = 0\.25"),
    ],
)
def test_settings_that_do_not_fit_are_refused(name: str, chosen: dict[str, float], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        create_rule(name, **chosen)


@pytest.mark.parametrize("name", [name for name in rule_names() if create_rule(name).vectors_per_run])
def test_a_rule_with_vectors_of_the_run_serves_one_run(name: str) -> None:
    rule = create_rule(name)
    rule.warm_up()
    rule.new_worker(np.zeros(10, np.float32))
    with pytest.raises(SizeMismatchError, match="a new rule for each run"):
        rule.new_worker(np.zeros(11, np.float32))


@pytest.mark.parametrize("name", rule_names())
def test_what_is_sent_is_theta_where_a_rule_says_so(name: str) -> None:
    rule, random = create_rule(name), np.random.default_rng(2)
    theta = random.standard_normal(100).astype(np.float32)
    states = [rule.new_worker(theta) for _ in range(2)]
    sent = True
    for number in range(6):
        rule.commit(theta, states[number % 2], make_delta("ordinary", 100, random), min(number, 1), ETA)
        sent = sent and bool(np.array_equal(states[number % 2].snapshot, theta))
    assert sent == rule.sends_parameters


@pytest.mark.parametrize("name", rule_names())
def test_a_new_worker_is_sent_what_one_that_pulls_is_sent_down_to_the_sign_of_zero(name: str) -> None:
    theta = np.array([-0.0, 0.0, 1.5], np.float32)
    for rule in (create_rule(name), create_rule("easgd", momentum=0.5)):
        state = rule.new_worker(theta)
        sent = state.snapshot.tobytes()
        rule.refresh(theta, state)
        assert state.snapshot.tobytes() == sent


@pytest.mark.parametrize("name", TWINS)
def test_a_replay_of_the_same_commits_gives_the_same_bits_whatever_the_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for parallel_from in (1, 10**9):
        monkeypatch.setattr(interface, "PARALLEL_FROM", parallel_from)
        random = np.random.default_rng(3)
        run = Run(create_rule(name), random.standard_normal(100_003).astype(np.float32))
        run.join(0)
        run.join(1)
        statistics = [run.commit(number % 2, make_delta("ordinary", 100_003, random)) for number in range(6)]
        found.append((run.theta.tobytes(), [state.snapshot.tobytes() for state in run.states.values()], statistics))
    assert found[0] == found[1]
    assert all(math.isfinite(value.update_norm) for value in found[0][2])
