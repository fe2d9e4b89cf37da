"""examples/workers/cpp: built from nothing, its own tests.

What all workers in other languages are tested for is in test_other_languages.py.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.examples.building import CPP
from tests.examples.workers import ROOT, build, lines_of

# Of the layouts of .clang-format's many versions, the sources have that of Debian 12's.
CLANG_FORMAT = "14."

# A build from nothing takes a minute and a half on two slow cores.
pytestmark = pytest.mark.timeout(600)


def test_its_own_tests_pass(cpp_build: Path) -> None:
    said = build("ctest", "--output-on-failure", folder=cpp_build)
    assert "100% tests passed" in said
    assert int(re.search(r"out of (\d+)", said)[1]) >= 3  # type: ignore[index]


def test_its_sources_are_formatted() -> None:
    folder = ROOT / CPP
    if shutil.which("clang-format") is None or f" version {CLANG_FORMAT}" not in build(
        "clang-format", "--version", folder=folder
    ):
        pytest.skip(f"clang-format {CLANG_FORMAT}x is not installed, and others lay the sources out otherwise")
    sources = [str(path) for path in folder.glob("*/*.?pp") if path.parent.name in ("src", "tests")]
    assert len(sources) > 10
    build("clang-format", "--dry-run", "--Werror", *sources, folder=folder)


def test_it_is_short_enough_to_be_read() -> None:
    assert 300 < lines_of(*(ROOT / CPP / "src").glob("*.?pp")) <= 700
