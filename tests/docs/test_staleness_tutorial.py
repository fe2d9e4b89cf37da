"""The tutorial on staleness does what it says."""

import re
import subprocess
import sys
from itertools import dropwhile
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
STALENESS = TUTORIALS / "staleness.md"

pytest.importorskip("torch", exc_type=ImportError)


def simulated_rows() -> list[list[str]]:
    """The cells of the table of simulations."""
    lines = STALENESS.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == 6 and row[0].isdigit()]


def simulations() -> list[str]:
    """Run the page's commands, one for each row."""
    return [command.text for block in blocks_of(STALENESS) if block.runs for command in block.commands]


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_a_simulation_of_the_tutorial_has_the_figures_of_its_row(number: int) -> None:
    workers, steps, eta, staleness, pi, loss = simulated_rows()[number]
    command = simulations()[number]
    assert command == f"gemps simulate --workers {workers} --steps {steps} --eta {eta} --order round-robin"
    gemps = str(Path(sys.executable).with_name("gemps"))
    done = subprocess.run([gemps, *command.split()[1:]], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"all training samples ([\d.]+).*?^staleness ([\d.]+), pi ([\d.]+)", done.stdout, re.S | re.M)
    assert found is not None
    assert found[2] == staleness
    assert (float(found[3]), float(found[1])) == (
        pytest.approx(float(pi), rel=0.1),
        pytest.approx(float(loss), rel=0.3),
    )


def test_each_simulation_of_the_tutorial_has_a_row() -> None:
    assert len(simulations()) == len(simulated_rows()) == 5


def test_losses_of_an_optimizer_are_those_of_their_page() -> None:
    def found(page: Path) -> list[list[str]]:
        lines = page.read_text(encoding="utf-8").splitlines()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]

    rows = dropwhile(lambda row: "AdamW: ahead" not in row[-2], found(TUTORIALS.parent / "default.md"))
    figures: dict[tuple[str, ...], str] = {}
    for row in rows:
        if row[0] == "0.002":
            figures.setdefault(tuple(row[1:4]), row[4].partition("), ")[0].partition(", ")[0])
    columns, *shown = dropwhile(lambda row: row[0] != "n", found(STALENESS))
    assert columns == ["n", "alone, S", "alone, n S", "gemps (gain)"]
    assert len(shown) == 5
    for *case, loss in shown:
        assert figures[tuple(case)] == loss.removesuffix(")")
