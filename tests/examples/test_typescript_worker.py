"""examples/workers/typescript: built from nothing, its own tests, and what is its own in its command line.

What all workers in other languages are tested for is in test_other_languages.py.
"""

import re
from pathlib import Path

import pytest

from tests.examples.building import TYPESCRIPT, typescript_checkout
from tests.examples.workers import ROOT, build, lines_of

# With the packages fetched and everything compiled.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the worker is made of, built as its README says."""
    return typescript_checkout(tmp_path_factory)


@pytest.mark.long
def test_its_own_tests_pass_and_its_files_are_formatted(checkout: Path) -> None:
    assert re.search(r"^# fail 0$", build("npm", "test", folder=checkout / TYPESCRIPT), re.MULTILINE)
    build("npm", "run", "check-format", folder=checkout / TYPESCRIPT)


def test_it_is_short_enough_to_be_read() -> None:
    assert 300 < lines_of(*(ROOT / TYPESCRIPT / "src").glob("*.ts")) <= 700
