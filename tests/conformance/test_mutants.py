"""The kit names the rule that each mutant breaks, and accepts workers that do something in another legal way."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gem_conformance import SCENARIOS, Outcome, play_scenarios

from tests.conformance.candidates import IMPORTS, LIMITS, OPTIONAL, REFERENCE, explain, write
from tests.conformance.mutants import ALLOWED_VARIANTS, MUTANTS, OPTIONAL_MUTANTS, AllowedVariant, Mutant
from tests.conformance.preloaded import preloaded

JOBS = 4
OF_EACH = [(REFERENCE, MUTANTS), (OPTIONAL, OPTIONAL_MUTANTS)]
# A scenario in which most mutants do nothing wrong.
SIMPLE = "pull"

Play = Callable[[Mutant | AllowedVariant, Path, Sequence[str]], list[Outcome]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Return a function that plays scenarios with an edited worker."""
    monkeypatch.setenv("PYTHONPATH", str(REFERENCE.parent))
    with preloaded(tmp_path, *IMPORTS) as command:

        def play(edited: Mutant | AllowedVariant, worker: Path, scenarios: Sequence[str]) -> list[Outcome]:
            script = write(edited, worker, tmp_path)
            return play_scenarios(
                [SCENARIOS[name] for name in scenarios], [*command, str(script)], jobs=1, limits=LIMITS
            )

        yield play


@pytest.mark.parametrize(("worker", "mutants"), OF_EACH, ids=["reference", "optional"])
def test_the_kit_names_the_fault_of_each_mutant(play: Play, worker: Path, mutants: list[Mutant]) -> None:
    def problem(one: Mutant) -> str:
        (outcome,) = play(one, worker, [one.scenario])
        name = outcome.fault.name.name if outcome.fault else outcome.verdict
        return "" if name == one.fault else f"{one.name}: {one.fault} expected, {outcome.fault or name} found"

    with ThreadPoolExecutor(JOBS) as threads:
        assert [text for text in threads.map(problem, mutants) if text] == []


@pytest.mark.long
@pytest.mark.parametrize(("worker", "mutants"), OF_EACH, ids=["reference", "optional"])
def test_mutants_have_no_other_fault_in_a_simple_scenario(play: Play, worker: Path, mutants: list[Mutant]) -> None:
    def failures(one: Mutant) -> list[str]:
        outcomes = play(one, worker, [SIMPLE])
        return explain(outcome for outcome in outcomes if outcome.fault and outcome.fault.name.name != one.fault)

    with ThreadPoolExecutor(JOBS) as threads:
        assert [text for texts in threads.map(failures, mutants) for text in texts] == []


def test_allowed_variants_pass(play: Play) -> None:
    def failures(one: AllowedVariant) -> list[str]:
        outcomes = play(one, REFERENCE, one.scenarios)
        return explain(outcomes) + [one.scenario for one in outcomes if one.verdict == "not supported"]

    with ThreadPoolExecutor(JOBS) as threads:
        assert [text for texts in threads.map(failures, ALLOWED_VARIANTS) for text in texts] == []
