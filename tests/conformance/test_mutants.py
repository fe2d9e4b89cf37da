"""The kit catches workers that break one rule, by the right name, and leaves those alone that do it in another way."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gem_conformance import SCENARIOS, Outcome, play_scenarios

from tests.conformance.candidates import IMPORTS, LIMITS, OPTIONAL, REFERENCE, explain, write
from tests.conformance.mutants import LIBERTIES, MUTANTS, OPTIONAL_MUTANTS, Liberty, Mutant
from tests.conformance.preloaded import preloaded

JOBS = 4
OF_EACH = [(REFERENCE, MUTANTS), (OPTIONAL, OPTIONAL_MUTANTS)]
# Most mutants do nothing wrong in it.
SIMPLE = "pull"

Play = Callable[[Mutant | Liberty, Path, Sequence[str]], list[Outcome]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Plays scenarios with an edited worker."""
    monkeypatch.setenv("PYTHONPATH", str(REFERENCE.parent))
    with preloaded(tmp_path, *IMPORTS) as command:

        def play(edited: Mutant | Liberty, worker: Path, scenarios: Sequence[str]) -> list[Outcome]:
            script = write(edited, worker, tmp_path)
            return play_scenarios(
                [SCENARIOS[name] for name in scenarios], [*command, str(script)], jobs=1, limits=LIMITS
            )

        yield play


@pytest.mark.parametrize(("worker", "mutants"), OF_EACH, ids=["reference", "optional"])
def test_mutants_are_caught_by_the_names_of_what_they_break(play: Play, worker: Path, mutants: list[Mutant]) -> None:
    def problem(one: Mutant) -> str:
        (outcome,) = play(one, worker, [one.scenario])
        name = outcome.fault.name.name if outcome.fault else outcome.verdict
        return "" if name == one.fault else f"{one.name}: {one.fault} expected, {outcome.fault or name} found"

    with ThreadPoolExecutor(JOBS) as threads:
        assert [text for text in threads.map(problem, mutants) if text] == []


@pytest.mark.long
@pytest.mark.parametrize(("worker", "mutants"), OF_EACH, ids=["reference", "optional"])
def test_mutants_are_not_blamed_for_anything_else(play: Play, worker: Path, mutants: list[Mutant]) -> None:
    def blamed(one: Mutant) -> list[str]:
        outcomes = play(one, worker, [SIMPLE])
        return explain(outcome for outcome in outcomes if outcome.fault and outcome.fault.name.name != one.fault)

    with ThreadPoolExecutor(JOBS) as threads:
        assert [text for texts in threads.map(blamed, mutants) for text in texts] == []


def test_what_the_contract_allows_is_not_blamed(play: Play) -> None:
    def blamed(one: Liberty) -> list[str]:
        outcomes = play(one, REFERENCE, one.scenarios)
        return explain(outcomes) + [one.scenario for one in outcomes if one.verdict == "not supported"]

    with ThreadPoolExecutor(JOBS) as threads:
        assert [text for texts in threads.map(blamed, LIBERTIES) for text in texts] == []
