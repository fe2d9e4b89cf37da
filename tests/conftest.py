"""What all tests need to be the same everywhere, and the figures that some of them find."""

import signal
from collections.abc import Callable

import pytest

# A job in a shell's background ignores SIGINT and hands that down to every process it starts; the tests interrupt
# processes, and those must see it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[FIGURES]:
        terminalreporter.section("figures")
        for line in config.stash[FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a line that the summary shall show."""
    return pytestconfig.stash[FIGURES].append
