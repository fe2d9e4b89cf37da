"""docs/design.md names files and functions that exist."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
FOLDERS = ("", "server/gem_server", "worker/gem_worker")
LISTED = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
SOURCES = LISTED.stdout.split()
TABLE = PAGE.partition("## 7. Where to look")[2].partition("\n## ")[0]


def path_of(name: str) -> Path:
    (path,) = {path for folder in FOLDERS if (path := ROOT / folder / name).exists()}
    return path


def names_in(path: Path) -> set[str]:
    """Functions, classes, and methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            functions = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in functions}
    return found


def places() -> list[tuple[str, str]]:
    """(file, name) of each place in the table."""
    found = []
    for row in re.findall(r"^\| [^|]+ \| ([^|]+) \|$", TABLE, re.MULTILINE)[1:]:
        for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", row):
            found += [(file, name) for name in re.findall(r"`([\w.]+)`", names)]
    return found


def test_the_table_names_places() -> None:
    assert len({file for file, _ in places()}) >= 20


@pytest.mark.parametrize(("file", "name"), places(), ids=lambda value: str(value))
def test_every_place_exists(file: str, name: str) -> None:
    assert name in names_in(path_of(file))


@pytest.mark.parametrize("file", sorted(set(re.findall(r"[\w/]+\.py\b", PAGE))))
def test_every_file_of_the_page_exists(file: str) -> None:
    assert [path for path in SOURCES if f"/{path}".endswith(f"/{file}")]
