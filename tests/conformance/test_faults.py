"""Each fault of the kit is named when a worker has it, and only then."""

from pathlib import Path

import pytest
from gem_conformance import SCENARIOS, FaultError, FaultName, Place

from tests.conformance import shard_workers  # noqa: F401 - adds to RIGHT and WRONG
from tests.conformance.puppet import Puppet, Steps, begin, verdict_on
from tests.conformance.right_workers import RIGHT
from tests.conformance.wrong_workers import WRONG, Wrong

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("worker", WRONG, ids=[f"{one.name.name}-{one.scenario}-{one.steps.__name__}" for one in WRONG])
def test_fault_is_named_and_explained(worker: Wrong) -> None:
    fault = verdict_on(SCENARIOS[worker.scenario], worker.steps, by_hand=False)
    assert isinstance(fault, FaultError)
    assert fault.name is worker.name, str(fault)
    assert worker.expected in fault.expected
    assert worker.came in fault.came
    assert worker.after in fault.after
    assert fault.after in str(fault)
    assert worker.place in (None, fault.place)


def test_a_worker_that_met_nothing_unusual_is_told_of_nothing_such() -> None:
    def steps(puppet: Puppet) -> None:
        begin(puppet)
        puppet.exits(1)

    fault = verdict_on(SCENARIOS["stale-base"], steps, by_hand=False)
    assert isinstance(fault, FaultError)
    assert (fault.after, fault.expected) == ("", "a commit's header")


def test_every_fault_has_a_worker_that_shows_it() -> None:
    assert {one.name for one in WRONG} == set(FaultName)


def test_every_scenario_has_a_place_in_the_table_under_its_own_name() -> None:
    assert all(name == one.name and one.about for name, one in SCENARIOS.items())


def test_each_place_is_a_heading_of_the_protocols_page() -> None:
    page = ROOT / "docs/protocol.md"
    headings = [line[3:].strip() for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert {one.value for one in Place} <= set(headings)


def test_place_is_linked_as_github_makes_anchors() -> None:
    assert Place.CHUNKS.link == "docs/protocol.md#chunks-footers-and-checksums"
    assert Place.RETRIES.link == "docs/protocol.md#retries-and-exactly-once"


def test_status_3_is_no_fault_where_a_worker_may_not_speak_something() -> None:
    def steps(puppet: Puppet) -> None:
        puppet.exits(3)

    assert verdict_on(SCENARIOS["delta-int4-block"], steps, by_hand=False) == "not spoken"


def test_a_worker_of_one_server_may_leave_before_it_ends_with_status_3() -> None:
    def steps(puppet: Puppet) -> None:
        puppet.join()
        puppet.leave()
        puppet.exits(3)

    assert verdict_on(SCENARIOS["shards-small"], steps, by_hand=False) == "not spoken"


@pytest.mark.parametrize(("scenario", "steps"), RIGHT, ids=[f"{one[0]}-{one[1].__name__}" for one in RIGHT])
def test_what_the_contract_allows_is_not_blamed(scenario: str, steps: Steps) -> None:
    assert verdict_on(SCENARIOS[scenario], steps) is None
