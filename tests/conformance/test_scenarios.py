"""Correct workers pass: the reference worker all that is not optional, and its extension most of what is optional."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gem_conformance import SCENARIOS, FaultName, Limits, Place, play_scenarios

from gem_core.wire_types import BLOCKS
from tests.conformance.candidates import IMPORTS, LIMITS, OPTIONAL, REFERENCE, ROOT, explain
from tests.conformance.mutants import MUTANTS, OPTIONAL_MUTANTS
from tests.conformance.preloaded import preloaded
from tests.forms import FULL

# Faults that no mutant has. Their tests are in test_shard_group.py (WRONG_COMMIT_ID), below, and in test_judge.py.
ELSEWHERE = {"WRONG_COMMIT_ID", "SILENT", "WRONG_RESUME"}
# Scenarios about parts that the optional worker does not support, except for differences of parameters.
NOT_SUPPORTED = {"delta-sparse-block", "dropped-sparse-block", "local-steps-scaled"}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setenv("PYTHONPATH", str(REFERENCE.parent))
    with preloaded(tmp_path, *IMPORTS) as command:
        yield command


def test_the_reference_worker_passes_what_is_not_optional(command: list[str]) -> None:
    outcomes = play_scenarios(SCENARIOS.values(), [*command, str(REFERENCE)], jobs=4, limits=LIMITS)
    assert explain(outcomes) == []
    left_out = {one.scenario for one in outcomes if one.verdict == "not supported"}
    assert {name for name in left_out if not SCENARIOS[name].is_optional} == set()


def test_the_optional_worker_passes_what_it_supports(command: list[str]) -> None:
    chosen = [one for one in SCENARIOS.values() if one.shards == 1 and (FULL or one.is_optional)]
    outcomes = play_scenarios(chosen, [*command, str(OPTIONAL)], jobs=4, limits=LIMITS)
    assert explain(outcomes) == []
    tasks = {one.name: one.task for one in chosen}
    differences = {name for name, task in tasks.items() if BLOCKS.keys() & set(task.parameter_wire_types)}
    assert {one.scenario for one in outcomes if one.verdict == "not supported"} == NOT_SUPPORTED | differences


def test_every_fault_has_a_mutant() -> None:
    assert {one.fault for one in MUTANTS + OPTIONAL_MUTANTS} | ELSEWHERE == set(FaultName.__members__)


def test_the_fault_of_a_worker_that_hangs_says_what_it_should_have_done(tmp_path: Path) -> None:
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nsleep 60\n", encoding="utf-8")
    script.chmod(0o700)
    (outcome,) = play_scenarios([SCENARIOS["pull"]], [str(script)], jobs=1, limits=Limits(start=0.5))
    assert outcome.fault is not None
    assert (outcome.fault.name, outcome.fault.expected) == (FaultName.SILENT, "Join")
    assert outcome.fault.step == "2 of 3: answer pull"


def test_scenarios_are_listed_by_their_names_and_have_a_description() -> None:
    assert all(name == one.name and one.about for name, one in SCENARIOS.items())


@pytest.mark.parametrize("place", Place)
def test_each_place_is_a_file(place: Place) -> None:
    assert (ROOT / place.value.partition("#")[0]).is_file()
