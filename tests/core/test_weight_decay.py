"""Weight decay against slow transcriptions, and what it promises: by commits, past pi, and of matrices alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gem_core import (
    ElementType,
    Layout,
    RuleError,
    RuleState,
    SizeMismatchError,
    Statistics,
    TensorKind,
    TensorSpec,
    UpdateRule,
    create_rule,
    rule_names,
)
from gem_core.rules import interface, known_settings
from gem_core.rules.gem import Gem, _gem_update
from gem_core.rules.kernel import Kernel
from tests.core import slow

# Ranges shorter and longer than a block, side by side and apart, and an empty one.
SHAPES = ((3,), (40, 50), (7, 3, 3), (0, 4), (129,), (300, 170), (5,), (11, 4), (1,))
DECAY, ETA = 0.3, 0.05
DECAYING = ("gem", "downpour", "adaptive-staleness")


def layout() -> Layout:
    embedding = len(SHAPES) - 2
    return Layout(
        TensorSpec(f"t{i}", shape, ElementType.FLOAT32, TensorKind.PARAMETER, is_embedding=i == embedding)
        for i, shape in enumerate(SHAPES)
    )


def elements_that_decay() -> np.ndarray:
    return np.concatenate([np.full(math.prod(shape), len(shape) > 1) for shape in SHAPES])


COUNT = layout().parameter_count


class Workers:
    """Workers of one rule that has seen the layout, and the staleness of each."""

    def __init__(self, rule: UpdateRule, theta: np.ndarray, count: int = 3) -> None:
        rule.begin(layout())
        self.rule, self.theta = rule, theta.copy()
        self.states: list[RuleState] = [rule.new_worker(self.theta) for _ in range(count)]
        self.clock, self.held = 0, [0] * count

    def staleness(self, worker: int) -> int:
        return self.clock - self.held[worker]

    def commit(self, worker: int, delta: np.ndarray, eta: float = ETA) -> Statistics:
        found = self.rule.commit(self.theta, self.states[worker], delta, self.staleness(worker), eta)
        self.clock += 1
        self.held[worker] = self.clock
        return found


def gradient(random: np.random.Generator) -> np.ndarray:
    found = random.standard_normal(COUNT)
    found[random.random(COUNT) < 0.2] = 0
    return found.astype(np.float32)


def first(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(COUNT).astype(np.float32)


@pytest.fixture(params=["serial", "parallel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels, for vectors of any length."""
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1 if request.param == "parallel" else 10**9)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gem_with_weight_decay_equals_numpy(dtype: type[np.floating]) -> None:
    """Bit for bit in float32; float64 shows that the order of operations is the documented one."""
    theta, random = first(), np.random.default_rng(1)
    workers = Workers(create_rule("gem", weight_decay=DECAY), theta)
    twin = theta.astype(dtype)
    held, moments = [twin] * 3, [np.zeros_like(twin)] * 3
    for number in range(14):
        worker, eta = number % 3 if number % 5 else 0, ETA * 0.9**number
        delta = gradient(random) * np.float32(eta)
        kept = np.where(elements_that_decay(), dtype(1 - eta * DECAY), dtype(1))
        workers.commit(worker, delta, eta)
        outcome = slow.gem(twin, held[worker], moments[worker], delta, slow.GemSettings(), dtype)
        twin = kept * twin + outcome.update
        held[worker], moments[worker] = twin, outcome.moment
        if dtype is np.float32:
            assert workers.theta.tobytes() == twin.tobytes()
            assert workers.states[worker].snapshot.tobytes() == twin.tobytes()
    np.testing.assert_allclose(workers.theta, twin, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", DECAYING)
def test_vectors_do_not_decay_and_matrices_and_embeddings_do(name: str) -> None:
    ends = []
    for decay in (0.0, DECAY):
        workers, random = Workers(create_rule(name, weight_decay=decay), first()), np.random.default_rng(2)
        for number in range(6):
            workers.commit(number % 2, gradient(random))
        ends.append(workers.theta)
    decays = elements_that_decay()
    assert ends[0][~decays].tobytes() == ends[1][~decays].tobytes()
    assert (ends[0][decays] != ends[1][decays]).mean() > 0.9


@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize("workers", [1, 5])
def test_all_decay_depends_on_the_commits_and_not_on_the_workers(name: str, workers: int) -> None:
    run = Workers(create_rule(name, weight_decay=DECAY), first(), workers)
    etas = [ETA * 0.8**number for number in range(20)]
    for number, eta in enumerate(etas):
        run.commit(number % workers, np.zeros(COUNT, np.float32), eta)
    left = np.prod([1 - eta * DECAY for eta in etas])
    np.testing.assert_allclose(run.theta, np.where(elements_that_decay(), left, 1) * first(), rtol=1e-5)


def test_decay_is_not_scaled_by_pi_and_not_limited_by_it() -> None:
    theta = first()
    workers = Workers(create_rule("gem", weight_decay=DECAY, pi_min=0, pi_max=0), theta)
    statistics = workers.commit(0, np.full(COUNT, 0.1, np.float32))
    assert statistics.blocked_fraction == 1
    assert statistics.update_norm == 0
    np.testing.assert_allclose(workers.theta, np.where(elements_that_decay(), 1 - ETA * DECAY, 1) * theta, rtol=1e-6)


def test_drift_has_the_decay_of_the_others_commits_and_not_of_the_workers_own() -> None:
    theta, nothing = first(), np.zeros(COUNT, np.float32)
    workers = Workers(create_rule("gem", weight_decay=DECAY), theta)
    assert [workers.commit(0, nothing).drift_norm for _ in range(3)] == [0, 0, 0]
    moved = (1 - (1 - ETA * DECAY) ** 3) * np.linalg.norm(theta[elements_that_decay()])
    assert workers.commit(1, nothing).drift_norm == pytest.approx(moved, rel=1e-5)


def test_a_worker_alone_has_the_same_factors_with_decay_and_without() -> None:
    found = []
    for decay in (0.0, DECAY):
        workers, random = Workers(create_rule("gem", weight_decay=decay), first()), np.random.default_rng(3)
        found.append([workers.commit(0, gradient(random)).mean_pi for _ in range(5)])
    assert found[0] == pytest.approx(found[1], rel=1e-6)  # sums in another order


def test_a_layout_of_vectors_or_of_nothing_does_not_decay() -> None:
    for shapes in ([(5,), (3,)], [], [(0, 4)]):
        seen = Layout(
            TensorSpec(f"t{i}", shape, ElementType.FLOAT32, TensorKind.PARAMETER) for i, shape in enumerate(shapes)
        )
        rule, theta = create_rule("downpour", weight_decay=DECAY), np.ones(seen.parameter_count, np.float32)
        rule.begin(seen)
        rule.commit(theta, rule.new_worker(theta), np.zeros_like(theta), 0, ETA)
        assert theta.tolist() == [1] * seen.parameter_count


def test_what_weight_decay_cannot_work_with_is_refused() -> None:
    theta = first()
    workers = Workers(create_rule("gem", weight_decay=2), theta)
    with pytest.raises(RuleError, match=r"weight_decay = 2 with eta = 0\.5 leaves nothing of the parameters"):
        workers.commit(0, theta, 0.5)
    with pytest.raises(RuleError, match="needs the learning rate"):
        workers.commit(0, theta, math.nan)
    rule = create_rule("gem", weight_decay=2)
    with pytest.raises(RuleError, match="needs the layout for weight_decay: call `begin`"):
        rule.commit(theta, rule.new_worker(theta), theta, 0, ETA)
    assert theta.tobytes() == first().tobytes()


@pytest.mark.parametrize("name", sorted(set(rule_names()) - set(DECAYING)))
def test_other_rules_have_no_weight_decay(name: str) -> None:
    with pytest.raises(RuleError, match=f"rule '{name}' has no setting 'weight_decay'"):
        create_rule(name, weight_decay=0.1)
    assert "weight_decay" not in {one.name for one in known_settings(name)}


GROUPS = [number % 3 for number in range(len(SHAPES))]
DECAYS = (0.01, 0.0, 0.25)


def kept_by_group(dtype: type[np.floating] = np.float32) -> np.ndarray:
    parts = [np.full(math.prod(shape), 1 - DECAYS[group]) for shape, group in zip(SHAPES, GROUPS, strict=True)]
    return np.concatenate(parts).astype(dtype)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("settings", [{}, {"momentum": 0, "kappa": 2, "pi_max": 1, "signed_gap": 1}])
def test_a_commit_brings_the_decay_of_each_group(settings: dict[str, float]) -> None:
    """All tensors of a group decay, vectors too, with the same bits as in NumPy."""
    rule, theta, random = create_rule("gem", **settings), first(), np.random.default_rng(4)
    rule.begin(layout(), GROUPS)
    twin, held, moments = theta.copy(), [theta.copy(), theta.copy()], [np.zeros_like(theta)] * 2
    states = [rule.new_worker(theta), rule.new_worker(theta)]
    for number in range(6):
        worker, delta, decays = number % 2, gradient(random), DECAYS if number != 3 else ()
        statistics = rule.commit(theta, states[worker], delta, 1, ETA, decays)
        outcome = slow.gem(twin, held[worker], moments[worker], delta, slow.GemSettings(**settings), np.float32)
        twin = (kept_by_group() if decays else np.float32(1)) * twin + outcome.update
        held[worker], moments[worker] = twin, outcome.moment
        assert theta.tobytes() == twin.tobytes()
        assert states[worker].snapshot.tobytes() == twin.tobytes()
        assert statistics.update_norm == pytest.approx(slow.norm(outcome.update), rel=1e-6)


def test_decays_of_groups_that_are_the_settings_have_its_bits() -> None:
    ends = []
    for by_groups in (False, True):
        rule, theta, random = (
            create_rule("gem", weight_decay=0 if by_groups else DECAY),
            first(),
            np.random.default_rng(5),
        )
        rule.begin(layout(), [int(len(shape) > 1) for shape in SHAPES] if by_groups else None)
        state = rule.new_worker(theta)
        for _ in range(4):
            rule.commit(theta, state, gradient(random), 0, ETA, (0.0, ETA * DECAY) if by_groups else ())
        ends.append(theta.tobytes())
    assert ends[0] == ends[1]


def test_the_most_groups_are_taken_each_with_its_decay() -> None:
    shapes = [(3,)] * 256
    seen = Layout(
        TensorSpec(f"t{i:03}", shape, ElementType.FLOAT32, TensorKind.PARAMETER) for i, shape in enumerate(shapes)
    )
    rule, theta = create_rule("downpour"), np.ones(768, np.float32)
    rule.begin(seen, range(256))
    rule.commit(theta, rule.new_worker(theta), np.zeros_like(theta), 0, ETA, [group / 256 for group in range(256)])
    np.testing.assert_array_equal(theta, np.repeat(1 - np.arange(256) / 256, 3).astype(np.float32))


def test_what_decays_of_groups_cannot_work_with_is_refused() -> None:
    rule, theta = create_rule("gem"), first()
    with pytest.raises(SizeMismatchError, match="8 groups for 9 PARAMETERs"):
        rule.begin(layout(), GROUPS[1:])
    with pytest.raises(RuleError, match="groups are numbered from 0 to 255"):
        rule.begin(layout(), [*GROUPS[1:], 256])
    with pytest.raises(RuleError, match=r"rule 'gem' has weight_decay = 0\.3, .*: leave weight_decay out"):
        create_rule("gem", weight_decay=DECAY).begin(layout(), GROUPS)
    rule.begin(layout(), GROUPS)
    state = rule.new_worker(theta)
    with pytest.raises(RuleError, match="2 decays, and the tensors are of 3 groups"):
        rule.commit(theta, state, theta, 0, ETA, DECAYS[:2])
    for wrong in (-0.1, 1.0, math.nan, math.inf):
        with pytest.raises(RuleError, match="it must be at least 0 and below 1"):
            rule.commit(theta, state, theta, 0, ETA, (0.1, wrong, 0.1))
    with pytest.raises(RuleError, match="needs the layout"):
        create_rule("gem").commit(theta, state, theta, 0, ETA, DECAYS)
    ace = create_rule("ace")
    with pytest.raises(RuleError, match="rule 'ace' takes no decays"):
        ace.commit(theta, ace.new_worker(theta), theta, 0, ETA, DECAYS)
    assert theta.tobytes() == first().tobytes()


def test_kernels_of_a_run_with_groups_compile_before_the_first_commit() -> None:
    class Fresh(Gem):
        kernel = Kernel(_gem_update, proxy="moment")

    rule = Fresh({})
    rule.warm_up()
    rule.begin(layout(), GROUPS)
    rule.warm_up()
    assert all(driver._is_compiled for driver in (Fresh.kernel.serial, Fresh.kernel.parallel, *Fresh.kernel._decaying))
