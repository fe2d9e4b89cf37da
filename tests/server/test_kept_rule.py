"""What a rule keeps over restarts, and what it does not take from another."""

from collections.abc import Callable

import numpy as np
import pytest
from gem_server.state.kept_rule import KeptRule, copy_rule, has_begun, restore_rule

from gem_core import RuleError, create_rule

THETA = np.zeros(5, np.float32)


def used(name: str) -> KeptRule:
    """After one commit."""
    rule = create_rule(name)
    rule.commit(THETA.copy(), rule.new_worker(THETA), np.ones(5, np.float32), 0, 0.1)
    assert has_begun(rule, THETA)
    return copy_rule(rule, THETA)


@pytest.mark.long
def test_a_copy_restores_an_equal_rule() -> None:
    kept, rule = used("fadas"), create_rule("fadas")
    assert not has_begun(rule, THETA)
    assert restore_rule(rule, kept)
    assert has_begun(rule, THETA)
    assert copy_rule(rule, THETA).record == kept.record
    for ours, theirs in zip(rule.vectors_of_run(THETA), kept.vectors, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_copy_stays_as_it_is_while_commits_follow() -> None:
    rule = create_rule("gap-aware")
    kept = copy_rule(rule, THETA)
    rule.commit(THETA.copy(), rule.new_worker(THETA), np.ones(5, np.float32), 0, 0.1)
    assert kept.record["scalars"] == {"commits": 0}
    assert not kept.vectors[0].any()


# Made in the test: a rule compiles kernels, which each process that collects the tests would wait for.
@pytest.mark.parametrize("make", [lambda: KeptRule({}), lambda: used("gap-aware")], ids=["older gemps", "other rule"])
def test_what_something_else_kept_is_left_out(make: Callable[[], KeptRule]) -> None:
    rule = create_rule("fadas")
    assert not restore_rule(rule, make())
    assert not has_begun(rule, THETA)


def test_scalars_without_their_vectors_are_refused() -> None:
    with pytest.raises(RuleError, match="keeps 1 vectors"):
        restore_rule(create_rule("gap-aware"), used("gap-aware")._replace(vectors=()))


def test_gem_alone_keeps_nothing() -> None:
    assert copy_rule(create_rule("gem"), THETA) == KeptRule({"name": "gem", "scalars": {}})
