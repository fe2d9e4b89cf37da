"""What all tests need to be the same everywhere, and the figures that some of them find."""

import re
import signal
from collections import Counter
from typing import Any

import hypothesis  # noqa: F401 - or its plugin imports it at a run's end, where Python 3.11 failed to parse it
import pytest

from tests.figures import Figures
from tests.forms import FULL, MARKS

# A job in a shell's background ignores SIGINT and hands that down to every process it starts; the tests interrupt
# processes, and those must see it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIGURES = pytest.StashKey[Figures]()
# Whatever uses one of these fixtures has its mark.
FIXTURES = {"hosts": "hosts", "images": "containers", "slurm": "engines", "spark": "engines", "context": "engines"}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = Figures()
    for mark, why in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: left out unless it is asked for, because {why}")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for = set(re.findall(r"\w+", config.option.markexpr))
    if FULL:
        asked_for.add("long")
    for item in items:
        for fixture in FIXTURES.keys() & getattr(item, "fixturenames", ()):
            item.add_marker(FIXTURES[fixture])
        marks = [mark for mark in MARKS if item.get_closest_marker(mark)]
        wanted = [mark for mark in marks if mark != "long"] or marks
        if wanted and asked_for.isdisjoint(wanted):
            item.add_marker(pytest.mark.skip(reason=f"{MARKS[wanted[0]]}: run `python -m pytest -m {wanted[0]}`"))
    _order(config, items)


def _order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the files none shall be alone at the end: long tests come first, in files of few tests."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: tests[item.path])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several that share the files hands its figures to the one that writes the summary."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = session.config.stash[FIGURES].rows


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Such a process has ended. A hook of pytest-xdist."""
    for row in getattr(node, "workeroutput", {}).get("figures", ()):
        node.config.stash[FIGURES](*row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = list(config.stash[FIGURES].lines())
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    """Takes a row that the summary shall show: what was done, and what was found."""
    return pytestconfig.stash[FIGURES]
