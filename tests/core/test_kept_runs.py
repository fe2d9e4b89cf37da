"""A rule keeps vectors and scalars of the run over a restart of the server, and then continues as without a restart."""

import numpy as np
import pytest
from numpy.typing import NDArray

from gem_core import RuleError, RuleState, SizeMismatchError, UpdateRule, create_rule

ETA = 0.1


class Workers:
    """Three workers of one rule, in turn."""

    def __init__(self, rule: UpdateRule, theta: NDArray[np.float32]) -> None:
        self.rule, self.theta = rule, theta
        self.states: list[RuleState] = [rule.new_worker(theta) for _ in range(3)]

    def commit(self, number: int, delta: NDArray[np.float32]) -> None:
        self.rule.commit(self.theta, self.states[number % 3], delta, min(number, 2), ETA)


def deltas(seed: int) -> list[NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return [(-ETA * random.standard_normal(1_000)).astype(np.float32) for _ in range(10)]


@pytest.mark.parametrize("name", ["gap-aware", "delayed-nesterov", "fedbuff", "fadas", "ormo", "ringmaster-lmo"])
def test_a_rule_continues_bit_for_bit_from_what_it_keeps_of_the_run(name: str) -> None:
    before = Workers(create_rule(name), np.zeros(1_000, np.float32))
    for number, delta in enumerate(deltas(11)):
        before.commit(number, delta)
    rule = create_rule(name)
    kept = [one.copy() for one in before.rule.vectors_of_run(before.theta)]
    assert len(kept) == before.rule.kept_vectors > 0
    rule.restore_run(kept, before.rule.kept_scalars)
    # New workers on both sides: a restart keeps nothing of workers.
    ends = []
    for continued in (before.rule, rule):
        workers = Workers(continued, before.theta.copy())
        for number, delta in enumerate(deltas(12)):
            workers.commit(number, delta)
        ends.append(workers.theta.tobytes())
    assert ends[0] == ends[1]


def test_what_another_rule_kept_is_refused() -> None:
    rule, vector = create_rule("gap-aware"), np.zeros(3, np.float32)
    with pytest.raises(RuleError, match="keeps 1 vectors and the scalars"):
        rule.restore_run([vector, vector], {"commits": 3})
    with pytest.raises(RuleError, match="keeps 1 vectors and the scalars"):
        rule.restore_run([vector], {"largest_delay": 3})
    rule.restore_run([vector], {"commits": 3})
    with pytest.raises(SizeMismatchError, match="make a new rule for each run"):
        rule.new_worker(np.zeros(4, np.float32))


@pytest.mark.parametrize("name", ["dana", "ace"])
def test_a_sum_over_workers_ends_with_the_workers_that_a_restart_forgets(name: str) -> None:
    rule = create_rule(name)
    assert (rule.vectors_per_run, rule.kept_vectors, rule.kept_scalars) == (1, 0, {})
