"""What all tests need to be the same everywhere, and the figures that some of them find."""

import os
import signal
from collections import Counter
from typing import Any

import hypothesis  # noqa: F401 - or its plugin imports it at a run's end, where Python 3.11 failed to parse it
import pytest

from tests.figures import Figures

# A job in a shell's background ignores SIGINT and hands that down to every process it starts; the tests interrupt
# processes, and those must see it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIGURES = pytest.StashKey[Figures]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = Figures()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("GEMPS_TEST_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes long: run `make test-long`"))
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
