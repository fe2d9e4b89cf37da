"""The table of all commands that were run."""

import pytest

from tests.docs.reader import Outcome

OUTCOMES = pytest.StashKey[list[Outcome]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOMES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    outcomes = config.stash[OUTCOMES]
    if not outcomes:
        return
    terminalreporter.section("commands of the documentation")
    for one in outcomes:
        seconds = "-" if one.seconds is None else f"{one.seconds:.1f} s"
        code = "-" if one.code is None else str(one.code)
        remark = f"  [{one.remark}]" if one.remark else ""
        where = f"{one.page}:{one.line}"
        terminalreporter.write_line(f"{where:16} {one.machine:9} {seconds:>9} {code:>4}  {one.command}{remark}")
    skipped = sum(one.skipped for one in outcomes)
    failed = sum(one.failed for one in outcomes)
    terminalreporter.write_line(f"{len(outcomes) - skipped - failed} as printed, {failed} failed, {skipped} left out")


@pytest.fixture(scope="session")
def outcomes(pytestconfig: pytest.Config) -> list[Outcome]:
    """Takes what the summary shall show."""
    return pytestconfig.stash[OUTCOMES]
