"""docs/rules.md says of every rule what the rule says of itself."""

import re
from pathlib import Path

import pytest

from gem_core import create_rule, rule_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def rows(section: str) -> dict[str, list[str]]:
    """The cells behind the name, by rule, of the table in a section."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = (re.split(r"(?<!\\)\|", line.strip("| "))[:] for line in text.splitlines() if line.startswith("| `"))
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in cells}


def test_the_page_has_every_rule_of_gemps_and_no_other() -> None:
    assert list(rows("What they do")) == list(rule_names())
    assert list(rows("Settings and memory")) == list(rule_names())


@pytest.mark.parametrize("name", rule_names())
def test_settings_defaults_and_memory_are_those_of_the_rule(name: str) -> None:
    rule = create_rule(name)
    settings, worker, run = rows("Settings and memory")[name]
    told = {found[1]: float(found[2]) for found in re.finditer(r"`(\w+)`(?: \([^)]*\))? ([-\d.e]+)", settings)}
    assert told == dict(rule.settings)
    assert (int(worker.partition(",")[0]), int(run)) == (rule.vectors_per_worker, rule.vectors_per_run)


@pytest.mark.parametrize("name", rule_names())
def test_what_is_sent_back_is_said(name: str) -> None:
    assert (rows("What they do")[name][-1] == "θ") == create_rule(name).sends_parameters


@pytest.mark.parametrize("name", [name for name in rule_names() if name not in ("downpour", "adaptive-staleness")])
def test_the_source_is_that_of_the_rules_file(name: str) -> None:
    number = re.search(r"arxiv\.org/abs/([\d.]+)", rows("What they do")[name][1])
    assert number is not None
    file = PAGE.parents[1] / "gem_core" / "rules" / f"{name.replace('-', '_')}.py"
    assert number[1] in file.read_text(encoding="utf-8")
