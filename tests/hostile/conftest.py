"""Arenas for the attacks: a new one for each in the full form; shared by the attacks of a file in the short form."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.forms import FULL
from tests.hostile.attacks import Attack
from tests.hostile.harness import HEAD, Arena, Measure, Measured, row

MEASURED: list[Measured] = []
# A file that the table is written to, for the documentation.
TABLE = os.environ.get("GEMPS_TEST_HOSTILE_TABLE", "")


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Lets somebody attack; returns what became of the others."""
    with ExitStack() as stack:
        shared: dict[frozenset[str], Arena] = {}

        def folder() -> Path:
            return tmp_path_factory.mktemp("arena", numbered=True)

        def run(attack: Attack) -> Measured:
            if FULL:
                with Arena(folder(), attack.needs) as arena:
                    measured = arena.measure(attack)
                MEASURED.append(measured)
                return measured
            if attack.needs not in shared or not shared[attack.needs].alive():
                shared[attack.needs] = stack.enter_context(Arena(folder(), attack.needs))
            return shared[attack.needs].measure(attack)

        yield run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MEASURED:
        table = "\n".join([HEAD, *map(row, MEASURED)])
        terminalreporter.section("strangers and broken peers")
        terminalreporter.write_line(table)
        terminalreporter.section("what the attackers did, and the honest worker's transport")
        for one in MEASURED:
            did = ", ".join(f"{value} {name}" for name, value in one.facts.items())
            terminalreporter.write_line(f"{one.attack.target}: {one.attack.name}: {did}; {one.transport}")
        if TABLE:
            Path(TABLE).write_text(f"{table}\n")
