"""A rule that was broken is told by the claims: without its parts GEM does not do what the paper says of it."""

from collections.abc import Mapping

import pytest
from gem_reproduction.figures import Group, choose
from gem_reproduction.perform import perform
from gem_reproduction.runs import Scope

pytestmark = pytest.mark.long

FIVE = "GEM, 5 workers"


def scope(settings: Mapping[str, float]) -> Scope:
    """Steps enough for the MLP to learn, and few enough for a test."""
    return Scope(quick=True, model="mlp", steps=60, seeds=1, rule_settings=settings)


def group(name: str, settings: Mapping[str, float]) -> Group:
    (figure,) = choose(["1c"])
    return Group([perform(run) for run in figure.runs(scope(settings))[name]])


@pytest.fixture(scope="module")
def found() -> dict[str, Group]:
    """All runs of figure 1c, with the rule as it is."""
    (figure,) = choose(["1c"])
    return {name: group(name, {}) for name in figure.runs(scope({}))}


def test_the_claims_hold_for_the_rule_as_it_is(found: Mapping[str, Group]) -> None:
    assert [one.met for one in choose(["1c"])[0].judge(found)] == [True, True]
    assert choose(["1a"])[0].judge(found)[0].met


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"pi_max": 1.0}, {"pi_min": -1e6}])
def test_a_claim_fails_without_the_moment_more_than_1_or_the_lower_clamp(
    found: Mapping[str, Group], settings: Mapping[str, float]
) -> None:
    """GEM is then not 4 times as far as adaptive staleness; without the lower clamp it diverges, as 1a tells, too."""
    mutated = {**found, FIVE: group(FIVE, settings)}
    assert [one.met for one in choose(["1c"])[0].judge(mutated)] == [True, False]
    assert choose(["1a"])[0].judge(mutated)[0].met == ("pi_min" not in settings)
