"""The kit with real candidates, each a process: right ones pass every scenario, wrong ones are told their fault."""

import sys
from pathlib import Path

import pytest
from gem_conformance import SCENARIOS, FaultName, Limits, play_scenarios

from gem_core.wire_types import BLOCKS
from tests.conformance.puppet import explain
from tests.conformance.reference_worker import Fault as Planted

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = [sys.executable, str(ROOT / "tests/conformance/reference_worker.py")]
# Where a planted fault shows; a worker that has it passes everything else.
SHOWN_IN = {
    Planted.NO_FOOTER: ("initialise", "commit-small", "commit-large"),
    Planted.WRONG_CHECKSUM: ("initialise", "commit-small", "commit-large"),
    Planted.NEW_SEQUENCE_ON_RETRY: ("torn-commit", "dropped-reply", "duplicate", "retry-info"),
    Planted.IGNORED_RETRY_INFO: ("retry-info",),
    Planted.STALE_BASE: ("commit-small", "stale-base", "restart"),
    Planted.WRONG_DIGEST: ("pull", "commit-large"),
    Planted.TRUNCATING_BFLOAT16: ("delta-bfloat16",),
}


@pytest.mark.long
def test_reference_worker_passes_every_scenario_of_one_server() -> None:
    outcomes = play_scenarios(SCENARIOS.values(), REFERENCE, jobs=3)
    assert [one.scenario for one in outcomes] == list(SCENARIOS)
    tasks = {name: one.task for name, one in SCENARIOS.items()}
    coarse = {name for name, one in tasks.items() if BLOCKS.keys() & {*one.delta_wire_types, *one.parameter_wire_types}}
    optional = coarse | {name for name, one in SCENARIOS.items() if one.shards > 1}
    assert {one.verdict for one in outcomes if one.scenario in optional} == {"not spoken"}
    assert explain([one for one in outcomes if one.scenario not in optional]) == []


@pytest.mark.parametrize("planted", SHOWN_IN, ids=lambda one: one.name)
def test_a_planted_fault_is_told_by_its_name(planted: Planted) -> None:
    outcomes = play_scenarios(
        [SCENARIOS[name] for name in SHOWN_IN[planted]],
        [*REFERENCE, "--fault", planted.name],
        jobs=3,
        limits=Limits(footer=3.0),
    )
    found = {one.scenario: one.fault.name if one.fault else one.verdict for one in outcomes}
    assert found == dict.fromkeys(SHOWN_IN[planted], FaultName[planted.name])


def test_the_scenarios_for_planted_faults_are_for_all_of_them() -> None:
    assert set(SHOWN_IN) == set(Planted)


@pytest.mark.parametrize(
    "planted",
    [
        "NEW_SEQUENCE_ON_RETRY",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("IGNORED_RETRY_INFO", "TRUNCATING_BFLOAT16")),
    ],
)
def test_a_planted_fault_shows_nowhere_else(planted: str) -> None:
    """Of the faults that most scenarios do not touch: whoever has one is not told that the rest is wrong, too."""
    others = ["initialise", "pull-resumed", "commit-large", "torn-reply", "stale-base", "delta-bfloat16", "finished"]
    elsewhere = [name for name in others if name not in SHOWN_IN[Planted[planted]]]
    outcomes = play_scenarios([SCENARIOS[name] for name in elsewhere], [*REFERENCE, "--fault", planted], jobs=3)
    assert explain(outcomes) == []
