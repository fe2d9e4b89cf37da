"""Hosts of a test's own, where they can be made, and the figures that the tests find."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts.cluster import Cluster, cluster, why_not

FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[FIGURES]:
        terminalreporter.section("figures of several hosts")
        for line in config.stash[FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a line that the summary shall show."""
    return pytestconfig.stash[FIGURES].append


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Cluster]:
    """A server's host and three workers' hosts, or a skip that says what is missing."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster(tmp_path, workers=3) as made:
        yield made
